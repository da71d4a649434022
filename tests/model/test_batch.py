"""The header of a batch: what is checked on arrival, and what the broker may patch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.batch import (
    BROKER_EPOCH,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    Codec,
    check_batch,
    check_produced,
    place,
    read_header,
    stamp_append_time,
)
from alpacamq.model.errors import AlpacaError, CorruptBatch, UnsupportedCompression
from alpacamq.model.records import Record, read_records, write_batch

from .strategies import CODECS, record_lists

BATCH = bytes(write_batch([Record(0, 5, b"k", b"v"), Record(1, 6, b"k", b"w")], leader_epoch=3))
HEAD = read_header(BATCH)


def test_the_header_has_the_size_the_format_says() -> None:
    assert HEADER_BYTES == 61


def test_a_whole_batch_passes() -> None:
    assert check_batch(BATCH) == check_batch(bytearray(BATCH)) == check_batch(memoryview(BATCH)) == HEAD


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        pytest.param(b"", "0 bytes is shorter", id="nothing"),
        pytest.param(BATCH[:60], "60 bytes is shorter", id="less than a header"),
        pytest.param(BATCH[:-1], "but there are 78", id="a byte too few"),
        pytest.param(BATCH + b"\0", "but there are 80", id="a byte too many"),
        pytest.param(BATCH[:16] + b"\1" + BATCH[17:], "format 1", id="an older format"),
        pytest.param(BATCH[:-1] + b"\1", "does not match", id="another last byte"),
        pytest.param(BATCH[:8] + b"\xff" * 4 + BATCH[12:], "gives 11 bytes", id="a negative length"),
    ],
)
def test_anything_but_one_whole_batch_is_refused(batch: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatch, match=reason):
        check_batch(batch)


def test_a_flipped_bit_is_found_wherever_the_checksum_looks() -> None:
    for at in range(8, len(BATCH)):
        if 12 <= at < 16:
            continue  # the leader epoch is the broker's to write
        for bit in range(8):
            batch = bytearray(BATCH)
            batch[at] ^= 1 << bit
            with pytest.raises(CorruptBatch):
                check_batch(batch)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(HEAD, id="as written"),
        pytest.param(HEAD._replace(attributes=LOG_APPEND_TIME | TRANSACTIONAL | Codec.ZSTD), id="attributes"),
        pytest.param(
            HEAD._replace(producer_id=0, producer_epoch=0, base_sequence=0), id="an idempotent producer"
        ),
        pytest.param(HEAD._replace(record_count=1, last_offset_delta=0), id="one record"),
    ],
)
def test_a_producer_may_send(header: BatchHeader) -> None:
    check_produced(header)


@pytest.mark.parametrize(
    ("header", "error"),
    [
        pytest.param(HEAD._replace(record_count=0, last_offset_delta=-1), CorruptBatch, id="no records"),
        pytest.param(HEAD._replace(record_count=-1), CorruptBatch, id="less than no records"),
        pytest.param(HEAD._replace(last_offset_delta=5), CorruptBatch, id="a gap in the offsets"),
        pytest.param(HEAD._replace(record_count=2**31 - 1), CorruptBatch, id="records it does not number"),
        pytest.param(HEAD._replace(attributes=DELETE_HORIZON), CorruptBatch, id="a deadline for tombstones"),
        pytest.param(HEAD._replace(attributes=0x80), CorruptBatch, id="an unknown attribute"),
        pytest.param(HEAD._replace(attributes=-1), CorruptBatch, id="all attributes at once"),
        pytest.param(HEAD._replace(attributes=5), UnsupportedCompression, id="an unknown compression"),
        pytest.param(HEAD._replace(producer_id=1), CorruptBatch, id="a producer without an epoch"),
        pytest.param(
            HEAD._replace(producer_id=1, producer_epoch=0), CorruptBatch, id="a producer without a sequence"
        ),
        pytest.param(
            HEAD._replace(producer_id=1, producer_epoch=BROKER_EPOCH, base_sequence=0),
            CorruptBatch,
            id="a producer that would be the broker",
        ),
    ],
)
def test_a_producer_may_not_send(header: BatchHeader, error: type[AlpacaError]) -> None:
    with pytest.raises(error):
        check_produced(header)


@given(record_lists(), CODECS, st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_placing_a_batch_keeps_its_checksum_right(
    records: list[Record], codec: Codec, base_offset: int, leader_epoch: int
) -> None:
    batch = write_batch(records, codec=codec)
    before = read_header(batch)
    place(batch, base_offset, leader_epoch)
    assert check_batch(batch) == before._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    shift = base_offset - records[0].offset
    assert list(read_records(batch)) == [record._replace(offset=record.offset + shift) for record in records]


@given(record_lists(), CODECS, st.integers(0, 2**62))
def test_stamping_a_batch_keeps_its_checksum_right(records: list[Record], codec: Codec, now_ms: int) -> None:
    batch = write_batch(records, codec=codec, attributes=TRANSACTIONAL)
    before = read_header(batch)
    stamped = stamp_append_time(memoryview(batch), before, now_ms)
    assert check_batch(batch) == stamped
    assert stamped == before._replace(
        attributes=before.attributes | LOG_APPEND_TIME, max_timestamp=now_ms, crc=stamped.crc
    )
    assert list(read_records(batch)) == [record._replace(timestamp_ms=now_ms) for record in records]


@pytest.mark.parametrize(
    ("attributes", "transactional", "control", "codec"),
    [
        (0, False, False, Codec.NONE),
        (TRANSACTIONAL | Codec.GZIP, True, False, Codec.GZIP),
        (CONTROL | TRANSACTIONAL, True, True, Codec.NONE),
    ],
)
def test_attributes_are_decoded(attributes: int, transactional: bool, control: bool, codec: Codec) -> None:
    header = HEAD._replace(attributes=attributes)
    assert (header.is_transactional, header.is_control, header.codec) == (transactional, control, codec)


def test_the_header_is_read_where_it_lies() -> None:
    assert read_header(b"xyz" + BATCH, 3) == HEAD
    assert HEADER.pack(*HEAD) == BATCH[:HEADER_BYTES]
