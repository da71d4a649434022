"""Writes values of logical types as people read them, and reads them back.

Dates and times are in ISO 8601, with as many digits as the type has; a decimal is a string of digits, because
JSON numbers are not exact; a UUID has its usual form. A number that no calendar has, such as a time of 25
hours, stays a number. Logical types without a form here are shown as the type below them.
"""

import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from .types import AvroType, Fixed, excerpt, logical_type

# Of decimals. Python converts up to 4300 digits, and takes long for more.
MAX_DIGITS = 2000
MAX_SCALE = 1000
_MAX_DECIMAL_BYTES = 830  # of 2000 digits, rounded down

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_SECONDS_PER_DAY = 86_400

_TIME = r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,20}))?"
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME_OF_DAY = re.compile(_TIME, re.ASCII)
_LOCAL_TIMESTAMP = re.compile(rf"(\d{{4}}-\d\d-\d\d)[T ]{_TIME}", re.ASCII)
_TIMESTAMP = re.compile(rf"{_LOCAL_TIMESTAMP.pattern}(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d{1,6})?", re.ASCII)

_FRACTION_DIGITS = {"millis": 3, "micros": 6, "nanos": 9}


class TextForm(NamedTuple):
    """The readable form of a logical type.

    Both functions raise ValueError with a reason. What `write` does not know as text, such as the number of
    days of a date, it returns as it is.
    """

    read: Callable[[Any], str | int]  # takes the number or bytes that the data has
    write: Callable[[Any], Any]  # returns them


def text_form(of: AvroType) -> TextForm | None:
    """Return the readable form of a type, if it has a logical type with one."""
    match logical_type(of):
        case "date":
            return TextForm(_read_date, _write_date)
        case "decimal":
            return _decimal(of)
        case "uuid" if isinstance(of, Fixed):
            return TextForm(lambda data: str(UUID(bytes=data)), _write_uuid)
        case "time-millis" | "time-micros" as name:
            return _time_of_day(_FRACTION_DIGITS[name.rpartition("-")[2]])
        case None | "uuid" | "duration" | "big-decimal":
            return None
        case name:
            return _timestamp(_FRACTION_DIGITS[name.rpartition("-")[2]], is_local=name.startswith("local-"))


def _read_date(days: int) -> str | int:
    ordinal = _EPOCH_DAY + days
    in_calendar = date.min.toordinal() <= ordinal <= date.max.toordinal()
    return date.fromordinal(ordinal).isoformat() if in_calendar else days


def _write_date(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not _DATE.fullmatch(value):
        raise ValueError(f"{excerpt(value)!r} is not a date such as 2026-01-31")
    return _days(value)


def _days(text: str) -> int:
    try:
        return date.fromisoformat(text).toordinal() - _EPOCH_DAY
    except ValueError:
        raise ValueError(f"the calendar has no day {text}") from None


def _time_of_day(digits: int) -> TextForm:
    per_second = 10**digits

    def read(value: int) -> str | int:
        return _shown_time(value, digits) if 0 <= value < _SECONDS_PER_DAY * per_second else value

    def write(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if (found := _TIME_OF_DAY.fullmatch(value)) is None:
            raise ValueError(f"{excerpt(value)!r} is not a time such as 12:30:59.125")
        return _seconds(*found.groups()[:3]) * per_second + _fraction(found[4], digits)

    return TextForm(read, write)


def _timestamp(digits: int, *, is_local: bool) -> TextForm:
    per_second = 10**digits
    pattern, example = _TIMESTAMP, "2026-01-31T12:30:59.125Z"
    if is_local:
        pattern, example = _LOCAL_TIMESTAMP, example.removesuffix("Z")
    suffix = "" if is_local else "Z"

    def read(value: int) -> str | int:
        days, time = divmod(value, _SECONDS_PER_DAY * per_second)
        day = _read_date(days)
        return f"{day}T{_shown_time(time, digits)}{suffix}" if isinstance(day, str) else value

    def write(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if (found := pattern.fullmatch(value)) is None:
            raise ValueError(f"{excerpt(value)!r} is not a timestamp such as {example}")
        seconds = _days(found[1]) * _SECONDS_PER_DAY + _seconds(found[2], found[3], found[4])
        if not is_local and found[6]:
            seconds -= int(f"{found[6]}1") * _seconds(found[7], found[8], "0")
        return seconds * per_second + _fraction(found[5], digits)

    return TextForm(read, write)


def _shown_time(value: int, digits: int) -> str:
    seconds, fraction = divmod(value, 10**digits)
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:0{digits}}"


def _seconds(hours: str, minutes: str, seconds: str) -> int:
    if int(hours) > 23 or int(minutes) > 59 or int(seconds) > 59:
        raise ValueError(f"no day has the time {hours}:{minutes}:{seconds}")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def _fraction(text: str | None, digits: int) -> int:
    text = (text or "0").rstrip("0")
    if len(text) > digits:
        raise ValueError(f"the type has only {digits} digits of a second")
    return int(text.ljust(digits, "0"))


def _decimal(of: AvroType) -> TextForm | None:
    precision, scale = of.properties["precision"], of.properties.get("scale", 0)
    assert isinstance(precision, int) and isinstance(scale, int)  # noqa: PT018 - what logical_type checks
    if scale > MAX_SCALE:
        return None

    def read(data: bytes) -> str:
        if len(data) > _MAX_DECIMAL_BYTES:
            raise ValueError(f"decimal has more than {_MAX_DECIMAL_BYTES} bytes")
        unscaled = int.from_bytes(data, signed=True)
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
        return f"{'-' if unscaled < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"

    def write(value: Any) -> bytes:
        unscaled = _unscaled(value, precision, scale)
        if not isinstance(of, Fixed):
            return unscaled.to_bytes(
                (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, signed=True
            )
        # The precision is bounded by the size, so the number fits.
        return unscaled.to_bytes(of.size, signed=True)

    return TextForm(read, write)


def _unscaled(value: Any, precision: int, scale: int) -> int:
    """Return a decimal number times a power of ten, or refuse it: nothing is rounded."""
    text = repr(value) if type(value) in (int, float) else value
    if not isinstance(text, str) or len(text) > 2 * MAX_DIGITS or not _DECIMAL.fullmatch(text):
        raise ValueError(f"{excerpt(str(value))!r} is not a decimal number")
    number = Decimal(text)
    if not number:
        return 0
    digits = number.adjusted() + 1 + scale
    if digits > min(precision, MAX_DIGITS):
        raise ValueError(f"{excerpt(text)} has more than {precision - scale} digits before the point")
    sign, coefficient, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    # The last digit that is not zero decides how many decimal places there are.
    significant = "".join(map(str, coefficient)).rstrip("0")
    shift = exponent + scale + len(coefficient) - len(significant)
    if shift < 0:
        raise ValueError(f"{excerpt(text)} has more than {scale} decimal places")
    unscaled: int = int(significant) * 10**shift
    return -unscaled if sign else unscaled


def _write_uuid(value: Any) -> Any:
    # Sixteen characters are the bytes themselves.
    if not isinstance(value, str) or len(value) == 16:
        return value
    try:
        return UUID(value).bytes
    except ValueError:
        raise ValueError(f"{excerpt(value)!r} is not a UUID") from None
