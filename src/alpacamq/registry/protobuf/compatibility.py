"""Compares Protobuf schemas by the rules of Confluent's registry.

A field is known by its number, a message by its name. Confluent names every difference; those listed in
`_MESSAGES` are incompatible and reported, the others are not. Types of the schema itself are compared by
name; imported types are compared where a field uses them, because their file is no part of the comparison.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as FieldProto

from alpacamq.registry.schema import Incompatibility

_MESSAGES: Final = {
    "PACKAGE_CHANGED": "the package is {reader} instead of {writer}",
    "MESSAGE_REMOVED": "message {writer} is missing",
    "FIELD_KIND_CHANGED": "field {name} is {reader} instead of {writer}",
    "FIELD_SCALAR_KIND_CHANGED": "field {name} is {reader} instead of {writer}, which is encoded differently",
    "FIELD_NAMED_TYPE_CHANGED": "field {name} has type {reader}, which cannot read {writer}",
    "FIELD_NUMERIC_LABEL_CHANGED": "numeric field {name} is {reader} instead of {writer}",
    "REQUIRED_FIELD_ADDED": "required field {name} is new; earlier data does not have it",
    "REQUIRED_FIELD_REMOVED": "required field {name} is missing",
    "ONEOF_FIELD_REMOVED": "field {name} of oneof {writer} is missing",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": "oneof {reader} has several fields that were independent: {name}",
    "FIELD_MOVED_TO_EXISTING_ONEOF": "oneof {reader} has fields that did not exclude each other: {name}",
}

# Scalars that are encoded in the same way, by https://protobuf.dev/programming-guides/proto3/#updating
_SCALAR_KINDS: Final = {
    **dict.fromkeys(
        (
            *(FieldProto.TYPE_INT32, FieldProto.TYPE_INT64, FieldProto.TYPE_UINT32, FieldProto.TYPE_UINT64),
            *(FieldProto.TYPE_BOOL, FieldProto.TYPE_ENUM),
        ),
        "varint",
    ),
    **dict.fromkeys((FieldProto.TYPE_SINT32, FieldProto.TYPE_SINT64), "zigzag"),
    **dict.fromkeys((FieldProto.TYPE_STRING, FieldProto.TYPE_BYTES), "bytes"),
    **dict.fromkeys((FieldProto.TYPE_FIXED32, FieldProto.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((FieldProto.TYPE_FIXED64, FieldProto.TYPE_SFIXED64), "fixed64"),
    FieldProto.TYPE_FLOAT: "float",
    FieldProto.TYPE_DOUBLE: "double",
}


class _Type(NamedTuple):
    """A message or enum, where it is, and in which file."""

    proto: Any
    local_name: str  # without the package
    file: "_File"


class _File(NamedTuple):
    syntax: str
    is_own: bool  # not imported


class _Types:
    """All types of a schema and its imports, by their full names with a leading dot."""

    def __init__(self, files: Iterable[Any], own: Any) -> None:
        self._types: dict[str, _Type] = {}
        for proto in files:
            file = _File(proto.syntax, proto.name == own.name)
            prefix = f".{proto.package}." if proto.package else "."
            left = [(each.name, each) for each in (*proto.message_type, *proto.enum_type)]
            while left:
                local, type_proto = left.pop()
                self._types[prefix + local] = _Type(type_proto, local, file)
                if hasattr(type_proto, "nested_type"):
                    left += [
                        (f"{local}.{each.name}", each)
                        for each in (*type_proto.nested_type, *type_proto.enum_type)
                    ]

    def __getitem__(self, name: str) -> _Type:
        return self._types[name]

    def map_entry(self, field: Any) -> Any:
        """Return the message of the entries if a field is a map."""
        if field.type != FieldProto.TYPE_MESSAGE:
            return None
        proto = self._types[field.type_name].proto
        return proto if proto.options.map_entry else None


class _Use(NamedTuple):
    """A field whose types are imported, and the pair of types."""

    difference: Incompatibility
    pair: tuple[str, str]


def incompatibilities(
    reader: Any, reader_files: Iterable[Any], writer: Any, writer_files: Iterable[Any]
) -> list[Incompatibility]:
    """Return the incompatible differences between the files of a reader and a writer."""
    return _Comparison(reader, _Types(reader_files, reader), writer, _Types(writer_files, writer)).run()


class _Comparison:
    def __init__(self, reader: Any, read: _Types, writer: Any, written: _Types) -> None:
        self._reader = reader
        self._read = read
        self._writer = writer
        self._written = written
        self._found: list[Incompatibility] = []
        self._syntaxes = (writer.syntax, reader.syntax)
        # Pairs of imported types: those to compare, those that differ, and the fields that use them.
        self._pairs: dict[tuple[str, str], None] = {}
        self._open: deque[tuple[str, str]] = deque()
        self._different: set[tuple[str, str]] = set()
        self._uses: list[tuple[tuple[str, str] | None, _Use]] = []
        self._current: tuple[str, str] | None = None

    def run(self) -> list[Incompatibility]:
        if self._writer.package != self._reader.package:
            self._add(
                "PACKAGE_CHANGED",
                "",
                writer=self._writer.package or "none",
                reader=self._reader.package or "none",
            )
        self._compare_messages(self._writer.message_type, self._reader.message_type, "")
        while self._open:
            self._current = pair = self._open.popleft()
            old, new = self._written[pair[0]], self._read[pair[1]]
            self._syntaxes = (old.file.syntax, new.file.syntax)
            self._compare_message(old.proto, new.proto, "/" + new.local_name.replace(".", "/"))
        self._report_uses()
        return self._found

    def _report_uses(self) -> None:
        """Report the fields whose imported types differ, themselves or in types that those use."""
        users: dict[tuple[str, str], list[tuple[tuple[str, str] | None, _Use]]] = {}
        for user, use in self._uses:
            users.setdefault(use.pair, []).append((user, use))
        left = list(self._different)
        reached = set(left)
        while left:
            for user, use in users.get(left.pop(), ()):
                self._found.append(use.difference)
                if user is not None and user not in reached:
                    reached.add(user)
                    left.append(user)

    def _add(self, rule: str, path: str, *, name: str = "", writer: str = "", reader: str = "") -> None:
        self._found.append(_difference(rule, path, name=name, writer=writer, reader=reader))
        if self._current is not None:
            self._different.add(self._current)

    def _compare_messages(self, old: Sequence[Any], new: Sequence[Any], path: str) -> None:
        now = {message.name: message for message in new if not message.options.map_entry}
        for message in old:
            if message.options.map_entry:
                continue
            place = f"{path}/{message.name}"
            if message.name in now:
                self._compare_message(message, now[message.name], place)
            else:
                self._add("MESSAGE_REMOVED", place, writer=message.name)

    def _compare_message(self, old: Any, new: Any, path: str) -> None:
        before, after = _Fields(old), _Fields(new)
        for oneof, members in after.oneofs.items():
            self._compare_oneof(oneof, members, before, path)
        for number in sorted(before.by_number.keys() | after.by_number.keys()):
            was, now = before.by_number.get(number), after.by_number.get(number)
            if now is None:
                self._field_removed(was, before, after, path)
            elif was is None:
                if _label(now, self._syntaxes[1]) == "required":
                    self._add("REQUIRED_FIELD_ADDED", f"{path}/{number}", name=now.name)
            else:
                step = after.oneof_of.get(number)
                self._compare_fields(was, now, f"{path}/{step}/{number}" if step else f"{path}/{number}")
        self._compare_messages(old.nested_type, new.nested_type, path)

    def _field_removed(self, was: Any, before: "_Fields", after: "_Fields", path: str) -> None:
        oneof = before.oneof_of.get(was.number)
        if oneof is None:
            if _label(was, self._syntaxes[0]) == "required":
                self._add("REQUIRED_FIELD_REMOVED", f"{path}/{was.number}", name=was.name)
            return
        # A oneof may go as a whole.
        if oneof in after.oneofs or any(each.number in after.by_number for each in before.oneofs[oneof]):
            self._add("ONEOF_FIELD_REMOVED", f"{path}/{oneof}/{was.number}", name=was.name, writer=oneof)

    def _compare_oneof(self, oneof: str, members: Sequence[Any], before: "_Fields", path: str) -> None:
        """Check that the fields of a oneof excluded each other before."""
        origins: set[str | int] = set()
        independent = []
        for field in members:
            if field.number in before.oneof_of:
                origins.add(before.oneof_of[field.number])
            elif field.number in before.by_number:
                origins.add(field.number)
                independent.append(field.name)
        if len(origins) > 1:
            rule = (
                "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if len(independent) > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
            )
            names = independent or [field.name for field in members if field.number in before.by_number]
            self._add(rule, f"{path}/{oneof}", name=", ".join(names), reader=oneof)

    def _compare_fields(self, was: Any, now: Any, path: str, *, in_map: bool = False) -> None:
        old_entry, new_entry = self._written.map_entry(was), self._read.map_entry(now)
        kinds = _kind(was, old_entry), _kind(now, new_entry)
        described = {
            "name": now.name,
            "writer": _described(was, old_entry),
            "reader": _described(now, new_entry),
        }
        if kinds[0] != kinds[1]:
            self._add("FIELD_KIND_CHANGED", path, **described)
        elif kinds[0] == "map":
            for old, new in zip(_by_number(old_entry), _by_number(new_entry), strict=False):
                self._compare_fields(old, new, path, in_map=True)
        elif kinds[0] != "scalar":
            self._compare_types(was.type_name, now.type_name, path, described)
        elif _SCALAR_KINDS[was.type] != _SCALAR_KINDS[now.type]:
            self._add("FIELD_SCALAR_KIND_CHANGED", path, **described)
        elif not in_map and _SCALAR_KINDS[was.type] != "bytes":
            labels = _label(was, self._syntaxes[0]), _label(now, self._syntaxes[1])
            if all(labels) and labels[0] != labels[1]:
                self._add(
                    "FIELD_NUMERIC_LABEL_CHANGED", path, name=now.name, writer=labels[0], reader=labels[1]
                )

    def _compare_types(self, was: str, now: str, path: str, described: dict[str, str]) -> None:
        old, new = self._written[was], self._read[now]
        if old.local_name != new.local_name:
            self._add("FIELD_NAMED_TYPE_CHANGED", path, **described)
        elif not (old.file.is_own and new.file.is_own):
            pair = (was, now)
            self._uses.append(
                (self._current, _Use(_difference("FIELD_NAMED_TYPE_CHANGED", path, **described), pair))
            )
            if pair not in self._pairs:
                self._pairs[pair] = None
                self._open.append(pair)


class _Fields:
    """The fields of a message by their numbers, and its oneofs."""

    def __init__(self, message: Any) -> None:
        self.by_number: dict[int, Any] = {}
        self.oneof_of: dict[int, str] = {}
        self.oneofs: dict[str, list[Any]] = {}
        for field in message.field:
            self.by_number[field.number] = field
            if field.HasField("oneof_index") and not field.proto3_optional:
                name = message.oneof_decl[field.oneof_index].name
                self.oneof_of[field.number] = name
                self.oneofs.setdefault(name, []).append(field)


def _difference(
    rule: str, path: str, *, name: str = "", writer: str = "", reader: str = ""
) -> Incompatibility:
    message = _MESSAGES[rule].format(name=name, writer=writer, reader=reader)
    return Incompatibility(rule, f"#{path or '/'}", message)


def _by_number(message: Any) -> list[Any]:
    return sorted(message.field, key=lambda each: each.number)


def _kind(field: Any, entry: Any) -> str:
    if entry is not None:
        return "map"
    if field.type == FieldProto.TYPE_GROUP:
        return "group"
    return "message" if field.type == FieldProto.TYPE_MESSAGE else "scalar"


def _described(field: Any, entry: Any) -> str:
    if entry is not None:
        return "a map"
    if field.type_name:
        return str(field.type_name).removeprefix(".")
    name: str = FieldProto.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


def _label(field: Any, syntax: str) -> str:
    """Return the label of a field; empty if its file does not say one, as in proto3."""
    if field.HasField("oneof_index") and not field.proto3_optional:
        return ""
    if field.label == FieldProto.LABEL_REPEATED:
        return "repeated"
    # An edition has a feature instead of the label.
    if field.label == FieldProto.LABEL_REQUIRED or field.options.features.field_presence == 3:
        return "required"
    return "optional" if syntax in {"", "proto2"} or field.proto3_optional else ""
