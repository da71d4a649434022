"""The replicas of one partition, and every rule by which they change.

`PartitionState` is the value that the metadata log stores. `advance` computes the next one: it completes a
reassignment, keeps the eligible leader replicas (KIP-966), elects a leader and counts the epochs. Each rule
that protects records is a function of its own.

The rules rest on what leaders do: a leader advances the high watermark only over all members of the in-sync
set, and not at all while the set is smaller than `min_isr`. So a replica that left the set when it became
too small still holds everything committed, and may lead.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import msgspec

from alpacamq.model.ids import TopicId

Replicas = tuple[int, ...]

FIRST_EPOCH = 0
# With this many replicas, min.insync.replicas is 2 unless it is set.
SAFE_FACTOR = 3


class PartitionId(NamedTuple):
    """One partition of one topic, by the topic's id: a recreated topic has other partitions."""

    topic_id: TopicId
    partition: int


class PartitionState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The replicas of a partition. `replicas` is in the order of preference and includes `adding`.

    Every change increments the partition epoch; a change of the leader, and the removal of a replica,
    increment the leader epoch as well.
    """

    replicas: Replicas
    isr: Replicas
    elr: Replicas = ()
    leader: int | None = None
    leader_epoch: int = FIRST_EPOCH
    partition_epoch: int = FIRST_EPOCH
    adding: Replicas = ()
    removing: Replicas = ()
    # The last leader of a partition that has none now: the first choice of an unclean election.
    last_leader: int | None = None

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)

    @property
    def target_replicas(self) -> Replicas:
        """The replicas after the reassignment in progress."""
        return without(self.replicas, self.removing)

    @property
    def original_replicas(self) -> Replicas:
        """The replicas if the reassignment in progress is cancelled."""
        return without(self.replicas, self.adding)

    @property
    def replication_factor(self) -> int:
        """The number of replicas, without those that a reassignment is still adding."""
        return len(self.replicas) - len(self.adding)

    @property
    def is_led_by_preferred(self) -> bool:
        return self.leader == self.replicas[0]


class Electorate(NamedTuple):
    """What the controller knows about the brokers when it elects a leader of one partition."""

    # Running, registered and undamaged: may lead if it holds everything committed.
    can_lead: Callable[[int], bool]
    # Also not about to leave: preferred over others that can lead.
    should_lead: Callable[[int], bool]
    # Known to be undamaged, from the broker itself: may lead although it lacks records.
    can_lead_uncleanly: Callable[[int], bool]
    # Came back without its records: the last choice of an unclean election.
    has_lost_data: Callable[[int], bool]
    # min.insync.replicas as configured; None if it is not.
    min_isr: int | None
    is_unclean_allowed: bool


def without(replicas: Iterable[int], others: Collection[int]) -> Replicas:
    return tuple(replica for replica in replicas if replica not in others)


def min_isr(configured: int | None, replication_factor: int) -> int:
    """Return the in-sync replicas that a commit needs. Leader and controller must agree on it."""
    if configured is None:
        configured = 2 if replication_factor >= SAFE_FACTOR else 1
    return min(configured, replication_factor)


def new_partition(replicas: Replicas, is_running: Callable[[int], bool]) -> PartitionState:
    """Return a partition without records: every replica that is running is in sync."""
    isr = tuple(filter(is_running, replicas))
    return PartitionState(replicas=replicas, isr=isr, leader=isr[0] if isr else None)


def is_reassignment_complete(replicas: Replicas, removing: Replicas, isr: Replicas) -> bool:
    """Return whether every replica that is to stay is in sync, so that the others can be removed."""
    return set(isr).issuperset(without(replicas, removing))


def eligible_leaders(before: PartitionState, isr: Replicas, required: int, lost: Collection[int]) -> Replicas:
    """Return the replicas outside `isr` that hold everything committed.

    While the in-sync set is large enough, the leader commits records that only its members have.
    """
    if len(isr) >= required:
        return ()
    candidates = {*before.isr, *before.elr}.difference(isr, lost)
    return tuple(replica for replica in before.replicas if replica in candidates)


def holds_everything_committed(replica: int, isr: Replicas, elr: Replicas) -> bool:
    """Return whether a leader that starts from this replica loses nothing.

    Outside the in-sync set only once it is empty: until then its members may have more.
    """
    return replica in isr or (not isr and replica in elr)


def is_replica_removed(before: PartitionState, replicas: Replicas) -> bool:
    return not set(before.replicas).issubset(replicas)


def advance(
    before: PartitionState,
    electorate: Electorate,
    *,
    isr: Replicas | None = None,
    replicas: Replicas | None = None,
    adding: Replicas | None = None,
    removing: Replicas | None = None,
    lost: Collection[int] = (),
    prefers_first: bool = False,
) -> PartitionState:
    """Return the next state of a partition; `before` itself if nothing changes.

    What is not given stays. `lost` have lost records: they are neither in sync nor eligible.
    `prefers_first` moves leadership to the preferred replica if it can lead.
    """
    isr = without(before.isr if isr is None else isr, lost)
    replicas = before.replicas if replicas is None else replicas
    adding = before.adding if adding is None else adding
    removing = before.removing if removing is None else removing
    if (adding or removing) and is_reassignment_complete(replicas, removing, isr):
        replicas, isr = without(replicas, removing), without(isr, removing)
        adding = removing = ()
    required = min_isr(electorate.min_isr, len(replicas) - len(adding))
    elr = tuple(replica for replica in eligible_leaders(before, isr, required, lost) if replica in replicas)
    order = replicas
    if before.leader in replicas and not prefers_first:
        order = (before.leader, *without(replicas, (before.leader,)))
    leader, isr, elr = _elect(order, isr, elr, required, before.last_leader, electorate)
    after = PartitionState(
        replicas=replicas,
        isr=isr,
        elr=elr,
        leader=leader,
        leader_epoch=before.leader_epoch,
        partition_epoch=before.partition_epoch,
        adding=adding,
        removing=removing,
        last_leader=None if leader is not None else _last_leader(before, lost),
    )
    if after == before:
        return before
    return msgspec.structs.replace(
        after,
        leader_epoch=before.leader_epoch + (leader != before.leader or is_replica_removed(before, replicas)),
        partition_epoch=before.partition_epoch + 1,
    )


def _elect(
    order: Replicas,
    isr: Replicas,
    elr: Replicas,
    required: int,
    last_leader: int | None,
    electorate: Electorate,
) -> tuple[int | None, Replicas, Replicas]:
    """Return the leader, the in-sync set and the eligible leaders after an election."""
    clean = [replica for replica in order if holds_everything_committed(replica, isr, elr)]
    for may_lead in (electorate.should_lead, electorate.can_lead):
        for replica in filter(may_lead, clean):
            if replica in isr:
                return replica, isr, elr
            return replica, (replica,), without(elr, (replica,)) if required > 1 else ()
    if electorate.is_unclean_allowed:
        by_choice = sorted(order, key=lambda each: (each != last_leader, electorate.has_lost_data(each)))
        for replica in filter(electorate.can_lead_uncleanly, by_choice):
            return replica, (replica,), ()
    return None, isr, elr


def _last_leader(before: PartitionState, lost: Collection[int]) -> int | None:
    last = before.last_leader if before.leader is None else before.leader
    return None if last in lost else last
