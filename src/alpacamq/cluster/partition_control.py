"""Decisions about replicas: elections, in-sync sets, reassignments and draining.

Works on the pending image. `partition_state.advance` has the rules of one partition; this module finds the
partitions that an event concerns, and checks requests.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import islice

import msgspec

from alpacamq.model.errors import (
    AlpacaError,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidReplicaAssignment,
    InvalidReplication,
    InvalidRequest,
    InvalidUpdateVersion,
    NoReassignmentInProgress,
    NotLeader,
    PreferredLeaderNotAvailable,
    UnknownLeaderEpoch,
    UnknownTopic,
    UnknownTopicId,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.topics import Topic

from .commands import (
    MAX_NAMED_PARTITIONS,
    ElectionKind,
    ElectLeaders,
    Failure,
    IsrProposal,
    NamedPartition,
    PartitionResult,
    PartitionResults,
    Reassign,
)
from .decisions import ControllerSettings, Pending
from .image import ClusterImage, partition_change
from .partition_state import Electorate, PartitionId, PartitionState, Replicas, advance, without
from .placement import replacement
from .sessions import Sessions
from .topics import UNCLEAN, cluster_setting, configured_min_isr

NO_BROKERS: frozenset[int] = frozenset()


class PartitionControl:
    """Changes the partitions of the pending image."""

    def __init__(self, pending: Pending, sessions: Sessions, settings: ControllerSettings) -> None:
        self._pending = pending
        self._sessions = sessions
        self._settings = settings

    @property
    def _image(self) -> ClusterImage:
        return self._pending.image

    # Rules

    def can_lead(self, broker_id: int, partition: PartitionId, leaving: Collection[int] = NO_BROKERS) -> bool:
        """Return whether a replica may lead, if it holds everything committed."""
        broker = self._image.brokers.get(BrokerId(broker_id))
        return (
            broker is not None
            and broker.is_running
            and broker_id not in leaving
            and not self.is_unfit(broker_id, partition)
        )

    def is_unfit(self, broker_id: int, partition: PartitionId) -> bool:
        """Return whether a replica is damaged, so that it must not lead or count as in sync.

        The only replica of a partition is served all the same: its damage cannot spread.
        """
        is_only = len(self._state(partition).replicas) == 1
        return not is_only and self._sessions.is_damaged(broker_id, partition)

    def is_unclean_allowed(self, topic: Topic) -> bool:
        """Return whether a replica that lacks records may lead if no other can."""
        allowed = cluster_setting(self._image, topic, UNCLEAN)
        if allowed is None:
            return self._settings.topic_defaults.get(UNCLEAN, "false").lower() == "true"
        return bool(allowed)

    def may_join(self, broker_id: int, broker_epoch: int, partition: PartitionId) -> bool:
        """Return whether a replica may join the ISR: it runs, stays, and caught up since it registered.

        What it fetched before it was registered again may be lost. Only the broker itself knows damage.
        """
        broker = self._image.brokers.get(BrokerId(broker_id))
        return (
            broker is not None
            and broker.is_running
            and not broker.is_shutting_down
            and broker.epoch == broker_epoch
            and self._sessions.is_heard(broker_id)
            and not self._sessions.is_disk_failing(broker_id)
            and not self.is_unfit(broker_id, partition)
        )

    def _electorate(
        self, partition: PartitionId, leaving: Collection[int] = NO_BROKERS, *, is_unclean: bool = False
    ) -> Electorate:
        topic = self.topic_of(partition)
        brokers = self._image.brokers

        def can_lead(broker_id: int) -> bool:
            return self.can_lead(broker_id, partition, leaving)

        def should_lead(broker_id: int) -> bool:
            return can_lead(broker_id) and brokers[BrokerId(broker_id)].is_staying

        def can_lead_uncleanly(broker_id: int) -> bool:
            return can_lead(broker_id) and self._sessions.is_heard(broker_id)

        return Electorate(
            can_lead=can_lead,
            should_lead=should_lead,
            can_lead_uncleanly=can_lead_uncleanly,
            has_lost_data=self._sessions.has_lost_data,
            min_isr=configured_min_isr(self._image, topic),
            is_unclean_allowed=is_unclean or self.is_unclean_allowed(topic),
        )

    # Events

    def fenced(self, broker_id: BrokerId, *, is_data_lost: bool = False) -> None:
        """Move leaders off a broker that does not run any more, and take its replicas out of sync."""
        lost = {broker_id} if is_data_lost else NO_BROKERS
        for partition, state in self._replicas_on(broker_id):
            if is_data_lost or broker_id in state.isr:
                self._put(
                    partition,
                    state,
                    advance(
                        state,
                        self._electorate(partition, {broker_id}),
                        isr=without(state.isr, (broker_id,)),
                        lost=lost,
                    ),
                )

    def hand_over(self, broker_id: BrokerId) -> None:
        """Move leaders off a broker that is about to stop or cannot write, where another is in sync."""
        for partition, state in self._replicas_on(broker_id):
            if broker_id in state.isr:
                others = without(state.isr, (broker_id,))
                electorate = self._electorate(partition, {broker_id})
                if any(map(electorate.can_lead, others)):
                    self._put(partition, state, advance(state, electorate, isr=others))

    def started(self, broker_id: BrokerId) -> None:
        """Elect leaders of partitions without one, now that this broker can lead."""
        leaderless = self._image.leaderless
        self.elect(partition for partition in self._image.replicas_on(broker_id) if partition in leaderless)

    def elect(self, partitions: Iterable[PartitionId]) -> None:
        """Elect leaders where that is possible."""
        for partition in list(partitions):
            if (state := self._image.partition(partition)) is not None:
                self._put(partition, state, advance(state, self._electorate(partition)))

    def damaged(self, broker_id: BrokerId, partitions: Iterable[PartitionId]) -> None:
        """Take replicas that are damaged out of sync; they never lead."""
        for partition in partitions:
            state = self._image.partition(partition)
            if state is None or not self.is_unfit(broker_id, partition):
                continue
            if broker_id in (state.leader, *state.isr, *state.elr):
                self._put(
                    partition, state, advance(state, self._electorate(partition), lost=frozenset({broker_id}))
                )

    def settings_changed(self, topics: Iterable[Topic]) -> None:
        """Apply new values of min.insync.replicas and unclean.leader.election.enable.

        With a lower minimum the leader commits again, and replicas outside the in-sync set fall behind.
        """
        for topic in topics:
            for index, state in enumerate(self._image.partitions_of(topic.id)):
                if state.elr or state.leader is None:
                    self.elect([PartitionId(topic.id, index)])

    def rebalance(self, limit: int) -> None:
        """Move leadership back to preferred replicas that are in sync, at most `limit` of them."""
        moved = 0
        for partition in list(self._image.not_preferred):
            state = self._state(partition)
            if self._should_lead(state.replicas[0], partition, state):
                self._put(partition, state, advance(state, self._electorate(partition), prefers_first=True))
                moved += 1
                if moved >= limit:
                    return

    def _should_lead(self, broker_id: int, partition: PartitionId, state: PartitionState) -> bool:
        return broker_id in state.isr and self._electorate(partition).should_lead(broker_id)

    # Requests

    def propose_isr(self, broker_id: BrokerId, proposal: IsrProposal) -> PartitionState:
        """Set the in-sync set that a leader proposes, and return the partition's state."""
        topic = self._image.topic_by_id(proposal.topic_id)
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {proposal.topic_id}")
        partition = PartitionId(proposal.topic_id, proposal.index)
        if (state := self._image.partition(partition)) is None:
            raise UnknownTopic(f"topic {topic.name!r} has no partition {proposal.index}")
        name = f"partition {proposal.index} of topic {topic.name!r}"
        _check_is_current(state, broker_id, proposal, name)
        members = {member.broker_id: member.broker_epoch for member in proposal.isr}
        if (
            len(members) != len(proposal.isr)
            or broker_id not in members
            or not members.keys() <= {*state.replicas}
        ):
            raise InvalidRequest(f"{name}: an in-sync set has its leader and other replicas, each once")
        for member, epoch in members.items():
            may_stay = member in state.isr and self._image.broker(member).epoch == epoch
            if not (may_stay or self.may_join(member, epoch, partition)):
                raise IneligibleReplica(f"{name}: broker {member} cannot be in sync now")
        isr = tuple(replica for replica in state.replicas if replica in members)
        after = advance(state, self._electorate(partition), isr=isr)
        if after is state:
            # The leader may be in doubt about an earlier proposal: the next epoch ends it.
            after = msgspec.structs.replace(state, partition_epoch=state.partition_epoch + 1)
        self._put(partition, state, after)
        return after

    def elect_leaders(self, command: ElectLeaders) -> PartitionResults:
        is_preferred = command.kind is ElectionKind.PREFERRED
        named = command.partitions
        if named is None:
            partitions = self._image.not_preferred if is_preferred else self._image.leaderless
            can_elect = self._can_have_preferred if is_preferred else self._can_have_any
            # Those that can have it first: repeating the command makes progress.
            chosen = dict.fromkeys(islice(filter(can_elect, partitions), MAX_NAMED_PARTITIONS))
            chosen |= dict.fromkeys(islice(partitions, MAX_NAMED_PARTITIONS))
            named = tuple(map(self._named, islice(chosen, MAX_NAMED_PARTITIONS)))
        check_number(len(named))
        elect = self._elect_preferred if is_preferred else self._elect_uncleanly
        return PartitionResults(tuple(self._result(each.topic, each.index, elect) for each in named))

    def _can_have_preferred(self, partition: PartitionId) -> bool:
        state = self._state(partition)
        return self._should_lead(state.replicas[0], partition, state)

    def _can_have_any(self, partition: PartitionId) -> bool:
        return (
            advance(self._state(partition), self._electorate(partition, is_unclean=True)).leader is not None
        )

    def _named(self, partition: PartitionId) -> NamedPartition:
        return NamedPartition(self.topic_of(partition).name, partition.partition)

    def _elect_preferred(self, partition: PartitionId, state: PartitionState) -> PartitionState:
        preferred = state.replicas[0]
        if state.leader == preferred:
            raise ElectionNotNeeded(f"broker {preferred} leads the partition already")
        if not self._should_lead(preferred, partition, state):
            raise PreferredLeaderNotAvailable(f"broker {preferred} is not in sync, or not running")
        return advance(state, self._electorate(partition), prefers_first=True)

    def _elect_uncleanly(self, partition: PartitionId, state: PartitionState) -> PartitionState:
        if state.leader is not None:
            raise ElectionNotNeeded(f"broker {state.leader} leads the partition")
        after = advance(state, self._electorate(partition, is_unclean=True))
        if after.leader is None:
            raise EligibleLeadersNotAvailable("none of the partition's replicas is running and undamaged")
        return after

    def reassign(self, command: Reassign) -> PartitionResults:
        check_number(len(command.reassignments))

        def results() -> Iterator[PartitionResult]:
            for each in command.reassignments:
                if each.replicas is None:
                    yield self._result(each.topic, each.index, self._cancel)
                else:
                    yield self._result(each.topic, each.index, partial(self._begin, each.replicas))

        return PartitionResults(tuple(results()))

    def _begin(self, target: Replicas, partition: PartitionId, state: PartitionState) -> PartitionState:
        """Return the state in which `target` catch up; a reassignment in progress is replaced."""
        check_replicas(self._image, target)
        dropped = without(state.adding, target)
        _check_can_drop(state, dropped)
        return self._moving_to(target, partition, state, dropped)

    def _moving_to(
        self, target: Replicas, partition: PartitionId, state: PartitionState, dropped: Replicas = ()
    ) -> PartitionState:
        original = state.original_replicas
        removing = without(original, target)
        return advance(
            state,
            self._electorate(partition),
            isr=without(state.isr, dropped),
            replicas=(*target, *removing),
            adding=without(target, original),
            removing=removing,
        )

    def _cancel(self, partition: PartitionId, state: PartitionState) -> PartitionState:
        if not state.is_moving:
            raise NoReassignmentInProgress("the partition is not being reassigned")
        _check_can_drop(state, state.adding)
        return advance(
            state,
            self._electorate(partition),
            isr=without(state.isr, state.adding),
            replicas=state.original_replicas,
            adding=(),
            removing=(),
        )

    def _result(
        self, topic_name: str, index: int, change: Callable[[PartitionId, PartitionState], PartitionState]
    ) -> PartitionResult:
        """Change one partition, and return its state or the error."""
        topic_id = None
        try:
            topic_id = self._image.topic(topic_name).id
            partition = PartitionId(topic_id, index)
            if (state := self._image.partition(partition)) is None:
                raise UnknownTopic(f"topic {topic_name!r} has no partition {index}")
            after = change(partition, state)
        except AlpacaError as error:
            return PartitionResult(topic_id, index, failure=Failure.of(error))
        self._put(partition, state, after)
        return PartitionResult(topic_id, index, after)

    def check_can_drain(self, broker_id: BrokerId) -> None:
        """Raise InvalidReplication if there are too few other brokers for some partition."""
        others = {each.id for each in self._image.brokers.values() if each.is_staying} - {broker_id}
        for partition, state in self._replicas_on(broker_id):
            staying = without(state.target_replicas, (broker_id,))
            if broker_id in state.target_replicas and not others.difference(staying):
                named = self._named(partition)
                raise InvalidReplication(
                    f"no other broker can take partition {named.index} of topic {named.topic!r}, which has "
                    f"{state.replication_factor} replicas"
                )

    def move_leaders(self, broker_id: BrokerId) -> None:
        """Move leaders off a broker that should not lead any more, where another replica is in sync."""
        for partition, state in self._replicas_on(broker_id):
            if state.leader == broker_id:
                self._put(partition, state, advance(state, self._electorate(partition)))

    def drain(self, broker_id: BrokerId, limit: int) -> None:
        """Begin to move replicas off a broker, so that at most `limit` are moving."""
        moving = sum(1 for partition in self._image.moving if broker_id in self._state(partition).removing)
        load: Counter[int] = Counter()
        for partition, state in self._replicas_on(broker_id):
            if moving >= limit:
                return
            # A reassignment that users began is not replaced; what it leaves behind is moved afterwards.
            if state.is_moving or (other := replacement(self._image, state, broker_id, load)) is None:
                continue
            target = tuple(other if replica == broker_id else replica for replica in state.replicas)
            self._put(partition, state, self._moving_to(target, partition, state))
            load[other] += 1
            moving += 1

    def stop_draining(self, broker_id: BrokerId) -> None:
        """Cancel the moves off a broker that are in progress."""
        for partition in list(self._image.moving):
            state = self._state(partition)
            if state.removing == (broker_id,) and keeps_a_complete_replica(state, state.adding):
                self._put(partition, state, self._cancel(partition, state))

    def needs(self, broker_id: BrokerId) -> PartitionId | None:
        """Return a partition of which this broker has the only complete replica."""
        for partition, state in self._replicas_on(broker_id):
            if {*state.isr, *state.elr} == {broker_id}:
                return partition
        return None

    def _replicas_on(self, broker_id: BrokerId) -> Iterator[tuple[PartitionId, PartitionState]]:
        for partition in list(self._image.replicas_on(broker_id)):
            yield partition, self._state(partition)

    def topic_of(self, partition: PartitionId) -> Topic:
        topic = self._image.topic_by_id(partition.topic_id)
        assert topic is not None  # it takes its partitions along
        return topic

    def _state(self, partition: PartitionId) -> PartitionState:
        state = self._image.partition(partition)
        assert state is not None  # indexes have existing partitions only
        return state

    def _put(self, partition: PartitionId, before: PartitionState, after: PartitionState) -> None:
        if after is not before:
            self._pending.put(partition_change(partition, after))


def check_number(partitions: int) -> None:
    """Check the number of partitions that a command names. Raises InvalidRequest."""
    if partitions > MAX_NAMED_PARTITIONS:
        raise InvalidRequest(f"{partitions} partitions in one command; at most {MAX_NAMED_PARTITIONS}")


def check_replicas(image: ClusterImage, replicas: Replicas) -> None:
    """Check the replicas that a user chose. Raises InvalidReplicaAssignment."""
    if not replicas:
        raise InvalidReplicaAssignment("a partition needs at least one replica")
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(f"replicas {list(replicas)} name a broker twice")
    for replica in replicas:
        if BrokerId(replica) not in image.brokers:
            raise InvalidReplicaAssignment(f"no broker is registered with id {replica}")


def _check_is_current(state: PartitionState, broker_id: BrokerId, proposal: IsrProposal, name: str) -> None:
    """Check that a proposal is that of the leader, and based on the latest state."""
    if state.leader != broker_id:
        raise NotLeader(f"broker {broker_id} does not lead {name}", state.leader)
    if proposal.leader_epoch < state.leader_epoch:
        raise FencedLeaderEpoch(f"{name} is in leader epoch {state.leader_epoch}")
    if proposal.leader_epoch > state.leader_epoch:
        raise UnknownLeaderEpoch(f"{name} is in leader epoch {state.leader_epoch}")
    if proposal.partition_epoch != state.partition_epoch:
        raise InvalidUpdateVersion(f"{name} is in partition epoch {state.partition_epoch}")


def keeps_a_complete_replica(state: PartitionState, dropped: Replicas) -> bool:
    """Whether, without these replicas, another one can still lead or will be able to when it runs."""
    complete = state.isr or state.elr
    return not complete or bool(without(complete, dropped))


def _check_can_drop(state: PartitionState, dropped: Replicas) -> None:
    """Refuse to drop the replicas that a reassignment added if no other has all records."""
    if not keeps_a_complete_replica(state, dropped):
        raise InvalidReplicaAssignment("only replicas that are being added are in sync")
