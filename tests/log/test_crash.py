"""Power may be lost at any point: everything that was flushed is there afterwards.

The disk keeps what was synced, and arbitrary parts of the rest. Whatever parts those are, recovery
gives a prefix of what was appended that contains at least what was flushed.
"""

from pathlib import Path
from random import Random

import pytest

from alpacamq.log.partition_log import Appended, PartitionLog
from alpacamq.model.batch import read_header
from alpacamq.model.control import marker_batch
from alpacamq.model.records import read_records

from .crashing_disk import CrashingDisk, PowerLost
from .logs import FakeClock, a_batch, a_config, a_storage, append, flush, read_batches

DIRECTORY = Path("/data/t-0")


class Machine:
    """A log on a disk that loses power now and then, and what may be expected of it."""

    def __init__(self, seed: int, **settings: object) -> None:
        self.random = Random(seed)
        self.disk = CrashingDisk()
        self.disk.make_directory(Path("/data"))
        self.disk.sync_directory(Path("/"))
        self.clock = FakeClock()
        self.config = a_config(**settings)
        self.values: list[bytes] = []
        self.durable_end = 0
        self.durable_start = 0
        self.start = 0
        self.epoch = 0
        self.log = self.open()

    def open(self) -> PartitionLog:
        storage = a_storage(self.disk, self.clock, handles=3, index_bytes=4000, checkpoint_bytes=2000)
        return PartitionLog.open(DIRECTORY, self.config, storage)

    def run(self, steps: int) -> None:
        """Run operations until power is lost, recover, and check."""
        self.disk.fuse = self.random.choice([0, 1, 2, 3, 5, 8, 13, 30, 100, 300])
        try:
            for _ in range(steps):
                self.step()
        except PowerLost:
            pass
        # Sometimes power is lost again during recovery.
        for _ in range(self.random.choice([0, 0, 1, 2])):
            self.disk.crash(self.random)
            self.disk.fuse = self.random.randint(0, 30)
            try:
                self.open()
            except PowerLost:
                continue
        self.disk.crash(self.random)
        self.log = self.open()
        self.check()

    def step(self) -> None:
        action = self.random.choice(
            ["append"] * 6 + ["flush"] * 3 + ["roll", "close", "trim", "retain", "truncate"]
        )
        match action:
            case "append":
                self.append()
            case "flush":
                end = self.log.end_offset
                begun = self.log.begin_flush()
                if self.random.random() < 0.5:
                    self.append(epoch_chance=0.5)
                if begun is not None:
                    begun.run()
                    self.log.end_flush(begun, None)
                self.durable_end = max(self.durable_end, end)
            case "roll":
                self.clock.ms += 60_000
                self.log.roll_if_due(self.clock.ms)
            case "close":
                end = self.log.end_offset
                self.log.close()
                self.durable_end = max(self.durable_end, end)
                self.log = self.open()
                assert self.log.recovered.clean
                self.check()
            case "trim":
                self.start = max(self.start, self.random.randint(0, self.log.flushed_offset))
                self.log.begin_delete_before(self.start).run()
                self.durable_start = self.start
            case "retain":
                removal = self.log.begin_retention(self.clock.ms)
                self.start = self.log.start_offset
                if removal is not None:
                    removal.run()
                    self.durable_start = self.start
            case "truncate":
                if self.random.random() < 0.3 and self.log.end_offset > self.start:
                    self.truncate(self.random.randint(self.start, self.log.end_offset))

    def append(self, epoch_chance: float = 0.1) -> None:
        count = self.random.randint(1, 4)
        batches = []
        for _ in range(self.random.randint(1, 3)):
            values = [self.random.randbytes(self.random.choice([1, 40, 700])) for _ in range(count)]
            batches.append(a_batch(values))
            self.values += values
        if self.random.random() < epoch_chance:
            self.epoch += 1
        for result in append(self.log, *batches, epoch=self.epoch):
            assert isinstance(result, Appended)

    def truncate(self, offset: int) -> None:
        """Truncation is at a batch boundary at or before `offset`."""
        part = self.log.read(offset, 1, self.log.end_offset)
        if part is None:
            return
        data = self.disk.read(part.handle.descriptor, part.length, part.position)
        part.release()
        first = next(read_records(data)).offset
        if first < self.start:
            return
        self.durable_end = min(self.durable_end, first)
        self.log.truncate_to(offset)
        del self.values[first:]
        assert self.log.end_offset == first

    def check(self) -> None:
        log = self.log
        assert log.damage is None, log.recovered
        assert not log.has_lost_data, log.loss
        assert self.durable_end <= log.end_offset <= len(self.values), log.recovered
        assert self.durable_start <= log.start_offset <= max(self.start, self.durable_start)
        assert log.flushed_offset == log.end_offset
        read = {
            record.offset: record.value
            for batch in read_batches(log, self.disk)
            for record in read_records(batch)
        }
        for offset in range(log.start_offset, log.end_offset):
            assert read[offset] == self.values[offset]
        del self.values[log.end_offset :]
        self.durable_end = log.end_offset
        self.start = self.durable_start = log.start_offset
        self.epoch = max(self.epoch, log.epochs.latest)


@pytest.mark.parametrize("seed", range(150))
def test_flushed_data_survives_every_crash(seed: int) -> None:
    machine = Machine(seed, segment_bytes=3000, segment_ms=60_000, retention_bytes=20_000)
    for _ in range(8):
        machine.run(steps=25)


@pytest.mark.parametrize("fuse", range(60))
def test_a_crash_at_every_step_of_a_short_life_loses_nothing_flushed(fuse: int) -> None:
    for seed in range(10):
        disk = CrashingDisk()
        disk.make_directory(Path("/data"))
        disk.sync_directory(Path("/"))
        disk.fuse = fuse
        flushed = live_shortly(disk)
        disk.crash(Random(seed))
        log = PartitionLog.open(DIRECTORY, a_config(segment_bytes=1024), a_storage(disk))
        assert not log.has_lost_data
        assert flushed <= log.end_offset <= flushed + 1
        assert len(read_batches(log, disk)) == log.end_offset
        if log.end_offset:
            last = log.end_offset - 1
            assert append(log, a_batch(size=300, producer=(1, 0, last)))[0] == (last, last + 1, True)


def live_shortly(disk: CrashingDisk) -> int:
    """Append and flush until power is lost; return the number of flushed batches."""
    flushed = 0
    try:
        log = PartitionLog.open(DIRECTORY, a_config(segment_bytes=1024), a_storage(disk, checkpoint_bytes=1))
        for sequence in range(6):
            append(log, a_batch(size=300, producer=(1, 0, sequence)))
            flush(log)
            flushed = sequence + 1
        log.close()
    except PowerLost:
        pass
    return flushed


def a_leader_s_batches() -> list[bytes]:
    """Twelve batches in three epochs, two of them markers."""
    disk = CrashingDisk()
    disk.make_directory(Path("/data"))
    leader = PartitionLog.open(DIRECTORY, a_config(), a_storage(disk))
    for number in range(12):
        batch = a_batch(2, size=150, producer=(number // 5, 0, number % 5 * 2))
        if number % 5 == 4:
            batch = marker_batch(1, 0, committed=number == 4, coordinator_epoch=0, timestamp_ms=number)
        assert isinstance(append(leader, batch, epoch=number // 4)[0], Appended)
    return read_batches(leader, disk)


@pytest.mark.parametrize("fuse", range(0, 110, 2))
def test_a_follower_continues_after_a_crash_at_every_step(fuse: int) -> None:
    batches = a_leader_s_batches()
    ends = [0, *(read_header(batch).next_offset for batch in batches)]
    for seed in range(6):
        disk = CrashingDisk()
        disk.make_directory(Path("/data"))
        disk.sync_directory(Path("/"))
        disk.fuse = fuse
        flushed = follow_shortly(disk, batches, Random(seed))
        disk.crash(Random(seed))
        log = PartitionLog.open(DIRECTORY, a_config(segment_bytes=1024), a_storage(disk))
        assert not log.has_lost_data
        assert log.end_offset >= flushed
        assert log.high_watermark_hint <= flushed
        stored = ends.index(log.end_offset)
        assert read_batches(log, disk) == batches[:stored]
        assert log.append_fetched(b"".join(batches), 2) == ends[-1]
        assert read_batches(log, disk) == batches
        assert list(log.epochs.entries) == [(0, 0), (1, ends[4]), (2, ends[8])]


def follow_shortly(disk: CrashingDisk, batches: list[bytes], random: Random) -> int:
    """Append what a leader sends and flush until power is lost; return the flushed offset."""
    flushed = 0
    try:
        storage = a_storage(disk, checkpoint_bytes=random.choice([1, 1000]))
        log = PartitionLog.open(DIRECTORY, a_config(segment_bytes=1024), storage)
        first = 0
        while first < len(batches):
            count = random.randint(1, 4)
            log.append_fetched(b"".join(batches[first : first + count]), 2)
            first += count
            if random.random() < 0.7:
                log.remember_high_watermark(flushed)
                flush(log)
                flushed = log.flushed_offset
        log.close()
    except PowerLost:
        pass
    return flushed
