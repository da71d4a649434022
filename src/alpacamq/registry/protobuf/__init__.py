"""The Protobuf language of the registry: proto2, proto3 and editions.

Texts are parsed by protoc, which runs elsewhere; this package begins with descriptors. `sources` prepares
texts for the compiler, `descriptors` has the files that any schema may import, `printing` writes descriptors
as text, `compatibility` compares them by Confluent's rules, and `data` reads and writes records.
"""

import base64
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from alpacamq.registry.messages import Source
from alpacamq.registry.schema import (
    Dependency,
    Incompatibility,
    InvalidSchema,
    Mismatch,
    ParsedSchema,
    SchemaType,
)

from .compatibility import incompatibilities
from .data import Messages
from .descriptors import ROOT_NAME, FileProto, build_pool, read_base64, with_builtins
from .printing import print_file


class ProtobufSchema:
    """A valid Protobuf schema."""

    def __init__(
        self,
        serialized: bytes,
        dependencies: Sequence[bytes] = (),
        canonical: str | None = None,
        normalized: str | None = None,
    ) -> None:
        """Take a serialized FileDescriptorProto, those it imports, and its texts if they are known.

        Built-in files need not be among the dependencies.
        """
        self._serialized = serialized
        self._dependencies = dependencies
        self._canonical = canonical
        self._normalized = normalized

    @property
    def canonical(self) -> str:
        if self._canonical is None:
            self._canonical = print_file(self._file, self._pool)
        return self._canonical

    @property
    def normalized(self) -> str:
        if self._normalized is None:
            self._normalized = print_file(self._file, self._pool, is_normalized=True)
        return self._normalized

    @property
    def imports(self) -> Sequence[str]:
        """Return the names of the files that the schema imports."""
        return list(self._file.dependency)

    def prepare(self) -> None:
        """Build what checks of data and comparisons need, which takes long for a large schema."""
        assert self._messages is not None

    def serialized(self) -> str:
        """Return the FileDescriptorProto in base64."""
        return _base64(self._serialized)

    @property
    def descriptors(self) -> Source:
        """Return what `from_descriptors` needs to build the schema elsewhere."""
        used = (Dependency(FileProto.FromString(each).name, _base64(each)) for each in self._dependencies)
        return Source(SchemaType.PROTOBUF, self.serialized(), tuple(used))

    def incompatibilities(self, writer: ParsedSchema) -> Sequence[Incompatibility]:
        assert isinstance(writer, ProtobufSchema)
        return incompatibilities(self._file, self._files, writer._file, writer._files)

    @cached_property
    def mismatch(self) -> Callable[[bytes | memoryview], Mismatch | None]:
        """Return the function that checks one value."""
        return self._messages.mismatch

    def record_name(self, data: bytes | memoryview) -> str | None:
        return self._messages.name(data)

    def message_class(self, name: str | None = None) -> Any:
        """Return the class of the named message, or of the first. Raises InvalidData if there is none."""
        return self._messages.named(name)

    def indexes(self, name: str | None = None) -> bytes:
        """Return what records of the named message, or of the first, begin with. Raises InvalidData."""
        return self._messages.indexes(name)

    def split(self, data: bytes | memoryview) -> tuple[str, bytes | memoryview]:
        """Return the full name of a record's message, and the message without indexes. Raises InvalidData."""
        return self._messages.split(data)

    def decode(self, data: bytes | memoryview) -> Any:
        """Return a record as the value of its JSON form. Raises InvalidData."""
        return self._messages.decode(data)

    def encode(self, value: Any, message: str | None = None) -> bytes:
        """Return a record of the JSON form of the named message, or of the first. Raises InvalidData."""
        return self._messages.encode(value, message)

    @cached_property
    def _file(self) -> Any:
        return FileProto.FromString(self._serialized)

    @property
    def _files(self) -> Sequence[Any]:
        return with_builtins([*(FileProto.FromString(each) for each in self._dependencies), self._file])

    @cached_property
    def _pool(self) -> Any:
        return build_pool(self._files)

    @cached_property
    def _messages(self) -> Messages:
        return Messages(self._file, self._pool)


def from_descriptors(serialized: str, dependencies: Sequence[Dependency] = ()) -> ProtobufSchema:
    """Return a schema without a compiler: from FileDescriptorProtos in base64, as `serialized` returns them.

    Raises InvalidSchema.
    """
    files = []
    for name, text in (*dependencies, (ROOT_NAME, serialized)):
        if (file := read_base64(text)) is None:
            raise InvalidSchema(f"{name} is no FileDescriptorProto in base64")
        file.name = name
        files.append(file.SerializeToString())
    schema = ProtobufSchema(files[-1], files[:-1])
    schema.prepare()
    return schema


def _base64(file: bytes) -> str:
    return base64.b64encode(file).decode()
