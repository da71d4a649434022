"""What the controller decides: sessions, registration, in-sync sets, reassignments, topics, settings."""

from uuid import UUID

import pytest

from alpacamq.cluster import partition_control, topic_control
from alpacamq.cluster.brokers import Endpoint, FeatureRange
from alpacamq.cluster.cluster_time import ClusterTime
from alpacamq.cluster.commands import (
    MAX_NAMED_PARTITIONS,
    MAX_NEW_REPLICAS,
    AddPartitions,
    AllocateProducerIds,
    AlterPartitions,
    Command,
    ConfigureBroker,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    Failure,
    Heartbeat,
    IsrMember,
    IsrProposal,
    NamedPartition,
    Reassign,
    Reassignment,
    UnregisterBroker,
    UpdateFeatures,
)
from alpacamq.cluster.controller import MAX_PRODUCER_IDS, Controller
from alpacamq.cluster.decisions import ControllerSettings, Decision
from alpacamq.cluster.image import CURRENT_LEVEL, VERSION_FEATURE, ClusterImage, feature_change
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.cluster.topics import BY_DEFAULT, EditOperation, SettingEdit, TopicLimits
from alpacamq.model.errors import (
    AlpacaError,
    DuplicateBroker,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    FeatureUpdateFailed,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidConfig,
    InvalidPartitionCount,
    InvalidReplicaAssignment,
    InvalidReplication,
    InvalidRequest,
    InvalidUpdateVersion,
    NoReassignmentInProgress,
    NotLeader,
    PolicyViolation,
    PreferredLeaderNotAvailable,
    StaleBrokerEpoch,
    TopicExists,
    UnknownBroker,
    UnknownLeaderEpoch,
    UnknownTopic,
    UnknownTopicId,
)
from alpacamq.model.ids import BrokerId, TopicId, TopicName
from alpacamq.model.topics import OFFSETS_TOPIC, Topic

from .clusters import SETTINGS, Cluster, snapshot

ANY_ID = UUID(int=1 << 100)


# Sessions


def test_a_broker_is_fenced_when_its_session_ends() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3))
    cluster.advance(8999, heard=[2, 3])
    assert cluster.state(topic).leader == 1
    cluster.advance(1, heard=[2, 3])
    assert cluster.image.broker(1).is_fenced
    state = cluster.state(topic)
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (2, (2, 3), 1, 1)


def test_a_cluster_begins_at_a_level_that_its_first_controller_and_broker_support() -> None:
    for supported, level in ((CURRENT_LEVEL - 1, CURRENT_LEVEL - 1), (CURRENT_LEVEL + 1, CURRENT_LEVEL)):
        cluster = Cluster(0)
        cluster.register(1, features=FeatureRange(1, supported))
        assert cluster.image.features == {VERSION_FEATURE: level}


def test_the_next_deadline_is_the_end_of_the_first_session() -> None:
    cluster = Cluster()
    cluster.tick()
    cluster.now_ms = 500
    cluster.beat(1)
    cluster.beat(2)
    assert cluster.controller.next_deadline_ms == 9000
    cluster.beat(3)
    assert cluster.controller.next_deadline_ms == 9500


def test_a_refused_connection_fences_at_once_and_a_lost_one_does_not() -> None:
    cluster = Cluster()
    cluster.lose_connection(1, is_refused=False)
    assert not cluster.image.broker(1).is_fenced
    cluster.lose_connection(1, is_refused=True)
    assert cluster.image.broker(1).is_fenced


def test_a_refused_connection_to_a_broker_that_does_not_run_changes_nothing() -> None:
    cluster = Cluster(1)
    cluster.kill(1)
    before = len(cluster.log)
    cluster.kill(1, 9)
    assert len(cluster.log) == before


def test_the_broker_in_the_process_of_the_controller_needs_no_heartbeats() -> None:
    cluster = Cluster(2)
    cluster.controller.end_session(BrokerId(2))
    cluster.now_ms = 8000
    for broker in (1, 2):
        cluster.controller.keep_session(BrokerId(broker), 8000)
    assert cluster.controller.session(1).ends_ms == 17_000
    assert cluster.controller.session(2).ends_ms is None, "it has ended"


def test_a_tick_at_the_deadline_does_all_that_is_due() -> None:
    cluster = Cluster(4, ControllerSettings(rebalance_ms=5000, drained_at_once=1, drain_ms=1000))
    cluster.create("t", *[(1, 2, 3)] * 3)
    cluster.create("u", (4, 3))
    cluster.kill(4)
    cluster.beat(4)
    cluster.ask(DrainBroker(broker_id=BrokerId(1)))
    for _ in range(40):
        cluster.now_ms = cluster.controller.next_deadline_ms
        cluster.tick()
        assert cluster.controller.next_deadline_ms > cluster.now_ms


def test_deadlines_are_only_of_what_is_to_be_done() -> None:
    cluster = Cluster(2, ControllerSettings(dead_ms=9000, rebalance_ms=5000, drain_ms=1000))
    topic = cluster.create("t", (1, 2))
    cluster.tick()
    assert cluster.controller.next_deadline_ms == 9000
    cluster.kill(1)
    cluster.beat(1)
    assert cluster.controller.next_deadline_ms == 5000, "leaders move back"
    cluster.propose(topic, (1, 2))
    cluster.ask(ElectLeaders(kind=ElectionKind.PREFERRED))
    cluster.start(3)
    cluster.ask(DrainBroker(broker_id=BrokerId(3)))
    assert cluster.controller.next_deadline_ms == 9000, "there is nothing to drain"
    cluster.ask(DrainBroker(broker_id=BrokerId(3), is_draining=False))
    cluster.ask(DrainBroker(broker_id=BrokerId(2)))
    assert cluster.controller.next_deadline_ms == 1000


def test_a_fenced_broker_that_is_heard_again_is_unfenced_and_rejoins() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3))
    cluster.kill(1)
    assert not cluster.beat(1).is_fenced
    assert cluster.state(topic).isr == (2, 3)
    assert cluster.propose(topic, (1, 2, 3)).failure is None
    assert cluster.state(topic).isr == (1, 2, 3)


def test_every_broker_gets_a_new_session_from_a_new_controller() -> None:
    cluster = Cluster()
    cluster.now_ms = 8999
    cluster.fail_over()
    cluster.advance(8999)
    assert not cluster.image.broker(1).is_fenced
    cluster.advance(1)
    assert all(broker.is_fenced for broker in cluster.image.brokers.values())


def test_a_new_controller_completes_what_the_last_one_began() -> None:
    cluster = Cluster(1)
    topic = cluster.create("t", (1,))
    cluster.kill(1)
    offline = len(cluster.log)
    cluster.beat(1)
    # Only the broker's own record was committed, not the election that followed.
    del cluster.log[offline + 1 :]
    cluster.fail_over()
    assert cluster.state(topic).leader == 1


def test_cluster_time_goes_on_from_what_the_node_knows_and_is_recorded() -> None:
    cluster = Cluster()
    cluster.now_ms = 100
    assert cluster.beat(1).cluster_time_ms == 100
    cluster.advance(10_000, heard=[1, 2, 3])
    recorded = cluster.image.time_ms
    assert recorded > 0
    cluster.now_ms = 0
    cluster.fail_over()
    assert cluster.beat(1).cluster_time_ms == recorded


def test_a_new_controller_goes_on_with_the_time_of_its_node() -> None:
    time = ClusterTime(7000, 100)
    controller = Controller(ClusterImage(), SETTINGS, 150, time=time)
    assert controller.cluster_time_ms(200) == 7100


@pytest.mark.parametrize(
    ("clocks", "expected"),
    [
        pytest.param([60_000, 60_000], 10_200, id="it follows the clocks of the brokers, slowly"),
        pytest.param([60_000, 0], 10_000, id="not a single one"),
        pytest.param([60_000], 10_000, id="nor that of the only broker"),
    ],
)
def test_cluster_time_follows_the_clocks_of_several_brokers(clocks: list[int], expected: int) -> None:
    cluster = Cluster(len(clocks))
    for broker, clock_ms in enumerate(clocks, 1):
        cluster.beat(broker, clock_ms=clock_ms)
    assert cluster.controller.cluster_time_ms(10_000) == expected


def test_cluster_time_does_not_follow_the_clock_of_a_broker_that_has_ended() -> None:
    cluster = Cluster(2)
    cluster.beat(2, clock_ms=60_000)
    cluster.kill(2)
    cluster.beat(1, clock_ms=60_000)
    assert cluster.controller.cluster_time_ms(10_000) == 10_000


def test_a_controller_that_was_paused_hears_brokers_before_it_fences_them() -> None:
    cluster = Cluster()
    cluster.now_ms += 20_000
    cluster.controller.was_paused(cluster.now_ms)
    cluster.tick()
    assert not any(broker.is_fenced for broker in cluster.image.brokers.values())
    cluster.beat(1)
    cluster.beat(2)
    cluster.now_ms += 3000
    cluster.controller.was_paused(cluster.now_ms)  # a silent broker is not spared again and again
    cluster.tick()
    assert [broker.id for broker in cluster.image.brokers.values() if broker.is_fenced] == [3]


def test_a_pause_neither_shortens_a_session_nor_begins_one_that_has_ended() -> None:
    cluster = Cluster(2)
    cluster.kill(2)
    cluster.controller.was_paused(cluster.now_ms)
    assert cluster.controller.session(1).ends_ms == cluster.now_ms + cluster.settings.dead_ms
    assert cluster.controller.session(2).ends_ms is None


def test_a_tick_with_nothing_due_changes_nothing() -> None:
    cluster = Cluster()
    cluster.create("t")
    cluster.tick()
    assert cluster.tick() == []


# Registration


def test_epochs_of_brokers_increase_and_registration_is_idempotent() -> None:
    cluster = Cluster(0)
    first = cluster.register(1, incarnation=ANY_ID, stopped_cleanly=True)
    assert first.is_fenced
    second = cluster.register(2)
    assert second.epoch > first.epoch
    before = len(cluster.log)
    assert cluster.register(1, incarnation=ANY_ID) == first
    assert len(cluster.log) == before


def test_a_second_process_with_the_same_id_is_refused_until_the_session_ends() -> None:
    cluster = Cluster(1)
    directory = cluster.directories.pop(1)
    with pytest.raises(DuplicateBroker):
        cluster.register(1)
    cluster.directories[1] = directory
    with pytest.raises(DuplicateBroker):
        cluster.register(1)
    cluster.now_ms += 8999
    with pytest.raises(DuplicateBroker):
        cluster.register(1)
    cluster.now_ms += 1  # not even a tick is needed
    assert cluster.register(1).epoch > cluster.epochs[1]


def test_a_late_request_of_an_earlier_process_does_not_replace_the_one_that_runs() -> None:
    cluster = Cluster(0)
    here = (Endpoint("cluster", "a", 9093),)
    for _ in range(2):
        cluster.epochs[1] = cluster.register(1, endpoints=here).epoch
        cluster.beat(1)
    topic = cluster.create("t", (1,))
    before = cluster.state(topic)
    with pytest.raises(DuplicateBroker):
        cluster.register(1, endpoints=here, last_epoch=cluster.epochs[1] - 1)
    assert cluster.state(topic) == before


def test_a_process_restarted_at_the_same_address_does_not_wait_for_the_session_of_the_last_one() -> None:
    cluster = Cluster(0)
    here = (Endpoint("cluster", "a", 9093),)
    cluster.epochs[1] = cluster.register(1, endpoints=here).epoch
    cluster.beat(1)
    topic = cluster.create("t", (1,))
    cluster.epochs[1] = cluster.register(1, endpoints=here).epoch
    assert cluster.state(topic).leader is None
    cluster.beat(1)
    assert (cluster.state(topic).leader, cluster.state(topic).leader_epoch) == (1, 2)
    # At another address it may be a copy of the directory, beside the process that runs.
    with pytest.raises(DuplicateBroker):
        cluster.register(1, endpoints=(Endpoint("cluster", "b", 9093),))


@pytest.mark.parametrize(
    ("brokers", "stopped_cleanly", "leads_on"),
    [
        pytest.param(1, True, True, id="the only broker, stopped on request"),
        pytest.param(1, False, False, id="after a crash"),
        pytest.param(2, True, False, id="not the only broker"),
    ],
)
def test_a_restarted_broker_leads_on_if_nobody_else_could_have_led(
    brokers: int, stopped_cleanly: bool, leads_on: bool
) -> None:
    cluster = Cluster(brokers)
    topic = cluster.create("t", (1,))
    before = cluster.state(topic)
    cluster.controller.end_session(BrokerId(1))
    cluster.epochs[1] = cluster.register(1, stopped_cleanly=stopped_cleanly).epoch
    assert (cluster.state(topic) == before) is leads_on
    assert cluster.image.broker(1).is_running is leads_on
    cluster.beat(1)
    assert (cluster.state(topic).leader_epoch > before.leader_epoch) is not leads_on
    # Only now: the broker has stored its epoch, so an older one means a restored backup.
    assert cluster.image.broker(1).active_epoch == cluster.epochs[1]


def test_a_broker_that_was_fenced_or_lost_its_records_does_not_lead_on() -> None:
    cluster = Cluster(1)
    topic = cluster.create("t", (1,))
    cluster.kill(1)
    cluster.epochs[1] = cluster.register(1, stopped_cleanly=True).epoch
    assert cluster.image.broker(1).is_fenced
    cluster.beat(1)
    assert cluster.state(topic).leader == 1
    cluster.controller.end_session(BrokerId(1))
    del cluster.directories[1]
    cluster.register(1, stopped_cleanly=True)
    assert cluster.state(topic).leader is None


def test_the_only_broker_restores_a_backup_together_with_the_metadata() -> None:
    cluster = Cluster(1)
    topic = cluster.create("t", (1,))
    cluster.kill(1)
    cluster.epochs[1] = cluster.register(1, last_epoch=cluster.epochs[1] - 1).epoch
    cluster.beat(1)
    assert cluster.state(topic).leader == 1


def test_a_broker_is_unfenced_once_it_has_applied_what_was_there_when_it_registered() -> None:
    cluster = Cluster(0)
    cluster.controller.last_index = 7
    cluster.epochs[1] = cluster.register(1).epoch
    reply = cluster.beat(1, applied_index=6)
    assert (reply.is_fenced, reply.is_caught_up) == (True, False)
    reply = cluster.beat(1, applied_index=7)
    assert (reply.is_fenced, reply.is_caught_up) == (False, True)


def test_a_heartbeat_of_a_broker_that_runs_changes_nothing() -> None:
    cluster = Cluster(1)
    before = len(cluster.log)
    cluster.beat(1)
    assert len(cluster.log) == before


def test_a_heartbeat_of_an_earlier_registration_is_refused() -> None:
    cluster = Cluster(1)
    cluster.kill(1)
    cluster.register(1)
    with pytest.raises(StaleBrokerEpoch):
        cluster.beat(1)
    cluster.epochs[9] = 1
    with pytest.raises(UnknownBroker):
        cluster.beat(9)


@pytest.mark.parametrize(
    ("is_wiped", "epochs_back", "elr"),
    [
        pytest.param(False, 0, (1, 2), id="an intact directory"),
        pytest.param(True, 0, (1,), id="a new directory"),
        pytest.param(False, 1, (1,), id="a restored backup"),
    ],
)
def test_a_broker_that_lost_its_records_is_neither_in_sync_nor_eligible(
    is_wiped: bool, epochs_back: int, elr: tuple[int, ...]
) -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3))
    cluster.kill(3, 2, 1)
    assert (cluster.state(topic).isr, cluster.state(topic).elr) == ((), (1, 2))
    if is_wiped:
        del cluster.directories[2]
    cluster.epochs[2] = cluster.register(2, last_epoch=cluster.epochs[2] - epochs_back).epoch
    assert cluster.state(topic).elr == elr
    cluster.beat(2)
    assert cluster.state(topic).leader == (2 if 2 in elr else None)
    cluster.start(1)
    assert cluster.state(topic).leader == (2 if 2 in elr else 1)


def test_a_partition_whose_only_replica_is_lost_stays_offline_until_an_unclean_election() -> None:
    cluster = Cluster(1)
    topic = cluster.create("t", (1,))
    cluster.kill(1)
    del cluster.directories[1]
    cluster.start(1)
    state = cluster.state(topic)
    assert (state.leader, state.isr, state.elr) == (None, (), ())
    (result,) = cluster.ask(ElectLeaders(kind=ElectionKind.UNCLEAN)).results
    assert result.state is not None
    assert (result.state.leader, result.state.isr) == (1, (1,))


def test_a_registration_that_never_was_unfenced_does_not_count_as_lost_data() -> None:
    cluster = Cluster(1)
    topic = cluster.create("t", (1,))
    cluster.kill(1)
    cluster.register(1)  # and it dies before it has stored the new epoch
    cluster.kill(1)
    cluster.start(1)
    assert cluster.state(topic).leader == 1


def test_a_restored_backup_is_found_although_a_registration_in_between_never_was_unfenced() -> None:
    cluster = Cluster(2)
    topic = cluster.create("t", (1,))
    cluster.kill(1)
    cluster.register(1)
    cluster.kill(1)
    cluster.register(1, last_epoch=cluster.epochs[1] - 1)
    assert (cluster.state(topic).leader, cluster.state(topic).elr) == (None, ())


def test_a_broker_must_support_the_features_in_use() -> None:
    cluster = Cluster(1)
    assert cluster.image.features == {VERSION_FEATURE: CURRENT_LEVEL}
    with pytest.raises(InvalidRequest, match=f"level {CURRENT_LEVEL}; this broker supports 8 to 9"):
        cluster.register(2, features=FeatureRange(8, 9))


def test_a_cluster_begins_at_a_level_that_its_first_broker_supports() -> None:
    cluster = Cluster(0)
    cluster.register(1, features=FeatureRange(1, 1))
    assert cluster.image.features == {VERSION_FEATURE: 1}


def test_a_broker_must_know_every_feature_in_use() -> None:
    cluster = Cluster(1)
    cluster.log.append(feature_change("novel", 1))
    cluster.fail_over()
    with pytest.raises(InvalidRequest, match="the cluster uses novel level 1; this broker does not know"):
        cluster.register(2)


def test_a_feature_is_raised_once_all_brokers_support_it() -> None:
    cluster = Cluster(0)
    cluster.register(2, features=FeatureRange(1, 1))
    cluster.register(1, features=FeatureRange(1, 2))
    raised = UpdateFeatures(levels={VERSION_FEATURE: 2})
    with pytest.raises(FeatureUpdateFailed, match="broker 2"):
        cluster.ask(raised)
    cluster.advance(9000)
    cluster.register(2, features=FeatureRange(1, 2))
    cluster.ask(raised)
    assert cluster.image.features == {VERSION_FEATURE: 2}
    with pytest.raises(FeatureUpdateFailed, match="go back"):
        cluster.ask(UpdateFeatures(levels={VERSION_FEATURE: 1}))
    with pytest.raises(FeatureUpdateFailed, match="does not support novel level 1"):
        cluster.ask(UpdateFeatures(levels={"novel": 1}))


def test_a_broker_is_unregistered_only_if_it_is_stopped_and_not_needed() -> None:
    cluster = Cluster(2)
    topic = cluster.create("t", (1, 2), (2, 1))
    with pytest.raises(InvalidRequest, match="running"):
        cluster.ask(UnregisterBroker(broker_id=BrokerId(1)))
    cluster.kill(2, 1)
    with pytest.raises(InvalidRequest, match="only complete replica"):
        cluster.ask(UnregisterBroker(broker_id=BrokerId(1)))
    cluster.ask(UnregisterBroker(broker_id=BrokerId(2)))
    assert cluster.state(topic).replicas == (1, 2)
    assert list(cluster.image.brokers) == [1]


def test_a_broker_that_is_starting_is_not_unregistered() -> None:
    cluster = Cluster(2)
    cluster.register(3)
    cluster.controller.end_session(BrokerId(2))  # its process was replaced and has not registered yet
    for broker in (2, 3):
        with pytest.raises(InvalidRequest, match="running"):
            cluster.ask(UnregisterBroker(broker_id=BrokerId(broker)))


def test_what_an_unregistered_broker_held_does_not_count_when_it_comes_back() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3))
    cluster.kill(3, 2, 1)
    assert cluster.state(topic).elr == (1, 2)
    cluster.ask(UnregisterBroker(broker_id=BrokerId(2)))
    del cluster.directories[2]
    cluster.start(2)
    assert (cluster.state(topic).leader, cluster.state(topic).elr) == (None, (1,))


def test_an_unregistered_broker_is_neither_in_sync_nor_elected() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (3, 1, 2), min_insync_replicas="1")
    cluster.kill(3)
    cluster.ask(UnregisterBroker(broker_id=BrokerId(3)))
    assert failure(cluster.propose(topic, (3, 1, 2)).failure) is IneligibleReplica
    cluster.propose(topic, (1,))
    cluster.kill(1)
    cluster.ask(ElectLeaders(kind=ElectionKind.UNCLEAN))
    assert cluster.state(topic).leader == 2


# Damage


def test_a_damaged_replica_is_out_of_sync_and_never_leads() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3))
    damaged = (PartitionId(topic.id, 0),)
    cluster.beat(1, damaged=damaged)
    state = cluster.state(topic)
    assert (state.leader, state.isr, state.elr) == (2, (2, 3), ())
    assert failure(cluster.propose(topic, (1, 2, 3)).failure) is IneligibleReplica
    cluster.kill(2)
    cluster.beat(1, damaged=damaged)
    cluster.kill(3)
    cluster.beat(1, damaged=damaged)
    assert cluster.state(topic).leader is None
    (result,) = cluster.ask(ElectLeaders(kind=ElectionKind.UNCLEAN)).results
    assert failure(result.failure) is EligibleLeadersNotAvailable


def test_a_replica_that_recovery_found_damaged_does_not_lead_after_a_restart() -> None:
    cluster = Cluster(2)
    topic = cluster.create("t", (1, 2))
    cluster.kill(2, 1)
    assert cluster.state(topic).elr == (1,)
    damaged = (PartitionId(topic.id, 0),)
    cluster.epochs[1] = cluster.register(1, damaged=damaged).epoch
    cluster.beat(1, damaged=damaged)
    state = cluster.state(topic)
    assert (state.leader, state.isr, state.elr) == (None, (), ())


def test_a_repaired_replica_can_be_elected_again() -> None:
    cluster = Cluster(2)
    topic = cluster.create("t", (1, 2), unclean_leader_election_enable="true")
    damaged = (PartitionId(topic.id, 0),)
    cluster.beat(1, damaged=damaged)
    cluster.kill(2)
    cluster.beat(1, damaged=damaged)
    assert cluster.state(topic).leader is None
    cluster.beat(1)
    assert cluster.state(topic).leader == 1


def test_damage_of_a_partition_that_was_deleted_is_ignored() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3))
    cluster.ask(DeleteTopic(name="t"))
    assert not cluster.beat(1, damaged=(PartitionId(topic.id, 0),)).is_fenced


def test_the_only_replica_is_served_although_it_is_damaged() -> None:
    cluster = Cluster(1)
    topic = cluster.create("t", (1,))
    cluster.beat(1, damaged=(PartitionId(topic.id, 0),))
    assert cluster.state(topic).leader == 1


# Full disks


def test_a_broker_with_a_full_disk_hands_over_and_comes_back_when_it_has_room() -> None:
    cluster = Cluster()
    led = cluster.create("led", (1, 2, 3))
    followed = cluster.create("followed", (2, 1, 3))
    epoch = cluster.state(led).leader_epoch
    cluster.beat(1, is_disk_failing=True)
    assert (cluster.state(led).leader, cluster.state(led).isr) == (2, (2, 3))
    assert cluster.state(led).leader_epoch > epoch
    # Its acknowledgement is not waited for either.
    assert (cluster.state(followed).leader, cluster.state(followed).isr) == (2, (2, 3))
    assert failure(cluster.propose(led, (1, 2, 3)).failure) is IneligibleReplica
    cluster.beat(1)
    assert cluster.propose(led, (1, 2, 3)).failure is None


def test_a_broker_with_a_full_disk_leads_on_if_no_other_can() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3))
    alone = cluster.create("alone", (1,))
    cluster.kill(2, 3)
    cluster.beat(1, is_disk_failing=True)
    assert (cluster.state(topic).leader, cluster.state(topic).isr) == (1, (1,))
    assert cluster.state(alone).leader == 1


def test_a_new_controller_lets_nobody_join_before_it_knows_of_damage() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3))
    cluster.propose(topic, (1, 2))
    cluster.fail_over()
    assert failure(cluster.propose(topic, (1, 2, 3)).failure) is IneligibleReplica
    cluster.beat(3)
    assert cluster.propose(topic, (1, 2, 3)).failure is None


# In-sync sets


def failure(found: Failure | None) -> type[AlpacaError] | None:
    return None if found is None else type(found.to_error())


@pytest.mark.parametrize(
    ("broker", "leader_epoch", "partition_epoch", "isr", "error"),
    [
        pytest.param(2, 0, 0, ((1, 0), (2, 0)), NotLeader, id="not of the leader"),
        pytest.param(1, -1, 0, ((1, 0),), FencedLeaderEpoch, id="of an earlier leader epoch"),
        pytest.param(1, 1, 0, ((1, 0),), UnknownLeaderEpoch, id="of a later leader epoch"),
        pytest.param(1, 0, -1, ((1, 0),), InvalidUpdateVersion, id="of an earlier state"),
        pytest.param(1, 0, 1, ((1, 0),), InvalidUpdateVersion, id="of a later state"),
        pytest.param(1, 0, 0, ((2, 0),), InvalidRequest, id="without the leader"),
        pytest.param(1, 0, 0, ((1, 0), (4, 0)), InvalidRequest, id="with a broker that has no replica"),
        pytest.param(1, 0, 0, ((1, 0), (2, 0), (2, 0)), InvalidRequest, id="with a broker twice"),
        pytest.param(1, 0, 0, ((1, 0), (2, -1)), IneligibleReplica, id="with a broker that was restarted"),
        pytest.param(1, 0, 0, ((1, 0), (3, 0)), IneligibleReplica, id="with a fenced broker"),
        pytest.param(1, 0, 0, ((1, 0), (2, 0)), None, id="no change"),
        pytest.param(1, 0, 0, ((1, 0),), None, id="a smaller set"),
    ],
)
def test_in_sync_sets_that_leaders_propose(
    broker: int,
    leader_epoch: int,
    partition_epoch: int,
    isr: tuple[tuple[int, int], ...],
    error: type[AlpacaError] | None,
) -> None:
    cluster = Cluster(4)
    topic = cluster.create("t", (1, 2, 3))
    cluster.kill(3)
    state = cluster.state(topic)
    assert state.isr == (1, 2)
    (result,) = cluster.ask(
        AlterPartitions(
            broker_id=BrokerId(broker),
            broker_epoch=cluster.epochs[broker],
            proposals=(
                IsrProposal(
                    topic.id,
                    0,
                    state.leader_epoch + leader_epoch,
                    state.partition_epoch + partition_epoch,
                    tuple(IsrMember(BrokerId(each), cluster.epochs[each] + off) for each, off in isr),
                ),
            ),
        )
    ).results
    assert failure(result.failure) is error
    if error is not None:
        assert cluster.state(topic) == state
    else:
        assert result.state == cluster.state(topic)


def test_proposals_for_partitions_that_do_not_exist_fail_one_by_one() -> None:
    cluster = Cluster(1)
    topic = cluster.create("t", (1,))
    me = (IsrMember(BrokerId(1), cluster.epochs[1]),)
    proposals = (
        IsrProposal(ANY_ID, 0, 0, 0, me),
        IsrProposal(topic.id, 1, 0, 0, me),
        IsrProposal(topic.id, 0, 0, 0, me),
    )
    command = AlterPartitions(broker_id=BrokerId(1), broker_epoch=cluster.epochs[1], proposals=proposals)
    results = cluster.ask(command).results
    assert [failure(each.failure) for each in results] == [UnknownTopicId, UnknownTopic, None]
    with pytest.raises(StaleBrokerEpoch):
        cluster.ask(AlterPartitions(broker_id=BrokerId(1), broker_epoch=0, proposals=proposals))


def test_a_lower_minimum_ends_eligibility() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3), min_insync_replicas="3")
    cluster.propose(topic, (1,))
    assert cluster.state(topic).elr == (2, 3)
    lower = SettingEdit(EditOperation.SET, "min.insync.replicas", "2")
    cluster.ask(ConfigureTopic(name="t", edits=(lower,)))
    assert cluster.state(topic).elr == (2, 3), "one replica in sync still commits nothing"
    cluster.ask(ConfigureTopic(name="t", overrides={}))
    cluster.ask(ConfigureBroker(name="", overrides={"min.insync.replicas": "1"}))
    assert cluster.state(topic).elr == ()
    with pytest.raises(InvalidRequest, match="all brokers"):
        cluster.ask(ConfigureBroker(name="1", overrides={"min.insync.replicas": "2"}))


# Shutdown


def test_a_broker_that_stops_hands_over_its_leaders_first() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3), (1, 2, 3), (2, 3, 1))
    only = cluster.create("only", (1,))
    cluster.controller.last_index = 4
    assert not cluster.beat(1, wants_shutdown=True).may_shut_down
    assert [cluster.state(topic, index).isr for index in range(3)] == [(2, 3), (2, 3), (2, 3)]
    assert cluster.state(topic).leader == 2
    assert cluster.state(only).leader == 1, "no other broker has it"
    assert not cluster.beat(1, wants_shutdown=True).may_shut_down, "others do not know the new leaders"
    cluster.beat(2, applied_index=4)
    cluster.beat(3, applied_index=4)
    reply = cluster.beat(1, wants_shutdown=True)
    assert (reply.may_shut_down, reply.is_fenced) == (True, True)
    state = cluster.state(only)
    assert (state.leader, state.elr) == (None, (1,))
    cluster.epochs[1] = cluster.register(1).epoch
    cluster.beat(1, applied_index=4)
    assert cluster.state(only).leader == 1


def test_a_fenced_broker_may_stop_at_once_and_stays_fenced() -> None:
    cluster = Cluster(1)
    cluster.kill(1)
    reply = cluster.beat(1, wants_shutdown=True)
    assert (reply.may_shut_down, reply.is_fenced) == (True, True)


def test_a_broker_that_stops_does_not_wait_for_one_that_hangs() -> None:
    cluster = Cluster(2)
    cluster.controller.last_index = 4
    cluster.beat(1, wants_shutdown=True)
    cluster.beat(1, wants_shutdown=True)
    cluster.now_ms += 4999
    assert not cluster.beat(1, wants_shutdown=True).may_shut_down
    cluster.now_ms += 1
    assert cluster.beat(1, wants_shutdown=True).may_shut_down


def test_a_broker_that_stops_does_not_wait_for_one_that_is_fenced() -> None:
    cluster = Cluster(2)
    cluster.kill(2)
    cluster.controller.last_index = 4
    cluster.beat(1, wants_shutdown=True)
    assert cluster.beat(1, wants_shutdown=True).may_shut_down


def test_a_broker_that_does_not_stop_after_all_rejoins() -> None:
    cluster = Cluster(2)
    topic = cluster.create("t", (1, 2))
    cluster.beat(1, wants_shutdown=True)
    assert failure(cluster.propose(topic, (1, 2)).failure) is IneligibleReplica
    cluster.beat(1)
    assert cluster.propose(topic, (1, 2)).failure is None
    assert cluster.image.broker(1).is_staying


# Leaders


def test_leaders_move_back_to_preferred_replicas_a_few_at_a_time() -> None:
    cluster = Cluster(2, ControllerSettings(rebalance_ms=5000, rebalanced_at_once=2))
    topic = cluster.create("t", *[(1, 2)] * 3)
    cluster.kill(1)
    cluster.beat(1)
    for index in range(3):
        cluster.propose(topic, (1, 2), index)
    assert cluster.image.led_by(1) == 0
    cluster.now_ms = 5000
    cluster.tick()
    assert cluster.image.led_by(1) == 2
    cluster.now_ms = 8000
    cluster.tick()
    assert cluster.image.led_by(1) == 2
    cluster.beat(1)
    cluster.beat(2)
    cluster.now_ms = 10_000
    cluster.tick()
    assert cluster.image.led_by(1) == 3


def test_elections_on_request() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2, 3), (2, 3, 1))
    cluster.kill(1)

    def elect(kind: ElectionKind, name: str, index: int) -> type[AlpacaError] | None:
        command = ElectLeaders(kind=kind, partitions=(NamedPartition(name, index),))
        (result,) = cluster.ask(command).results
        return failure(result.failure)

    assert elect(ElectionKind.PREFERRED, "t", 0) is PreferredLeaderNotAvailable
    assert elect(ElectionKind.PREFERRED, "t", 1) is ElectionNotNeeded
    assert elect(ElectionKind.UNCLEAN, "t", 0) is ElectionNotNeeded
    assert elect(ElectionKind.PREFERRED, "t", 2) is UnknownTopic
    assert elect(ElectionKind.PREFERRED, "u", 0) is UnknownTopic
    cluster.beat(1)
    assert elect(ElectionKind.PREFERRED, "t", 0) is PreferredLeaderNotAvailable, "it is not in sync"
    cluster.propose(topic, (1, 2, 3))
    cluster.ask(DrainBroker(broker_id=BrokerId(1), keeps_replicas=True))
    assert elect(ElectionKind.PREFERRED, "t", 0) is PreferredLeaderNotAvailable, "it gives up its leaders"
    cluster.ask(DrainBroker(broker_id=BrokerId(1), is_draining=False))
    assert elect(ElectionKind.PREFERRED, "t", 0) is None
    assert cluster.state(topic).leader == 1
    assert cluster.ask(ElectLeaders(kind=ElectionKind.PREFERRED)).results == ()


def test_an_unclean_election_happens_by_itself_only_where_it_is_enabled() -> None:
    cluster = Cluster(2)
    clean = cluster.create("clean", (1, 2))
    unclean = cluster.create("unclean", (1, 2), unclean_leader_election_enable="true")
    for topic in (clean, unclean):
        cluster.propose(topic, (1,))
    cluster.kill(1)
    assert cluster.state(clean).leader is None
    assert (cluster.state(unclean).leader, cluster.state(unclean).isr) == (2, (2,))
    enabled = SettingEdit(EditOperation.SET, "unclean.leader.election.enable", "true")
    cluster.ask(ConfigureTopic(name="clean", edits=(enabled,)))
    assert cluster.state(clean).leader == 2


def test_an_unclean_election_follows_when_it_is_enabled_and_no_replica_is_complete() -> None:
    cluster = Cluster(2)
    topic = cluster.create("t", (1, 2))
    cluster.propose(topic, (1,))
    cluster.kill(1)
    del cluster.directories[1]
    cluster.register(1)
    assert (cluster.state(topic).leader, cluster.state(topic).elr) == (None, ())
    cluster.ask(ConfigureBroker(name="", overrides={"unclean.leader.election.enable": "true"}))
    assert cluster.state(topic).leader == 2


def test_an_unclean_election_follows_when_other_settings_change_with_it() -> None:
    cluster = Cluster(2)
    topics = [cluster.create(name, (1, 2)) for name in ("itself", "all")]
    for topic in topics:
        cluster.propose(topic, (1,))
    cluster.kill(1)
    both = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    cluster.ask(ConfigureTopic(name="itself", overrides=both))
    assert [cluster.state(topic).leader for topic in topics] == [2, None]
    cluster.ask(ConfigureBroker(name="", overrides=both))
    assert [cluster.state(topic).leader for topic in topics] == [2, 2]


def test_an_unclean_election_waits_until_a_new_controller_knows_of_damage() -> None:
    cluster = Cluster(2)
    topic = cluster.create("t", (1, 2), unclean_leader_election_enable="true")
    cluster.propose(topic, (1,))
    cluster.fail_over()
    cluster.kill(1)
    assert cluster.state(topic).leader is None
    cluster.beat(2)
    assert cluster.state(topic).leader == 2


# Reassignment


def reassign(cluster: Cluster, replicas: tuple[int, ...] | None, index: int = 0) -> type[AlpacaError] | None:
    (result,) = cluster.ask(Reassign(reassignments=(Reassignment("t", index, replicas),))).results
    return failure(result.failure)


def test_a_reassignment_adds_replicas_and_removes_others_once_they_are_in_sync() -> None:
    cluster = Cluster(5)
    topic = cluster.create("t", (1, 2))
    assert reassign(cluster, (4, 2)) is None
    state = cluster.state(topic)
    assert (state.replicas, state.adding, state.removing) == ((4, 2, 1), (4,), (1,))
    assert set(cluster.image.moving) == {PartitionId(topic.id, 0)}
    cluster.propose(topic, (4, 2, 1))
    state = cluster.state(topic)
    assert (state.replicas, state.isr, state.leader, state.is_moving) == ((4, 2), (4, 2), 4, False)
    assert not cluster.image.moving


def test_a_reassignment_can_be_replaced_and_cancelled() -> None:
    cluster = Cluster(5)
    topic = cluster.create("t", (1, 2))
    assert reassign(cluster, None) is NoReassignmentInProgress
    reassign(cluster, (3, 4))
    cluster.propose(topic, (3, 1, 2))
    assert reassign(cluster, (1, 5)) is None
    state = cluster.state(topic)
    assert (state.replicas, state.isr) == ((1, 5, 2), (1, 2))
    assert (state.adding, state.removing) == ((5,), (2,))
    assert reassign(cluster, None) is None
    state = cluster.state(topic)
    assert (set(state.replicas), state.isr, state.is_moving) == ({1, 2}, (1, 2), False)


def test_a_reassignment_is_not_cancelled_if_only_new_replicas_are_in_sync() -> None:
    cluster = Cluster(4)
    topic = cluster.create("t", (1,))
    reassign(cluster, (3, 4))
    cluster.propose(topic, (3, 1))
    cluster.kill(1)
    state = cluster.state(topic)
    assert (state.leader, state.isr) == (3, (3,))
    assert reassign(cluster, None) is InvalidReplicaAssignment
    assert reassign(cluster, (1, 4)) is InvalidReplicaAssignment
    assert cluster.state(topic) == state
    cluster.kill(3)
    assert cluster.state(topic).elr == (3,)
    assert reassign(cluster, None) is InvalidReplicaAssignment, "broker 1 lacks records"


def test_a_reassignment_can_be_cancelled_if_no_replica_is_complete() -> None:
    cluster = Cluster(2)
    topic = cluster.create("t", (1,))
    cluster.kill(1)
    del cluster.directories[1]
    cluster.register(1)
    reassign(cluster, (2,))
    assert (cluster.state(topic).isr, cluster.state(topic).elr) == ((), ())
    assert reassign(cluster, None) is None
    assert cluster.state(topic).replicas == (1,)


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        pytest.param((), "at least one", id="no replica"),
        pytest.param((1, 1), "twice", id="a broker twice"),
        pytest.param((1, 9), "id 9", id="an unknown broker"),
    ],
)
def test_reassignments_that_are_refused(replicas: tuple[int, ...], words: str) -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    (result,) = cluster.ask(Reassign(reassignments=(Reassignment("t", 0, replicas),))).results
    assert result.failure is not None
    assert isinstance(result.failure.to_error(), InvalidReplicaAssignment)
    assert words in result.failure.reason


def test_a_drained_broker_loses_its_replicas_a_few_at_a_time() -> None:
    cluster = Cluster(4, ControllerSettings(drained_at_once=2, drain_ms=1000, rebalance_ms=1_000_000))
    topic = cluster.create("t", *[(1, 2, 3)] * 3)
    assert cluster.ask(DrainBroker(broker_id=BrokerId(1))).replicas == 3
    assert len(cluster.image.moving) == 2
    cluster.now_ms += 1000
    cluster.tick()
    assert len(cluster.image.moving) == 2, "none of them has moved yet"
    for _ in range(2):
        for partition in list(cluster.image.moving):
            cluster.propose(topic, cluster.state(topic, partition.partition).replicas, partition.partition)
        cluster.now_ms += 1000
        cluster.tick()
    assert cluster.ask(DrainBroker(broker_id=BrokerId(1))).replicas == 0
    assert [cluster.state(topic, index).replicas for index in range(3)] == [(4, 2, 3)] * 3
    with pytest.raises(InvalidReplication, match="no other broker"):
        cluster.ask(DrainBroker(broker_id=BrokerId(2)))


def test_draining_leaves_reassignments_of_users_alone() -> None:
    cluster = Cluster(4)
    topic = cluster.create("t", (1, 2), (1, 2))
    reassign(cluster, (1, 3), 0)
    reassign(cluster, (2, 3), 1)
    before = [cluster.state(topic, index).target_replicas for index in range(2)]
    cluster.ask(DrainBroker(broker_id=BrokerId(1)))
    assert [cluster.state(topic, index).target_replicas for index in range(2)] == before
    cluster.ask(DrainBroker(broker_id=BrokerId(1), is_draining=False))
    assert cluster.state(topic, 0).target_replicas == before[0]


def test_a_partition_that_leaves_a_broker_anyway_does_not_prevent_draining() -> None:
    cluster = Cluster(3)
    topic = cluster.create("t", (1, 2))
    reassign(cluster, (2, 3))
    cluster.ask(DrainBroker(broker_id=BrokerId(1)))
    assert cluster.state(topic).target_replicas == (2, 3)


def test_leaders_move_off_a_drained_broker_at_once_and_do_not_come_back() -> None:
    cluster = Cluster(4, ControllerSettings(drained_at_once=1, rebalance_ms=1000))
    topic = cluster.create("t", *[(1, 2, 3)] * 3)
    assert cluster.ask(DrainBroker(broker_id=BrokerId(1))).leaders == 0
    assert [cluster.state(topic, index).leader for index in range(3)] == [2, 2, 2]
    cluster.advance(9000, heard=(1, 2, 3, 4))
    assert cluster.image.led_by(1) == 0
    # Nor when it restarts.
    cluster.kill(1)
    cluster.start(1)
    assert cluster.image.broker(1).is_leaving
    cluster.advance(9000, heard=(1, 2, 3, 4))
    assert cluster.image.led_by(1) == 0


def test_a_broker_can_give_up_its_leaders_and_keep_its_replicas() -> None:
    cluster = Cluster(3)
    topic = cluster.create("t", (1, 2, 3), (2, 1, 3))
    reply = cluster.ask(DrainBroker(broker_id=BrokerId(1), keeps_replicas=True))
    assert (reply.leaders, reply.replicas) == (0, 2)
    cluster.advance(9000, heard=(1, 2, 3))
    assert cluster.state(topic).isr == (1, 2, 3)
    assert not cluster.image.moving
    # Topics are as safe as before, and it does not lead them.
    other = cluster.create("u")
    assert all(set(state.replicas) == {1, 2, 3} for state in cluster.image.partitions_of(other.id))
    assert cluster.image.led_by(1) == 0
    cluster.ask(DrainBroker(broker_id=BrokerId(1), is_draining=False))
    cluster.ask(ElectLeaders(kind=ElectionKind.PREFERRED))
    assert cluster.state(topic).leader == 1


@pytest.mark.parametrize("others", [(), (2,)])
def test_a_broker_gives_up_its_leaders_only_if_another_runs(others: tuple[int, ...]) -> None:
    cluster = Cluster(1 + len(others))
    cluster.kill(*others)
    with pytest.raises(InvalidReplication, match="no other broker can take over"):
        cluster.ask(DrainBroker(broker_id=BrokerId(1), keeps_replicas=True))
    assert not cluster.image.broker(1).is_draining


def test_a_drained_broker_can_keep_the_replicas_it_still_has() -> None:
    cluster = Cluster(4)
    topic = cluster.create("t", (1, 2, 3))
    cluster.ask(DrainBroker(broker_id=BrokerId(1)))
    cluster.ask(DrainBroker(broker_id=BrokerId(1), keeps_replicas=True))
    assert not cluster.state(topic).is_moving
    assert cluster.state(topic).leader == 2


def test_a_broker_that_is_drained_is_drained_on_though_others_are_lost() -> None:
    cluster = Cluster(3, ControllerSettings(drained_at_once=1))
    cluster.create("t", (1, 2), (1, 2))
    cluster.ask(DrainBroker(broker_id=BrokerId(1)))
    cluster.kill(3)
    # The command is repeated to learn how far it has come.
    assert cluster.ask(DrainBroker(broker_id=BrokerId(1))).replicas == 2


def test_the_only_replica_in_sync_leads_on_while_its_broker_is_drained() -> None:
    cluster = Cluster(4)
    topic = cluster.create("t", (1, 2, 3), min_insync_replicas="1")
    cluster.kill(2, 3)
    assert cluster.ask(DrainBroker(broker_id=BrokerId(1))).leaders == 1
    assert cluster.state(topic).leader == 1
    cluster.propose(topic, (1, 4))
    assert cluster.state(topic).leader == 4


def test_all_preferred_leaders_are_elected_in_several_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_control, "MAX_NAMED_PARTITIONS", 20)
    cluster = Cluster(3)
    count = 30
    topic = cluster.create("t", *[(3, 2)] * 5, *[(1, 2)] * count)
    cluster.kill(1, 3)
    cluster.start(1)
    for index in range(5, 5 + count):
        cluster.propose(topic, (1, 2), index)
    for elected in (20, 10):
        results = cluster.ask(ElectLeaders(kind=ElectionKind.PREFERRED)).results
        assert len([each for each in results if each.failure is None]) == elected
    assert cluster.image.led_by(1) == count


def test_all_leaders_are_elected_uncleanly_in_several_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_control, "MAX_NAMED_PARTITIONS", 2)
    cluster = Cluster(3)
    topic = cluster.create("t", (1, 2), (1, 2), (1, 3), (1, 3), (1, 3))
    for index, state in enumerate(cluster.image.partitions_of(topic.id)):
        assert state.leader == 1
        cluster.propose(topic, (1,), index)
    cluster.kill(1, 2)
    for elected in (2, 1, 0):
        results = cluster.ask(ElectLeaders(kind=ElectionKind.UNCLEAN)).results
        assert len([each for each in results if each.failure is None]) == elected
    assert cluster.image.led_by(3) == 3


def test_draining_can_be_stopped() -> None:
    cluster = Cluster(4)
    topic = cluster.create("t", (1, 2, 3))
    cluster.ask(DrainBroker(broker_id=BrokerId(1)))
    assert cluster.state(topic).removing == (1,)
    cluster.kill(2, 3, 4)  # and needs no other broker
    cluster.ask(DrainBroker(broker_id=BrokerId(1), is_draining=False))
    assert not cluster.state(topic).is_moving
    assert set(cluster.state(topic).replicas) == {1, 2, 3}


def test_a_move_goes_on_after_draining_if_only_the_new_replica_is_complete() -> None:
    cluster = Cluster(3)
    topic = cluster.create("t", (1, 2))
    cluster.ask(DrainBroker(broker_id=BrokerId(1)))
    cluster.kill(2)
    cluster.propose(topic, (3, 1))
    cluster.kill(1)
    cluster.ask(DrainBroker(broker_id=BrokerId(1), is_draining=False))
    state = cluster.state(topic)
    assert (state.leader, state.adding, state.removing) == (3, (3,), (1,))


# Topics


def test_a_topic_gets_a_replica_on_each_rack_by_default() -> None:
    cluster = Cluster()
    topic = cluster.create("t")
    assert topic.partitions == SETTINGS.limits.default_partitions
    states = cluster.image.partitions_of(topic.id)
    assert sorted(state.leader or 0 for state in states) == [1, 2, 3]
    assert all(sorted(state.isr) == [1, 2, 3] for state in states)


def test_a_topic_created_while_a_broker_restarts_has_as_many_replicas() -> None:
    cluster = Cluster()
    cluster.kill(2)
    topic = cluster.create("t")
    for state in cluster.image.partitions_of(topic.id):
        assert sorted(state.replicas) == [1, 2, 3]
        assert sorted(state.isr) == [1, 3]


def test_a_broker_that_stops_is_not_in_sync_in_new_topics() -> None:
    cluster = Cluster()
    cluster.beat(2, wants_shutdown=True)
    assert cluster.image.broker(2).is_running
    assert cluster.state(cluster.create("t", (1, 2, 3))).isr == (1, 3)


def test_as_many_replicas_are_created_at_once_as_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_control, "MAX_NEW_REPLICAS", 6)
    cluster = Cluster()
    most = CreateTopic(name="t", topic_id=cluster.uuid(), partitions=3, replication_factor=2)
    assert cluster.ask(most).partitions == 3
    with pytest.raises(InvalidPartitionCount, match="add partitions in steps"):
        cluster.ask(AddPartitions(name="t", partitions=7))


def test_a_repeated_creation_finds_its_topic() -> None:
    cluster = Cluster()
    command = CreateTopic(name="t", topic_id=ANY_ID)
    topic = cluster.ask(command)
    assert cluster.ask(command) == topic
    other = CreateTopic(name="t", topic_id=UUID(int=5))
    with pytest.raises(TopicExists):
        cluster.ask(other)
    assert cluster.ask(CreateTopic(name="t", topic_id=UUID(int=5), if_absent=True)) == topic


def test_a_dry_run_changes_nothing() -> None:
    cluster = Cluster()
    cluster.create("t")
    before = snapshot(cluster.image)
    cluster.ask(CreateTopic(name="u", topic_id=ANY_ID, dry_run=True))
    cluster.ask(AddPartitions(name="t", partitions=9, dry_run=True))
    cluster.ask(ConfigureTopic(name="t", overrides={"retention.ms": "1"}, dry_run=True))
    cluster.ask(ConfigureBroker(name="", overrides={"log.retention.ms": "1"}, dry_run=True))
    cluster.ask(UpdateFeatures(levels={VERSION_FEATURE: CURRENT_LEVEL}, dry_run=True))
    assert snapshot(cluster.image) == before


def test_internal_topics_are_created_by_nodes_and_stay() -> None:
    cluster = Cluster()
    command = CreateTopic(name=OFFSETS_TOPIC, topic_id=ANY_ID, partitions=4, is_internal=True, if_absent=True)
    assert cluster.ask(command).partitions == 4
    for refused in (DeleteTopic(name=OFFSETS_TOPIC), AddPartitions(name=OFFSETS_TOPIC, partitions=9)):
        with pytest.raises(PolicyViolation):
            cluster.ask(refused)


def test_an_internal_topic_has_the_partitions_that_it_needs() -> None:
    cluster = Cluster(1, ControllerSettings(limits=TopicLimits(default_partitions=4)))
    command = CreateTopic(name=OFFSETS_TOPIC, topic_id=ANY_ID, partitions=1, is_internal=True)
    assert cluster.ask(command).partitions == 1


@pytest.mark.parametrize(
    ("factor", "most"),
    [
        pytest.param(1, 30, id="one replica"),
        pytest.param(2, 15, id="two replicas"),
        pytest.param(BY_DEFAULT, 10, id="three by default"),
    ],
)
def test_the_limit_of_partitions_counts_replicas_on_all_brokers(factor: int, most: int) -> None:
    settings = ControllerSettings(limits=TopicLimits(max_partitions=10), replication_factor=3)
    cluster = Cluster(3, settings)
    for partitions in (most + 1, most):
        command = CreateTopic(name="t", topic_id=ANY_ID, partitions=partitions, replication_factor=factor)
        if partitions > most:
            with pytest.raises(InvalidPartitionCount, match=f"exceed the {most} "):
                cluster.ask(command)
        else:
            assert cluster.ask(command).partitions == most


def test_a_cluster_without_brokers_says_so() -> None:
    with pytest.raises(InvalidReplication, match="0 brokers can take replicas now"):
        Cluster(0).ask(CreateTopic(name="t", topic_id=ANY_ID))


def test_an_internal_topic_keeps_its_cleanup_policy() -> None:
    cluster = Cluster()
    compacted = {"cleanup.policy": "compact"}
    cluster.ask(
        CreateTopic(name=OFFSETS_TOPIC, topic_id=ANY_ID, partitions=1, is_internal=True, overrides=compacted)
    )
    for refused in ({"cleanup.policy": "delete"}, {"cleanup.policy": "compact,delete"}, {}):
        with pytest.raises(PolicyViolation, match=r"keeps its cleanup\.policy"):
            cluster.ask(ConfigureTopic(name=OFFSETS_TOPIC, overrides=refused))
    cluster.ask(ConfigureTopic(name=OFFSETS_TOPIC, overrides={**compacted, "segment.bytes": "1048576"}))


def test_a_deleted_topic_takes_its_partitions_along() -> None:
    cluster = Cluster()
    topic = cluster.create("t")
    with pytest.raises(UnknownTopicId):
        cluster.ask(DeleteTopic(name="t", topic_id=ANY_ID))
    assert cluster.ask(DeleteTopic(name="t", topic_id=topic.id)) == topic
    assert not cluster.image.partitions_of(topic.id)
    assert not cluster.image.replicas_on(1)
    assert cluster.image.led_by(1) == 0


def test_partitions_are_added_with_the_factor_of_the_topic() -> None:
    cluster = Cluster()
    topic = cluster.create("t", (1, 2))
    cluster.ask(AddPartitions(name="t", partitions=3))
    states = cluster.image.partitions_of(topic.id)
    assert [len(state.replicas) for state in states] == [2, 2, 2]
    cluster.ask(AddPartitions(name="t", partitions=4, assignments=((3, 1),)))
    assert cluster.state(topic, 3).replicas == (3, 1)


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        pytest.param(
            CreateTopic(name="u", topic_id=ANY_ID, replication_factor=4),
            InvalidReplication,
            "3 brokers",
            id="too many replicas",
        ),
        pytest.param(
            CreateTopic(name="u", topic_id=ANY_ID, replication_factor=0),
            InvalidReplication,
            "factor 0",
            id="no replicas",
        ),
        pytest.param(
            CreateTopic(name="u", topic_id=ANY_ID, assignments=((1,), (1, 2))),
            InvalidReplicaAssignment,
            "same number",
            id="partitions with different numbers of replicas",
        ),
        pytest.param(
            CreateTopic(name="u", topic_id=ANY_ID, assignments=((1,), (9,))),
            InvalidReplicaAssignment,
            "id 9",
            id="an unknown broker",
        ),
        pytest.param(
            CreateTopic(name="u", topic_id=ANY_ID, assignments=((3,),)),
            InvalidReplicaAssignment,
            "running",
            id="only a fenced broker",
        ),
        pytest.param(
            CreateTopic(name="u", topic_id=ANY_ID, assignments=((1,),), partitions=2),
            InvalidPartitionCount,
            "assigned for 1",
            id="assigned replicas and another number of partitions",
        ),
        pytest.param(
            CreateTopic(name="u", topic_id=ANY_ID, assignments=((1,),), replication_factor=1),
            InvalidRequest,
            "either",
            id="assigned replicas and a factor",
        ),
        pytest.param(
            CreateTopic(name="u", topic_id=ANY_ID, overrides={"retention.mss": "1"}),
            InvalidConfig,
            "retention.ms",
            id="a misspelt setting",
        ),
        pytest.param(
            AddPartitions(name="t", partitions=2, assignments=((1,), (2,))),
            InvalidReplicaAssignment,
            "1 partitions are added",
            id="replicas for too many new partitions",
        ),
        pytest.param(AddPartitions(name="t", partitions=1), InvalidPartitionCount, "more", id="no more"),
        pytest.param(DeleteTopic(name="u"), UnknownTopic, "'u'", id="an unknown topic"),
        pytest.param(
            ConfigureTopic(name="t", overrides={}, edits=()), InvalidRequest, "either", id="both ways at once"
        ),
        pytest.param(
            ConfigureTopic(name="t", overrides={}, expected={"retention.ms": "1"}),
            InvalidUpdateVersion,
            "meanwhile",
            id="settings that have changed",
        ),
        pytest.param(
            ConfigureTopic(name="t", edits=(SettingEdit(EditOperation.APPEND, "retention.ms", "1"),)),
            InvalidConfig,
            "not a list",
            id="adding to a number",
        ),
        pytest.param(
            ConfigureTopic(name="t", edits=(SettingEdit(EditOperation.DELETE, "retention.mss"),)),
            InvalidConfig,
            "retention.ms",
            id="removing an unknown setting",
        ),
        pytest.param(
            ConfigureBroker(name="", edits=(SettingEdit(EditOperation.DELETE, "listener"),)),
            InvalidConfig,
            "'listener'",
            id="removing an unknown setting of all brokers",
        ),
        pytest.param(ConfigureBroker(name="x", overrides={}), InvalidRequest, "'x'", id="not a broker id"),
        pytest.param(ConfigureBroker(name="9", overrides={}), UnknownBroker, "9", id="an unknown broker id"),
        pytest.param(AllocateProducerIds(count=0), InvalidRequest, "between", id="no producer ids"),
        pytest.param(
            ElectLeaders(
                kind=ElectionKind.PREFERRED,
                partitions=(NamedPartition("t", 0),) * (MAX_NAMED_PARTITIONS + 1),
            ),
            InvalidRequest,
            "at most",
            id="an election of too many partitions",
        ),
        pytest.param(
            Reassign(reassignments=(Reassignment("t", 0, (2,)),) * (MAX_NAMED_PARTITIONS + 1)),
            InvalidRequest,
            "at most",
            id="a reassignment of too many partitions",
        ),
        pytest.param(
            CreateTopic(
                name="u",
                topic_id=TopicId(int=5),
                is_internal=True,
                partitions=MAX_NEW_REPLICAS,
                replication_factor=2,
            ),
            InvalidPartitionCount,
            "add partitions in steps",
            id="a topic of too many replicas",
        ),
        pytest.param(DrainBroker(broker_id=BrokerId(9)), UnknownBroker, "9", id="draining an unknown broker"),
        pytest.param(
            Heartbeat(broker_id=BrokerId(1), broker_epoch=99, applied_index=0),
            StaleBrokerEpoch,
            "99",
            id="a heartbeat of another registration",
        ),
    ],
)
def test_commands_that_are_refused_change_nothing(
    command: Command[object], error: type[AlpacaError], words: str
) -> None:
    cluster = Cluster()
    cluster.create("t", (1,))
    cluster.kill(3)
    before = snapshot(cluster.image)
    with pytest.raises(error, match=words):
        cluster.ask(command)
    assert snapshot(cluster.image) == before


def test_settings_are_edited_one_by_one() -> None:
    cluster = Cluster()
    cluster.create("t", (1,), retention_ms="1")
    edits = (
        SettingEdit(EditOperation.APPEND, "cleanup.policy", "compact"),
        SettingEdit(EditOperation.SET, "flush.ms", "7"),
        SettingEdit(EditOperation.DELETE, "retention.ms"),
    )
    topic = cluster.ask(ConfigureTopic(name="t", edits=edits, expected={"retention.ms": "1"}))
    assert topic.overrides == {"cleanup.policy": "compact,delete", "flush.ms": "7"}
    remove = (SettingEdit(EditOperation.SUBTRACT, "cleanup.policy", "delete"),)
    assert cluster.ask(ConfigureTopic(name="t", edits=remove)).overrides["cleanup.policy"] == "compact"


def test_settings_of_a_broker_are_edited_with_the_defaults_of_all_brokers() -> None:
    cluster = Cluster()
    cluster.ask(ConfigureBroker(name="", overrides={"log.cleanup.policy": "compact"}))
    edits = (SettingEdit(EditOperation.APPEND, "log.cleanup.policy", "delete"),)
    cluster.ask(ConfigureBroker(name="1", edits=edits))
    assert cluster.image.broker_overrides("1") == {"log.cleanup.policy": "compact,delete"}


@pytest.mark.parametrize("name", ["", "1"])
def test_a_list_of_a_broker_grows_from_its_default(name: str) -> None:
    settings = ControllerSettings(topic_defaults={"cleanup.policy": "compact"})
    edits = (SettingEdit(EditOperation.APPEND, "log.cleanup.policy", "delete"),)
    for cluster, expected in ((Cluster(1, settings), "compact,delete"), (Cluster(1), "delete")):
        cluster.ask(ConfigureBroker(name=name, edits=edits))
        assert cluster.image.broker_overrides(name) == {"log.cleanup.policy": expected}


def test_settings_that_do_not_change_are_not_written() -> None:
    cluster = Cluster()
    cluster.create("t", (1,), retention_ms="1")
    cluster.ask(ConfigureBroker(name="", overrides={"log.cleanup.policy": "compact"}))
    before = len(cluster.log)
    cluster.ask(ConfigureTopic(name="t", overrides={"retention.ms": "1"}))
    cluster.ask(ConfigureBroker(name="", overrides={"log.cleanup.policy": "compact"}))
    # Nor is the removal of what is not set, or can never be set.
    for removed in ("flush.ms", "retention.bytes"):
        cluster.ask(ConfigureTopic(name="t", edits=(SettingEdit(EditOperation.DELETE, removed),)))
    for removed in ("log.retention.ms", "listeners"):
        cluster.ask(ConfigureBroker(name="", edits=(SettingEdit(EditOperation.DELETE, removed),)))
    assert len(cluster.log) == before


def test_producer_ids_are_handed_out_once() -> None:
    cluster = Cluster(1)
    first = cluster.ask(AllocateProducerIds(count=1000))
    assert (first.first, first.count) == (0, 1000)
    cluster.fail_over()
    assert cluster.ask(AllocateProducerIds(count=MAX_PRODUCER_IDS)).first == 1000
    with pytest.raises(InvalidRequest, match="between 1 and"):
        cluster.ask(AllocateProducerIds(count=MAX_PRODUCER_IDS + 1))


# Entries of the metadata log


def test_a_topic_is_created_in_one_entry_and_a_broker_fenced_in_several() -> None:
    cluster = Cluster()
    create = CreateTopic(name="t", topic_id=ANY_ID, assignments=((1, 2, 3),) * 5)
    created = cluster.controller.decide(create, 0)
    assert [len(entry) for entry in created.entries(2)] == [6]
    fenced = cluster.controller.connection_lost(BrokerId(1), is_refused=True)
    assert [len(entry) for entry in fenced.entries(4)] == [4, 2]
    assert list(Decision(reply=None).entries(4)) == []


def test_a_lost_directory_is_not_forgotten_if_only_a_part_of_the_decision_is_committed() -> None:
    cluster = Cluster()
    topics = [cluster.create(name, (1, 2, 3)) for name in ("t", "u")]
    cluster.kill(3, 2, 1)
    committed = len(cluster.log)
    del cluster.directories[1]
    cluster.register(1)
    whole = cluster.log[committed:]
    for length in range(len(whole)):
        cluster.log[committed:] = whole[:length]
        cluster.fail_over()
        cluster.epochs[1] = cluster.register(1, last_epoch=0).epoch
        cluster.beat(1)
        for topic in topics:
            assert cluster.state(topic).leader is None
            assert cluster.state(topic).elr == (2,)


def test_names_of_topics_are_free_again_after_deletion() -> None:
    cluster = Cluster()
    former = cluster.create("t", (1, 2, 3))
    cluster.ask(DeleteTopic(name="t"))
    later = cluster.create("t", (2, 3))
    assert cluster.image.topics[TopicName("t")] == Topic(name=TopicName("t"), id=later.id, partitions=1)
    assert cluster.image.partition(PartitionId(former.id, 0)) is None
