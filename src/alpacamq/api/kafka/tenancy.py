"""Names in requests and responses of tenants' clients: as they name resources, and as the broker stores them.

The types of the fields say which of them hold names (`protocol/notation.py`), so that one translation serves
all requests. Produce and Fetch, whose codecs are written by hand, add the tenant to names themselves.
"""

from collections.abc import Callable, Generator
from functools import cache, partial
from typing import NamedTuple, TypeVar

import msgspec

from alpacamq.model import names
from alpacamq.protocol.notation import Array, Message, Name, fields_of

M = TypeVar("M", bound=Message)

# The field that says what a name of the kind RESOURCE names, and its values.
RESOURCE_TYPE = "resource_type"
TOPIC_RESOURCE = 2
GROUP_RESOURCE = 32
# Names and messages translated between two stops.
_STRIDE = 128

Rename = Callable[[str], str]


class _Plan(NamedTuple):
    """The fields of a message that hold names, and those with messages that do."""

    names: tuple[tuple[str, Name], ...]
    parts: tuple[str, ...]


@cache
def _plan(kind: type[Message]) -> _Plan:
    fields = fields_of(kind)
    parts = []
    for field in fields:
        element = field.type.element if isinstance(field.type, Array) else field.type
        if isinstance(element, type) and any(_plan(element)):
            parts.append(field.name)
    return _Plan(tuple((field.name, field.names) for field in fields if field.names), tuple(parts))


class _Renames(NamedTuple):
    """How names of each kind are translated."""

    topic: Rename
    id: Rename
    text: Rename

    def of(self, message: Message, kind: Name) -> Rename | None:
        if kind is Name.TOPIC:
            return self.topic
        if kind is Name.ID:
            return self.id
        if kind is Name.TEXT:
            return self.text
        resource_type: int = getattr(message, RESOURCE_TYPE)
        return {TOPIC_RESOURCE: self.topic, GROUP_RESOURCE: self.id}.get(resource_type)


def stored(tenant: str, request: M) -> Generator[None, None, M]:
    """Return a request of a tenant's client with stored names; stops in between."""
    renames = _Renames(
        lambda name: names.topic_of(tenant, name), lambda name: names.id_of(tenant, name), lambda text: text
    )
    return _translated(request, renames)


def local(tenant: str, response: M) -> Generator[None, None, M]:
    """Return a response with the names that a tenant's client knows; stops in between."""
    topic, id_ = names.topic_of(tenant, ""), names.id_of(tenant, "")
    renames = _Renames(
        lambda name: name.removeprefix(topic),
        lambda name: name.removeprefix(id_),
        partial(names.localized, tenant),
    )
    return _translated(response, renames)


def _translated(message: M, renames: _Renames) -> Generator[None, None, M]:
    plan = _plan(type(message))
    changes: dict[str, object] = {}
    for name, kind in plan.names:
        value = getattr(message, name)
        # An empty name is that of a field that is absent.
        if value and (rename := renames.of(message, kind)) is not None:
            if isinstance(value, str):
                changes[name] = rename(value)
            else:
                changes[name] = yield from _each(value, rename)
    for name in plan.parts:
        value = getattr(message, name)
        if isinstance(value, Message):
            changes[name] = yield from _translated(value, renames)
        elif value:
            parts = []
            for part in value:
                parts.append((yield from _translated(part, renames)))
                yield
            changes[name] = parts
    return msgspec.structs.replace(message, **changes) if changes else message


def _each(values: list[str], rename: Rename) -> Generator[None, None, list[str]]:
    renamed: list[str] = []
    for start in range(0, len(values), _STRIDE):
        renamed += [rename(value) if value else value for value in values[start : start + _STRIDE]]
        yield
    return renamed
