"""The modules generated from the .proto files."""

import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import google.rpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import Default, DescriptorPool
from grpc_tools import protoc

from alpacamq.api.grpc.services import Descriptors

PROTOS = sorted(Path(str(files("alpacamq") / "v1")).glob("*.proto"))


@cache
def _parsed() -> DescriptorPool:
    """Return the files as protoc reads them now."""
    site = next(iter(google.rpc.__path__)).removesuffix("/google/rpc")
    standard = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "descriptors"
        arguments = ["protoc", f"-I{PROTOS[0].parents[2]}", f"-I{site}", f"-I{standard}", "--include_imports"]
        arguments += [f"--descriptor_set_out={output}", *map(str, PROTOS)]
        assert protoc.main(arguments) == 0
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(output.read_bytes()).file:
            pool.Add(file)
        return pool


def _content(pool: Any, name: str) -> FileDescriptorProto:
    """Return a file as a pool has it: names in JSON, which not every protoc writes, included."""
    found = FileDescriptorProto()
    pool.FindFileByName(name).CopyToProto(found)
    for message in _messages(found.message_type):
        for field in message.field:
            field.ClearField("json_name")
    return found


def _messages(messages: Any) -> Iterator[Any]:
    for message in messages:
        yield message
        yield from _messages(message.nested_type)


def _json_names(pool: Any, name: str) -> dict[str, str]:
    messages = pool.FindFileByName(name).message_types_by_name.values()
    return {field.full_name: field.json_name for message in messages for field in message.fields}


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_modules_are_those_of_the_proto_files(proto: Path) -> None:
    """Fails after a change of a .proto file without `make proto`."""
    import_module(f"alpacamq.v1.{proto.stem}_pb2")
    name = f"alpacamq/v1/{proto.name}"
    assert _content(Default(), name) == _content(_parsed(), name)
    assert _json_names(Default(), name) == _json_names(_parsed(), name)


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_services_have_stubs_of_every_method(proto: Path) -> None:
    module = import_module(f"alpacamq.v1.{proto.stem}_pb2")
    for service in module.DESCRIPTOR.services_by_name.values():
        stubs = import_module(f"alpacamq.v1.{proto.stem}_grpc")
        assert hasattr(stubs, f"{service.name}Stub")
        base = getattr(stubs, f"{service.name}Base")
        assert {method.name for method in service.methods} <= set(dir(base))


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_numbers_and_names_of_fields_are_unique_and_follow_the_style(proto: Path) -> None:
    """What clients rely on: enumerations begin with an unspecified zero, whose name has their prefix."""
    module = import_module(f"alpacamq.v1.{proto.stem}_pb2")
    for enum in module.DESCRIPTOR.enum_types_by_name.values():
        prefix = "".join(f"_{each}" if each.isupper() else each.upper() for each in enum.name)[1:]
        assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
        assert all(value.name.startswith(f"{prefix}_") for value in enum.values)
    for message in module.DESCRIPTOR.message_types_by_name.values():
        assert all(field.name.islower() for field in message.fields)


@pytest.mark.parametrize("symbol", ["alpacamq.v1.Producer", "alpacamq.v1.Producer.Send"])
def test_reflection_finds_services_and_methods(symbol: str) -> None:
    assert Descriptors().FindFileContainingSymbol(symbol).name == "alpacamq/v1/producer.proto"


@pytest.mark.parametrize("symbol", ["alpacamq.v1.Producer.Nothing", "alpacamq.v1", ""])
def test_reflection_does_not_find_other_symbols(symbol: str) -> None:
    with pytest.raises(KeyError):
        Descriptors().FindFileContainingSymbol(symbol)
