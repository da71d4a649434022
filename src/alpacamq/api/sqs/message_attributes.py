"""Message attributes: validation, digests, and conversion to and from record headers.

An attribute is a header of the same name with the plain value, so that every consumer can read it. One more
header holds the types of attributes that are not of type String.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from hashlib import md5

from alpacamq.model.headers import LANE
from alpacamq.model.records import Header

from .errors import INVALID_PARAMETER, UNSUPPORTED_OPERATION, Fault, has_forbidden
from .requests import AttributeValue

# `name=type` of each attribute that is not of type String, separated by semicolons.
TYPES_HEADER = "sqs-attribute-types"
# Marks a message of another API whose body is base64, because SQS cannot represent it.
ENCODING = "alpacamq-encoding"
# Prefixes of the broker's own headers.
RESERVED_PREFIXES = ("sqs-", "alpacamq-")

MAX_ATTRIBUTES = 10
MAX_NAME_LENGTH = 256
MAX_NUMBER_DIGITS = 38
NUMBER_EXPONENTS = range(-128, 127)

# Letters and digits of all scripts.
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_TYPE = re.compile(r"(String|Number|Binary)(\.[a-zA-Z0-9_.-]+)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_AWS_PREFIXES = ("aws.", "amazon.")

_TEXT, _BINARY = b"\x01", b"\x02"


def is_attribute_name(name: str) -> bool:
    """Return whether a name is valid for an attribute."""
    return (
        len(name) <= MAX_NAME_LENGTH
        and _NAME.fullmatch(name) is not None
        and not name.lower().startswith(_AWS_PREFIXES)
    )


def check(attributes: Mapping[str, AttributeValue]) -> int:
    """Refuse invalid attributes; return the size of valid ones."""
    if len(attributes) > MAX_ATTRIBUTES:
        raise Fault(
            INVALID_PARAMETER,
            f"Number of message attributes [{len(attributes)}] exceeds the allowed "
            f"maximum [{MAX_ATTRIBUTES}].",
        )
    size = 0
    for name, attribute in attributes.items():
        if not is_attribute_name(name):
            raise Fault(INVALID_PARAMETER, f"Message (user) attribute name '{name[:300]}' is invalid.")
        if name.startswith(RESERVED_PREFIXES) and name != LANE:
            raise Fault(INVALID_PARAMETER, f"Message (user) attribute name '{name}' is reserved.")
        _check_value(name, attribute)
        size += len(name.encode()) + len(attribute.data_type) + len(_value(attribute))
    return size


def digest(attributes: Mapping[str, AttributeValue]) -> str:
    """Return the MD5 as SDKs compute it: over names, types and values in order of names."""
    content = bytearray()
    for name in sorted(attributes):
        attribute = attributes[name]
        encoded = name.encode()
        data_type = attribute.data_type.encode()
        value = _value(attribute)
        content += len(encoded).to_bytes(4, "big") + encoded + len(data_type).to_bytes(4, "big") + data_type
        content += _TEXT if attribute.binary_value is None else _BINARY
        content += len(value).to_bytes(4, "big") + value
    return md5(content, usedforsecurity=False).hexdigest()


def pack(attributes: Mapping[str, AttributeValue]) -> list[Header]:
    """Convert attributes to record headers."""
    headers = [Header(name, _value(attribute)) for name, attribute in attributes.items()]
    types = [
        f"{name}={attribute.data_type}"
        for name, attribute in attributes.items()
        if attribute.data_type != "String"
    ]
    if types:
        headers.append(Header(TYPES_HEADER, ";".join(types).encode()))
    return headers


def unpack(headers: Iterable[Header]) -> dict[str, AttributeValue]:
    """Convert record headers to attributes, whichever API wrote them."""
    values: dict[str, bytes] = {}
    types: Mapping[str, str] = {}
    for name, value in headers:
        if value is None:
            continue
        if name == TYPES_HEADER:
            types = _types(value)
        elif is_attribute_name(name) and (name == LANE or not name.startswith(RESERVED_PREFIXES)):
            values[name] = value
    return {name: _attribute(types.get(name), value) for name, value in values.items()}


class Selection:
    """The attributes that a receive requests: names, names with a trailing wildcard, or all."""

    def __init__(self, names: Iterable[str] | None) -> None:
        wanted = set(names or ())
        self.everything = bool(wanted & {"All", ".*", "*"})
        self._prefixes = tuple(name[:-2] for name in wanted if name.endswith(".*"))
        self._names = wanted

    @property
    def is_empty(self) -> bool:
        return not self._names

    def of(self, attributes: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
        """Return the requested attributes."""
        if self.everything:
            return attributes
        return {
            name: attribute
            for name, attribute in attributes.items()
            if name in self._names or (self._prefixes and name.startswith(self._prefixes))
        }


def text_of(value: bytes) -> str | None:
    """Decode bytes to text that SQS can represent, or None."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if has_forbidden(text) else text


def _check_value(name: str, attribute: AttributeValue) -> None:
    if attribute.string_list_values or attribute.binary_list_values:
        raise Fault(
            UNSUPPORTED_OPERATION, "Message attribute list values in SendMessage operation are not supported."
        )
    data_type = attribute.data_type
    if not data_type:
        raise Fault(
            INVALID_PARAMETER,
            f"The message (user) attribute '{name}' must contain a non-empty message attribute type.",
        )
    if len(data_type) > MAX_NAME_LENGTH or (found := _TYPE.fullmatch(data_type)) is None:
        raise Fault(
            INVALID_PARAMETER,
            f"The type of message (user) attribute '{name}' is invalid. You must use only the following "
            "supported type prefixes: Binary, Number, String.",
        )
    is_binary = found[1] == "Binary"
    value = attribute.binary_value if is_binary else attribute.string_value
    other = attribute.string_value if is_binary else attribute.binary_value
    if other is not None:
        raise Fault(
            INVALID_PARAMETER,
            f"The message (user) attribute '{name}' with type '{data_type}' must use field "
            f"'{'Binary' if is_binary else 'String'}'.",
        )
    if not value:
        raise Fault(
            INVALID_PARAMETER,
            f"Message (user) attribute '{name}' must contain a non-empty value of type '{data_type}'.",
        )
    if isinstance(value, str):
        if has_forbidden(value):
            raise Fault(
                INVALID_PARAMETER, f"Invalid characters found in the value of message attribute '{name}'."
            )
        if found[1] == "Number" and not _is_number(value):
            raise Fault(
                INVALID_PARAMETER, f"Can't cast the value of message (user) attribute '{name}' to a number."
            )


def _is_number(text: str) -> bool:
    if len(text) > 2 * MAX_NAME_LENGTH or not _NUMBER.fullmatch(text):
        return False
    number = Decimal(text)
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    return not digits or (len(digits) <= MAX_NUMBER_DIGITS and number.adjusted() in NUMBER_EXPONENTS)


def _value(attribute: AttributeValue) -> bytes:
    if attribute.binary_value is not None:
        return attribute.binary_value
    return (attribute.string_value or "").encode()


def _types(value: bytes) -> dict[str, str]:
    text = value.decode(errors="replace")
    return dict(pair for part in text.split(";") if len(pair := part.split("=", 1)) == 2)


def _attribute(data_type: str | None, value: bytes) -> AttributeValue:
    if data_type is None or _TYPE.fullmatch(data_type) is None:
        data_type = "String"
    if not data_type.startswith("Binary"):
        if (text := text_of(value)) is not None:
            return AttributeValue(data_type=data_type, string_value=text)
        data_type = "Binary"
    return AttributeValue(data_type=data_type, binary_value=value)
