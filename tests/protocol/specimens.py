"""Messages to test with: any that a version can carry, and one fixed specimen that fills every field."""

from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st

from alpacamq.protocol.apis import APIS, Api
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.notation import (
    UUID_ON_WIRE,
    ZERO_UUID,
    Array,
    Field,
    Fixed,
    Message,
    Prefixed,
    WireType,
    fields_of,
)
from alpacamq.protocol.schema import encode

FIXED = {
    "?": st.booleans(),
    "b": st.integers(-(2**7), 2**7 - 1),
    "h": st.integers(-(2**15), 2**15 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "q": st.integers(-(2**63), 2**63 - 1),
    "H": st.integers(0, 2**16 - 1),
    "I": st.integers(0, 2**32 - 1),
    "d": st.floats(allow_nan=False),
    UUID_ON_WIRE.code: st.uuids() | st.just(ZERO_UUID),
}
# 126 and 127 bytes are where a compact length grows to two bytes.
TEXTS = st.text(max_size=12) | st.sampled_from(["x" * 126, "x" * 127, "ä" * 200])
PREFIXED = {
    Prefixed.STRING: TEXTS,
    Prefixed.BYTES: st.binary(max_size=12) | st.just(bytes(300)),
    Prefixed.RECORDS: st.binary(max_size=12).map(lambda content: memoryview(content)),
}
SPECIMEN_FIXED = {
    "?": True, "b": 1, "h": 2, "i": 3, "q": 4, "H": 65_000, "I": 4_000_000_000, "d": 0.5,
    UUID_ON_WIRE.code: UUID(int=1 << 100),
}  # fmt: skip
SPECIMEN_PREFIXED = {Prefixed.STRING: "älpaca", Prefixed.BYTES: b"abc", Prefixed.RECORDS: memoryview(b"xyz")}


class Address(NamedTuple):
    """The address of a broker."""

    id: int
    host: str
    port: int
    rack: str | None


ADDRESSES = st.lists(st.builds(Address, FIXED["i"], TEXTS, FIXED["i"], st.none() | TEXTS), max_size=3)
# No leader is the default and not written.
LEADERS = st.none() | st.tuples(FIXED["i"], FIXED["i"]).filter(lambda leader: leader != (-1, -1))


# Times of 64 bits.
TOKEN_TIMES = {
    "issue_timestamp_ms",
    "expiry_timestamp_ms",
    "max_timestamp_ms",
    "max_lifetime_ms",
    "renew_period_ms",
    "expiry_time_period_ms",
}
FAR_TIMES = {
    "log_append_time_ms",
    "retention_time_ms",
    "session_lifetime_ms",
    "transaction_start_time_ms",
    *TOKEN_TIMES,
}
# The judge knows no -1 here, though Kafka sends it where no transaction is open, and for refused tokens.
NO_TIME_UNREADABLE = {"transaction_start_time_ms", *TOKEN_TIMES}


def served() -> list[tuple[Api, int]]:
    """Every API in every version that is served."""
    return [
        (api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)
    ]


def messages() -> list[tuple[type[Message], int]]:
    """Every request and response in every version that is served."""
    return [(message, version) for api, version in served() for message in (api.request, api.response)]


@cache
def layouts() -> list[tuple[type[Message], int]]:
    """Every request and response in the first version of each of its layouts: many versions have the same."""
    first: dict[tuple[type[Message], bool, bytes], int] = {}
    for api, version in served():
        for message in (api.request, api.response):
            written = encode(specimen(message, version), version)
            first.setdefault((message, version >= api.flexible_from, written), version)
    return [(message, version) for (message, _, _), version in first.items()]


def name_of(value: object) -> str:
    """Return the name of a test parameter."""
    return value.__name__ if isinstance(value, type) else getattr(value, "name", str(value))


@cache
def any_message(message: type[Message], version: int) -> st.SearchStrategy[Any]:
    """Messages with any values in the fields that `version` has."""
    fields = (field for field in fields_of(message) if field.is_in(version))
    return st.builds(message, **{field.name: _any_value(field, version) for field in fields})


def _any_value(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.name.endswith("error_code"):
        return st.sampled_from([int(code) for code in ErrorCode])
    if field.name in FAR_TIMES:
        # Whole seconds: the judge counts time in floating point and loses milliseconds far from 1970.
        seconds = st.integers(0, 2**32).map(lambda seconds: seconds * 1000)
        return seconds if field.name in NO_TIME_UNREADABLE else st.just(-1) | seconds
    values = _any_of(field.type, version)
    return st.none() | values if field.is_nullable(version) else values


def _any_of(wire: WireType, version: int) -> st.SearchStrategy[Any]:
    match wire:
        case Fixed():
            return FIXED[wire.code]
        case Prefixed():
            return PREFIXED[wire]
        case Array(element=Fixed(code="i")):
            return st.lists(FIXED["i"], max_size=3) | st.just(list(range(200)))
        case Array():
            return st.lists(_any_of(wire.element, version), max_size=2)
        case _:
            return any_message(wire, version)


def specimen(message: type[Message], version: int) -> Message:
    """The message with something in every field that `version` has, and two entries in every array."""
    fields = (field for field in fields_of(message) if field.is_in(version))
    return message(**{field.name: _specimen_of(field.type, version) for field in fields})


def _specimen_of(wire: WireType, version: int) -> Any:
    match wire:
        case Fixed():
            return SPECIMEN_FIXED[wire.code]
        case Prefixed():
            return SPECIMEN_PREFIXED[wire]
        case Array():
            return [_specimen_of(wire.element, version) for _ in range(2)]
        case _:
            return specimen(wire, version)
