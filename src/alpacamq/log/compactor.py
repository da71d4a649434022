"""Decides when a log is compacted and swaps in the result. `compaction` decides what is kept.

The log's owner begins and ends a compaction; in between it runs in any thread and does not touch
anything that readers use.

The swap is safe against a crash at any point. A cleaned file is durable before it is renamed to `.swap`, and
each `.swap` before the next: so a `.swap` file found at start is complete, and they are complete from the
lowest offset on. The final rename is atomic; segments it leaves behind are covered entirely, and recovery
drops them.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from alpacamq.model.batch import BatchHeader
from alpacamq.model.errors import DamagedLog, StorageFailed
from alpacamq.model.ports import Disk
from alpacamq.model.topics import INT64_MAX, TopicConfig

from . import compaction
from .compaction import CleanedSegment
from .directory import SWAP, Contents, remove_segment
from .epochs import EpochHistory
from .flush import UnflushedState
from .handles import Handle
from .index import IndexTail
from .producer_state import ProducerEntry, ProducerState
from .scan import Violation, scan_batches
from .segment import Segment, Segments, segment_path
from .storage import Storage
from .transactions import AbortedRanges


def swap_path(directory: Path, base_offset: int) -> Path:
    path = segment_path(directory, base_offset)
    return path.with_name(path.name + SWAP)


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """A verified cleaned segment under its `.swap` name, with its index."""

    cleaned: CleanedSegment
    tail: IndexTail


def prepare_swaps(
    disk: Disk, directory: Path, cleaned: Sequence[CleanedSegment], epochs: EpochHistory
) -> list[Swap]:
    """Verify cleaned files and rename them to `.swap`, lowest offset first. All or none."""
    swaps: list[Swap] = []
    named: list[int] = []
    try:
        for segment in cleaned:
            tail, end = _walk(disk, segment.path, segment.base_offset, epochs)
            assert end == segment.end_offset, f"{segment.path} ends at {end}, not {segment.end_offset}"
            swaps.append(Swap(cleaned=segment, tail=tail))
        for segment in cleaned:
            disk.rename(segment.path, swap_path(directory, segment.base_offset))
            named.append(segment.base_offset)
            disk.sync_directory(directory)
    except BaseException:
        for segment in cleaned[len(named) :]:
            with suppress(OSError):  # the next start removes it
                disk.remove(segment.path)
        discard_swaps(disk, directory, named)
        raise
    return swaps


def put_in_place(disk: Disk, directory: Path, base_offset: int, replaced: Iterable[int]) -> None:
    """Rename a `.swap` file to the first segment that it replaces, and remove the others."""
    remove_segment(disk, directory, base_offset, keep_log=True)
    disk.rename(swap_path(directory, base_offset), segment_path(directory, base_offset))
    for other in replaced:
        if other != base_offset:
            remove_segment(disk, directory, other)


def discard_swaps(disk: Disk, directory: Path, bases: Iterable[int]) -> None:
    """Remove `.swap` files, the highest first: a value must not reappear whose tombstone is gone."""
    for base_offset in sorted(bases, reverse=True):
        disk.remove(swap_path(directory, base_offset))
        disk.sync_directory(directory)


def complete_swaps(
    disk: Disk, directory: Path, contents: Contents, epochs: EpochHistory | None, notes: list[str]
) -> None:
    """Finish swaps that a crash interrupted, and update `contents`."""
    for base_offset in contents.swaps:
        path = swap_path(directory, base_offset)
        try:
            _, end = _walk(disk, path, base_offset, epochs)
        except Violation as violation:
            if base_offset in contents.segments:
                disk.remove(path)
                notes.append(f"{path} is dropped, its source segments still exist: {violation.reason}")
                continue
            end = base_offset
        replaced = {base for base in contents.segments if base_offset <= base < end}
        put_in_place(disk, directory, base_offset, replaced)
        notes.append(f"{path} is in place now: a compaction was interrupted")
        contents.segments = sorted((set(contents.segments) - replaced) | {base_offset})
    if contents.swaps:
        disk.sync_directory(directory)


def _walk(disk: Disk, path: Path, base_offset: int, epochs: EpochHistory | None) -> tuple[IndexTail, int]:
    """Verify a whole file. Returns its index and the offset after its last batch."""
    tail = IndexTail(base_offset)
    end = base_offset
    descriptor = disk.open(path)
    try:
        for position, header in scan_batches(
            disk,
            descriptor,
            0,
            disk.size(descriptor),
            base_offset,
            epochs or EpochHistory(),
            learn_epochs=epochs is None,
        ):
            tail.note(header.last_offset, position, header.max_timestamp)
            end = header.next_offset
    finally:
        disk.close(descriptor)
    return tail, end


# Freeing a file takes time in proportion to its size; smaller ones are not worth a descriptor.
_LARGE_BYTES = 4 << 20
_MAX_KEPT_OPEN = 32


@dataclass(slots=True, kw_only=True)
class Compaction:
    """One compaction of a log's sealed segments."""

    directory: Path
    storage: Storage
    config: TopicConfig
    epochs: EpochHistory
    segments: dict[int, Segment]
    aborted: AbortedRanges
    producers: Mapping[int, ProducerEntry]
    first_dirty_offset: int
    tombstone_limit_offset: int
    now_ms: int
    note_loss: Callable[[str], None]
    is_running: bool = field(default=True, init=False)
    is_cancelled: bool = field(default=False, init=False)
    _is_started: bool = field(default=False, init=False)
    _starting: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False)
    cleaned: compaction.Cleaned | None = field(default=None, init=False)
    swaps: list[Swap] = field(default_factory=list, init=False)
    replaced: list[Handle] = field(default_factory=list, init=False)

    def free_replaced(self) -> None:
        """Free the replaced files, which is slow for large ones. May run in any thread."""
        while self.replaced:
            self.replaced.pop().release()

    def cancel(self) -> None:
        """Make `run` stop at the next batch, or not start. May be called from any thread."""
        self.is_cancelled = True

    def wait_stopped(self) -> None:
        """Wait until a cancelled compaction no longer runs in its thread."""
        assert self.is_cancelled
        with self._starting:
            is_started = self._is_started
        if is_started:
            self._stopped.wait()

    def _pace(self, _size: int) -> None:
        if self.is_cancelled:
            raise StorageFailed(f"{self.directory.name}: compaction was cancelled")

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Return whether a batch is the last of its producer that may be compacted.

        Those behind it may be truncated.
        """
        if (known := self.producers.get(header.producer_id)) is None:
            return False
        end_offset = next(reversed(self.segments.values())).next_offset
        last = next((each for each in reversed(known.batches) if each.base_offset < end_offset), None)
        return last is not None and last.base_offset == header.base_offset

    def run(self) -> None:
        """Write the compacted segments durably. After a failure no files are left."""
        try:
            with self._starting:
                self._pace(0)
                self._is_started = True
            cleaned = compaction.clean(
                [
                    compaction.SealedSegment(
                        path=segment.path,
                        base_offset=segment.base_offset,
                        end_offset=segment.next_offset,
                        size_bytes=segment.size,
                    )
                    for segment in self.segments.values()
                ],
                first_dirty_offset=self.first_dirty_offset,
                tombstone_limit_offset=self.tombstone_limit_offset,
                config=self.config,
                now_ms=self.now_ms,
                disk=self.storage.disk,
                directory=self.directory,
                pace=self._pace,
                is_aborted=lambda header: (
                    header.is_transactional and self.aborted.covers(header.producer_id, header.base_offset)
                ),
                is_last_of_producer=self._is_last_of_producer,
            )
            self.swaps = prepare_swaps(self.storage.disk, self.directory, cleaned.segments, self.epochs)
            self.cleaned = cleaned
        except DamagedLog as damage:
            with suppress(OSError):
                self.note_loss(str(damage))
            raise
        except Violation as violation:
            raise StorageFailed(f"{self.directory.name}: a cleaned file is bad: {violation}") from violation
        finally:
            self.is_running = False
            self._stopped.set()


class Compactor:
    """Compacts one log, one compaction at a time."""

    __slots__ = (
        "_compaction",
        "_directory",
        "_epochs",
        "_note_loss",
        "_producer_state",
        "_segments",
        "_storage",
        "_unflushed",
    )

    def __init__(
        self,
        directory: Path,
        storage: Storage,
        segments: Segments,
        epochs: EpochHistory,
        unflushed: UnflushedState,
        producer_state: ProducerState,
        note_loss: Callable[[str], None],
    ) -> None:
        """Call `note_loss` with the damage that a compaction finds."""
        self._producer_state = producer_state
        self._note_loss = note_loss
        self._directory = directory
        self._storage = storage
        self._segments = segments
        self._epochs = epochs
        self._unflushed = unflushed
        self._compaction: Compaction | None = None

    def interrupt(self) -> None:
        """Stop a compaction before the log is truncated; its result is not used. Waits for its thread.

        The caller removes `.swap` files: after a crash they would bring truncated records back.
        """
        if (running := self._compaction) is not None:
            running.cancel()
            running.wait_stopped()
            self._compaction = None

    @property
    def dirty_bytes(self) -> int:
        """The size of the sealed segments that were written since the last compaction."""
        compacted_to = self._unflushed.compacted_to
        return sum(segment.size for segment in self._segments.sealed if segment.next_offset > compacted_to)

    def begin(
        self,
        config: TopicConfig,
        now_ms: int,
        *,
        limit_offset: int,
        tombstone_limit_offset: int | None = None,
        force: bool = False,
    ) -> Compaction | None:
        """Return a compaction if enough is dirty or a kept tombstone may be dropped; None otherwise.

        Segments that reach beyond `limit_offset` are left, and tombstones from `tombstone_limit_offset` on
        are kept. With `force`, anything dirty is enough.
        """
        if not config.is_compacted or (self._compaction is not None and self._compaction.is_running):
            return None
        segments = self._cleanable(config.min_compaction_lag_ms, limit_offset, now_ms)
        if not segments:
            return None
        first_dirty_offset = max(self._unflushed.compacted_to, segments[0].base_offset)
        clean_bytes = sum(segment.size for segment in segments if segment.next_offset <= first_dirty_offset)
        dirty_bytes = sum(segment.size for segment in segments) - clean_bytes
        first_dirty = next((each for each in segments if each.next_offset > first_dirty_offset), None)
        if first_dirty is not None and now_ms - first_dirty.opened_ms >= config.max_compaction_lag_ms:
            deadline_ms: int | None = now_ms
        else:
            deadline_ms = self._unflushed.deadline_ms
        ratio = 0.0 if force else config.min_cleanable_dirty_ratio
        if not compaction.is_due(clean_bytes, dirty_bytes, ratio) and (
            deadline_ms is None or now_ms < deadline_ms
        ):
            return None
        self._compaction = Compaction(
            directory=self._directory,
            storage=self._storage,
            config=config,
            epochs=self._epochs,
            segments={segment.base_offset: segment for segment in segments},
            aborted=self._producer_state.transactions.snapshot().ranges(),
            producers=self._producer_state.producers.copy(),
            first_dirty_offset=first_dirty_offset,
            tombstone_limit_offset=INT64_MAX if tombstone_limit_offset is None else tombstone_limit_offset,
            now_ms=now_ms,
            note_loss=self._note_loss,
        )
        return self._compaction

    def end(self, done: Compaction) -> None:
        """Swap in the compacted segments, lowest offsets first. After an OSError the rest is unchanged.

        Does nothing if the compaction was interrupted.
        """
        if done is not self._compaction:
            assert done.is_cancelled
            return
        assert done.cleaned is not None
        self._compaction = None
        disk = self._storage.disk
        waiting = [swap.cleaned.base_offset for swap in done.swaps]
        try:
            for swap in done.swaps:
                replaced = [done.segments[segment.base_offset] for segment in swap.cleaned.replaces]
                if any(segment.is_retired for segment in replaced):
                    # Retention or truncation removed some of them meanwhile. Records superseded there may be
                    # current again: count nothing as cleaned and leave it to the next compaction.
                    discard_swaps(disk, self._directory, waiting)
                    return
                for segment in replaced:
                    segment.index.retire()
                    self._keep_open(done, segment)
                put_in_place(
                    disk, self._directory, swap.cleaned.base_offset, [s.base_offset for s in replaced]
                )
                self._replace(replaced, swap)
                waiting.pop(0)
        except OSError:
            for segment in self._segments:
                segment.index.is_retired = False  # still in use, as their swap failed
            discard_swaps(disk, self._directory, waiting)
            raise
        self._unflushed.compacted_to = done.cleaned.first_dirty_offset
        self._unflushed.deadline_ms = done.cleaned.next_deadline_ms

    def _keep_open(self, done: Compaction, segment: Segment) -> None:
        """Keep a large replaced file open, so that `free_replaced` frees it and not the owner's thread."""
        if segment.size >= _LARGE_BYTES and len(done.replaced) < _MAX_KEPT_OPEN:
            with suppress(OSError):
                done.replaced.append(self._storage.handles.pin(segment.path))

    def _cleanable(self, lag_ms: int, limit_offset: int, now_ms: int) -> list[Segment]:
        """Return sealed segments that may be compacted: without records of the last `lag_ms`.

        They end before `limit_offset`: records behind it may be truncated, and those that they supersede
        would be gone. They are durable, have no open transaction, and are not scanned again.
        """
        point = self._unflushed.recovery_point
        undecided = self._producer_state.transactions.first_open_offset
        segments: list[Segment] = []
        for segment in self._segments.sealed:
            if segment.base_offset >= point.segment or segment.next_offset > self._unflushed.flushed_offset:
                break
            if segment.next_offset > limit_offset:
                break
            if undecided is not None and segment.next_offset > undecided:
                break
            # Without a lag the clock does not matter: it may have been set back.
            if lag_ms and segment.newest_ms(now_ms) > now_ms - lag_ms:
                break
            segments.append(segment)
        return segments

    def _replace(self, replaced: list[Segment], swap: Swap) -> None:
        cleaned = swap.cleaned
        for segment in replaced:
            self._storage.handles.forget(segment.path)
        fresh = Segment(
            self._directory,
            cleaned.base_offset,
            self._storage,
            size=cleaned.size_bytes,
            next_offset=cleaned.end_offset,
            opened_ms=max(segment.opened_ms for segment in replaced),
            tail=swap.tail,
        )
        fresh.written_ms = max(segment.written_ms for segment in replaced)
        fresh.trust_from(fresh.base_offset, 0)
        self._segments.replace(replaced, fresh)
        self._unflushed.drop(replaced)
        self._unflushed.unindexed(fresh)
        self._unflushed.directory_changed = True
