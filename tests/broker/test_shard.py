"""The host of state machines, with the simplest machine there is: counters by name."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.clock import SteadyClock
from alpacamq.broker.statemachine import shard as shard_module
from alpacamq.broker.statemachine.shard import Shard
from alpacamq.broker.statemachine.snapshots import KEPT, ShardSnapshots, encode_block
from alpacamq.log.disk import SystemDisk
from alpacamq.log.sealed_file import write_sealed
from alpacamq.model.errors import CoordinatorUnavailable, InvalidRequest
from alpacamq.model.ids import BrokerId
from alpacamq.model.outcome import Change, Outcome, Reply
from alpacamq.model.ports import Buffer


class Counters:
    """Counts, remembers, and forgets a counter when its time is up."""

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.replayed = 0
        self.deadline_ms: int | None = None
        self.ticks = 0
        self.waiting: set[object] = set()
        self.somebody_waits = asyncio.Event()

    @property
    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def add(self, name: bytes, ticket: object, _now_ms: int) -> Outcome:
        if not name:
            return Outcome(replies=[Reply(ticket, InvalidRequest("a counter has a name"))])
        self.counts[name] = self.counts.get(name, 0) + 1
        change = Change(name, str(self.counts[name]).encode())
        return Outcome([change], [Reply(ticket, self.counts[name])])

    def read(self, name: bytes, ticket: object, _now_ms: int) -> Outcome:
        return Outcome(replies=[Reply(ticket, self.counts.get(name, 0))])

    def tick(self, _now_ms: int) -> Outcome:
        self.ticks += 1
        self.deadline_ms = None
        return Outcome()

    def wait(self, ticket: object) -> Outcome:
        self.waiting.add(ticket)
        self.somebody_waits.set()
        return Outcome()

    def gone(self, ticket: object) -> None:
        self.waiting.discard(ticket)

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
    """A broker with one internal topic and a shard on it."""

    def __init__(self, path: Path, overrides: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.overrides = overrides or {"cleanup.policy": "compact"}
        self.disk = BreakableDisk()
        self.made: list[Counters] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Shard[Counters]]:
        broker = Broker(
            BrokerSettings(node_id=BrokerId(1), data_directory=self.path / "data"), disk=self.disk
        )
        broker.open()
        if "counters" not in broker.topics.image.topics:
            await broker.topics.create("counters", partitions=1, overrides=self.overrides)
        with ThreadPoolExecutor(1) as executor:
            shard = Shard(
                broker.topics.partition("counters", 0),
                self._make,
                ShardSnapshots(self.disk, self.path / "data" / "snapshots" / "counters"),
                SteadyClock(broker.clock),
                executor,
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


async def add(shard: Shard[Counters], name: bytes) -> int:
    count = await shard.ask(lambda machine, ticket, now_ms: machine.add(name, ticket, now_ms))
    assert isinstance(count, int)
    return count


async def read(shard: Shard[Counters], name: bytes) -> int:
    count = await shard.ask(lambda machine, ticket, now_ms: machine.read(name, ticket, now_ms))
    assert isinstance(count, int)
    return count


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


async def test_many_at_once_are_each_answered_in_order(host: Host) -> None:
    async with host.running() as shard:
        assert await asyncio.gather(*(add(shard, b"a") for _ in range(100))) == list(range(1, 101))


async def test_a_write_that_fails_is_told_and_leaves_memory_as_the_log_says(host: Host) -> None:
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
    """Let the shard's own task run until something has come true."""
    async with asyncio.timeout(20):
        while not probe():  # noqa: ASYNC110 - what is waited for is on disk or inside the machine
            await asyncio.sleep(0)


async def test_after_a_snapshot_only_the_tail_is_replayed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "SNAPSHOT_RECORDS", 50)
    directory = host.path / "data" / "snapshots" / "counters"
    async with host.running() as shard:
        for _ in range(60):
            await add(shard, b"a")
        await eventually(lambda: list(directory.glob("*.state")))
        await add(shard, b"b")
    async with host.running() as shard:
        assert (await read(shard, b"a"), await read(shard, b"b")) == (60, 1)
        assert host.made[-1].replayed < 20


async def test_a_snapshot_is_taken_between_events_and_holds_what_they_change(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "SLICE_SECONDS", 0.0)  # as little as can be at a time
    names = [b"%05d" % number for number in range(3000)]

    def fill(machine: Counters, _now_ms: int) -> Outcome:
        machine.counts = dict.fromkeys(names, 1)
        return Outcome([Change(name, b"1") for name in names])

    async with host.running() as shard:
        await shard.loaded()
        shard.tell(fill)
        monkeypatch.setattr(shard_module, "SNAPSHOT_RECORDS", 100)
        shard.nudge()
        await eventually(lambda: shard.is_taking_snapshot)
        monkeypatch.setattr(shard_module, "SNAPSHOT_RECORDS", 100_000)  # this is the only one
        during = 0
        while shard.is_taking_snapshot:
            # Entries that were taken already, are still to be taken, and are new.
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
    assert newest(ShardSnapshots(SystemDisk(), path.parent), 10) == (7, changes)


def newest(snapshots: ShardSnapshots, end_offset: int) -> tuple[int, list[Change]]:
    found = snapshots.newest(end_offset)
    assert found is not None
    offset, changes = found
    return offset, list(changes)


def test_the_last_snapshots_are_kept_and_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    snapshots = ShardSnapshots(SystemDisk(), tmp_path / "s")
    assert snapshots.newest(10) is None
    for offset in range(1, 6):
        snapshots.write(offset, [encode_block([Change(b"k", str(offset).encode())])])
    files = sorted((tmp_path / "s").iterdir())
    assert len(files) == KEPT
    files[-1].write_bytes(files[-1].read_bytes()[:-1])
    assert newest(snapshots, 10) == (4, [Change(b"k", b"4")])


def test_a_snapshot_of_what_a_crash_has_taken_is_not_used(tmp_path: Path) -> None:
    snapshots = ShardSnapshots(SystemDisk(), tmp_path / "s")
    snapshots.write(5, [encode_block([Change(b"k", b"kept")])])
    snapshots.write(9, [encode_block([Change(b"k", b"lost")])])
    assert newest(snapshots, 8) == (5, [Change(b"k", b"kept")])
    # Not later either, when the log has grown past it with something else.
    assert newest(snapshots, 20) == (5, [Change(b"k", b"kept")])


async def test_a_refusal_reaches_those_who_still_wait_for_earlier_records(tmp_path: Path) -> None:
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

        def hurry(counters: Counters, _now_ms: int) -> Outcome:
            counters.deadline_ms = 0
            return Outcome()

        shard.tell(hurry)
        await eventually(lambda: machine.ticks)
        assert machine.ticks == 1


async def test_a_machine_that_is_always_due_leaves_others_their_turns(host: Host) -> None:
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


async def test_the_machine_learns_that_nobody_waits_any_more(host: Host) -> None:
    async with host.running() as shard:
        await shard.ask(lambda machine, ticket, now_ms: machine.read(b"a", ticket, now_ms))  # it is loaded
        asking = asyncio.create_task(shard.ask(lambda machine, ticket, _: machine.wait(ticket)))
        await host.made[-1].somebody_waits.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        assert not host.made[-1].waiting


async def test_one_event_answers_many_tickets_with_one_write(host: Host) -> None:
    async with host.running() as shard:
        await shard.loaded()
        loop = asyncio.get_running_loop()
        tickets = [loop.create_future() for _ in range(10)]
        end_offset = shard.partition.log.end_offset

        def add_all(machine: Counters, now_ms: int) -> Outcome:
            outcome = Outcome()
            for ticket in tickets:
                outcome += machine.add(b"a", ticket, now_ms)
            return outcome

        shard.submit(add_all, tickets)
        assert await asyncio.gather(*tickets) == list(range(1, 11))
        assert shard.partition.log.end_offset == end_offset + 10


async def test_tickets_of_a_machine_that_fails_or_is_not_there_are_told_so(host: Host) -> None:
    def crash(_machine: Counters, _now_ms: int) -> Outcome:
        raise ZeroDivisionError

    async with host.running() as shard:
        await shard.loaded()
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        shard.submit(crash, [first])
        shard.submit(lambda _machine, _now_ms: Outcome(), [second])
        assert isinstance(await first, CoordinatorUnavailable)
        assert isinstance(await second, CoordinatorUnavailable)


async def test_what_a_machine_cannot_be_told_costs_that_machine_and_not_who_tells(host: Host) -> None:
    def fail(_machine: Counters, _now_ms: int) -> Outcome:
        raise ValueError("told nonsense")

    async with host.running() as shard:
        await add(shard, b"a")
        shard.tell(fail)
        assert await add(shard, b"a") == 2
        assert len(host.made) == 2


async def test_a_reply_that_was_on_its_way_reaches_a_ticket_that_was_abandoned(host: Host) -> None:
    host.overrides = {"cleanup.policy": "compact", "flush.messages": "1"}
    async with host.running() as shard:
        machine = await shard.loaded()
        loop = asyncio.get_running_loop()
        waiting, answered = loop.create_future(), loop.create_future()
        shard.submit(lambda machine, _now_ms: machine.wait(waiting), [waiting])
        shard.submit(lambda machine, now_ms: machine.add(b"a", answered, now_ms), [answered])
        for ticket in (waiting, answered):
            shard.abandon(ticket)
        assert await answered == 1
        assert not machine.waiting
        assert not waiting.done()
