"""Validates produced batches and converts them to the topic's compression.

Most batches need only their header and checksum checked. A compacted topic also requires keys, and a topic
with its own compression repacks batches: both unpack records, within a limit, and belong off the event loop.
"""

from alpacamq.model.batch import (
    LOG_APPEND_TIME,
    BatchHeader,
    Codec,
    check_batch,
    check_produced,
    read_header,
    stamp_append_time,
)
from alpacamq.model.errors import (
    MAX_RECORD_ERRORS,
    AlpacaError,
    BatchTooLarge,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTopicName,
    RecordError,
)
from alpacamq.model.ids import TopicPartition
from alpacamq.model.ports import Buffer
from alpacamq.model.records import read_records, write_batch
from alpacamq.model.topics import INTERNAL_TOPICS, SETTINGS, TopicConfig

_CODECS = {"uncompressed": Codec.NONE} | {
    codec.name.lower(): codec for codec in Codec if codec is not Codec.NONE
}

_LZ4_FAST = SETTINGS["compression.lz4.level"].default


def check_writable(partition: TopicPartition) -> None:
    """Raise InvalidTopicName for topics that no client may write to."""
    if partition.topic in INTERNAL_TOPICS:
        raise InvalidTopicName(f"topic {partition.topic!r} is written by the broker only")


def stored_codec(config: TopicConfig) -> Codec | None:
    """Return the compression a topic stores its batches with; None if the producer chooses."""
    return None if config.compression_type == "producer" else _CODECS[config.compression_type]


def compression_level(config: TopicConfig) -> int | None:
    """Return the level of the topic's own compression; None for the codec's default."""
    match config.compression_type:
        case "gzip":
            return config.compression_gzip_level
        case "lz4":
            # As in Kafka, the default stands for the fast mode.
            return None if config.compression_lz4_level == _LZ4_FAST else config.compression_lz4_level
        case "zstd":
            return config.compression_zstd_level
    return None


def admit(
    data: bytearray | memoryview, config: TopicConfig, now_ms: int
) -> tuple[bytearray | memoryview, BatchHeader]:
    """Validate a batch and return it ready to be appended. Patches `data` in place."""
    if len(data) > config.max_message_bytes:
        raise _too_large(data, config)
    header = check_batch(data)
    check_produced(header)
    if header.is_control:
        raise InvalidRecord("control batches are written by the broker only")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecord("a transactional batch needs a producer id")
    if config.message_timestamp_type == "LogAppendTime":
        header = stamp_append_time(data, header, now_ms)
    elif header.attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("a producer cannot mark timestamps as the broker's")
    elif header.max_timestamp >= 0:
        check_timestamps(header.base_timestamp, header.max_timestamp, config, now_ms)
    return data, header


def admit_own(data: bytearray, config: TopicConfig, now_ms: int) -> tuple[bytearray, BatchHeader]:
    """Do the same as `admit` for a batch that this broker has just built of valid records."""
    if len(data) > config.max_message_bytes:
        raise _too_large(data, config)
    header = read_header(data)
    if config.message_timestamp_type == "LogAppendTime":
        header = stamp_append_time(data, header, now_ms)
    return data, header


def _too_large(data: Buffer, config: TopicConfig) -> BatchTooLarge:
    return BatchTooLarge(
        f"a batch of {len(data)} bytes is larger than max.message.bytes={config.max_message_bytes}"
    )


def needs_unpacking(config: TopicConfig, header: BatchHeader) -> bool:
    """Return whether `unpacked` has something to check or to change."""
    return config.is_compacted or (
        config.compression_type != "producer" and _CODECS[config.compression_type] is not header.codec
    )


def unpacked(
    data: bytearray | memoryview, header: BatchHeader, config: TopicConfig, limit_bytes: int
) -> tuple[bytearray | memoryview, BatchHeader]:
    """Return the batch after checks and changes that need its records. Slow: not for the event loop."""
    if config.is_compacted:
        # One record at a time: a small batch may hold a million.
        keyless = [
            index for index, record in enumerate(read_records(data, limit_bytes)) if record.key is None
        ]
        if keyless:
            raise InvalidRecord(
                f"record {keyless[0]} of the batch has no key, which a compacted topic needs"
                + (f"; the same of {len(keyless) - 1} others" if keyless[1:] else "")
            ).naming(RecordError(index, "a compacted topic needs a key") for index in keyless)
    if config.compression_type == "producer" or _CODECS[config.compression_type] is header.codec:
        return data, header
    repacked = write_batch(
        read_records(data, limit_bytes),
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        codec=_CODECS[config.compression_type],
        level=compression_level(config),
        attributes=header.attributes,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    if len(repacked) > config.max_message_bytes:
        raise BatchTooLarge(
            f"packed as {config.compression_type} the batch has {len(repacked)} bytes, "
            f"more than max.message.bytes={config.max_message_bytes}"
        )
    return repacked, check_batch(repacked)


def name_timestamps(
    refusal: InvalidTimestamp,
    data: bytearray | memoryview,
    config: TopicConfig,
    now_ms: int,
    limit_bytes: int,
) -> AlpacaError:
    """Return the refusal of a batch with the records at fault. Slow: not for the event loop."""
    at_fault = []
    try:
        for index, record in enumerate(read_records(data, limit_bytes)):
            try:
                check_timestamps(record.timestamp_ms, record.timestamp_ms, config, now_ms)
            except InvalidTimestamp as error:
                at_fault.append(RecordError(index, str(error)))
                if len(at_fault) == MAX_RECORD_ERRORS:
                    break
    except AlpacaError:
        return refusal  # the header is enough to refuse it
    return refusal.naming(at_fault)


def check_timestamps(first_ms: int, last_ms: int, config: TopicConfig, now_ms: int) -> None:
    """Raise InvalidTimestamp for timestamps further from the broker's clock than the topic allows."""
    ahead_ms, behind_ms = last_ms - now_ms, now_ms - first_ms
    if ahead_ms > config.message_timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {last_ms} is {ahead_ms} ms ahead of the broker's clock; "
            f"message.timestamp.after.max.ms={config.message_timestamp_after_max_ms}"
        )
    if behind_ms > config.message_timestamp_before_max_ms:
        raise InvalidTimestamp(
            f"timestamp {first_ms} is {behind_ms} ms behind the broker's clock; "
            f"message.timestamp.before.max.ms={config.message_timestamp_before_max_ms}"
        )
