"""How a member gets from what it has to what it is to have, without any partition being read twice.

A member first gives up what it must, and stays at its epoch until it has confirmed that. Then it moves to
the epoch of the target, and is given what nobody else holds; the rest follows as others give it up. What it
has and keeps is never touched on the way.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from .messages import JOIN_EPOCH, Partitions
from .records import Current

if TYPE_CHECKING:
    from alpacamq.model.ids import TopicId

_NONE: frozenset[int] = frozenset()


class MemberState(StrEnum):
    """How far a member is on its way. Any state can follow any: targets change at any time."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"  # has been told to give partitions up and has not confirmed it
    UNRELEASED = "unreleased"  # waits for partitions that others have not given up


def state_of(current: Current, target: Partitions) -> MemberState:
    """Where a member is that has `current`, on the way to `target`."""
    if current.revoking:
        return MemberState.UNREVOKED
    return MemberState.STABLE if current.assigned == target else MemberState.UNRELEASED


def reconcile(
    current: Current,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    open_to_it: Callable[[Partitions], Partitions],
) -> Current:
    """What a member has after a heartbeat that reported `owned` (None: as before).

    `open_to_it` picks from partitions those that no other member holds.
    """
    if current.epoch == target_epoch and current.assigned == target and not current.revoking:
        return current
    # Only what the member was told to give up before this heartbeat can be confirmed by it.
    revoking = _unconfirmed(current, owned)
    # A member that joins has been told of nothing, so there is nothing to wait for.
    surplus = minus(current.assigned, target) if current.epoch != JOIN_EPOCH else {}
    assigned = common(current.assigned, target)
    if surplus or revoking:
        revoking = union(revoking, surplus)
        return Current(
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            assigned=assigned,
            revoking=revoking,
            is_disowned=owned is not None and not common(owned, revoking),
        )
    return Current(
        epoch=target_epoch,
        previous_epoch=current.previous_epoch if current.epoch == target_epoch else current.epoch,
        assigned=union(assigned, open_to_it(minus(target, assigned))),
    )


def _unconfirmed(current: Current, owned: Partitions | None) -> Partitions:
    """What the member may still hold of what it was told to give up."""
    if owned is not None:
        return common(current.revoking, owned)
    return {} if current.is_disowned else current.revoking


def common(one: Partitions, other: Partitions) -> Partitions:
    """The partitions in both."""
    return {topic: both for topic, indexes in one.items() if (both := indexes & other.get(topic, _NONE))}


def minus(one: Partitions, other: Partitions) -> Partitions:
    """The partitions in `one` alone."""
    return {topic: rest for topic, indexes in one.items() if (rest := indexes - other.get(topic, _NONE))}


def union(one: Partitions, other: Partitions) -> Partitions:
    """The partitions in either."""
    both = dict(one)
    for topic, indexes in other.items():
        both[topic] = both.get(topic, _NONE) | indexes
    return both


class Holders:
    """Which member holds each partition: has been told it has it, and has not confirmed giving it up."""

    __slots__ = ("_by_topic",)

    def __init__(self) -> None:
        self._by_topic: dict[TopicId, dict[int, str]] = {}

    def replace(self, member_id: str, before: Current | None, after: Current | None) -> None:
        """Let `member_id` hold what is in `after` instead of what was in `before`."""
        held = union(before.assigned, before.revoking) if before is not None else {}
        holds = union(after.assigned, after.revoking) if after is not None else {}
        for topic, indexes in minus(held, holds).items():
            holders = self._by_topic[topic]
            for index in indexes:
                del holders[index]
            if not holders:
                del self._by_topic[topic]
        for topic, indexes in minus(holds, held).items():
            holders = self._by_topic.setdefault(topic, {})
            for index in indexes:
                assert index not in holders, f"partition {index} of {topic} is held by {holders[index]} too"
                holders[index] = member_id

    def open_to(self, member_id: str, wanted: Partitions) -> Partitions:
        """Those of the partitions that no other member holds."""
        found: dict[TopicId, frozenset[int]] = {}
        for topic, indexes in wanted.items():
            holders = self._by_topic.get(topic, {})
            if free := frozenset(index for index in indexes if holders.get(index, member_id) == member_id):
                found[topic] = free
        return found
