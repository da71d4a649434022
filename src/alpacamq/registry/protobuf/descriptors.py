"""Builds descriptor pools from serialized files and the files that every schema may import."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from alpacamq.registry.schema import InvalidSchema, is_base64

ROOT_NAME: Final = "default.proto"

# The files that Google publishes with the compiler, and its common types. Confluent's clients send no
# references to either.
_GOOGLE: Final = {
    "google/protobuf": (
        *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct"),
        *("timestamp", "type", "wrappers"),
    ),
    "google/type": (
        *("calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction"),
        *("interval", "latlng", "localized_text", "money", "month", "phone_number", "postal_address"),
        *("quaternion", "timeofday"),
    ),
}
# The modules that have them.
GOOGLE_FILES: Final = {
    f"{package}/{name}.proto": f"{package.replace('/', '.')}.{name}_pb2"
    for package, names in _GOOGLE.items()
    for name in names
}
_CONFLUENT_OPTION: Final = 1088
_EXTENDED: Final = {
    "file_meta": "FileOptions",
    "message_meta": "MessageOptions",
    "field_meta": "FieldOptions",
    "enum_meta": "EnumOptions",
    "enum_value_meta": "EnumValueOptions",
}
CONFLUENT_FILES: Final = (
    "confluent/meta.proto",
    "confluent/type/decimal.proto",
    "confluent/type/variant.proto",
    "confluent/types/decimal.proto",
)

FileProto: Final = descriptor_pb2.FileDescriptorProto
_Field: Final = descriptor_pb2.FieldDescriptorProto


def read_base64(text: str) -> Any:
    """Return the file that a text has in its serialized form, or None if it is something else."""
    if not is_base64(text):
        return None
    try:
        return FileProto.FromString(base64.b64decode(text, validate=False))
    except (binascii.Error, DecodeError):
        return None


@cache
def builtin(name: str) -> Any:
    """Return a file that schemas may import without a reference to it, or None."""
    if (module := GOOGLE_FILES.get(name)) is not None:
        return FileProto.FromString(import_module(module).DESCRIPTOR.serialized_pb)
    if name not in CONFLUENT_FILES:
        return None
    file = FileProto(name=name, syntax="proto3")
    if name == "confluent/meta.proto":
        file.package = "confluent"
        file.options.java_package = "io.confluent.protobuf"
        file.dependency.append("google/protobuf/descriptor.proto")
        _add_meta(file)
        return file
    file.package = "confluent.type"
    if name == "confluent/types/decimal.proto":  # the name that it had before
        file.dependency.append("confluent/type/decimal.proto")
        file.public_dependency.append(0)
        return file
    file.options.java_package = "io.confluent.protobuf.type"
    file.options.java_multiple_files = True
    if name == "confluent/type/decimal.proto":
        _add_message(file.message_type, "Decimal", value="bytes", precision="uint32", scale="int32")
    else:
        _add_message(file.message_type, "Variant", metadata="bytes", value="bytes")
    return file


def _add_meta(file: Any) -> None:
    meta = _add_message(file.message_type, "Meta", doc="string", params="", tags="string", rules="")
    params, tags, rules = meta.field[1:]
    tags.label = _Field.LABEL_REPEATED
    for field, type_name in ((params, ".confluent.Meta.ParamsEntry"), (rules, ".confluent.Rule")):
        field.label = _Field.LABEL_REPEATED
        field.type = _Field.TYPE_MESSAGE
        field.type_name = type_name
    _add_message(meta.nested_type, "ParamsEntry", key="string", value="string").options.map_entry = True
    _add_message(file.message_type, "Rule", name="string", doc="string", expr="string", sql="string")
    for extension, extended in _EXTENDED.items():
        file.extension.add(
            name=extension,
            number=_CONFLUENT_OPTION,
            label=_Field.LABEL_OPTIONAL,
            type=_Field.TYPE_MESSAGE,
            type_name=".confluent.Meta",
            extendee=f".google.protobuf.{extended}",
        )


def _add_message(messages: Any, name: str, /, **fields: str) -> Any:
    message = messages.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
        added = message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
        if kind:
            added.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
    return message


def with_builtins(files: Sequence[Any]) -> list[Any]:
    """Return files with the built-in ones that they import, each after those it imports."""
    given = {file.name: file for file in files}
    found: dict[str, Any] = {}
    # A stack, not recursion: chains of imports may be long.
    left = [(file.name, False) for file in reversed(files)]
    while left:
        name, is_complete = left.pop()
        file = given[name] if name in given else builtin(name)
        if name in found:
            continue
        if file is None:
            raise InvalidSchema(f"the file {name!r} is imported but not given")
        if is_complete:
            found[name] = file
        else:
            left.append((name, True))
            left += [
                (each, False) for each in _imports(file) if each not in found and (each, True) not in left
            ]
    return list(found.values())


def _imports(file: Any) -> Iterable[str]:
    return [*file.dependency, *getattr(file, "option_dependency", ())]


def build_pool(files: Iterable[Any]) -> Any:
    """Return a pool of files, each of which comes after those it imports. Raises InvalidSchema."""
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise InvalidSchema(f"invalid descriptor: {error}") from None
    return pool
