"""Two replicas of a log converge, for any sequence of appends, fetches, failovers and compactions.

One leads at a time, the other copies it with answers cut anywhere. A new leader has everything below
the high watermark; the old one truncates by epoch before it follows.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from alpacamq.log.epochs import EpochStart
from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.records import Record, write_batch

from .logs import NOW_MS, FakeClock, a_storage, append, flush, open_log, read_batches
from .test_follower import compact, fetch, records, state

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.sampled_from([None, b"", b"v" * 30, b"w" * 300])
COMPACTED: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 1024, "delete_retention_ms": 10}
DELETED: dict[str, Any] = {"segment_bytes": 1024, "retention_bytes": 3000}


def truncate_to_leader(follower: PartitionLog, leader: PartitionLog) -> None:
    """Truncate a follower until its last epoch ends where its leader says, as the fetch protocol does."""
    while (last := follower.epochs.last) is not None:
        known, end = leader.epochs.end_offset_for(last.epoch, leader.end_offset)
        if known == last.epoch and end >= follower.end_offset:
            return
        own_end = follower.epochs.end_offset_for(known, follower.end_offset).end_offset
        follower.truncate_to(max(min(end, own_end), follower.start_offset))


class ReplicaMachine(RuleBasedStateMachine):
    """Two logs, which of them leads, and what was committed."""

    SETTINGS = COMPACTED

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.clock = FakeClock()
        self.replicas = [self.open(0), self.open(1)]
        self.leading = 0
        self.epoch = 0
        self.high_watermark = 0
        self.committed: dict[int, Record] = {}
        self.leader.start_epoch(0)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    def open(self, number: int) -> PartitionLog:
        storage = a_storage(clock=self.clock, handles=4, index_bytes=2000, checkpoint_bytes=1500)
        return open_log(self.root / f"r-{number}", storage, **self.SETTINGS)

    @property
    def leader(self) -> PartitionLog:
        return self.replicas[self.leading]

    @property
    def follower(self) -> PartitionLog:
        return self.replicas[1 - self.leading]

    @rule(batches=st.lists(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4), min_size=1, max_size=4))
    def append(self, batches: list[list[tuple[bytes, bytes | None]]]) -> None:
        append(
            self.leader,
            *(
                write_batch([Record(at, NOW_MS, key, value) for at, (key, value) in enumerate(pairs)])
                for pairs in batches
            ),
            epoch=self.epoch,
        )

    @rule(data=st.data(), max_bytes=st.sampled_from([1, 200, 500, 3000, 1 << 20]))
    def copy(self, data: st.DataObject, max_bytes: int) -> None:
        if not self.is_in_range():
            self.follower.restart_at(self.leader.start_offset)
        before = self.follower.end_offset
        answer = fetch(self.leader, before, max_bytes)
        cut = data.draw(st.integers(0, len(answer))) if data.draw(st.booleans()) else len(answer)
        end = self.follower.append_fetched(answer[:cut], self.epoch)
        assert before <= end <= self.leader.end_offset
        assert end > before or cut < len(answer) or before == self.leader.end_offset

    @rule()
    def commit(self) -> None:
        for replica in self.replicas:
            flush(replica)
        self.high_watermark = max(
            self.high_watermark, min(replica.flushed_offset for replica in self.replicas)
        )
        for record in records(self.leader):
            if record.offset < self.high_watermark:
                self.committed[record.offset] = record
        for replica in self.replicas:
            replica.remember_high_watermark(self.high_watermark)

    @rule()
    def fail_over(self) -> None:
        if self.follower.end_offset >= self.high_watermark and self.is_in_range():
            self.leading = 1 - self.leading
            self.epoch += 1
            self.leader.start_epoch(self.epoch)
            truncate_to_leader(self.follower, self.leader)

    @rule(which=st.integers(0, 1), later_ms=st.sampled_from([0, 5, 100]))
    def clean(self, which: int, later_ms: int) -> None:
        self.clock.ms += later_ms
        if self.SETTINGS is COMPACTED:
            limits = {"limit_offset": self.high_watermark, "tombstone_limit_offset": self.high_watermark}
            compact(self.replicas[which], self.clock.ms, **limits)
        elif which == self.leading:
            removal = self.leader.begin_retention(self.clock.ms, limit_offset=self.high_watermark)
            if removal is not None:
                removal.run()
        elif self.is_in_range():
            flush(self.follower)
            start = min(self.leader.start_offset, self.follower.end_offset)
            self.follower.begin_delete_before(start).run()
            removal = self.follower.begin_trim(self.clock.ms)
            if removal is not None:
                removal.run()

    @rule(which=st.integers(0, 1), clean=st.booleans())
    def restart(self, which: int, *, clean: bool) -> None:
        before = self.replicas[which]
        if clean:
            before.close()
        again = self.replicas[which] = self.open(which)
        assert again.end_offset == before.end_offset
        assert written_epochs(again) == written_epochs(before)
        assert -1 <= again.high_watermark_hint <= max(self.high_watermark, again.start_offset)
        if which == self.leading:
            # An epoch that wrote nothing may not have been stored.
            again.start_epoch(self.epoch)

    @rule()
    def rebuild(self) -> None:
        """Start the follower again from nothing; the high watermark stays, so it cannot lead soon."""
        self.follower.restart_at(self.leader.start_offset)

    def is_in_range(self) -> bool:
        return self.follower.end_offset >= self.leader.start_offset

    @invariant()
    def nothing_committed_is_lost(self) -> None:
        if not hasattr(self, "replicas"):
            return
        for replica in self.replicas:
            assert not replica.has_lost_data
        stored = {record.offset: record for record in records(self.leader)}
        last = {record.key: record.offset for record in stored.values()}
        for offset, record in self.committed.items():
            if offset < self.leader.start_offset or offset in stored:
                assert stored.get(offset, record) == record
            else:
                # Compacted: superseded by a later record, or an old tombstone.
                assert self.SETTINGS is COMPACTED
                assert last.get(record.key, -1) > offset or self.is_deleted(record)

    def is_deleted(self, record: Record) -> bool:
        """Whether the key has no value: its last committed record is a tombstone."""
        latest = max(
            (each for each in self.committed.values() if each.key == record.key), key=lambda each: each.offset
        )
        return latest.value is None

    @rule()
    def converge(self) -> None:
        """Copy everything: then both replicas are the same to a reader."""
        if not self.is_in_range():
            self.follower.restart_at(self.leader.start_offset)
        while self.follower.end_offset < self.leader.end_offset:
            before = self.follower.end_offset
            assert self.follower.append_fetched(fetch(self.leader, before), self.epoch) > before
        assert self.follower.end_offset == self.leader.end_offset
        if self.SETTINGS is COMPACTED:
            assert values(self.follower) == values(self.leader)
        else:
            start = max(replica.start_offset for replica in self.replicas)
            assert read_batches(self.follower, start=start) == read_batches(self.leader, start=start)
        start = self.follower.start_offset
        assert written_epochs(self.follower, start) == written_epochs(self.leader, start)


def written_epochs(log: PartitionLog, after: int = -1) -> list[EpochStart]:
    """The epochs that wrote something and began after an offset."""
    return [each for each in log.epochs.entries if after < each.start_offset < log.end_offset]


def values(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {key: value for key, value in state(log).items() if value is not None}


class RetentionMachine(ReplicaMachine):
    """The same with retention in place of compaction: replicas are the same bytes."""

    SETTINGS = DELETED


TestReplicaMachine = ReplicaMachine.TestCase
TestReplicaMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRetentionMachine = RetentionMachine.TestCase
TestRetentionMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
