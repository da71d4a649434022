"""Rebalances of groups, as the HTTP API describes them."""

import msgspec


class GroupRebalance(msgspec.Struct, frozen=True, kw_only=True):
    """A rebalance. `state` is running, completed, or interrupted by the next one.

    `cause` is member-joined, member-left, member-replaced, member-rejoined, subscription-changed,
    topics-changed, topology-changed, session-expired, sync-timed-out or revocation-timed-out; `members` are
    up to three that caused it. `generation` is the new generation or group epoch. What is not known yet is
    null.
    """

    started: int
    ended: int | None
    duration_ms: int | None
    state: str
    cause: str
    members: list[str]
    generation: int | None
    member_count: int | None


class GroupRebalances(msgspec.Struct, frozen=True, kw_only=True):
    """The last rebalances of a group since the broker started, newest first."""

    group: str
    rebalances: list[GroupRebalance]
