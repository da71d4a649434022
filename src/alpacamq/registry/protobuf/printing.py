"""Prints descriptors as .proto text, in the layout of Confluent's registry.

The canonical text keeps the order and the names of the schema. The normalized text is the same for all
schemas with the same meaning: fields, options, imports and reserved ranges are sorted, and types have their
full names.

Messages stay in their order, because the message indexes before a record count them. A map is a nested
message to its descriptor, and counts too: where the usual place of a map field would change the order, the
field is printed between the nested messages.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import FieldDescriptor

MAX_FIELD_NUMBER: Final = (1 << 29) - 1
MAX_ENUM_NUMBER: Final = (1 << 31) - 1

FieldProto: Final = descriptor_pb2.FieldDescriptorProto
_LABELS: Final = {
    FieldProto.LABEL_OPTIONAL: "optional ",
    FieldProto.LABEL_REQUIRED: "required ",
    FieldProto.LABEL_REPEATED: "repeated ",
}
_VISIBILITIES: Final = {1: "local ", 2: "export "}
_ESCAPES: Final = {
    **{code: f"\\{code:03o}" for code in (*range(32), 127)},
    **{ord(char): f"\\{name}" for char, name in zip("\a\b\f\n\r\t\v\\'\"", "abfnrtv\\'\"", strict=True)},
}

Lines = list[str]


def scalar_name(field_type: int) -> str:
    """Return the keyword of a scalar type."""
    name: str = FieldProto.Type.Name(field_type)
    return name.removeprefix("TYPE_").lower()


def print_file(
    file: Any, pool: Any = None, *, is_normalized: bool = False, option_order: Sequence[int] = ()
) -> str:
    """Return the text of a FileDescriptorProto.

    `pool` knows the custom options, if the file has any; `option_order` has the numbers of the file's options
    in the order in which they were written.
    """
    return _Printer(file, pool, is_normalized, option_order).text()


class _Printer:
    def __init__(self, file: Any, pool: Any, is_normalized: bool, option_order: Sequence[int]) -> None:
        self._file = file
        self._pool = pool
        self._is_normalized = is_normalized
        self._file_options = {number: place for place, number in enumerate(option_order)}
        self._option_classes: dict[str, Callable[[], Any]] = {}

    def text(self) -> str:
        file = self._file
        header = []
        if file.syntax == "editions":
            edition = descriptor_pb2.Edition.Name(file.edition).removeprefix("EDITION_")
            header.append(f'edition = "{edition}";')
        elif file.syntax and not (self._is_normalized and file.syntax == "proto2"):
            header.append(f'syntax = "{file.syntax}";')
        if file.package:
            header.append(f"package {file.package};")
        sections = [
            self._imports(),
            self._option_statements(file.options),
            [line for each in file.message_type for line in self._message(each)]
            + [line for each in file.enum_type for line in self._enum(each)],
            self._extends(file.extension, file.message_type),
            [line for each in file.service for line in self._service(each)],
        ]
        lines = list(header)
        for section in filter(None, sections):
            lines += ["", *section]
        return "".join(f"{line}\n" for line in lines)

    def _imports(self) -> Lines:
        file = self._file
        public, weak = set(file.public_dependency), set(file.weak_dependency)
        plain: Lines = []
        special: Lines = []
        for index, name in enumerate(file.dependency):
            quoted = _quoted(name)
            if index in public:
                special.append(f"import public {quoted};")
            elif index in weak:
                special.append(f"import weak {quoted};")
            else:
                plain.append(f"import {quoted};")
        special += [f"import option {_quoted(name)};" for name in getattr(file, "option_dependency", ())]
        if self._is_normalized:
            return sorted(set(plain)) + sorted(set(special))
        return plain + special

    def _message(self, message: Any, keyword: str = "") -> Lines:
        maps = {each.name: each for each in message.nested_type if each.options.map_entry}
        groups = {
            _simple(field.type_name): field for field in message.field if field.type == FieldProto.TYPE_GROUP
        }
        if self._file.syntax == "editions":
            groups = {}
        inline = {**maps, **groups}
        fields = [field for field in message.field if not _is_in_oneof(field)]
        late = _late_fields(message, inline, fields)
        plain = [
            field for field in fields if field.name not in late and _simple(field.type_name) not in groups
        ]
        body = self._fields(plain, maps)
        oneofs: list[tuple[int, Lines]] = []
        for index, oneof in enumerate(message.oneof_decl):
            members = [field for field in message.field if _is_in_oneof(field) and field.oneof_index == index]
            if not members:
                continue  # of a proto3 optional field
            sections = [
                self._option_statements(oneof.options),
                self._fields([field for field in members if _simple(field.type_name) not in groups], maps),
                [
                    line
                    for field in members
                    if _simple(field.type_name) in groups
                    for line in self._group(field, message)
                ],
            ]
            oneofs.append((min(each.number for each in members), _block(f"oneof {oneof.name}", sections)))
        if self._is_normalized:
            oneofs.sort(key=lambda each: each[0])
        grouped = [
            field
            for field in self._in_order(fields)
            if _simple(field.type_name) in groups and field.name not in late
        ]
        sections = [
            self._reserved(message, MAX_FIELD_NUMBER, is_exclusive=True),
            self._option_statements(message.options, hidden=("map_entry",)),
            body,
            [line for _, lines in oneofs for line in lines],
            [line for field in grouped for line in self._group(field, message)],
            self._extension_ranges(message),
            self._extends(message.extension, message.nested_type),
            self._nested(message, inline, late, maps),
        ]
        prefix = _VISIBILITIES.get(getattr(message, "visibility", 0), "")
        return _block(keyword or f"{prefix}message {message.name}", sections)

    def _nested(
        self, message: Any, inline: dict[str, Any], late: dict[str, Any], maps: dict[str, Any]
    ) -> Lines:
        extended = {
            _simple(each.type_name) for each in message.extension if each.type == FieldProto.TYPE_GROUP
        }
        lines: Lines = []
        placed = {_simple(field.type_name): field for field in late.values()}
        for nested in message.nested_type:
            if nested.name in placed:
                field = placed[nested.name]
                if nested.name in maps:
                    lines += self._fields([field], maps)
                else:
                    lines += self._group(field, message)
            elif nested.name not in inline and not (
                nested.name in extended and self._file.syntax != "editions"
            ):
                lines += self._message(nested)
        return lines + [line for each in message.enum_type for line in self._enum(each)]

    def _group(self, field: Any, parent: Any) -> Lines:
        name = _simple(field.type_name)
        nested = parent.nested_type if hasattr(parent, "nested_type") else parent
        message = next(each for each in nested if each.name == name)
        label = "" if _is_in_oneof(field) else _LABELS[field.label]
        options = self._field_options(field)
        inline = _inline_options(options) if options else [""]
        start = f"{label}group {name} = {field.number}"
        head = [f"{start}{inline[0]}", *inline[1:]]
        return [*head[:-1], *self._message(message, keyword=head[-1])]

    def _in_order(self, fields: Iterable[Any]) -> Sequence[Any]:
        return sorted(fields, key=lambda each: each.number) if self._is_normalized else list(fields)

    def _fields(self, fields: Iterable[Any], maps: dict[str, Any]) -> Lines:
        return [line for field in self._in_order(fields) for line in self._field(field, maps)]

    def _field(self, field: Any, maps: dict[str, Any]) -> Lines:
        entry = maps.get(_simple(field.type_name)) if field.type == FieldProto.TYPE_MESSAGE else None
        if entry is not None:
            key, value = sorted(entry.field, key=lambda each: each.number)
            label, named = "", f"map<{_type(key)}, {_type(value)}>"
        else:
            label, named = self._label(field), _type(field)
        start = f"{label}{named} {field.name} = {field.number}"
        inline = _inline_options(self._field_options(field))
        lines = [f"{start}{inline[0]}", *inline[1:]]
        lines[-1] += ";"
        return lines

    def _label(self, field: Any) -> str:
        if _is_in_oneof(field):
            return ""
        if (
            self._file.syntax in {"", "proto2"}
            or field.label == FieldProto.LABEL_REPEATED
            or field.proto3_optional
        ):
            return _LABELS[field.label]
        return ""

    def _field_options(self, field: Any) -> "list[tuple[str, Lines]]":
        options = self._options(field.options)
        if field.HasField("default_value"):
            if field.type == FieldProto.TYPE_STRING:
                default = _quoted(field.default_value)
            elif field.type == FieldProto.TYPE_BYTES:
                default = f'"{field.default_value}"'  # a descriptor has it escaped
            else:
                default = field.default_value
            options.append(("default", [default]))
        if field.HasField("json_name"):
            options.append(("json_name", [_quoted(field.json_name)]))
        return self._sorted_options(options)

    def _enum(self, enum: Any) -> Lines:
        values = list(enum.value)
        if self._is_normalized:
            values.sort(key=lambda each: (each.number, each.name))
        body = [
            *self._reserved(enum, MAX_ENUM_NUMBER, is_exclusive=False),
            *self._option_statements(enum.options),
        ]
        for value in values:
            inline = _inline_options(self._sorted_options(self._options(value.options)))
            body += [f"{value.name} = {value.number}{inline[0]}", *inline[1:]]
            body[-1] += ";"
        prefix = _VISIBILITIES.get(getattr(enum, "visibility", 0), "")
        return _block(f"{prefix}enum {enum.name}", [body])

    def _reserved(self, of: Any, maximum: int, *, is_exclusive: bool) -> Lines:
        ranges = [(each.start, each.end - is_exclusive) for each in of.reserved_range]
        names = list(of.reserved_name)
        if self._is_normalized:
            ranges.sort()
            names.sort()
        if self._file.syntax != "editions":
            names = [_quoted(name) for name in names]
        return [f"reserved {_range(*each, maximum)};" for each in ranges] + [
            f"reserved {name};" for name in names
        ]

    def _extension_ranges(self, message: Any) -> Lines:
        lines: Lines = []
        ranges = list(message.extension_range)
        if self._is_normalized:
            ranges.sort(key=lambda each: each.start)
        for each in ranges:
            inline = _inline_options(self._sorted_options(self._options(each.options)))
            lines += [
                f"extensions {_range(each.start, each.end - 1, MAX_FIELD_NUMBER)}{inline[0]}",
                *inline[1:],
            ]
            lines[-1] += ";"
        return lines

    def _extends(self, extensions: Iterable[Any], nested: Any) -> Lines:
        by_extendee: dict[str, list[Any]] = {}
        for field in extensions:
            by_extendee.setdefault(field.extendee, []).append(field)
        lines: Lines = []
        for extendee, fields in by_extendee.items():
            body: Lines = []
            for field in self._in_order(fields):
                if field.type == FieldProto.TYPE_GROUP and self._file.syntax != "editions":
                    body += self._group(field, nested)
                else:
                    body += self._field(field, {})
            lines += _block(f"extend {extendee}", [body])
        return lines

    def _service(self, service: Any) -> Lines:
        methods: Lines = []
        for method in service.method:
            request = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            response = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            start = f"rpc {method.name} ({request}) returns ({response})"
            options = self._option_statements(method.options)
            lines = _block(start, [options]) if options else [start]
            lines[-1] += ";"
            methods += lines
        return _block(f"service {service.name}", [self._option_statements(service.options), methods])

    def _option_statements(self, options: Any, hidden: Sequence[str] = ()) -> Lines:
        lines: Lines = []
        for name, value in self._sorted_options(self._options(options)):
            if name not in hidden:
                lines += [f"option {name} = {value[0]}", *value[1:]]
                lines[-1] += ";"
        return lines

    def _sorted_options(self, options: "list[tuple[str, Lines]]") -> "list[tuple[str, Lines]]":
        return sorted(options, key=lambda each: each[0].strip("()")) if self._is_normalized else options

    def _options(self, options: Any) -> "list[tuple[str, Lines]]":
        """Return the names and values of options; values that are messages have several lines."""
        if not options.ByteSize():
            return []
        found: list[tuple[str, Lines]] = []
        listed = self._readable(options).ListFields()
        if options.DESCRIPTOR.name == "FileOptions":
            listed.sort(key=lambda each: self._file_options.get(each[0].number, 0))
        for field, value in listed:
            name = f"({field.full_name})" if field.is_extension else field.name
            if field.full_name.endswith("Options.features"):
                for inner, setting in value.ListFields():
                    step = f"({inner.full_name})" if inner.is_extension else inner.name
                    found.append((f"{name}.{step}", self._value(inner, setting)))
            elif field.is_repeated:
                found += [(name, self._value(field, each)) for each in value]
            else:
                found.append((name, self._value(field, value)))
        return found

    def _readable(self, options: Any) -> Any:
        """Return options in a class that knows the custom ones."""
        name = options.DESCRIPTOR.full_name
        if name not in self._option_classes:
            self._option_classes[name] = type(options)
            if self._pool is not None:
                try:
                    known = self._pool.FindMessageTypeByName(name)
                except KeyError:
                    pass  # descriptor.proto is not imported, so there are no custom options
                else:
                    self._option_classes[name] = message_factory.GetMessageClass(known)
        message = self._option_classes[name]()
        message.MergeFromString(options.SerializeToString())
        return message

    def _value(self, field: Any, value: Any) -> Lines:
        if field.message_type is not None:
            return self._message_value(value)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return [known.name if known is not None else str(value)]
        return [_scalar(field, value)]

    def _message_value(self, message: Any) -> Lines:
        entries: list[Lines] = []
        listed = message.ListFields()
        if self._is_normalized:
            listed = sorted(
                listed, key=lambda each: each[0].full_name if each[0].is_extension else each[0].name
            )
        for field, value in listed:
            key = f"[{field.full_name}]" if field.is_extension else field.name
            if field.type == FieldDescriptor.TYPE_GROUP and not field.is_extension:
                key = field.message_type.name
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                values = [self._map_entry(field, name, value[name]) for name in sorted(value)]
                lines = _list(values)
            elif field.is_repeated:
                lines = _list([self._value(field, each) for each in value])
            else:
                lines = self._value(field, value)
            entries.append([f"{key}: {lines[0]}", *lines[1:]])
        return ["{", *_separated(entries), "}"]

    def _map_entry(self, field: Any, key: Any, value: Any) -> Lines:
        entry = field.message_type.fields_by_name
        printed = self._value(entry["value"], value)
        return [
            "{",
            *_separated([[f"key: {_scalar(entry['key'], key)}"], [f"value: {printed[0]}", *printed[1:]]]),
            "}",
        ]


def _late_fields(message: Any, inline: dict[str, Any], fields: Sequence[Any]) -> dict[str, Any]:
    """Return the map fields and groups to print between the nested messages, to keep the indexes of those."""
    by_type = {_simple(field.type_name): field for field in fields if _simple(field.type_name) in inline}
    late: dict[str, Any] = {}
    is_after_message = False
    for nested in message.nested_type:
        is_after_message = is_after_message or nested.name not in inline
        if is_after_message and (field := by_type.get(nested.name)) is not None:
            late[field.name] = field
    return late


def _is_in_oneof(field: Any) -> bool:
    return bool(field.HasField("oneof_index") and not field.proto3_optional)


def _simple(name: str) -> str:
    return name.rpartition(".")[2]


def _type(field: Any) -> str:
    return str(field.type_name) if field.type_name else scalar_name(field.type)


def _range(start: int, end: int, maximum: int) -> str:
    if start == end:
        return str(start)
    return f"{start} to {'max' if end >= maximum else end}"


def _block(start: str, sections: Iterable[Lines]) -> Lines:
    """Return a block whose sections are separated by empty lines."""
    body: Lines = []
    for section in filter(None, sections):
        if body:
            body.append("")
        body += [f"  {line}" if line else "" for line in section]
    return [f"{start} {{", *body, "}"] if body else [f"{start} {{}}"]


def _inline_options(options: "Sequence[tuple[str, Lines]]") -> Lines:
    """Return options in brackets; the first line continues that of a field."""
    if not options:
        return [""]
    entries = [[f"{name} = {value[0]}", *value[1:]] for name, value in options]
    if len(entries) == 1:
        (lines,) = entries
        lines = [f" [{lines[0]}", *lines[1:]]
        lines[-1] += "]"
        return lines
    return [" [", *_separated(entries), "]"]


def _list(values: list[Lines]) -> Lines:
    return values[0] if len(values) == 1 else ["[", *_separated(values), "]"]


def _separated(entries: Sequence[Lines]) -> Lines:
    lines: Lines = []
    for entry in entries:
        if lines:
            lines[-1] += ","
        lines += [f"  {line}" for line in entry]
    return lines


def _scalar(field: Any, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return (
            '"'
            + "".join(
                chr(each) if 32 <= each < 127 and each not in b"\"'\\" else f"\\{each:03o}" for each in value
            )
            + '"'
        )
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        if field.type == FieldDescriptor.TYPE_FLOAT:
            return _float_text(value)
        return repr(value).removesuffix(".0")
    return str(value)


def _float_text(value: float) -> str:
    """Return the shortest text of a single-precision number."""
    single = struct.pack("<f", value)
    texts = (f"{value:.{digits}g}" for digits in range(6, 9))
    return next((text for text in texts if struct.pack("<f", float(text)) == single), f"{value:.9g}")


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'
