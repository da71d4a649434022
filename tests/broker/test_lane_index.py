"""The outline of stored batches agrees with reading every record."""

from hypothesis import given
from hypothesis import strategies as st

from alpacamq.broker.read.block_cache import Block, lane_of, outlined
from alpacamq.model.batch import CRC_AT, HEADER_BYTES, TRANSACTIONAL, BatchHeader, Codec, checksum
from alpacamq.model.control import marker_batch
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.headers import LANE
from alpacamq.model.lanes import Lane
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.queues.messages import OffsetRange


def ignored(_header: BatchHeader, _error: CorruptBatch) -> None: ...


LIMIT = 1 << 20
LANE_TEXTS = st.sampled_from([b"critical", b"HIGH ", b"normal", b"low", b"background", b"nonsense", None])


class Written:
    """Consecutive batches, and the messages that a reader of committed records should find in them."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.next_offset = 0
        self.expected: list[tuple[int, Lane, bytes | None]] = []
        self.aborted: list[tuple[int, int]] = []

    def place(self, batch: bytearray, span: int) -> None:
        batch[:8] = self.next_offset.to_bytes(8, "big")
        self.data += batch
        self.next_offset += span


@st.composite
def logs(draw: st.DrawFn) -> Written:
    written = Written()
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["plain", "plain", "gaps", "aborted", "committed", "empty"]))
        codec = draw(st.sampled_from(list(Codec)))
        count = 0 if kind == "empty" else draw(st.integers(1, 5))
        records, offset = [], 0
        for _ in range(count):
            if kind == "gaps":
                offset += draw(st.integers(0, 3))
            headers = draw(st.lists(LANE_TEXTS.map(lambda text: Header(LANE, text)), max_size=1))
            value = draw(st.sampled_from([b"x", LANE.encode(), None]))
            records.append(
                Record(offset, 0, draw(st.sampled_from([None, b"a", b"b"])), value, tuple(headers))
            )
            offset += 1
        span = offset + (draw(st.integers(0, 2)) if kind == "gaps" else 0) or 1
        in_transaction = kind in ("aborted", "committed")
        first = written.next_offset
        batch = write_batch(
            records,
            base_offset=0,
            last_offset=span - 1,
            codec=codec,
            attributes=TRANSACTIONAL if in_transaction else 0,
            producer_id=7 if in_transaction else -1,
        )
        written.place(batch, span)
        if in_transaction:
            written.place(marker_batch(7, 0, kind == "committed", 0, 0), 1)
        if kind == "aborted":
            written.aborted.append((7, first))
        else:
            for record in records:
                lane = lane_of(record.headers[0].value) if record.headers else Lane.NORMAL
                written.expected.append((first + record.offset, lane, record.key))
    return written


def spread(runs: list[OffsetRange]) -> list[tuple[int, Lane]]:
    return [(offset, run.lane) for run in runs for offset in range(run.first, run.last + 1)]


@given(logs(), st.integers(0, 10))
def test_every_visible_message_is_in_exactly_one_range(written: Written, start: int) -> None:
    expected = [(offset, lane) for offset, lane, _ in written.expected]
    runs, _ = outlined(bytes(written.data), written.aborted, LIMIT, ignored)
    assert spread(runs) == expected
    block = Block(bytes(written.data), written.next_offset, written.aborted, LIMIT, ignored)
    outline = block.outline(start, with_keys=False)
    assert spread(list(outline.ranges)) == [entry for entry in expected if entry[0] >= start]
    assert outline.next_offset == written.next_offset
    keyed = block.outline(start, with_keys=True)
    keys = [key for run in keyed.ranges for key in run.keys or ()]
    assert keys == [key for offset, _, key in written.expected if offset >= start]
    for offset in range(written.next_offset):
        record = block.record(offset)
        assert (record is not None) == (offset in dict(expected))


def test_messages_without_lanes_form_one_range_across_batches() -> None:
    written = Written()
    for _ in range(50):
        written.place(write_batch([Record(place, 0, None, b"x") for place in range(20)]), 20)
    assert outlined(bytes(written.data), [], LIMIT, ignored)[0] == [OffsetRange(0, 999, Lane.NORMAL)]


def test_a_batch_with_an_impossible_record_count_has_no_messages() -> None:
    for codec in (Codec.NONE, Codec.GZIP):
        batch = write_batch([Record(0, 0, None, b"x")], codec=codec)
        batch[23:27] = (2**31 - 2).to_bytes(4, "big")
        batch[HEADER_BYTES - 4 : HEADER_BYTES] = (2**31 - 1).to_bytes(4, "big")
        batch[CRC_AT : CRC_AT + 4] = checksum(batch).to_bytes(4, "big")
        assert outlined(bytes(batch), [], LIMIT, ignored)[0] == []
