"""The leader of one partition: counts what replicas have flushed, and decides who is in sync.

Owns the high watermark and the proposals to change the in-sync set (ISR). One object exists per led
partition and leader epoch; it ends with the epoch. The host appends, flushes, answers fetches, sends the
proposals to the controller and reports what became of them.

The *maximal* ISR is the committed ISR and every replica proposed at the current partition epoch whose
proposal may still take effect. The controller may elect any of them, so the high watermark counts them all.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from alpacamq.model.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    OffsetOutOfRange,
    StaleBrokerEpoch,
    UnknownLeaderEpoch,
)
from alpacamq.model.ids import BrokerId

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
# How long a proposal whose outcome is unknown, or that was rejected, waits before the next one.
RETRY_MS = 250
_NEVER_MS = -(1 << 62)


class InSyncReplica(NamedTuple):
    """A member of a proposed ISR, with the registration in which it fetched, or else the one in the image."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(slots=True)
class KnownBrokers:
    """The registered brokers of the committed image. The host keeps one for all its leaders up to date."""

    epochs: Mapping[BrokerId, int]
    # Those that may join an ISR: neither fenced nor shutting down.
    joinable: Collection[BrokerId]


class CommittedState(msgspec.Struct, frozen=True, kw_only=True):
    """The committed state of a partition. `min_isr` is what its controller requires for a commit.

    All of it changes together: a watermark may advance by the one only while the other is in force.
    """

    leader_epoch: int
    partition_epoch: int
    replicas: Sequence[BrokerId]
    isr: Collection[BrokerId]
    min_isr: int


class ProposeIsr(msgspec.Struct, frozen=True, kw_only=True):
    """An AlterPartition for the controller. `request_id` names the attempt, not the proposal."""

    request_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[InSyncReplica, ...]


class FollowerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as its leader sees it; `end_offset` is -1 before its first fetch."""

    broker_id: BrokerId
    end_offset: int
    lag_ms: int
    is_in_sync: bool


class EpochEnds(Protocol):
    """The leader epochs of a log: `log.epochs.EpochHistory`."""

    @property
    def latest(self) -> int:
        """The epoch of the last batch; -1 if none is known."""
        ...

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Return the newest epoch not after `epoch` and its end offset; -1 for both where it is unknown."""
        ...


class _Follower:
    """What the leader knows of one follower."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "counts",
        "end_offset",
        "fetched_leader_end",
        "fetched_ms",
        "in_isr",
    )

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_EPOCH
        # The end that the last fetch reported: everything before it counts as replicated.
        self.end_offset = UNKNOWN_OFFSET
        # The last time at which it was known to hold everything that existed then.
        self.caught_up_ms = _NEVER_MS
        # When the last fetch came, and where the leader's log ended then.
        self.fetched_ms = _NEVER_MS
        self.fetched_leader_end = UNKNOWN_OFFSET
        self.in_isr = False
        self.counts = False  # a member of the maximal ISR


class PartitionLeader:
    """The replication state of one partition that this broker leads in one epoch.

    `flush_counts` is false where data counts before it is flushed.

    Read `unsent` after every call: it holds a proposal to be sent, until `take_proposal`.
    """

    __slots__ = (
        "_attempt",
        "_began_ms",
        "_below_min_isr",
        "_brokers",
        "_counting",
        "_flush_counts",
        "_followers",
        "_in_flight",
        "_proposed",
        "_replica_lag_ms",
        "_request_id",
        "_retry_ms",
        "_unknown_attempts",
        "broker_id",
        "epoch_start",
        "flushed_end",
        "high_watermark",
        "isr",
        "leader_epoch",
        "log_end",
        "min_isr",
        "partition_epoch",
        "replicas",
        "unsent",
    )

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        state: CommittedState,
        log_end: int,
        flushed_end: int,
        high_watermark: int,
        replica_lag_ms: int,
        brokers: KnownBrokers,
        now_ms: int,
        flush_counts: bool = True,
    ) -> None:
        assert broker_id in state.isr, f"leader {broker_id} is not in the ISR {sorted(state.isr)}"
        assert high_watermark <= log_end, f"high watermark {high_watermark} is beyond the end {log_end}"
        self.broker_id = broker_id
        self.leader_epoch = state.leader_epoch
        self.log_end = log_end
        self.flushed_end = flushed_end
        # Every record from here on is written in this epoch.
        self.epoch_start = log_end
        self.high_watermark = high_watermark
        self._brokers = brokers
        self._flush_counts = flush_counts
        self._replica_lag_ms = replica_lag_ms
        self._began_ms = now_ms
        self._followers: dict[BrokerId, _Follower] = {}
        self._counting: tuple[_Follower, ...] = ()
        self.unsent: ProposeIsr | None = None
        self._request_id = 0
        self._in_flight: int | None = None
        # The ISR to propose again, because the outcome of its last attempt is unknown. With the same broker
        # epochs: a member that has restarted since may lack what it had.
        self._attempt: tuple[InSyncReplica, ...] | None = None
        self._unknown_attempts = 0
        self._retry_ms = _NEVER_MS
        # Replicas outside the committed ISR whose proposal may still take effect.
        self._proposed: frozenset[BrokerId] = frozenset()
        self._adopt(state, now_ms)
        self._advance()

    # Rules. Each is one predicate.

    def holds_all_committed(self, follower: _Follower) -> bool:
        """Return whether a replica holds all that this leader and former ones committed.

        The watermark is not enough: a new leader's may lag behind its predecessor's, but its log does not.
        """
        return follower.end_offset >= self.high_watermark and follower.end_offset >= self.epoch_start

    def is_current_incarnation(self, follower: _Follower) -> bool:
        """Return whether a replica is the running, unfenced process that the fetch came from."""
        return (
            self._brokers.epochs.get(follower.broker_id) == follower.broker_epoch
            and follower.broker_id in self._brokers.joinable
        )

    def may_join(self, follower: _Follower) -> bool:
        """Return whether to propose a replica that is not in the ISR."""
        return self.holds_all_committed(follower) and self.is_current_incarnation(follower)

    def is_lagging(self, follower: _Follower, now_ms: int) -> bool:
        """Return whether a member was behind for longer than allowed, whatever the number of records."""
        return follower.end_offset != self.log_end and now_ms - follower.caught_up_ms > self._replica_lag_ms

    def is_definite(self) -> bool:
        """Return whether a rejection proves that the proposal never takes effect.

        An earlier attempt whose outcome is unknown may still be on its way to the controller, and may find
        there what the rejected one did not.
        """
        return self._unknown_attempts == 0

    def is_newer(self, state: CommittedState) -> bool:
        """Return whether a committed state is newer than the known one: metadata never goes back."""
        return state.leader_epoch == self.leader_epoch and state.partition_epoch > self.partition_epoch

    @property
    def is_below_min_isr(self) -> bool:
        """Whether the committed ISR is smaller than min.insync.replicas.

        It freezes the high watermark: replicas that left the ISR since it became too small can be elected
        (they are in the ELR), and hold only what was committed until then. The committed ISR decides, not the
        proposed one: a proposal that fails would leave records committed that an electable replica lacks.
        """
        return self._below_min_isr

    # Events from the log.

    def appended(self, end_offset: int, now_ms: int) -> bool:
        """Note that the log has grown; true if the high watermark advanced."""
        former = self.log_end
        if end_offset <= former:
            return False
        for follower in self._followers.values():
            if follower.end_offset == former:
                # It held everything until now, however long ago it said so.
                follower.caught_up_ms = now_ms
        self.log_end = end_offset
        return not self._flush_counts and self._advance()

    def flushed(self, flushed_offset: int) -> bool:
        """Note that the log is on disk up to an offset; true if the high watermark advanced."""
        if flushed_offset <= self.flushed_end:
            return False
        assert flushed_offset <= self.log_end, f"flushed {flushed_offset} of {self.log_end}"
        self.flushed_end = flushed_offset
        return self._advance()

    # Fetches of followers.

    def check_fetch(
        self, leader_epoch: int, last_epoch: int, offset: int, start_offset: int, epochs: EpochEnds
    ) -> tuple[int, int] | None:
        """Return where the follower's log diverges from this one as (epoch, end offset), None if nowhere.

        Call it before `fetched`: only a log that is a prefix of this one counts. `last_epoch` is the epoch
        before `offset`, -1 if the follower's log is empty. Raises FencedLeaderEpoch, UnknownLeaderEpoch and
        OffsetOutOfRange.
        """
        if leader_epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"leader epoch {leader_epoch} has ended, now {self.leader_epoch}")
        if leader_epoch > self.leader_epoch:
            raise UnknownLeaderEpoch(f"leader epoch {leader_epoch} is unknown, now {self.leader_epoch}")
        if last_epoch == leader_epoch and start_offset <= offset <= self.log_end:
            return None
        if offset < start_offset:
            raise OffsetOutOfRange(f"offset {offset} is before the log start {start_offset}")
        if last_epoch != UNKNOWN_EPOCH and epochs.latest != UNKNOWN_EPOCH:
            # This leader's epoch is in the history once it has written something.
            known = min(last_epoch, epochs.latest)
            epoch, end = epochs.end_offset_for(known, self.log_end)
            if epoch < last_epoch or end < offset:
                return epoch, end
        if offset > self.log_end:
            raise OffsetOutOfRange(f"offset {offset} is after the log end {self.log_end}")
        return None

    def fetched(self, broker_id: BrokerId, broker_epoch: int, offset: int, now_ms: int) -> bool:
        """Note that a follower holds everything before `offset`; true if the high watermark advanced.

        Raises StaleBrokerEpoch, and UnknownLeaderEpoch for a replica that this leader does not know yet.
        """
        follower = self._followers.get(broker_id)
        if follower is None:
            raise UnknownLeaderEpoch(
                f"broker {broker_id} is not a replica as of partition epoch {self.partition_epoch}"
            )
        if broker_epoch < follower.broker_epoch:
            raise StaleBrokerEpoch(f"broker {broker_id} has restarted: {follower.broker_epoch}")
        follower.broker_epoch = broker_epoch
        if offset >= follower.fetched_leader_end:
            # It has all that there was at its last fetch. If it has all there is now, `appended` notes it.
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.fetched_ms = now_ms
        follower.fetched_leader_end = self.log_end
        if offset == follower.end_offset and follower.counts:
            return False
        follower.end_offset = offset
        if follower.counts:
            return self._advance()
        if self._in_flight is None and now_ms >= self._retry_ms and self.may_join(follower):
            self._propose(now_ms)
        return False

    # The ISR.

    def tick(self, now_ms: int) -> None:
        """Propose to remove lagging members and add replicas that caught up; repeat a proposal in doubt.

        Call it at `next_deadline_ms`, or every half of the allowed lag.
        """
        if self._in_flight is None and now_ms >= self._retry_ms:
            self._propose(now_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `tick` next, unless there is an event before. Only `appended` brings it forward."""
        if self._in_flight is not None:
            return None
        due = [
            max(follower.caught_up_ms + self._replica_lag_ms + 1, self._retry_ms)
            for follower in self._counting
            if follower.end_offset != self.log_end
        ]
        outside = (follower for follower in self._followers.values() if not follower.in_isr)
        if self._attempt is not None or self._proposed or any(map(self.may_join, outside)):
            due.append(self._retry_ms)
        return min(due, default=None)

    def take_proposal(self) -> ProposeIsr:
        """Return the proposal to be sent now."""
        proposal, self.unsent = self.unsent, None
        assert proposal is not None
        return proposal

    def altered(self, request_id: int, state: CommittedState, now_ms: int) -> bool:
        """Note that the controller committed a proposal; true if the high watermark advanced."""
        if request_id != self._in_flight:
            return False
        if not self.is_newer(state):
            # Nothing was changed, so earlier attempts may still take effect. Or this epoch has ended.
            self.alter_unknown(request_id, now_ms)
            self._attempt = None
            return False
        self._adopt(state, now_ms)
        return self._advance()

    def alter_rejected(self, request_id: int, now_ms: int) -> bool:
        """Note that a proposal was refused: IneligibleReplica; true if the high watermark advanced.

        Errors that do not prove that the partition epoch was the current one, such as InvalidUpdateVersion
        or NotController, are `alter_unknown`.
        """
        if request_id != self._in_flight:
            return False
        self._in_flight = self._attempt = None
        self._retry_ms = now_ms + RETRY_MS
        if not self.is_definite():
            return False
        self._proposed = frozenset()
        self._recount()
        return self._advance()

    def alter_unknown(self, request_id: int, now_ms: int) -> None:
        """Note that a proposal may or may not take effect. It counts until the partition epoch changes."""
        if request_id == self._in_flight:
            self._in_flight = None
            self._unknown_attempts += 1
            self._retry_ms = now_ms + RETRY_MS

    def updated(self, state: CommittedState, now_ms: int) -> bool:
        """Adopt the state in the committed image; true if the high watermark advanced.

        Older states are ignored: the response to a proposal may come before the image does. A state of
        another leader epoch ends this leader, which is the host's business.
        """
        if not self.is_newer(state):
            return False
        self._adopt(state, now_ms)
        return self._advance()

    def configure(self, min_isr: int, *, flush_counts: bool) -> bool:
        """Apply settings of the committed image; true if the high watermark advanced."""
        self.min_isr = min_isr
        self._flush_counts = flush_counts
        self._recount()
        return self._advance()

    # Producers.

    def check_writable(self) -> None:
        """Check acks=all before an append. Raises NotEnoughReplicas."""
        if self._below_min_isr:
            raise NotEnoughReplicas(
                f"{len(self.isr)} replicas are in sync, min.insync.replicas is {self.min_isr}"
            )

    def is_replicated(self, end_offset: int) -> bool:
        """Return whether acks=all is fulfilled for an append that ended at `end_offset`; false: wait.

        Raises NotEnoughReplicasAfterAppend.
        """
        if self.high_watermark >= end_offset:
            return True
        if self._below_min_isr:
            raise NotEnoughReplicasAfterAppend(
                f"written, but only {len(self.isr)} replicas are in sync, min.insync.replicas is "
                f"{self.min_isr}"
            )
        return False

    @property
    def covers_former_epochs(self) -> bool:
        """Whether the watermark has passed everything that former leaders may have committed.

        Before that the end of the partition is not known to consumers, and state that was read from the whole
        log is not safe to act on.
        """
        return self.high_watermark >= self.epoch_start

    def followers(self, now_ms: int) -> list[FollowerStatus]:
        """Return the followers for status and metrics."""
        return [
            FollowerStatus(
                broker_id=follower.broker_id,
                end_offset=follower.end_offset,
                lag_ms=(
                    0
                    if follower.end_offset == self.log_end
                    # One that never caught up with this leader is behind since the leader began.
                    else now_ms - max(follower.caught_up_ms, self._began_ms)
                ),
                is_in_sync=follower.in_isr,
            )
            for follower in self._followers.values()
        ]

    def _adopt(self, state: CommittedState, now_ms: int) -> None:
        """Make a committed state the current one. Proposals of older partition epochs cannot win any more."""
        replicas = tuple(state.replicas)
        assert set(state.isr) <= set(replicas), f"ISR {sorted(state.isr)} is not among {replicas}"
        self.partition_epoch = state.partition_epoch
        self.min_isr = state.min_isr
        self.replicas = replicas
        former = self._followers
        self._followers = {
            broker_id: former.get(broker_id) or _Follower(broker_id)
            for broker_id in replicas
            if broker_id != self.broker_id
        }
        self.isr = frozenset(state.isr)
        self._proposed = frozenset()
        self._attempt = self._in_flight = self.unsent = None
        self._unknown_attempts = 0
        self._retry_ms = _NEVER_MS
        for follower in self._followers.values():
            if not follower.in_isr and follower.broker_id in self.isr:
                # A new member is given the whole allowed time to be heard of.
                follower.caught_up_ms = now_ms
        self._recount()

    def _recount(self) -> None:
        for follower in self._followers.values():
            follower.in_isr = follower.broker_id in self.isr
            follower.counts = follower.in_isr or follower.broker_id in self._proposed
        self._counting = tuple(follower for follower in self._followers.values() if follower.counts)
        # A partition with fewer replicas than the setting asks for is not unwritable for ever.
        self._below_min_isr = len(self.isr) < min(self.min_isr, len(self.replicas))

    def _advance(self) -> bool:
        """Advance the high watermark to the smallest end in the maximal ISR; it never goes back."""
        offset = self.flushed_end if self._flush_counts else self.log_end
        if offset <= self.high_watermark or self._below_min_isr:
            return False
        for follower in self._counting:
            if follower.end_offset < offset:
                offset = follower.end_offset
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def _propose(self, now_ms: int) -> None:
        if self._attempt is None:
            wanted = self._wanted_isr(now_ms)
            # While a proposal is in doubt, even an unchanged ISR is proposed: a new partition epoch ends it.
            if wanted == self.isr and not self._proposed:
                return
            self._attempt = tuple(
                InSyncReplica(broker_id, self._epoch_of(broker_id))
                for broker_id in self.replicas
                if broker_id in wanted
            )
            self._proposed |= wanted - self.isr
            self._recount()
        self._request_id += 1
        self._in_flight = self._request_id
        self.unsent = ProposeIsr(
            request_id=self._request_id,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            isr=self._attempt,
        )

    def _wanted_isr(self, now_ms: int) -> frozenset[BrokerId]:
        wanted = {self.broker_id}
        for follower in self._followers.values():
            if follower.in_isr:
                if not self.is_lagging(follower, now_ms):
                    wanted.add(follower.broker_id)
            elif self.may_join(follower):
                wanted.add(follower.broker_id)
        return frozenset(wanted)

    def _epoch_of(self, broker_id: BrokerId) -> int:
        follower = self._followers.get(broker_id)
        if follower is None or follower.broker_epoch == UNKNOWN_EPOCH:
            return self._brokers.epochs.get(broker_id, UNKNOWN_EPOCH)
        return follower.broker_epoch
