"""Moves members from their current to their target assignment, without two owners of a partition.

A member first revokes partitions that are not in its target, and stays at its epoch until it has confirmed
that. Then it moves to the epoch of the target and gets the partitions without an owner; it gets the others as
their owners revoke them. Partitions that it keeps are not affected.
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
    """The reconciliation state of a member. Any state can follow any: targets change at any time."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"  # has not confirmed a revocation
    UNRELEASED = "unreleased"  # waits for partitions that others have not revoked


def state_of(current: Current, target: Partitions) -> MemberState:
    """Return the state of a member with these assignments."""
    if current.revoking:
        return MemberState.UNREVOKED
    return MemberState.STABLE if current.assigned == target else MemberState.UNRELEASED


def reconcile(
    current: Current,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    available: Callable[[Partitions], Partitions],
) -> Current:
    """Return the current assignment after a heartbeat that reported `owned` (None: unchanged).

    `available` selects the partitions that no other member owns.
    """
    if current.epoch == target_epoch and current.assigned == target and not current.revoking:
        return current
    # A heartbeat can confirm only revocations that were sent before it.
    revoking = _unconfirmed(current, owned)
    # A member that joins owns nothing, so there is nothing to revoke.
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
        assigned=union(assigned, available(minus(target, assigned))),
    )


def _unconfirmed(current: Current, owned: Partitions | None) -> Partitions:
    """Return the revoked partitions that the member may still own."""
    if owned is not None:
        return common(current.revoking, owned)
    return {} if current.is_disowned else current.revoking


def common(one: Partitions, other: Partitions) -> Partitions:
    """Return the partitions in both."""
    return {topic: both for topic, indexes in one.items() if (both := indexes & other.get(topic, _NONE))}


def minus(one: Partitions, other: Partitions) -> Partitions:
    """Return the partitions in `one` only."""
    return {topic: rest for topic, indexes in one.items() if (rest := indexes - other.get(topic, _NONE))}


def union(one: Partitions, other: Partitions) -> Partitions:
    """Return the partitions in either."""
    both = dict(one)
    for topic, indexes in other.items():
        both[topic] = both.get(topic, _NONE) | indexes
    return both


class PartitionOwners:
    """The owner of each partition: a member that was assigned it and has not confirmed its revocation."""

    __slots__ = ("_by_topic",)

    def __init__(self) -> None:
        self._by_topic: dict[TopicId, dict[int, str]] = {}

    def replace(self, member_id: str, before: Current | None, after: Current | None) -> None:
        """Replace the partitions of a member."""
        previous = union(before.assigned, before.revoking) if before is not None else {}
        current = union(after.assigned, after.revoking) if after is not None else {}
        for topic, indexes in minus(previous, current).items():
            owners = self._by_topic[topic]
            for index in indexes:
                del owners[index]
            if not owners:
                del self._by_topic[topic]
        for topic, indexes in minus(current, previous).items():
            owners = self._by_topic.setdefault(topic, {})
            for index in indexes:
                assert index not in owners, f"partition {index} of {topic} is owned by {owners[index]} too"
                owners[index] = member_id

    def available_to(self, member_id: str, wanted: Partitions) -> Partitions:
        """Return the wanted partitions that no other member owns."""
        found: dict[TopicId, frozenset[int]] = {}
        for topic, indexes in wanted.items():
            owners = self._by_topic.get(topic, {})
            if free := frozenset(index for index in indexes if owners.get(index, member_id) == member_id):
                found[topic] = free
        return found
