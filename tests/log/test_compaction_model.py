"""Compaction against a model that knows nothing of files: rounds of appending and cleaning."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.model.batch import LOG_APPEND_TIME, Codec
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.model.topics import topic_config

from .sealed_log import SealedLog

RETENTION_MS = 1000
CONFIG = topic_config({"segment.bytes": "1024", "delete.retention.ms": str(RETENTION_MS)})

KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"d", b"e" * 40])
VALUES = st.one_of(st.none(), st.binary(max_size=60))
HEADERS = st.lists(
    st.builds(Header, st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=2
).map(tuple)
DRAFTS = st.builds(Record, st.just(0), st.integers(-1, 2**45), KEYS, VALUES, HEADERS)


@dataclass(frozen=True, slots=True)
class Draft:
    """A batch before it has its offsets."""

    records: list[Record]
    codec: Codec
    attributes: int
    producer_id: int
    new_epoch: bool


BATCHES = st.builds(
    Draft,
    st.lists(DRAFTS, min_size=1, max_size=6),
    st.sampled_from(Codec),
    st.sampled_from([0, 0, LOG_APPEND_TIME]),
    st.integers(-1, 3),
    st.booleans(),
)
SEGMENTS = st.lists(st.lists(BATCHES, min_size=1, max_size=4), max_size=4)
ROUNDS = st.lists(st.tuples(SEGMENTS, st.integers(0, 700)), min_size=1, max_size=5)


@dataclass(frozen=True, slots=True)
class Kept:
    """The model's view of a record: its batch decides when a tombstone may be dropped."""

    record: Record
    batch: int
    deadline_ms: int | None = None

    @property
    def is_tombstone(self) -> bool:
        return self.record.value is None and self.record.key is not None


def model_clean(log: list[Kept], now_ms: int) -> list[Kept]:
    last = {kept.record.key: kept.record.offset for kept in log}
    survivors = [
        kept
        for kept in log
        if (kept.record.key is None or last[kept.record.key] == kept.record.offset)
        and (kept.deadline_ms is None or kept.deadline_ms > now_ms)
    ]
    return [
        replace(kept, deadline_ms=now_ms + RETENTION_MS)
        if kept.is_tombstone and kept.deadline_ms is None
        else kept
        for kept in survivors
    ]


class Writer:
    """Gives batches their offsets and epochs, in the log and in the model alike."""

    def __init__(self, log: SealedLog) -> None:
        self.log = log
        self.model: list[Kept] = []
        self.epochs: list[int] = []
        self.batches = 0
        # The last batch of each producer: its offsets.
        self.last_batches: dict[int, tuple[int, int]] = {}

    def append(self, segments: list[list[Draft]]) -> None:
        for drafts in segments:
            self.log.add_segment(*(self._batch(draft) for draft in drafts))
        self.log.last_of_producers = {first for first, _ in self.last_batches.values()}

    def _batch(self, draft: Draft) -> bytearray:
        base = len(self.epochs)
        stamp = 5_000 if draft.attributes & LOG_APPEND_TIME else None
        records = [
            record._replace(offset=base + index, timestamp_ms=record.timestamp_ms if stamp is None else stamp)
            for index, record in enumerate(draft.records)
        ]
        epoch = (self.epochs[-1] if self.epochs else 0) + draft.new_epoch
        self.epochs += [epoch] * len(records)
        self.model += [Kept(record, self.batches) for record in records]
        self.batches += 1
        if draft.producer_id >= 0:
            self.last_batches[draft.producer_id] = base, records[-1].offset
        return write_batch(
            records,
            leader_epoch=epoch,
            codec=draft.codec,
            attributes=draft.attributes,
            max_timestamp=stamp,
            producer_id=draft.producer_id,
            producer_epoch=0 if draft.producer_id >= 0 else -1,
            base_sequence=base if draft.producer_id >= 0 else -1,
        )


@settings(max_examples=150, deadline=None)
@given(ROUNDS)
def test_appends_and_compactions_match_the_model(
    rounds: list[tuple[list[list[Draft]], int]],
) -> None:
    with TemporaryDirectory() as directory:
        log = SealedLog(Path(directory), CONFIG)
        writer = Writer(log)
        now_ms = 1_000_000
        for segments, pause_ms in rounds:
            writer.append(segments)
            if not log.segments:
                continue
            now_ms += pause_ms
            before = len(log.records())
            cleaned = log.clean(now_ms)
            writer.model = model_clean(writer.model, now_ms)
            assert log.records() == [kept.record for kept in writer.model]
            assert log.first_dirty_offset == log.end_offset == len(writer.epochs)
            assert cleaned.records_kept == len(writer.model)
            assert cleaned.records_kept + cleaned.records_dropped == before
            deadlines = [kept.deadline_ms for kept in writer.model if kept.deadline_ms is not None]
            assert cleaned.next_deadline_ms == min(deadlines, default=None)
            check_headers(log, writer)


def check_headers(log: SealedLog, writer: Writer) -> None:
    """Epochs are unchanged, batches keep their producers, gaps are merged, last sequences are known."""
    previous = None
    last_batches: dict[int, tuple[int, int]] = {}
    for header in log.headers():
        span = writer.epochs[header.base_offset : header.next_offset]
        assert set(span) == {header.leader_epoch}
        if header.is_idempotent:
            assert header.base_sequence == header.base_offset
            last_batches[header.producer_id] = header.base_offset, header.last_offset
        if header.record_count == 0 and header.is_idempotent:
            assert header.base_offset in log.last_of_producers
            previous = header
            continue
        previous_is_gap = previous is not None and previous.record_count == 0 and not previous.is_idempotent
        starts_segment = any(segment.base_offset == header.base_offset for segment in log.segments)
        if header.record_count == 0 and previous_is_gap and not starts_segment:
            assert previous is not None
            assert previous.leader_epoch != header.leader_epoch
        previous = header
    assert last_batches == writer.last_batches


@settings(max_examples=100, deadline=None)
@given(SEGMENTS.filter(bool), st.integers(1, 5))
def test_a_small_map_ends_in_the_same_state_after_more_passes(
    segments: list[list[Draft]], max_keys: int
) -> None:
    with TemporaryDirectory() as directory:
        log = SealedLog(Path(directory), CONFIG)
        writer = Writer(log)
        writer.append(segments)
        passes = 0
        while log.first_dirty_offset < log.end_offset:
            reached = log.first_dirty_offset
            log.clean(now_ms=0, max_keys=max_keys)
            assert log.first_dirty_offset > reached
            passes += 1
            assert passes <= len(writer.epochs)
        assert log.records() == [kept.record for kept in model_clean(writer.model, 0)]
