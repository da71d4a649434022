"""Random commands, failures and controller changes: what holds after each of them."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alpacamq.cluster.commands import (
    AddPartitions,
    ConfigureTopic,
    DeleteTopic,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    NamedPartition,
    Reassign,
    Reassignment,
    UnregisterBroker,
)
from alpacamq.cluster.decisions import ControllerSettings
from alpacamq.cluster.image import ClusterImage, difference
from alpacamq.cluster.partition_state import PartitionId, PartitionState, min_isr
from alpacamq.cluster.topics import EditOperation, SettingEdit, configured_min_isr
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import BrokerId
from alpacamq.model.topics import Topic

from .clusters import Cluster, snapshot

BROKERS = 4
NAMES = ("a", "b")  # few, so that commands meet
brokers = st.integers(1, BROKERS)
names = st.sampled_from(NAMES)
indexes = st.integers(0, 3)
replica_lists = st.lists(brokers, min_size=1, max_size=3, unique=True).map(tuple)
subsets = st.sets(brokers)


class ControllerMachine(RuleBasedStateMachine):
    """Compares the controller with a model of the records that each replica has.

    The model knows which replicas of each partition are complete: have everything committed. After every
    step, each leader with enough replicas in sync commits another batch, which only those have.
    """

    @initialize()
    def begin(self) -> None:
        self.cluster = Cluster(
            BROKERS, ControllerSettings(dead_ms=9000, rebalance_ms=5000, drained_at_once=2, drain_ms=1000)
        )
        self.running = set(range(1, BROKERS + 1))
        self.damaged: dict[int, set[PartitionId]] = {}
        self.complete: dict[PartitionId, set[int]] = {}
        self.before: dict[PartitionId, PartitionState] = {}
        self.follower = ClusterImage()
        self.followed = 0
        self.cluster.create("a", (1, 2, 3), (2, 3, 4))

    # What the brokers do

    @rule(name=names, replicas=replica_lists, count=st.integers(1, 2), is_unclean=st.booleans())
    def create(self, name: str, replicas: tuple[int, ...], count: int, is_unclean: bool) -> None:
        overrides = {"unclean_leader_election_enable": "true"} if is_unclean else {}
        self.attempt(lambda: self.cluster.create(name, *[replicas] * count, **overrides))

    @rule(name=names)
    def create_by_default(self, name: str) -> None:
        self.attempt(lambda: self.cluster.create(name))

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.attempt(lambda: self.cluster.ask(DeleteTopic(name=name)))

    @rule(name=names)
    def grow(self, name: str) -> None:
        self.attempt(lambda: self.cluster.ask(AddPartitions(name=name, partitions=4)))

    @rule(name=names, count=st.integers(1, 3))
    def configure(self, name: str, count: int) -> None:
        edit = SettingEdit(EditOperation.SET, "min.insync.replicas", str(count))
        self.attempt(lambda: self.cluster.ask(ConfigureTopic(name=name, edits=(edit,))))

    @rule(name=names, index=indexes, wanted=subsets)
    def propose(self, name: str, index: int, wanted: set[int]) -> None:
        """A leader proposes an in-sync set of replicas that have caught up with it."""
        if (found := self.led(name, index)) is None:
            return
        topic, state = found
        assert state.leader is not None
        partition = PartitionId(topic.id, index)
        isr = tuple(each for each in state.replicas if each in wanted or each == state.leader)
        joining = {each for each in isr if each not in state.isr}
        joining = {each for each in joining if each in self.running and not self.is_damaged(each, partition)}
        isr = tuple(each for each in isr if each in state.isr or each in joining)
        result = self.cluster.propose(topic, isr, index)
        if result.failure is None:
            self.complete[partition] |= joining

    @rule(ms=st.sampled_from([500, 3000, 9000]), silent=subsets)
    def pass_time(self, ms: int, silent: set[int]) -> None:
        for broker in self.running - silent:
            self.beat(broker)
        self.cluster.now_ms += ms
        self.cluster.tick()

    @rule(broker=brokers)
    def beat(self, broker: int) -> None:
        if broker in self.running:
            self.attempt(
                lambda: self.cluster.beat(broker, damaged=tuple(sorted(self.damaged.get(broker, ()))))
            )

    @rule(broker=brokers)
    def stop(self, broker: int) -> None:
        if broker in self.running:
            damaged = tuple(sorted(self.damaged.get(broker, ())))
            self.attempt(lambda: self.cluster.beat(broker, wants_shutdown=True, damaged=damaged))

    @rule(broker=brokers, is_refused=st.booleans())
    def crash(self, broker: int, is_refused: bool) -> None:
        self.running.discard(broker)
        self.cluster.lose_connection(broker, is_refused=is_refused)

    @rule(broker=brokers, is_wiped=st.booleans(), is_restored=st.booleans())
    def restart(self, broker: int, is_wiped: bool, is_restored: bool) -> None:
        if broker in self.running:
            return
        cluster = self.cluster
        directory = cluster.directories[broker]
        former = cluster.image.brokers.get(BrokerId(broker))
        last_epoch = cluster.epochs[broker]
        is_restored = is_restored and former is not None and former.active_epoch == last_epoch
        if is_wiped:
            cluster.directories[broker] = cluster.uuid()
            last_epoch = 0
        elif is_restored:
            last_epoch -= 1
        try:
            registered = cluster.register(
                broker, last_epoch=last_epoch, damaged=tuple(sorted(self.damaged.get(broker, ())))
            )
        except AlpacaError:
            cluster.directories[broker] = directory
            return
        if is_wiped or is_restored:
            self.damaged.pop(broker, None)
            for complete in self.complete.values():
                complete.discard(broker)
        cluster.epochs[broker] = registered.epoch
        self.running.add(broker)

    @precondition(lambda self: self.complete)
    @rule(broker=brokers, data=st.data())
    def damage(self, broker: int, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.complete)))
        state = self.cluster.image.partition(partition)
        if state is None or broker not in state.replicas or len(state.replicas) == 1:
            return
        if broker in self.running:
            self.damaged.setdefault(broker, set()).add(partition)
            self.complete[partition].discard(broker)
            self.beat(broker)

    @rule(broker=brokers)
    def rebuild(self, broker: int) -> None:
        """A follower replaces its damaged replicas; they are empty until they catch up."""
        self.damaged.pop(broker, None)
        self.beat(broker)

    # What operators do

    @rule(name=names, index=indexes, replicas=st.none() | replica_lists)
    def reassign(self, name: str, index: int, replicas: tuple[int, ...] | None) -> None:
        self.cluster.ask(Reassign(reassignments=(Reassignment(name, index, replicas),)))

    @rule(name=names, index=indexes)
    def elect_preferred(self, name: str, index: int) -> None:
        partitions = (NamedPartition(name, index),)
        self.cluster.ask(ElectLeaders(kind=ElectionKind.PREFERRED, partitions=partitions))

    @rule(broker=brokers, is_draining=st.booleans(), keeps_replicas=st.booleans())
    def drain(self, broker: int, is_draining: bool, keeps_replicas: bool) -> None:
        command = DrainBroker(
            broker_id=BrokerId(broker), is_draining=is_draining, keeps_replicas=keeps_replicas
        )
        self.attempt(lambda: self.cluster.ask(command))

    @rule(broker=brokers)
    def unregister(self, broker: int) -> None:
        if broker not in self.running:
            self.attempt(lambda: self.cluster.ask(UnregisterBroker(broker_id=BrokerId(broker))))

    @rule()
    def fail_over(self) -> None:
        self.cluster.fail_over()

    # What must hold

    def attempt(self, act: object) -> None:
        """Run a command that may be refused; then nothing has changed."""
        before = snapshot(self.cluster.image)
        try:
            act()  # type: ignore[operator]
        except AlpacaError:
            assert snapshot(self.cluster.image) == before

    def led(self, name: str, index: int) -> tuple[Topic, PartitionState] | None:
        topic = self.cluster.image.topics.get(name)  # type: ignore[call-overload]
        if topic is None or index >= topic.partitions:
            return None
        state = self.cluster.state(topic, index)
        return (topic, state) if state.leader in self.running else None

    def is_damaged(self, broker: int, partition: PartitionId) -> bool:
        return partition in self.damaged.get(broker, ())

    def partitions(self) -> dict[PartitionId, PartitionState]:
        return {
            PartitionId(topic.id, index): state
            for topic in self.cluster.image.topics.values()
            for index, state in enumerate(self.cluster.image.partitions_of(topic.id))
        }

    @invariant()
    def replaying_the_log_gives_the_image(self) -> None:
        former = self.follower.copy()
        delta = self.follower.apply(self.cluster.log[self.followed :])
        self.followed = len(self.cluster.log)
        assert snapshot(self.follower) == snapshot(self.cluster.image)
        expected = difference(former, self.follower)
        assert expected.partitions <= delta.partitions
        assert expected.topics <= delta.topics
        assert expected.brokers <= delta.brokers
        rebuilt = ClusterImage()
        rebuilt.apply(self.follower.changes())
        for broker in range(1, BROKERS + 1):
            assert set(rebuilt.replicas_on(broker)) == set(self.follower.replicas_on(broker))
            assert rebuilt.led_by(broker) == self.follower.led_by(broker)
        assert set(rebuilt.leaderless) == set(self.follower.leaderless)
        assert set(rebuilt.moving) == set(self.follower.moving)
        assert set(rebuilt.not_preferred) == set(self.follower.not_preferred)

    @invariant()
    def states_are_consistent(self) -> None:
        brokers = self.cluster.image.brokers
        for partition, state in self.partitions().items():
            assert {*state.isr, *state.elr} <= {*state.replicas}
            assert not {*state.isr} & {*state.elr}
            assert len({*state.replicas}) == len(state.replicas)
            assert {*state.adding, *state.removing} <= {*state.replicas}
            assert not {*state.adding} & {*state.removing}
            assert state.target_replicas
            assert state.original_replicas
            if state.leader is None:
                assert not any(
                    self.cluster.controller._partitions.can_lead(each, partition) for each in state.isr
                )
            else:
                assert state.leader in state.isr
            for broker in state.isr:
                assert not brokers[BrokerId(broker)].is_fenced
                assert len(state.replicas) == 1 or not self.is_known_damaged(broker, partition)

    def is_known_damaged(self, broker: int, partition: PartitionId) -> bool:
        return partition in self.cluster.controller.session(broker).damaged

    @invariant()
    def committed_records_are_safe(self) -> None:
        self.check_epochs()
        self.check_that_what_may_lead_is_complete()
        for partition, state in self.partitions().items():
            topic = self.cluster.image.topic_by_id(partition.topic_id)
            assert topic is not None
            required = min_isr(configured_min_isr(self.cluster.image, topic), state.replication_factor)
            if state.leader in self.running and len(state.isr) >= required:
                self.complete[partition] = set(state.isr)

    def check_epochs(self) -> None:
        after = self.partitions()
        for partition, state in after.items():
            if (before := self.before.get(partition)) is None:
                self.complete[partition] = set(state.replicas)
                continue
            assert state.partition_epoch >= before.partition_epoch
            assert state.leader_epoch >= before.leader_epoch
            if state != before:
                assert state.partition_epoch > before.partition_epoch
            if state.leader != before.leader:
                assert state.leader_epoch > before.leader_epoch
            if not (state.isr or state.elr):
                lost = {*before.isr, *before.elr} - self.complete[partition]
                assert lost == {*before.isr, *before.elr}, "a complete replica was forgotten"
            # A replica that joins has no records yet.
            self.complete[partition] -= set(state.replicas) - set(before.replicas)
        self.complete = {partition: each for partition, each in self.complete.items() if partition in after}
        self.before = after

    def check_that_what_may_lead_is_complete(self) -> None:
        for partition, state in self.partitions().items():
            topic = self.cluster.image.topic_by_id(partition.topic_id)
            assert topic is not None
            if topic.overrides.get("unclean.leader.election.enable") == "true":
                # Nothing is promised: what the leader has is what counts.
                self.complete[partition] |= {*state.isr, *state.elr}
                continue
            has_all = {*state.isr, *state.elr}
            if len(state.replicas) > 1:
                has_all = {each for each in has_all if not self.is_damaged(each, partition)}
                assert has_all <= self.complete[partition]


TestController = ControllerMachine.TestCase
TestController.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
