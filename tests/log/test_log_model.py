"""A log behaves like a list of batches, for any sequence of operations."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alpacamq.log.partition_log import Appended
from alpacamq.log.storage import Storage
from alpacamq.model.batch import check_batch, read_header

from .logs import FakeClock, a_batch, a_storage, append, flush, open_log, read_batches

SETTINGS: dict[str, Any] = {"segment_bytes": 4000, "segment_ms": 60_000, "retention_bytes": 30_000}


LARGEST_BATCH_BYTES = len(a_batch(4, size=3000))


class LogMachine(RuleBasedStateMachine):
    """The log, and the list that it should be."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp()) / "t-0"
        self.clock = FakeClock()
        self.batches: list[bytes] = []
        self.epoch = 0
        self.log = open_log(self.directory, self.storage(), **SETTINGS)

    def storage(self) -> Storage:
        return a_storage(clock=self.clock, handles=2, index_bytes=2000, checkpoint_bytes=5000)

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory.parent)

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else self.log.start_offset

    @rule(
        sizes=st.lists(st.sampled_from([1, 50, 600, 3000]), min_size=1, max_size=6), count=st.integers(1, 4)
    )
    def append(self, sizes: list[int], count: int) -> None:
        sent = [a_batch(count, size=size) for size in sizes]
        results = append(self.log, *sent, epoch=self.epoch)
        for result, batch in zip(results, sent, strict=True):
            assert isinstance(result, Appended)
            assert result.base_offset == self.end
            assert check_batch(batch).base_offset == result.base_offset
            self.batches.append(bytes(batch))

    @rule()
    def flush(self) -> None:
        flush(self.log)
        assert self.log.flushed_offset == self.log.end_offset

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def grow_old(self) -> None:
        self.clock.ms += 60_000
        self.log.roll_if_due(self.clock.ms)

    @rule()
    def retain(self) -> None:
        before = self.log.size_bytes
        removal = self.log.begin_retention(self.clock.ms)
        if removal is not None:
            removal.run()
            assert self.log.size_bytes >= 30_000
        elif before > 30_000:
            assert self.log.size_bytes < 30_000 + LARGEST_BATCH_BYTES
        self.batches = [b for b in self.batches if read_header(b).next_offset > self.log.start_offset]

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.batches) - 1))
        offset = read_header(self.batches[at]).base_offset
        if offset >= self.log.start_offset:
            self.log.truncate_to(offset)
            del self.batches[at:]
            assert self.log.end_offset == offset

    @rule(clean=st.booleans())
    def restart(self, *, clean: bool) -> None:
        if clean:
            self.log.close()
        self.log = open_log(self.directory, self.storage(), **SETTINGS)
        assert self.log.recovered.cut_bytes == 0
        assert self.log.recovered.notes == ()
        if clean:
            assert self.log.recovered.scanned_bytes == 0

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), max_bytes=st.sampled_from([1, 700, 5000, 1 << 20]))
    def read_somewhere(self, data: st.DataObject, max_bytes: int) -> None:
        at = data.draw(st.integers(0, len(self.batches) - 1))
        header = read_header(self.batches[at])
        offset = data.draw(
            st.integers(max(header.base_offset, self.log.start_offset), header.next_offset - 1)
        )
        limit_at = data.draw(st.integers(at, len(self.batches) - 1))
        limit = read_header(self.batches[limit_at]).next_offset
        part = self.log.read(offset, max_bytes, limit)
        assert part is not None
        disk = self.storage().disk
        stored = disk.read(part.handle.descriptor, part.length, part.position)
        part.release()
        expected = b"".join(self.batches[at : limit_at + 1])
        assert len(stored) >= header.size
        assert expected.startswith(stored)
        assert len(stored) <= max(max_bytes, header.size)

    @invariant()
    def the_log_is_the_list(self) -> None:
        if hasattr(self, "log"):
            assert self.log.end_offset == self.end
            if self.log.size_bytes < 60_000:
                assert read_batches(self.log) == self.batches


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
