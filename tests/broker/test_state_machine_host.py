"""The host of state machines, with a simple machine: counters by name."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.clock import SteadyClock
from alpacamq.broker.statemachine import host as host_module
from alpacamq.broker.statemachine.host import Batching, StateMachineHost
from alpacamq.broker.statemachine.snapshots import KEPT, StateSnapshots, encode_block
from alpacamq.log.disk import SystemDisk
from alpacamq.log.sealed_file import write_sealed
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    CoordinatorUnavailable,
    InvalidRequest,
    NotCoordinator,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.ports import Buffer
from alpacamq.model.state_machine import Change, HandlesOneByOne, Outcome, Pending, Request, reply


class Add(Request[int], frozen=True, kw_only=True):
    name: bytes


class Read(Request[int], frozen=True, kw_only=True):
    name: bytes


class Wait(Request[None], frozen=True, kw_only=True):
    """A request without a reply."""


class Fill(Request[None], frozen=True, kw_only=True):
    names: tuple[bytes, ...]


class SetDeadline(Request[None], frozen=True, kw_only=True):
    at_ms: int


class Crash(Request[None], frozen=True, kw_only=True):
    """A request that raises."""


class Counters(HandlesOneByOne):
    """Counts, stores the counts, and ticks on request."""

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.replayed = 0
        self.deadline_ms: int | None = None
        self.ticks = 0
        self.waiting: set[object] = set()
        self.has_waiter = asyncio.Event()
        self.batches: list[int] = []

    def handle(self, batch: Sequence[Pending], now_ms: int) -> Outcome:
        self.batches.append(len(batch))
        return super().handle(batch, now_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def _add(self, request: Add, reply_to: object, _now_ms: int) -> Outcome:
        if not request.name:
            raise InvalidRequest("a counter has a name")
        self.counts[request.name] = self.counts.get(request.name, 0) + 1
        change = Change(request.name, str(self.counts[request.name]).encode())
        return reply(reply_to, self.counts[request.name], [change])

    def _read(self, request: Read, reply_to: object, _now_ms: int) -> Outcome:
        return reply(reply_to, self.counts.get(request.name, 0))

    def _wait(self, _request: Wait, reply_to: object, _now_ms: int) -> Outcome:
        self.waiting.add(reply_to)
        self.has_waiter.set()
        return Outcome()

    def _fill(self, event: Fill, _reply_to: object, _now_ms: int) -> Outcome:
        self.counts = dict.fromkeys(event.names, 1)
        return Outcome([Change(name, b"1") for name in event.names])

    def _set_deadline(self, event: SetDeadline, _reply_to: object, _now_ms: int) -> Outcome:
        self.deadline_ms = event.at_ms
        return Outcome()

    def _crash(self, _event: Crash, _reply_to: object, _now_ms: int) -> Outcome:
        raise ZeroDivisionError

    HANDLERS: ClassVar = {
        Add: _add,
        Read: _read,
        Wait: _wait,
        Fill: _fill,
        SetDeadline: _set_deadline,
        Crash: _crash,
    }

    def tick(self, _now_ms: int) -> Outcome:
        self.ticks += 1
        self.deadline_ms = None
        return Outcome()

    def cancel(self, reply_to: object) -> None:
        self.waiting.discard(reply_to)

    def replay(self, key: bytes, value: bytes | None) -> None:
        self.replayed += 1
        if value is None:
            self.counts.pop(key, None)
        else:
            self.counts[key] = int(value)

    def loaded(self, _now_ms: int) -> Outcome:
        return Outcome()

    def snapshot(self) -> Iterator[Change]:
        for name, count in list(self.counts.items()):
            yield Change(name, str(count).encode())


class BreakableDisk(SystemDisk):
    """The real disk, whose writes to segments can be made to fail."""

    full = False

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().write(descriptor, buffers, position)


class Host:
    """A broker with one internal topic and a state machine on it."""

    def __init__(self, path: Path, overrides: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.overrides = overrides or {"cleanup.policy": "compact"}
        self.disk = BreakableDisk()
        self.batching: Batching | None = None
        self.made: list[Counters] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[StateMachineHost[Counters]]:
        broker = Broker(
            BrokerSettings(node_id=BrokerId(1), data_directory=self.path / "data"), disk=self.disk
        )
        broker.open()
        if "counters" not in broker.topics.image.topics:
            await broker.topics.create("counters", partitions=1, overrides=self.overrides)
        clock = SteadyClock(broker.clock)
        self.now_ms = clock.now_ms
        with ThreadPoolExecutor(1) as executor:
            shard = StateMachineHost(
                broker.topics.partition("counters", 0),
                self._make,
                StateSnapshots(self.disk, self.path / "data" / "snapshots" / "counters"),
                clock,
                executor,
                batching=self.batching,
            )
            running = asyncio.create_task(shard.run())
            try:
                yield shard
            finally:
                running.cancel()
                await asyncio.wait([running])
                await broker.close()

    def _make(self) -> Counters:
        self.made.append(Counters())
        return self.made[-1]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


async def add(shard: StateMachineHost[Counters], name: bytes) -> int:
    return await shard.ask(Add(name=name))


async def read(shard: StateMachineHost[Counters], name: bytes) -> int:
    return await shard.ask(Read(name=name))


async def test_state_survives_a_restart(host: Host) -> None:
    async with host.running() as shard:
        for _ in range(3):
            await add(shard, b"a")
        await add(shard, b"b")
    async with host.running() as shard:
        assert (await read(shard, b"a"), await read(shard, b"b")) == (3, 1)


async def test_a_reply_that_is_an_error_is_raised(host: Host) -> None:
    async with host.running() as shard:
        with pytest.raises(InvalidRequest, match="has a name"):
            await add(shard, b"")


async def test_concurrent_requests_are_answered_in_order(host: Host) -> None:
    async with host.running() as shard:
        assert await asyncio.gather(*(add(shard, b"a") for _ in range(100))) == list(range(1, 101))


async def test_a_failed_write_fails_the_request_and_restores_the_state_of_the_log(host: Host) -> None:
    async with host.running() as shard:
        assert await add(shard, b"a") == 1
        host.disk.full = True
        with pytest.raises(CoordinatorUnavailable, match="No space left"):
            await add(shard, b"a")
        host.disk.full = False
        assert await read(shard, b"a") == 1
        assert await add(shard, b"a") == 2
        assert len(host.made) == 2


async def eventually(probe: Callable[[], object]) -> None:
    """Let the host's task run until `probe` is true."""
    async with asyncio.timeout(20):
        while not probe():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


async def test_after_a_snapshot_only_the_tail_is_replayed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "SNAPSHOT_RECORDS", 50)
    directory = host.path / "data" / "snapshots" / "counters"
    async with host.running() as shard:
        for _ in range(60):
            await add(shard, b"a")
        await eventually(lambda: list(directory.glob("*.state")))
        await add(shard, b"b")
    async with host.running() as shard:
        assert (await read(shard, b"a"), await read(shard, b"b")) == (60, 1)
        assert host.made[-1].replayed < 20


async def test_a_snapshot_taken_between_events_includes_their_changes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "SLICE_SECONDS", 0.0)  # the smallest slices
    names = [b"%05d" % number for number in range(3000)]

    async with host.running() as shard:
        await shard.loaded()
        shard.post(Fill(names=tuple(names)))
        await asyncio.sleep(0)
        monkeypatch.setattr(host_module, "SNAPSHOT_RECORDS", 100)
        shard.wake()
        await eventually(lambda: shard.is_taking_snapshot)
        monkeypatch.setattr(host_module, "SNAPSHOT_RECORDS", 100_000)  # no second snapshot
        during = 0
        while shard.is_taking_snapshot:
            # Entries already taken, still to be taken, and new.
            await add(shard, names[during])
            await add(shard, names[-1 - during])
            await add(shard, b"new %d" % during)
            during += 1
            await asyncio.sleep(0)
        assert during > 10
        counts = dict(host.made[-1].counts)
        await eventually(lambda: list((host.path / "data" / "snapshots" / "counters").glob("*.state")))
    async with host.running() as shard:
        await shard.loaded()
        assert host.made[-1].counts == counts
        assert host.made[-1].replayed < len(counts) + 4 * during + 200


def test_a_snapshot_of_the_former_version_is_read(tmp_path: Path) -> None:
    changes = [Change(b"a", b"1"), Change(b"b", None)]
    path = tmp_path / "s" / f"{7:020d}.state"
    path.parent.mkdir()
    write_sealed(SystemDisk(), path, b"ALSH", 1, msgspec.msgpack.encode(changes))
    assert newest(StateSnapshots(SystemDisk(), path.parent), 10) == (7, changes)


def newest(
    snapshots: StateSnapshots, end_offset: int, epoch_at: Callable[[int], int] = lambda _offset: 3
) -> tuple[int, list[Change]]:
    found = snapshots.newest(end_offset, epoch_at)
    assert found is not None
    return found.offset, list(found.changes)


def test_the_last_snapshots_are_kept_and_a_damaged_one_is_skipped(tmp_path: Path) -> None:
    snapshots = StateSnapshots(SystemDisk(), tmp_path / "s")
    assert snapshots.newest(10, lambda _offset: 3) is None
    for offset in range(1, 6):
        snapshots.write(offset, 3, [encode_block([Change(b"k", str(offset).encode())])])
    files = sorted((tmp_path / "s").iterdir())
    assert len(files) == KEPT
    files[-1].write_bytes(files[-1].read_bytes()[:-1])
    assert newest(snapshots, 10) == (4, [Change(b"k", b"4")])


def test_a_snapshot_beyond_the_end_of_the_log_is_removed(tmp_path: Path) -> None:
    snapshots = StateSnapshots(SystemDisk(), tmp_path / "s")
    snapshots.write(5, 3, [encode_block([Change(b"k", b"kept")])])
    snapshots.write(9, 3, [encode_block([Change(b"k", b"lost")])])
    assert newest(snapshots, 8) == (5, [Change(b"k", b"kept")])
    # Not later either, when the log has grown past it with other records.
    assert newest(snapshots, 20) == (5, [Change(b"k", b"kept")])


def test_a_snapshot_of_records_that_the_log_has_in_another_epoch_is_removed(tmp_path: Path) -> None:
    """A truncated log grew past the snapshot with other records."""
    snapshots = StateSnapshots(SystemDisk(), tmp_path / "s")
    snapshots.write(5, 3, [encode_block([Change(b"k", b"kept")])])
    snapshots.write(9, 3, [encode_block([Change(b"k", b"lost")])])
    assert newest(snapshots, 20, lambda offset: 3 if offset < 8 else 4) == (5, [Change(b"k", b"kept")])
    assert newest(snapshots, 20) == (5, [Change(b"k", b"kept")])


async def test_a_refused_write_fails_requests_that_wait_for_earlier_records(tmp_path: Path) -> None:
    host = Host(tmp_path, {"cleanup.policy": "compact", "flush.messages": "1"})
    async with host.running() as shard:
        await add(shard, b"a")
        waiting = [asyncio.create_task(add(shard, b"a")) for _ in range(3)]
        await asyncio.sleep(0)
        host.disk.full = True
        with pytest.raises(CoordinatorUnavailable):
            await add(shard, b"a")
        host.disk.full = False
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, int | CoordinatorUnavailable)
        assert await add(shard, b"a") >= 2


async def test_the_machine_is_ticked_when_its_deadline_comes(host: Host) -> None:
    async with host.running() as shard:
        await add(shard, b"a")
        machine = host.made[-1]
        shard.post(SetDeadline(at_ms=0))
        await eventually(lambda: machine.ticks)
        assert machine.ticks == 1


async def test_requests_sent_while_the_process_was_stopped_are_handled_before_deadlines_that_passed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "STALL_SECONDS", 0.1)
    async with host.running() as shard:
        await add(shard, b"a")
        machine = host.made[-1]
        loop = asyncio.get_running_loop()
        due_ms = host.now_ms() + 100
        shard.post(SetDeadline(at_ms=due_ms))
        await shard.handled()
        # As a heartbeat: it comes while the process is stopped, and after the deadline.
        loop.call_later(0.15, shard.post, SetDeadline(at_ms=due_ms + 3_600_000))
        loop.call_later(0.05, time.sleep, 0.3)

        await eventually(lambda: machine.deadline_ms == due_ms + 3_600_000)
        await add(shard, b"a")
        assert machine.ticks == 0


async def test_a_machine_that_is_always_due_does_not_block_the_event_loop(host: Host) -> None:
    async with host.running() as shard:
        await add(shard, b"a")
        machine = host.made[-1]

        def tick(_now_ms: int) -> Outcome:
            machine.ticks += 1
            machine.deadline_ms = 0 if machine.ticks < 10_000 else None
            return Outcome()

        machine.tick = tick  # type: ignore[method-assign]
        machine.deadline_ms = 0
        assert await add(shard, b"a") == 2
        assert machine.ticks < 10_000


async def test_the_machine_forgets_a_request_that_is_cancelled(host: Host) -> None:
    async with host.running() as shard:
        await shard.loaded()
        request = asyncio.create_task(shard.ask(Wait()))
        await host.made[-1].has_waiter.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)

        assert not host.made[-1].waiting


async def test_requests_of_one_turn_are_one_batch_and_one_write(host: Host) -> None:
    async with host.running() as shard:
        await shard.loaded()
        end_offset = shard.partition.log.end_offset
        replies = [shard.submit(Add(name=b"a")) for _ in range(10)]
        assert await asyncio.gather(*replies) == list(range(1, 11))
        assert shard.partition.log.end_offset == end_offset + 10
        assert host.made[-1].batches == [10]


async def test_a_batch_is_limited_by_weight(host: Host) -> None:
    host.batching = Batching(lambda request: len(request.name), 4)
    async with host.running() as shard:
        await shard.loaded()
        names = [b"a", b"bb", b"cc", b"ddddd", b"e"]
        await asyncio.gather(*(shard.submit(Add(name=name)) for name in names))
        assert host.made[-1].batches == [2, 1, 1, 1]


async def test_a_callback_that_fails_costs_no_other_reply(host: Host) -> None:
    def fail(_answer: object) -> None:
        raise ZeroDivisionError

    async with host.running() as shard:
        await shard.loaded()
        shard.submit_for(Add(name=b"a"), fail)
        answered = shard.submit(Add(name=b"a"))
        async with asyncio.timeout(10):
            assert await answered == 2
            assert await shard.submit(Add(name=b"a")) == 3


async def test_pending_requests_of_a_machine_that_fails_get_an_error(host: Host) -> None:
    async with host.running() as shard:
        await shard.loaded()
        first, second = shard.submit(Crash()), shard.submit(Add(name=b"a"))
        assert isinstance(await first, CoordinatorUnavailable)
        assert isinstance(await second, CoordinatorUnavailable)
        third = shard.submit(Add(name=b"a"))
        assert isinstance(await third, CoordinatorLoading), "it has certainly not taken effect"
        assert await add(shard, b"a") == 1


async def test_a_machine_that_raises_is_rebuilt(host: Host) -> None:
    async with host.running() as shard:
        await add(shard, b"a")
        shard.post(Crash())
        await asyncio.sleep(0)
        assert await add(shard, b"a") == 2
        assert len(host.made) == 2


async def test_an_event_that_is_posted_before_the_machine_is_loaded_is_kept(host: Host) -> None:
    async with host.running() as shard:
        shard.post(Add(name=b"a"))
        assert await add(shard, b"a") == 2


async def test_equal_events_posted_once_are_handled_once_in_a_batch(host: Host) -> None:
    async with host.running() as shard:
        await shard.loaded()
        for _ in range(3):
            shard.post_once(Add(name=b"a"))
        assert await read(shard, b"a") == 1
        shard.post_once(Add(name=b"a"))
        assert await read(shard, b"a") == 2


async def test_a_cancelled_request_still_gets_a_reply_already_in_flight(host: Host) -> None:
    host.overrides = {"cleanup.policy": "compact", "flush.messages": "1"}
    async with host.running() as shard:
        machine = await shard.loaded()
        waiting, answered = shard.submit(Wait()), shard.submit(Add(name=b"a"))
        await asyncio.sleep(0)
        for reply_to in (waiting, answered):
            shard.cancel(reply_to)
        assert await answered == 1
        assert not machine.waiting
        assert not waiting.done()


async def test_a_request_that_is_cancelled_before_its_batch_is_not_handled(host: Host) -> None:
    async with host.running() as shard:
        await shard.loaded()
        shard.cancel(shard.submit(Add(name=b"a")))
        assert await add(shard, b"a") == 1


async def test_a_read_that_fails_has_the_machine_rebuilt(host: Host) -> None:
    async with host.running() as shard:
        assert await add(shard, b"a") == 1

        def fail(_effect: object) -> None:
            raise OSError(5, "EIO")

        shard._read = fail
        machine = host.made[-1]
        machine.handle = lambda batch, now_ms: Outcome(reads=["block"])  # type: ignore[method-assign]  # noqa: ARG005
        with pytest.raises(CoordinatorUnavailable, match="EIO"):
            await add(shard, b"a")
        assert await add(shard, b"a") == 2


async def test_handled_waits_for_more_than_one_turn_can_handle(host: Host) -> None:
    async with host.running() as shard:
        await shard.loaded()
        for _ in range(2 * host_module.MAX_REQUESTS):
            shard.post(Add(name=b"a"))
        await shard.handled()
        assert host.made[-1].counts == {b"a": 2 * host_module.MAX_REQUESTS}


async def test_a_machine_is_served_once_what_was_loaded_is_committed(host: Host) -> None:
    async with host.running() as shard:
        await add(shard, b"a")
    async with host.running() as shard:
        partition = shard.partition
        partition.high_watermark -= 1  # as if other replicas lacked the last record
        pending = asyncio.create_task(read(shard, b"a"))
        while not host.made[-1].replayed:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not pending.done()
        assert shard.machine is None
        partition._advance_high_watermark(partition.end_offset, 1)
        assert await pending == 1


async def test_a_stopped_host_says_which_requests_may_have_taken_effect(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host.running() as shard:
        await add(shard, b"a")
        monkeypatch.setattr(shard.partition, "commit", lambda: None)  # appends stay pending
        begun = shard.submit(Add(name=b"a"))
        while shard._gathered:  # noqa: ASYNC110 - until the machine has handled it
            await asyncio.sleep(0)
        assert not begun.done()
        waiting = shard.submit(Add(name=b"a"))
        shard.stop(NotCoordinator("moved", 2))
        for answer, has_begun in ((await begun, True), (await waiting, False)):
            assert isinstance(answer, NotCoordinator)
            assert (answer.coordinator, answer.has_begun) == (2, has_begun)


async def test_a_stopped_host_refuses_everything(host: Host) -> None:
    async with host.running() as shard:
        await add(shard, b"a")
        shard.stop(NotCoordinator("moved", 2))
        with pytest.raises(NotCoordinator):
            await add(shard, b"a")
        answer: int | AlpacaError = await shard.submit(Read(name=b"a"))
        assert isinstance(answer, NotCoordinator)
        shard.post(Fill(names=(b"b",)))
        with pytest.raises(NotCoordinator):
            await shard.wait_until_loaded()
        ended = asyncio.Event()
        shard.spawn(asyncio.sleep(0), ended.set)
        await asyncio.wait_for(ended.wait(), 20)
    async with host.running() as shard:
        assert (await read(shard, b"a"), await read(shard, b"b")) == (1, 0)
