"""Our batches against the record code of kafka-python and aiokafka: the same bytes, read alike."""

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from alpacamq.model.batch import TRANSACTIONAL, Codec, check_batch, check_produced
from alpacamq.model.records import Record, read_records, write_batch

from .strategies import CODECS, HEADERS, OPTIONAL_BYTES

BUILDERS = [KafkaPythonBuilder, AiokafkaBuilder]
READERS = [KafkaPythonBatch, AiokafkaBatch]
RECORDS = st.lists(
    st.tuples(st.integers(0, 2**45), OPTIONAL_BYTES, OPTIONAL_BYTES, HEADERS), min_size=1, max_size=6
).map(lambda drafts: [Record(offset, *draft) for offset, draft in enumerate(drafts)])


def built(builder: Any, records: list[Record], codec: Codec, producer: tuple[int, int, int]) -> bytes:
    """The batch another client makes of `records`."""
    batch = builder(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=1 << 20,
    )
    for record in records:
        batch.append(
            record.offset,
            timestamp=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=[tuple(header) for header in record.headers],
        )
    return bytes(batch.build())


def seen(records: Any) -> list[tuple[Any, ...]]:
    return [
        (record.offset, record.timestamp, record.key, record.value, tuple(map(tuple, record.headers)))
        for record in records
    ]


def ours(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(*record[:4], tuple(map(tuple, record.headers))) for record in records]


@pytest.mark.parametrize("builder", BUILDERS, ids=["kafka-python", "aiokafka"])
@given(records=RECORDS, producer=st.sampled_from([(-1, -1, -1), (7, 2, 99)]))
def test_an_uncompressed_batch_is_the_same_bytes(
    builder: Any, records: list[Record], producer: tuple[int, int, int]
) -> None:
    theirs = built(builder, records, Codec.NONE, producer)
    assert theirs == write_batch(
        records,
        # A client does not know the leader epoch; kafka-python says -1, aiokafka 0 or -1.
        leader_epoch=check_batch(theirs).leader_epoch,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


@pytest.mark.parametrize("builder", BUILDERS, ids=["kafka-python", "aiokafka"])
@given(records=RECORDS, codec=CODECS)
def test_batches_of_other_clients_are_accepted_and_read(
    builder: Any, records: list[Record], codec: Codec
) -> None:
    theirs = built(builder, records, codec, (-1, -1, -1))
    check_produced(check_batch(theirs))
    assert list(read_records(theirs)) == records


@pytest.mark.parametrize("reader", READERS, ids=["kafka-python", "aiokafka"])
@given(records=RECORDS, codec=CODECS)
def test_other_clients_read_our_batches(reader: Any, records: list[Record], codec: Codec) -> None:
    batch = reader(bytes(write_batch(records, codec=codec, attributes=TRANSACTIONAL)))
    assert batch.validate_crc()
    assert batch.is_transactional
    assert seen(batch) == ours(records)


@pytest.mark.parametrize("reader", READERS, ids=["kafka-python", "aiokafka"])
def test_others_read_a_batch_that_compaction_left_in_part(reader: Any) -> None:
    kept = [Record(12, 500, b"a", None), Record(15, 400, b"b", b"x")]
    batch = reader(
        bytes(write_batch(kept, base_offset=10, last_offset=19, base_timestamp=10**12, attributes=0x40))
    )
    assert batch.validate_crc()
    assert seen(batch) == ours(kept)


@pytest.mark.parametrize("reader", READERS, ids=["kafka-python", "aiokafka"])
def test_others_read_a_gap_as_no_records(reader: Any) -> None:
    batch = reader(bytes(write_batch((), base_offset=10, last_offset=19)))
    assert batch.validate_crc()
    assert list(batch) == []
    assert batch.next_offset == 20
