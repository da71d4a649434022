"""The errors that a response tells of, wherever in it they are."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from alpacamq.protocol.notation import Array, Message, fields_of

_ERROR_CODE = "error_code"


class _Plan(NamedTuple):
    """Whether a message has an error code of its own, and which of its fields hold messages that may."""

    has_code: bool
    parts: tuple[str, ...]


def error_codes(response: Message) -> Iterator[int]:
    """Every error code in a response; zero, which is an occasion to stop, for a part that has none."""
    plan = _plan(type(response))
    yield getattr(response, _ERROR_CODE) if plan.has_code else 0
    for name in plan.parts:
        for part in getattr(response, name) or ():
            yield from error_codes(part)


@cache
def _plan(kind: type[Message]) -> _Plan:
    fields = fields_of(kind)
    parts = (
        field.name
        for field in fields
        if isinstance(field.type, Array)
        and isinstance(element := field.type.element, type)
        and any(_plan(element))
    )
    return _Plan(any(field.name == _ERROR_CODE for field in fields), tuple(parts))
