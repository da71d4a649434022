"""Prepares .proto texts for the compiler, and finds in them what descriptors do not keep.

A descriptor has full names of types and a JSON name for every field. Confluent's registry keeps names as they
were written; the compiler says where they are.

Confluent's Java client writes a map as its descriptor has it: a repeated field of a nested message with
the option map_entry, which the compiler refuses. Such a field is translated to a map, in the place of the
message, so that the order of nested messages is kept.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

# A comment without an end reaches to the end of the text: no text is scanned twice.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?(?:\*/|\Z))|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[\w.]+|.""",
    re.DOTALL,
)
_TYPE_NAME: Final = re.compile(r"\.?[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MAP_TYPE: Final = re.compile(r"map<[^,]*,(.*)>")
_TAB_BYTES: Final = 8  # protoc counts the columns of a tab so

# Numbers of fields in descriptor.proto, as they are in the paths of locations.
_FILE_MESSAGES: Final = FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER
_FILE_EXTENSIONS: Final = FileDescriptorProto.EXTENSION_FIELD_NUMBER
_FILE_SERVICES: Final = FileDescriptorProto.SERVICE_FIELD_NUMBER
_FILE_OPTIONS: Final = FileDescriptorProto.OPTIONS_FIELD_NUMBER
_FILE_SYNTAX: Final = FileDescriptorProto.SYNTAX_FIELD_NUMBER
_FIELDS: Final = DescriptorProto.FIELD_FIELD_NUMBER
_NESTED: Final = DescriptorProto.NESTED_TYPE_FIELD_NUMBER
_EXTENSIONS: Final = DescriptorProto.EXTENSION_FIELD_NUMBER
_EXTENDEE: Final = FieldDescriptorProto.EXTENDEE_FIELD_NUMBER
_TYPE: Final = FieldDescriptorProto.TYPE_NAME_FIELD_NUMBER
_JSON_NAME: Final = FieldDescriptorProto.JSON_NAME_FIELD_NUMBER
_METHODS: Final = 2
_INPUT: Final = 2
_OUTPUT: Final = 3

Path = tuple[int, ...]


class Parsed(NamedTuple):
    """A file as the compiler understood it, and as it was written."""

    linked: Any  # with the full names of types
    written: Any
    option_order: Sequence[int]  # the numbers of the file's options


def as_written(compiled: Any, text: str) -> Parsed:
    """Return a compiled file, which has its locations, with names as its text has them."""
    lines = [line.expandtabs(_TAB_BYTES) for line in text.encode().split(b"\n")]
    spans = {tuple(each.path): tuple(each.span) for each in compiled.source_code_info.location}
    linked = FileDescriptorProto()
    linked.CopyFrom(compiled)
    linked.ClearField("source_code_info")
    source = _Source(lines, spans)
    for path, field in _all_fields(linked):
        if (*path, _JSON_NAME) not in spans:
            field.ClearField("json_name")
    written = FileDescriptorProto()
    written.CopyFrom(linked)
    if not written.syntax and (_FILE_SYNTAX,) in spans:
        written.syntax = "proto2"
    entries = {f".{name}": message for name, message in _all_messages(written) if message.options.map_entry}
    for path, field in _all_fields(written):
        if field.type_name:
            if (entry := entries.get(field.type_name)) is not None:
                value = max(entry.field, key=lambda each: each.number)
                if value.type_name:
                    value.type_name = source.name((*path, _TYPE), value.type_name, is_map=True)
            else:
                field.type_name = source.name((*path, _TYPE), field.type_name)
        if field.extendee:
            field.extendee = source.name((*path, _EXTENDEE), field.extendee)
    for index, service in enumerate(written.service):
        for number, method in enumerate(service.method):
            path = (_FILE_SERVICES, index, _METHODS, number)
            method.input_type = source.name((*path, _INPUT), method.input_type)
            method.output_type = source.name((*path, _OUTPUT), method.output_type)
    options = {
        path[1]: span for path, span in reversed(spans.items()) if path[:1] == (_FILE_OPTIONS,) and path[1:]
    }
    return Parsed(linked, written, sorted(options, key=lambda number: options[number]))


class _Source:
    def __init__(self, lines: list[bytes], spans: dict[Path, tuple[int, ...]]) -> None:
        self._lines = lines
        self._spans = spans

    def name(self, path: Path, full_name: str, *, is_map: bool = False) -> str:
        """Return the name of a type as it was written, or its full name if it cannot be found."""
        if (span := self._spans.get(path)) is None:
            return full_name
        first, start, last, end = span if len(span) == 4 else (span[0], span[1], span[0], span[2])
        lines = self._lines[first : last + 1]
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][start:]
        joined = b"\n".join(lines).decode(errors="replace")
        found = "".join(token[0] for token in _TOKEN.finditer(joined) if token["space"] is None)
        if is_map and (match := _MAP_TYPE.fullmatch(found)) is not None:
            found = match[1]
        if _TYPE_NAME.fullmatch(found) and f".{full_name}".endswith(f".{found}"):
            return found
        return full_name


def _all_fields(file: Any) -> list[tuple[Path, Any]]:
    found: list[tuple[Path, Any]] = [
        ((_FILE_EXTENSIONS, index), field) for index, field in enumerate(file.extension)
    ]
    left: list[tuple[Path, Any]] = [
        ((_FILE_MESSAGES, index), message) for index, message in enumerate(file.message_type)
    ]
    while left:
        path, message = left.pop()
        found += [((*path, _FIELDS, index), field) for index, field in enumerate(message.field)]
        found += [((*path, _EXTENSIONS, index), field) for index, field in enumerate(message.extension)]
        left += [((*path, _NESTED, index), nested) for index, nested in enumerate(message.nested_type)]
    return found


def _all_messages(file: Any) -> list[tuple[str, Any]]:
    prefix = f"{file.package}." if file.package else ""
    found = [(f"{prefix}{message.name}", message) for message in file.message_type]
    for name, message in found:  # which grows meanwhile
        found += [(f"{name}.{nested.name}", nested) for nested in message.nested_type]
    return found


class _Block:
    """A block of braces, or a file."""

    def __init__(self, name: str | None, start: int) -> None:
        self.name = name  # of a message
        self.start = start
        self.end = 0
        self.statements: list[list[int]] = []  # indexes of their tokens
        self.messages: list[_Block] = []


def with_maps(text: str) -> str:
    """Return a text in which messages with the option map_entry are maps. Lines stay where they are."""
    if "map_entry" not in text:
        return text
    tokens = [match for match in _TOKEN.finditer(text) if match["space"] is None]
    words = [match[0] for match in tokens]
    replaced: list[tuple[int, int, str]] = []
    for block in _blocks(words):
        fields = {
            words[statement[1]].rpartition(".")[2]: statement
            for statement in block.statements
            if len(statement) > 4 and words[statement[0]] == "repeated"
        }
        for message in block.messages:
            types = _entry_types(message, words)
            statement = fields.get(message.name or "")
            if types is None or statement is None:
                continue
            begin, end = tokens[statement[0]].start(), tokens[statement[-1]].end()
            replaced.append((begin, end, _blank(text[begin:end])))
            rest = text[tokens[statement[2]].start() : end]
            begin, end = tokens[message.start].start(), tokens[message.end].end()
            replaced.append((begin, end, f"map<{types[0]}, {types[1]}> {rest}{_blank(text[begin:end])}"))
    pieces: list[str] = []
    position = 0
    for begin, end, instead in sorted(replaced):
        pieces += [text[position:begin], instead]
        position = end
    return "".join((*pieces, text[position:]))


def _blank(text: str) -> str:
    return "\n" * text.count("\n")


def _entry_types(message: _Block, words: list[str]) -> tuple[str, str] | None:
    types: dict[str, str] = {}
    is_entry = False
    for statement in message.statements:
        said = [words[index] for index in statement]
        if said[:4] == ["option", "map_entry", "=", "true"]:
            is_entry = True
        elif "=" in said and said.index("=") >= 2:
            place = said.index("=")
            types[said[place - 1]] = said[place - 2]
    return (types["key"], types["value"]) if is_entry and types.keys() >= {"key", "value"} else None


def _blocks(words: list[str]) -> list[_Block]:
    """Return the file and every block of it, with their statements."""
    file = _Block(None, 0)
    found, stack = [file], [file]
    statement: list[int] = []
    brackets = 0
    for index, word in enumerate(words):
        if word in {"[", "]"}:
            brackets += 1 if word == "[" else -1
        if word == "{" and not brackets:
            is_message = len(statement) == 2 and words[statement[0]] == "message"
            block = _Block(words[statement[1]] if is_message else None, statement[0] if is_message else index)
            if is_message:
                stack[-1].messages.append(block)
            found.append(block)
            stack.append(block)
            statement = []
        elif word == "}" and not brackets:
            if len(stack) > 1:
                stack.pop().end = index
            statement = []
        else:
            statement.append(index)
            if word == ";" and not brackets:
                stack[-1].statements.append(statement)
                statement = []
    return found
