"""The reference page of the gRPC API, from its .proto files and their comments."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import google.rpc
from google.api import annotations_pb2  # the option of methods with a route
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)
from grpc_tools import protoc

SOURCES = Path(__file__).parent.parent / "src"
PACKAGE = "alpacamq/v1"
# In this order; others follow.
FIRST = ("producer", "log", "queue", "messages", "admin", "groups", "transactions", "delays", "dead_letters")
# Numbers of fields in the descriptors, which paths of comments consist of.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _NESTED_ENUMS, _VALUES, _METHODS = 2, 3, 4, 2, 2

INTRODUCTION = """\
# gRPC reference

Every service and message of the [gRPC API](../guide/grpc.md), package `alpacamq.v1`. This page is generated
by `make docs` from the `.proto` files, which are part of the Python package, in `alpacamq/v1`.

A method with a route is served by the [HTTP API](http.md): rights, limits and errors are those of the route,
and fields that are not set have its defaults. Times are milliseconds since 1970 unless a field says
otherwise. Optional fields tell an absent value from zero or an empty one.
"""


def descriptors() -> Sequence[FileDescriptorProto]:
    """Return the .proto files as protoc reads them, with their comments."""
    site = next(iter(google.rpc.__path__)).removesuffix("/google/rpc")
    standard = Path(protoc.__file__).parent / "_proto"
    files = sorted(SOURCES.glob(f"{PACKAGE}/*.proto"))
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "descriptors"
        arguments = ["protoc", f"-I{SOURCES}", f"-I{site}", f"-I{standard}", "--include_source_info"]
        arguments += [f"--descriptor_set_out={output}", *(str(each) for each in files)]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc has failed")
        return list(FileDescriptorSet.FromString(output.read_bytes()).file)


class Source:
    """One .proto file with its comments."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self.file = file
        self._comments: Mapping[tuple[int, ...], str] = MappingProxyType(
            {
                tuple(each.path): (each.leading_comments or each.trailing_comments).strip()
                for each in file.source_code_info.location
            }
        )

    def comment(self, *path: int) -> str:
        """Return the comment of something as one paragraph."""
        text = self._comments.get(path, "")
        return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))

    @property
    def summary(self) -> str:
        """The comment at the top of the file."""
        for each in self.file.source_code_info.location:
            if list(each.path) == [12]:  # the syntax
                detached = " ".join(each.leading_detached_comments)
                return " ".join(detached.split())
        return ""


def grpc_reference() -> str:
    """Return the page."""
    found = {each.name.rpartition("/")[2].removesuffix(".proto"): Source(each) for each in descriptors()}
    order = [*FIRST, *sorted(found.keys() - set(FIRST))]
    parts = [INTRODUCTION]
    for name in order:
        parts += _services(found[name])
    parts.append("## Messages\n")
    for name in order:
        parts += _messages(found[name])
    return "\n".join(parts)


def _services(source: Source) -> Iterator[str]:
    for index, service in enumerate(source.file.service):
        yield f"## {service.name}\n\n{source.summary}\n"
        for number, method in enumerate(service.method):
            yield _method(service.name, method, source.comment(_SERVICES, index, _METHODS, number))


def _method(service: str, method: MethodDescriptorProto, comment: str) -> str:
    lines = [f"### {service}.{method.name}\n"]
    if comment:
        lines.append(f"{comment}\n")
    request = _link(method.input_type)
    response = _link(method.output_type)
    lines.append(f"- Request: {'stream of ' if method.client_streaming else ''}{request}")
    lines.append(f"- Response: {'stream of ' if method.server_streaming else ''}{response}")
    if method.options.HasExtension(annotations_pb2.http):
        rule = method.options.Extensions[annotations_pb2.http]
        routes = []
        for each in (rule, *rule.additional_bindings):
            verb = each.WhichOneof("pattern")
            routes.append(f"`{verb.upper()} {getattr(each, verb)}`")
        lines.append(f"- HTTP: {', '.join(routes)}")
    return "\n".join(lines) + "\n"


def _messages(source: Source) -> Iterator[str]:
    for index, message in enumerate(source.file.message_type):
        yield from _message(source, message, (_MESSAGES, index))
    for index, enum in enumerate(source.file.enum_type):
        yield _enum(source, enum, (_ENUMS, index))


def _message(source: Source, message: DescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
    lines = [f"### {message.name}\n"]
    if comment := source.comment(*path):
        lines.append(f"{comment}\n")
    if message.field:
        lines += ["| field | number | type | meaning |", "|---|---|---|---|"]
    else:
        lines.append("No fields.")
    entries = {each.name: each for each in message.nested_type if each.options.map_entry}
    for number, field in enumerate(message.field):
        meaning = source.comment(*path, _FIELDS, number).replace("\n\n", " ")
        kind = _type(field, entries)
        if field.HasField("oneof_index") and not field.proto3_optional:
            kind += f", one of `{message.oneof_decl[field.oneof_index].name}`"
        lines.append(f"| `{field.name}` | {field.number} | {kind} | {meaning} |")
    yield "\n".join(lines) + "\n"
    for number, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(source, nested, (*path, _NESTED, number))
    for number, enum in enumerate(message.enum_type):
        yield _enum(source, enum, (*path, _NESTED_ENUMS, number))


def _enum(source: Source, enum: EnumDescriptorProto, path: tuple[int, ...]) -> str:
    lines = [f"### {enum.name}\n"]
    if comment := source.comment(*path):
        lines.append(f"{comment}\n")
    lines += ["| value | number | meaning |", "|---|---|---|"]
    for number, value in enumerate(enum.value):
        meaning = source.comment(*path, _VALUES, number).replace("\n\n", " ")
        lines.append(f"| `{value.name}` | {value.number} | {meaning} |")
    return "\n".join(lines) + "\n"


def _type(field: FieldDescriptorProto, entries: Mapping[str, DescriptorProto]) -> str:
    name = field.type_name.rpartition(".")[2]
    if name in entries:
        key, value = entries[name].field
        return f"map of {_type(key, {})} to {_type(value, {})}"
    if field.type_name:
        kind = _link(field.type_name)
    else:
        kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {kind}"
    return f"optional {kind}" if field.proto3_optional else kind


def _link(name: str) -> str:
    """Return a link to a message of ours, or the name of another one."""
    short = name.rpartition(".")[2]
    if name.startswith(".alpacamq.v1."):
        return f"[{short}](#{short.lower()})"
    return f"`{name.removeprefix('.')}`"
