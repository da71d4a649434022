"""Audit events: who was allowed or denied what, who logged in, and what administrators changed.

A login, a denial, or a read or write that repeats within a window is counted instead of written again, so
that a client that reads a topic, or is denied it, a thousand times a second costs two events a minute.
"""

from collections.abc import Hashable, Iterator
from enum import StrEnum

import msgspec

from .acls import Operation

# Operations that change something other than messages and offsets.
ADMINISTRATIVE = frozenset(
    {
        Operation.ALTER,
        Operation.ALTER_CONFIGS,
        Operation.CREATE,
        Operation.CREATE_TOKENS,
        Operation.DELETE,
    }
)
READS_AND_WRITES = frozenset({Operation.READ, Operation.WRITE})
# Of one window; beyond it the window ends early.
MAX_DIFFERENT = 10_000


class AuditKind(StrEnum):
    """What an event is about."""

    AUTHENTICATION = "authentication"
    AUTHORIZATION = "authorization"
    # Of users, access rules, API keys, delegation tokens, quotas, and tenants and their members.
    CHANGE = "change"


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit log."""

    # ISO 8601, in UTC.
    time: str
    node: int
    kind: AuditKind
    principal: str
    address: str
    allowed: bool
    # The id of the API key that the client used.
    key: str = ""
    # kafka, http, sqs or registry; the name of the request; what the client calls itself, and the request.
    api: str = ""
    request: str = ""
    client_id: str = ""
    request_id: str = ""
    operation: str = ""
    resource_type: str = ""
    resource: str = ""
    # The mechanism of a login, why it failed, or what was changed.
    detail: str = ""
    # How often it happened; more than once if events are combined.
    count: int = 1


class _Repeated:
    __slots__ = ("event", "times")

    def __init__(self, event: AuditEvent) -> None:
        self.event = event
        self.times = 0


class Repeats:
    """Counts the events of one window by what they are about."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, _Repeated] = {}

    def count(self, key: Hashable) -> bool:
        """Count an event; False if it is the first of its kind in this window."""
        known = self._by_key.get(key)
        if known is None:
            return False
        known.times += 1
        return True

    def add(self, key: Hashable, event: AuditEvent) -> None:
        """Count from now on what is about the same as an event."""
        self._by_key[key] = _Repeated(event)

    @property
    def is_full(self) -> bool:
        return len(self._by_key) >= MAX_DIFFERENT

    def end_window(self, time: str) -> Iterator[AuditEvent]:
        """Yield what was counted, and begin a new window."""
        ended, self._by_key = self._by_key, {}
        for each in ended.values():
            if each.times:
                yield msgspec.structs.replace(each.event, time=time, count=each.times)
