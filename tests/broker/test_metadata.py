"""The metadata log of a node that is its own cluster: what is stored, refused and found again."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from uuid import UUID

import msgspec
import pytest

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.clock import SystemClock
from alpacamq.broker.metadata.store import MetadataStore, Recovered
from alpacamq.cluster.image import CURRENT_LEVEL, VERSION_FEATURE, feature_change
from alpacamq.consensus.messages import (
    Entry,
    EntryKind,
    HardState,
    Snapshot,
    first_entry,
)
from alpacamq.log.disk import SystemDisk
from alpacamq.log.index_files import IndexCache
from alpacamq.log.storage import FileHandles, Storage
from alpacamq.model.errors import AlpacaError, CorruptState, DiskFull, StorageFailed
from alpacamq.model.ids import BrokerId
from alpacamq.model.ports import Disk
from alpacamq.model.state_machine import Change
from alpacamq.model.voters import Voter
from tests.log.crashing_disk import CrashingDisk
from tests.waiting import soon

from .open_brokers import BreakableDisk, running

VOTERS = (Voter(BrokerId(1), UUID(int=1)),)


Append = Callable[[int, Sequence[Entry]], None]


def store(path: Path, disk: Disk | None = None) -> MetadataStore:
    if disk is None:
        disk = SystemDisk()
        for name in ("partitions", "metadata"):
            (path / name).mkdir(exist_ok=True)
    storage = Storage(
        disk=disk,
        clock=SystemClock(),
        handles=FileHandles(disk, 16),
        indexes=IndexCache(1 << 20),
        checkpoint_bytes=1 << 20,
    )
    return MetadataStore(path / "partitions" / "log", path / "metadata", storage)


def data(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.DATA, b"%d of term %d" % (index, term))


def test_an_empty_directory_has_no_log(tmp_path: Path) -> None:
    assert store(tmp_path).recover() is None


def test_entries_the_vote_and_the_snapshot_are_found_again(tmp_path: Path) -> None:
    written = store(tmp_path)
    written.write(HardState(1, BrokerId(1)), None, [first_entry(VOTERS), data(2, 1), data(3, 1)])
    written.write_snapshot(Snapshot(2, 1, VOTERS), [Change(b"topic/a", b"{}")])
    written.write(HardState(4, None), None, [data(4, 3), data(5, 4)])
    written.close()

    found = store(tmp_path).recover()
    assert found is not None
    assert found.hard_state == HardState(4, None)
    assert (found.snapshot, found.changes) == (Snapshot(2, 1, VOTERS), [Change(b"topic/a", b"{}")])
    assert found.entries == [data(3, 1), data(4, 3), data(5, 4)]


def test_entries_of_a_deposed_leader_are_replaced(tmp_path: Path) -> None:
    written = store(tmp_path)
    written.write(None, None, [first_entry(VOTERS), data(2, 1), data(3, 1)])
    written.write(HardState(2, None), 3, [data(3, 2)])
    written.write(HardState(2, None), 3, [data(3, 2)])  # repeated after a failure
    written.close()
    found = store(tmp_path).recover()
    assert found is not None
    assert found.entries == [first_entry(VOTERS), data(2, 1), data(3, 2)]


def test_a_snapshot_of_another_node_replaces_the_log(tmp_path: Path) -> None:
    written = store(tmp_path)
    written.write(None, None, [first_entry(VOTERS), data(2, 1)])
    received = Snapshot(90, 7, VOTERS)
    written.write_snapshot(received, [Change(b"topic/b", b"{}")])
    assert written.install(received) == [Change(b"topic/b", b"{}")]
    written.write(None, None, [data(91, 7)])
    written.close()
    found = store(tmp_path).recover()
    assert found is not None
    assert (found.snapshot, found.entries) == (received, [data(91, 7)])


def test_a_damaged_vote_stops_the_node(tmp_path: Path) -> None:
    """Without it the node could vote twice in a term."""
    written = store(tmp_path)
    written.write(HardState(1, BrokerId(1)), None, [first_entry(VOTERS)])
    written.close()
    vote = tmp_path / "metadata" / "vote"
    vote.write_bytes(vote.read_bytes()[:-1])
    with pytest.raises(StorageFailed, match="vote is damaged"):
        store(tmp_path).recover()


async def test_the_log_before_a_snapshot_goes_and_nothing_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("alpacamq.broker.metadata.metadata.SNAPSHOT_BYTES", 2000)
    names = {f"t{number}" for number in range(40)}
    async with running(tmp_path) as broker:
        for name in sorted(names):
            await broker.topics.create(name, partitions=1)

        async def is_trimmed() -> bool:
            return broker._store.log.start_offset > 10

        await soon(is_trimmed)
        assert broker._store.log.end_offset > 40
    async with running(tmp_path) as broker:
        assert set(broker.topics.image.topics) == names
        assert [len(broker.topics.partitions_of(name)) for name in sorted(names)] == [1] * 40


async def test_a_change_that_a_full_disk_refused_never_takes_effect(tmp_path: Path) -> None:
    disk = BreakableDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("before")
        disk.full = True
        with pytest.raises(AlpacaError):
            await broker.topics.create("refused")
        disk.full = False

        async def is_accepted() -> bool:
            try:
                await broker.topics.create("after")
            except AlpacaError:
                return False
            return True

        await soon(is_accepted)
        assert set(broker.topics.image.topics) == {"before", "after"}
    async with running(tmp_path) as broker:
        assert set(broker.topics.image.topics) == {"before", "after"}


def test_what_is_read_again_after_a_failed_write_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries of the first term are written when those of the second are refused."""
    for seed in range(20):
        disk = CrashingDisk()
        for name in ("/data", "/data/metadata", "/data/partitions"):
            disk.make_directory(Path(name))
            disk.sync_directory(Path(name).parent)
        written = store(Path("/data"), disk)
        written.write(HardState(1, None), None, [first_entry(VOTERS)])
        append = written._append

        def refuse(term: int, entries: Sequence[Entry], append: Append = append) -> None:
            if term == 2:
                raise DiskFull("no space left")
            append(term, entries)

        monkeypatch.setattr(written, "_append", refuse)
        with pytest.raises(DiskFull):
            written.write(None, None, [data(2, 1), data(3, 1), data(4, 2)])
        counted = written.recover_again()
        assert counted is not None
        assert counted.entries == [first_entry(VOTERS), data(2, 1), data(3, 1)]
        disk.crash(Random(seed))
        found = store(Path("/data"), disk).recover()
        assert found is not None
        assert found.entries == counted.entries


@pytest.mark.parametrize("is_flushable", [True, False])
async def test_a_failed_write_of_the_metadata_is_flushed_before_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_flushable: bool
) -> None:
    def failing_sync(_: int) -> None:
        raise OSError(5, "Input/output error")

    disk = BreakableDisk()
    async with running(tmp_path, disk=disk) as broker:
        quorum = broker.metadata.quorum
        stored = quorum._store
        append, recover = stored._append, stored.recover
        read: list[tuple[int, int]] = []

        def refuse(term: int, entries: Sequence[Entry]) -> None:
            append(term, entries)
            monkeypatch.setattr(stored, "_append", append)
            if not is_flushable:
                monkeypatch.setattr(disk, "sync", failing_sync)
            raise DiskFull("no space left")

        def recorded() -> Recovered | None:
            read.append((stored.log.flushed_offset, stored.log.end_offset))
            return recover()

        monkeypatch.setattr(stored, "_append", refuse)
        monkeypatch.setattr(stored, "recover", recorded)
        with pytest.raises(AlpacaError):
            await broker.topics.create("t")
        if is_flushable:
            await soon(lambda: quorum.is_established)
            [(flushed_offset, end_offset)] = read
            assert flushed_offset == end_offset
        else:
            await soon(lambda: stored.log.in_doubt is not None and quorum._writer is None)
            assert not read
            assert quorum.failure is not None
            monkeypatch.undo()


async def test_a_node_starts_on_a_full_disk_and_serves_what_it_has(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("kept", partitions=2)
    disk = BreakableDisk()
    disk.full = True
    async with running(tmp_path, disk=disk) as broker:
        assert len(broker.topics.partitions_of("kept")) == 2
        with pytest.raises((DiskFull, StorageFailed)):
            await broker.topics.create("refused")


async def test_a_restart_changes_no_partition(tmp_path: Path) -> None:
    """Ten thousand partitions would otherwise mean ten thousand changes at every start."""
    async with running(tmp_path) as broker:
        topic = await broker.topics.create("t", partitions=50)
        before = list(broker.topics.image.partitions_of(topic.id))
        index = broker.metadata.quorum.last_index
    async with running(tmp_path) as broker:
        assert list(broker.topics.image.partitions_of(topic.id)) == before
        assert broker.metadata.quorum.last_index - index <= 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(Change(b"novel", b"x"), "later version", id="an unknown record"),
        pytest.param(
            feature_change(VERSION_FEATURE, CURRENT_LEVEL + 1),
            f"level {CURRENT_LEVEL + 1}; this broker supports 1 to {CURRENT_LEVEL}",
            id="a level that it does not support",
        ),
        pytest.param(feature_change("novel", 1), "does not know that feature", id="an unknown feature"),
    ],
)
async def test_metadata_of_a_later_version_stops_the_node(
    tmp_path: Path, change: Change, reason: str
) -> None:
    async with running(tmp_path) as broker:
        broker.metadata.quorum.propose(msgspec.msgpack.encode([change]))
        with pytest.raises(CorruptState, match=reason):
            await broker.metadata.watch()
    again = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path / "data"))
    with pytest.raises(AlpacaError, match=reason):
        again.open()


async def test_a_snapshot_of_a_later_version_stops_the_node(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        position, image = broker.metadata.snapshot()
        later = [*image.changes(), feature_change(VERSION_FEATURE, CURRENT_LEVEL + 1)]
        with pytest.raises(CorruptState):
            broker.metadata.restored(position, later)
        with pytest.raises(CorruptState, match=f"level {CURRENT_LEVEL + 1}"):
            await broker.metadata.watch()
