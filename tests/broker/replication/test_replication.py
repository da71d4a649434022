"""Partitions on three brokers: what is acknowledged, and what every replica has in the end."""

import asyncio
import threading
from pathlib import Path

import pytest

from alpacamq.broker.partition.appends import Acks
from alpacamq.broker.partition.housekeeping import Housekeeping
from alpacamq.broker.partition.leader import Partition, delete_before
from alpacamq.broker.replication.in_sync import LOG_AGAIN_MS
from alpacamq.broker.replication.service import FlushPolicy
from alpacamq.cluster.commands import AlterPartitions, Failure, IsrMember, IsrProposal
from alpacamq.log.disk import SystemDisk
from alpacamq.model.batch import stamp_producer
from alpacamq.model.errors import (
    AlpacaError,
    DamagedLog,
    IneligibleReplica,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    RequestTimedOut,
)
from alpacamq.model.ids import BrokerId
from alpacamq.protocol.fetch_codec import PartitionWanted
from alpacamq.protocol.replica_fetch_codec import PartitionKey
from alpacamq.replication.follower import FetchPosition
from alpacamq.telemetry.logs import capture_logs

from .nodes import TOPIC, TOPIC_ID, ReplicaCluster, a_cluster, batch, heard_of, produce, staged, until

LAG_MS = 10_000


async def shrinks_to(cluster: ReplicaCluster, *in_sync: int) -> None:
    """Let the lag of replicas that do not fetch exceed the limit, until they are out of sync."""
    cluster.advance(LAG_MS + 1)
    await until(lambda: cluster.in_sync() == {*in_sync}, f"in-sync set {in_sync}")


async def restarted_with_damage(cluster: ReplicaCluster, node_id: int) -> Partition:
    """Change a stored byte while a node is down; it is in sync again, and no request has read the byte."""
    [path] = cluster.nodes[node_id].partition().log.directory.glob("*.log")
    await cluster.kill(node_id, flushes=True)
    data = bytearray(path.read_bytes())
    data[data.index(b"value 6")] ^= 1
    path.write_bytes(data)
    node = await cluster.start(node_id)
    await until(lambda: cluster.in_sync() == {1, 2, 3}, "all in sync")
    return node.partition()


def find_damage(partition: Partition) -> None:
    """Read damaged bytes."""
    stored = partition.log
    assert not stored.has_lost_data
    part = stored.read(6, 1 << 20, stored.end_offset, at_least_one=True)
    assert part is not None
    with pytest.raises(DamagedLog):
        stored.verify(part)
    part.release()
    assert stored.has_lost_data


# Acknowledgements.


@pytest.mark.parametrize("flush", [*FlushPolicy])
async def test_an_acknowledged_batch_is_on_every_replica(tmp_path: Path, flush: FlushPolicy) -> None:
    async with a_cluster(tmp_path, 1, 2, 3, flush=flush) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        for number in range(20):
            assert await produce(leader, b"%d" % number) == number
            for node in cluster.nodes.values():
                stored = node.partition().log
                assert number < (stored.flushed_offset if flush is FlushPolicy.ACK else stored.end_offset)
        assert leader.high_watermark == 20
        await cluster.replicated()


async def test_a_batch_waits_for_a_silent_replica_until_it_leaves_the_in_sync_set(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        await produce(leader, b"a")
        await cluster.kill(3, notices=False)
        waiting = staged(leader, batch(b"b"))
        await heard_of(leader, 2, 2)
        assert not waiting.done()
        assert leader.high_watermark == 1
        await shrinks_to(cluster, 1, 2)
        assert await waiting == 1


async def test_acks_of_the_leader_alone_do_not_wait_for_replicas(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2)
        leader = await cluster.leader()
        await cluster.kill(2, notices=False)
        assert await produce(leader, b"a", acks=Acks.LEADER) == 0
        assert leader.high_watermark == 0


async def test_the_wait_for_replicas_ends_with_the_timeout_of_the_producer(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2)
        leader = await cluster.leader()
        await cluster.kill(2, notices=False)
        patient = staged(leader, batch(b"a"))
        with pytest.raises(RequestTimedOut):
            await staged(leader, batch(b"b"), timeout_ms=20)
        assert not patient.done()
        await shrinks_to(cluster, 1)
        assert await patient == 0
        await until(lambda: leader.high_watermark == 2, "the batch without a waiter")


async def test_too_few_replicas_refuse_a_batch_before_it_is_written(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        await produce(leader, b"a")
        await cluster.kill(2)
        await cluster.kill(3)
        await until(lambda: leader.is_below_min_isr, "too small an in-sync set")
        with pytest.raises(NotEnoughReplicas):
            await produce(leader, b"b")
        assert await produce(leader, b"c", acks=Acks.LEADER) == 1
        assert leader.high_watermark == 1


async def test_too_few_replicas_end_the_wait_of_a_batch_that_is_written(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        await cluster.kill(2, notices=False)
        await cluster.kill(3, notices=False)
        waiting = staged(leader, batch(b"a"))
        cluster.advance(LAG_MS + 1)
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await waiting
        cluster.configure(min_insync_replicas="1")
        await until(lambda: leader.high_watermark == 1, "the new minimum to commit it")
        assert await produce(leader, b"b") == 1


async def test_a_duplicate_is_acknowledged_once_its_original_is_replicated(tmp_path: Path) -> None:
    def numbered() -> bytearray:
        data = batch(b"a")
        stamp_producer(data, 7, 0, 0)
        return data

    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2)
        leader = await cluster.leader()
        await cluster.kill(2, notices=False)
        original, duplicate = staged(leader, numbered()), staged(leader, numbered())
        assert leader.end_offset == 1
        assert not duplicate.done()
        await shrinks_to(cluster, 1)
        assert (await original, await duplicate, await staged(leader, numbered())) == (0, 0, 0)


# Followers that were away.


async def test_a_replica_that_returns_catches_up_and_is_in_sync_again(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3, segment_bytes=str(1 << 20))
        leader = await cluster.leader()
        await produce(leader, b"a")
        await cluster.kill(3)
        for _ in range(40):
            await produce(leader, bytes(100_000))
        assert cluster.in_sync() == {1, 2}
        await cluster.start(3)
        await until(lambda: cluster.in_sync() == {1, 2, 3}, "all replicas in sync")
        await produce(leader, b"z")
        await cluster.replicated()


async def test_a_replica_on_an_empty_disk_is_filled(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1)
        leader = await cluster.leader()
        for number in range(10):
            await produce(leader, b"%d" % number)
        cluster.reassign(1, 2)
        await until(lambda: cluster.in_sync() == {1, 2}, "the new replica in sync")
        await produce(leader, b"z")
        await cluster.replicated()
        cluster.reassign(2)
        await until(lambda: cluster.state().leader == 2, "the new leader")
        assert await produce(await cluster.leader(), b"y") == 11


async def test_a_lost_reply_of_the_controller_does_not_stop_a_leader(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        await cluster.kill(3, notices=False)
        cluster.nodes[1].metadata.loses_replies = True
        waiting = staged(leader, batch(b"a"))
        await heard_of(leader, 2, 1)
        await shrinks_to(cluster, 1, 2)
        assert await waiting == 0


# Other leaders.


async def test_a_former_leader_drops_what_was_not_committed(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        former = await cluster.leader()
        await produce(former, b"a")
        # The others follow a new leader, of which the former one does not hear.
        cluster.nodes[1].metadata.is_deaf = True
        cluster.fence(1)
        leader = await cluster.leader()
        assert leader is cluster.nodes[2].partition()
        await until(lambda: all(each.offset == 1 for each in _positions(cluster, 3)), "the new leader")
        lost = [staged(former, batch(b"lost %d" % number)) for number in range(3)]
        assert await produce(leader, b"b") == 1
        assert await produce(leader, b"c") == 2
        await asyncio.sleep(0)
        assert not any(each.done() for each in lost)
        assert former.high_watermark == 1
        cluster.nodes[1].metadata.is_deaf = False
        cluster.heartbeat(cluster.nodes[1])
        for each in lost:
            with pytest.raises(NotLeader):
                await each
        await until(lambda: cluster.in_sync() == {1, 2, 3}, "the former leader in sync")
        await cluster.replicated()
        with pytest.raises(NotLeader):
            await produce(former, b"z")


def _positions(cluster: ReplicaCluster, node_id: int) -> list[FetchPosition]:
    followings = cluster.nodes[node_id].replication._followings.values()
    return [each.position for each in followings if each.position is not None]


async def test_batches_that_wait_while_their_leader_is_elected_again_are_acknowledged(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        await cluster.kill(3, notices=False)
        waiting = staged(leader, batch(b"a"))
        cluster.reassign(1, 2)  # removing a replica begins a new leader epoch
        await until(lambda: leader.leader_epoch > 0, "the new epoch")
        assert await waiting == 0


async def test_leadership_moves_back_and_forth_without_loss(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        expected = 0
        for _ in range(3):
            for _ in range(5):
                assert await produce(await cluster.leader(), b"v") == expected
                expected += 1
            await cluster.kill(1)
            assert await produce(await cluster.leader(), b"w") == expected
            expected += 1
            await cluster.start(1)
            await until(lambda: cluster.in_sync() == {1, 2, 3}, "all replicas in sync")
            cluster.elect_preferred()
        await cluster.replicated()


async def test_a_cluster_that_was_killed_as_a_whole_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        for number in range(10):
            await produce(leader, b"%d" % number)
        for node_id in (1, 2, 3):
            await cluster.kill(node_id)
        for node_id in (1, 2, 3):
            await cluster.start(node_id)
        leader = await cluster.leader()
        assert leader.end_offset == 10
        await until(lambda: cluster.in_sync() == {1, 2, 3}, "all replicas in sync")
        assert await produce(await cluster.leader(), b"z") == 10
        await cluster.replicated()


# Damage, retention, status.


async def test_damaged_bytes_are_never_sent(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2)
        leader = await cluster.leader()
        await cluster.kill(2)
        for number in range(10):
            await produce(leader, b"value %d" % number)
        [path] = leader.log.directory.glob("*.log")
        await cluster.kill(1, flushes=True)
        stored = bytearray(path.read_bytes())
        at = stored.index(b"value 6")
        stored[at] ^= 1
        path.write_bytes(stored)
        await cluster.start(1)
        leader = await cluster.leader()
        await cluster.start(2)
        follower = cluster.nodes[2].partition()
        await until(lambda: follower.end_offset == 6, "the records before the damage")
        await until(lambda: leader.log.has_lost_data, "the damage to be found")
        assert b"value 5" in cluster.nodes[2].bytes_of()
        assert b"alue 6" not in cluster.nodes[2].bytes_of()
        assert cluster.in_sync() == {1}


async def test_a_replica_that_lost_records_is_rebuilt(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2)
        leader = await cluster.leader()
        for number in range(10):
            await produce(leader, b"value %d" % number)
        log = cluster.nodes[2].partition().log
        await cluster.kill(2)
        log._checkpoint.note_loss("sectors were lost")
        node = await cluster.start(2)
        await until(lambda: not node.replicas.damaged(), "the replica emptied")
        cluster.heartbeat(node)
        await until(lambda: cluster.in_sync() == {1, 2}, "the replica in sync")
        assert not cluster.nodes[2].partition().log.has_lost_data
        await cluster.replicated()


async def test_damage_found_at_run_time_is_repaired_from_the_leader(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        for number in range(10):
            await produce(leader, b"value %d" % number)
        replica = await restarted_with_damage(cluster, 2)
        node = cluster.nodes[2]
        find_damage(replica)
        # It counts as in sync neither before it is emptied nor while it is not complete.
        assert replica.end_offset == 10
        assert cluster.in_sync() == {1, 2, 3}
        cluster.heartbeat(node)
        await until(lambda: cluster.in_sync() == {1, 3}, "the damaged replica out of sync")
        await until(lambda: not replica.log.has_lost_data, "the replica emptied")
        await until(lambda: not node.replicas.damaged(), "the replica complete")
        assert replica.end_offset == 10
        assert await produce(leader, b"a") == 10
        cluster.heartbeat(node)
        cluster.advance(1)
        await until(lambda: cluster.in_sync() == {1, 2, 3}, "all in sync")
        await cluster.replicated()


async def test_a_damaged_leader_is_replaced_and_rebuilt(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        for number in range(10):
            await produce(leader, b"value %d" % number)
        leader = await restarted_with_damage(cluster, 1)
        cluster.elect_preferred()
        assert await cluster.leader() is leader
        find_damage(leader)
        cluster.heartbeat(cluster.nodes[1])
        successor = await cluster.leader()
        assert successor is not leader
        assert await produce(successor, b"a") == 10
        await until(lambda: not cluster.nodes[1].replicas.damaged(), "the replica complete")
        cluster.heartbeat(cluster.nodes[1])
        cluster.advance(1)
        await until(lambda: cluster.in_sync() == {1, 2, 3}, "all in sync")
        await cluster.replicated()


async def test_a_replica_being_rebuilt_is_refused_whatever_its_leader_remembers(tmp_path: Path) -> None:
    """The leader may propose a replica because of records that it has dropped since."""
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        for number in range(10):
            await produce(leader, b"value %d" % number)
        replica = await restarted_with_damage(cluster, 2)
        node = cluster.nodes[2]
        find_damage(replica)
        leader_epoch = cluster.nodes[1].epoch
        await cluster.kill(1, notices=False)  # nothing can be fetched
        cluster.heartbeat(node)
        await until(lambda: not node.partition().log.has_lost_data, "the replica emptied")
        assert node.partition().end_offset == 0
        cluster.heartbeat(node)
        state = cluster.state()
        assert set(state.isr) == {1, 3}
        epochs = {1: leader_epoch, 2: node.epoch, 3: cluster.nodes[3].epoch}
        members = tuple(IsrMember(BrokerId(each), epoch) for each, epoch in epochs.items())
        proposal = IsrProposal(TOPIC_ID, 0, state.leader_epoch, state.partition_epoch, members)
        reply = cluster.decide(
            AlterPartitions(broker_id=BrokerId(1), broker_epoch=leader_epoch, proposals=(proposal,))
        )
        [result] = reply.results
        assert result.failure is not None
        assert result.failure.error == "IneligibleReplica"


async def test_followers_delete_what_their_leader_deleted(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2)
        leader = await cluster.leader()
        for _ in range(10):
            await produce(leader, b"v")
        await delete_before(leader, 5, cluster.nodes[1].threads)
        node = cluster.nodes[2]
        follower = node.partition()
        keeping = Housekeeping(lambda: [follower], node.threads, cluster.clock, 1000)
        await until(lambda: node.replication._followings[follower].leader_start_offset == 5, "the new start")
        await keeping.clean(follower)
        assert follower.start_offset == 5


async def test_a_follower_behind_the_start_of_its_leader_begins_there(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2)
        leader = await cluster.leader()
        await produce(leader, b"v")
        await cluster.kill(2)
        for _ in range(10):
            await produce(leader, b"v")
        await delete_before(leader, 5, cluster.nodes[1].threads)
        await cluster.start(2)
        follower = cluster.nodes[2].partition()
        await until(lambda: follower.end_offset == 11, "the rest of the log")
        assert follower.start_offset == 5
        await until(lambda: cluster.in_sync() == {1, 2}, "the follower in sync")


async def test_a_refusal_of_the_controller_is_logged_when_it_is_new_and_then_rarely(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2)
        leader = await cluster.leader()
        proposals = cluster.nodes[1].replication._proposals
        disk, lag = (
            Failure.of(IneligibleReplica(f"broker 2 cannot be in sync: {why}")) for why in ("disk", "lag")
        )
        with capture_logs() as logged:
            for now_ms in range(0, 2 * LOG_AGAIN_MS, 250):
                proposals._report(leader, disk, now_ms)
            proposals._report(leader, lag, 2 * LOG_AGAIN_MS)
        assert [each["reason"].rpartition(" ")[2] for each in logged] == ["disk", "disk", "lag"]


async def test_a_leader_knows_its_followers(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        await produce(leader, b"v")
        assert {each.broker_id: each.end_offset for each in leader.followers()} == {2: 1, 3: 1}
        assert not leader.is_under_replicated
        await cluster.kill(3)
        await until(lambda: leader.is_under_replicated, "the loss of a replica")
        assert set(leader.in_sync) == {1, 2}
        assert cluster.nodes[1].replication.under_replicated == 1
        [fetcher] = cluster.nodes[2].replication.fetchers()
        assert (fetcher.leader_id, fetcher.partitions, fetcher.is_connected) == (1, 1, True)


async def test_partitions_at_rest_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2, partitions=150)
        busy = await cluster.leader(3)
        await produce(busy, b"v")
        [session] = cluster.nodes[1].fetches._sessions.values()
        # A position of a partition that is not open yet is sent again.
        await until(
            lambda: sum(each.partition is not None for each in session._followed.values()) == 150,
            "the positions of all partitions",
        )
        named: list[int] = []
        take = session._take

        def noting(key: PartitionKey, wanted: PartitionWanted, broker_epoch: int) -> None:
            named.append(key[1])
            take(key, wanted, broker_epoch)

        monkeypatch.setattr(session, "_take", noting)
        for _ in range(10):
            await produce(busy, b"v")
        assert set(named) == {3}
        assert len(named) == 10


@pytest.mark.parametrize("flush", [*FlushPolicy])
async def test_a_replica_far_behind_does_not_hold_up_others(tmp_path: Path, flush: FlushPolicy) -> None:
    async with a_cluster(tmp_path, 1, 2, flush=flush) as cluster:
        cluster.create(1, 2, partitions=2)
        far, near = await cluster.leader(0), await cluster.leader(1)
        await cluster.kill(2)
        for _ in range(30):
            await produce(far, bytes(900_000))
        node = await cluster.start(2)
        await until(lambda: any(each.is_bulk for each in node.replication.fetchers()), "a second connection")
        await until(lambda: cluster.in_sync(1) == {1, 2}, "the small partition in sync")
        await produce(near, b"v")
        await until(lambda: cluster.in_sync(0) == {1, 2}, "the large partition in sync")
        await produce(far, b"v")
        assert [each.is_bulk for each in node.replication.fetchers()] == [False]
        await cluster.replicated(0)
        await cluster.replicated(1)


# Contact with the controller.


async def test_a_leader_without_contact_to_the_controller_acknowledges_nothing(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        await produce(leader, b"a")
        await cluster.kill(3, notices=False)
        waiting = staged(leader, batch(b"b"))
        first = cluster.nodes[1]
        first.set_contact(False)
        for refused in (waiting, staged(leader, batch(b"c")), staged(leader, batch(b"d"), Acks.LEADER)):
            with pytest.raises(NotLeader, match="the controller does not answer"):
                await refused
        assert first.topics.find(TOPIC.encode(), 0) is None
        # No hint of a leader: this broker would name itself.
        absence = first.topics.absence(TOPIC.encode(), 0)
        assert isinstance(absence, LeaderNotAvailable)
        assert "the controller does not answer" in str(absence)
        # It goes on in the same epoch: no other broker was elected. Followers have fetched meanwhile.
        await heard_of(leader, 2, 2)
        epoch = cluster.state().leader_epoch
        first.set_contact(True)
        assert await cluster.leader() is leader
        assert leader.leader_epoch == epoch
        await shrinks_to(cluster, 1, 2)
        assert await produce(leader, b"e") == 2
        await cluster.replicated()


async def test_the_only_replica_acknowledges_nothing_without_contact_either(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1)
        leader = await cluster.leader()
        await produce(leader, b"a")
        cluster.nodes[1].set_contact(False)
        with pytest.raises(NotLeader):
            await produce(leader, b"b")
        cluster.nodes[1].set_contact(True)
        assert await produce(await cluster.leader(), b"c") == 1


async def test_a_leader_that_was_replaced_while_it_had_no_contact_follows(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        await produce(await cluster.leader(), b"a")
        first = cluster.nodes[1]
        first.metadata.is_deaf = True
        first.set_contact(False)
        cluster.fence(1)
        assert await produce(await cluster.leader(), b"b") == 1
        first.metadata.is_deaf = False
        first.metadata.catch_up()
        first.set_contact(True)
        cluster.heartbeat(first)
        await until(lambda: cluster.in_sync() == {1, 2, 3}, "all in sync")
        await cluster.replicated()


async def test_a_replica_elected_without_contact_commits_nothing_by_itself(
    tmp_path: Path,
) -> None:
    class HeldDisk(SystemDisk):
        def __init__(self) -> None:
            super().__init__()
            self.free = threading.Event()
            self.free.set()

        def sync(self, descriptor: int) -> None:
            assert self.free.wait(20)
            super().sync(descriptor)

    def numbered() -> bytearray:
        data = batch(b"b")
        stamp_producer(data, 7, 0, 0)
        return data

    async with a_cluster(tmp_path) as cluster:
        cluster.disks[2] = disk = HeldDisk()
        for node_id in (1, 2, 3):
            await cluster.start(node_id)
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        await produce(leader, b"a")
        second = cluster.nodes[2]
        follower = second.partition()
        await until(lambda: follower.high_watermark == 1, "the watermark")
        await cluster.kill(3, notices=False)
        disk.free.clear()
        try:
            original = staged(leader, numbered())
            await until(lambda: follower.log.is_flushing, "a flush of the follower")
            second.has_contact = False
            await cluster.kill(1)
            assert cluster.state().leader == 2
            await until(lambda: follower.following is None, "a replica that neither leads nor follows")
        finally:
            disk.free.set()
        await until(lambda: follower.log.flushed_offset == 2, "the end of the flush")
        assert follower.high_watermark == 1
        second.set_contact(True)
        assert await cluster.leader() is follower
        duplicate = staged(follower, numbered())
        await shrinks_to(cluster, 2)
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await duplicate
        with pytest.raises(AlpacaError, match="killed"):
            await original


async def test_an_outcome_that_comes_while_a_leader_has_no_contact_is_not_forgotten(tmp_path: Path) -> None:
    """A follower that the controller has taken into the in-sync set counts, whatever the leader was told."""
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        await cluster.kill(3)
        await until(lambda: cluster.in_sync() == {1, 2}, "two in sync")
        first = cluster.nodes[1]
        first.metadata.becomes_deaf = True
        await cluster.start(3)
        await until(
            lambda: cluster.in_sync() == {1, 2, 3}, "an in-sync set of which the leader knows nothing"
        )
        first.set_contact(False)
        first.set_contact(True)
        assert await cluster.leader() is leader
        await cluster.kill(3, notices=False)
        waiting = staged(leader, batch(b"a"))
        await heard_of(leader, 2, 1)
        assert not waiting.done()
        assert leader.high_watermark == 0


# Readers and counters.


async def test_readers_of_a_follower_are_woken_when_its_watermark_advances(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2)
        leader = await cluster.leader()
        await produce(leader, b"a")
        follower = cluster.nodes[2].partition()
        await until(lambda: follower.high_watermark == 1, "the watermark")
        woken: list[int] = []
        follower.watch("reader", woken.append)
        await produce(leader, b"b")
        await until(lambda: woken, "a reader that is woken")
        assert follower.high_watermark == 2


async def test_messages_are_counted_by_the_broker_that_led_when_they_were_written(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2) as cluster:
        cluster.create(1, 2)
        for number in range(3):
            await produce(await cluster.leader(), b"%d" % number)
        await until(lambda: cluster.nodes[2].partition().high_watermark == 3, "the watermark")
        cluster.reassign(2, 1)
        cluster.elect_preferred()
        assert (await cluster.leader()) is cluster.nodes[2].partition()
        await produce(await cluster.leader(), b"3")
        await until(lambda: cluster.nodes[1].partition().high_watermark == 4, "the watermark")
        counted = [cluster.nodes[node].partition().written_messages for node in (1, 2)]
        assert counted == [3, 1]
