"""Refused batches: the records at fault are named (KIP-467)."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from alpacamq.model.batch import Codec
from alpacamq.model.errors import MAX_RECORD_ERRORS
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

from .test_committed_offsets import id_of
from .wire import Wire, versions

DAY_MS = 24 * 3_600_000
RECORD_ERRORS_FROM = 8
TOPIC_IDS_FROM = 13


def create(wire: Wire, topic: str, settings: Mapping[str, str]) -> None:
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in settings.items()]
    new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1, configs=configs)
    (result,) = wire.ask(CreateTopicsRequest(topics=[new])).topics
    assert result.error_code == 0


def produce(
    wire: Wire, topic: str, records: Sequence[Record], codec: Codec = Codec.NONE, version: int = 13
) -> Any:
    """Produce one batch; the result of its partition."""
    named: dict[str, Any] = {"topic_id": id_of(wire, topic)} if version >= TOPIC_IDS_FROM else {"name": topic}
    data = PartitionProduceData(index=0, records=bytes(write_batch(records, codec=codec)))
    asked = ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(**named, partition_data=[data])]
    )
    return wire.ask(asked, version).responses[0].partition_responses[0]


def record(offset: int, *, key: bytes | None = b"k", age_ms: int = 0, due: bytes | None = None) -> Record:
    headers = () if due is None else (Header(DELIVER_AT, due),)
    return Record(offset, int(time.time() * 1000) - age_ms, key, b"v", headers)


def at_fault(result: Any) -> list[int]:
    assert all(each.batch_index_error_message for each in result.record_errors)
    assert result.error_message
    return [each.batch_index for each in result.record_errors]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("version", [each for each in versions(ProduceRequest) if each >= RECORD_ERRORS_FROM])
def test_records_without_the_key_that_compaction_needs_are_named(
    wire: Wire, topic: str, codec: Codec, version: int
) -> None:
    create(wire, topic, {"cleanup.policy": "compact"})
    records = [record(0), record(1, key=None), record(2), record(3, key=None)]

    result = produce(wire, topic, records, codec, version)

    assert result.error_code == ErrorCode.INVALID_RECORD
    assert at_fault(result) == [1, 3]
    assert produce(wire, topic, records[:1]).base_offset == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_with_a_timestamp_out_of_range_are_named(wire: Wire, topic: str, codec: Codec) -> None:
    create(wire, topic, {"message.timestamp.after.max.ms": str(DAY_MS)})
    ages_ms = [0, -2 * DAY_MS, 0, -3 * DAY_MS]

    result = produce(wire, topic, [record(at, age_ms=age) for at, age in enumerate(ages_ms)], codec)

    assert result.error_code == ErrorCode.INVALID_TIMESTAMP
    assert at_fault(result) == [1, 3]
    assert "message.timestamp.after.max.ms" in result.record_errors[0].batch_index_error_message


def test_records_that_are_too_old_are_named(wire: Wire, topic: str) -> None:
    create(wire, topic, {"message.timestamp.before.max.ms": str(DAY_MS)})

    result = produce(wire, topic, [record(0, age_ms=2 * DAY_MS), record(1)])

    assert result.error_code == ErrorCode.INVALID_TIMESTAMP
    assert at_fault(result) == [0]


@pytest.mark.parametrize("due", [b"soon", str(2**53).encode()])
def test_records_with_an_invalid_delay_are_named(wire: Wire, topic: str, due: bytes) -> None:
    create(wire, topic, {"message.delays": "true"})

    result = produce(wire, topic, [record(0), record(1, due=due), record(2, due=due)])

    assert result.error_code == ErrorCode.INVALID_RECORD
    assert at_fault(result) == [1, 2]


def test_a_response_does_not_name_millions_of_records(wire: Wire, topic: str) -> None:
    create(wire, topic, {"cleanup.policy": "compact"})
    count = 2 * MAX_RECORD_ERRORS

    result = produce(wire, topic, [record(at, key=None) for at in range(count)])

    assert at_fault(result) == list(range(MAX_RECORD_ERRORS))
    assert str(count - 1) in result.error_message


def test_earlier_versions_have_only_an_error_code(wire: Wire, topic: str) -> None:
    create(wire, topic, {"message.timestamp.before.max.ms": str(DAY_MS)})
    result = produce(wire, topic, [record(0, age_ms=2 * DAY_MS)], version=7)
    assert (result.error_code, result.record_errors) == (ErrorCode.INVALID_TIMESTAMP, [])
