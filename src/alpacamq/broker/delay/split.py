"""Splits delayed records off the batches of Kafka clients and schedules them.

The remaining records are appended as a batch with gaps, or as a placeholder if none remain: they keep
their offsets and the batch its range of sequences, as idempotent producers expect.
"""

import asyncio
import re
from concurrent.futures import Executor
from typing import NamedTuple

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.tracing.partition import Origin
from alpacamq.log.transactions import outside_transaction
from alpacamq.model.batch import LOG_APPEND_TIME, BatchHeader, Codec, check_batch
from alpacamq.model.control import placeholder_batch
from alpacamq.model.errors import (
    MAX_RECORD_ERRORS,
    AlpacaError,
    InvalidDelay,
    InvalidRecord,
    RecordError,
    StorageFailed,
)
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.ports import Buffer, Clock
from alpacamq.model.records import Record, read_records, write_batch
from alpacamq.timers.messages import ProducerBatch

from .service import RETRIABLE, Delays

_NAME = re.compile(re.escape(DELIVER_AT.encode()))
_MILLISECONDS = re.compile(rb"[0-9]{1,18}")
_SEQUENCE_MASK = 0x7FFF_FFFF
# Of one batch.
MAX_DELAYED_RECORDS = 100_000
_UNKNOWN_ORIGIN = Origin()

Batch = tuple[bytearray | memoryview, BatchHeader]


def may_hold_delays(data: Buffer, header: BatchHeader) -> bool:
    """Return whether a record may have the delay header. Fast for uncompressed batches."""
    return header.codec is not Codec.NONE or _NAME.search(data) is not None


class DelayedBatches:
    """Splits delayed records off batches and schedules them."""

    def __init__(self, delays: Delays, clock: Clock, executor: Executor, unpacked_limit_bytes: int) -> None:
        self._delays = delays
        self._clock = clock
        self._executor = executor
        self._unpacked_limit_bytes = unpacked_limit_bytes

    async def without_delayed(
        self,
        partition: Partition,
        data: bytearray | memoryview,
        header: BatchHeader,
        origin: Origin = _UNKNOWN_ORIGIN,
    ) -> Batch:
        """Return the batch without its delayed records, once those are on disk."""
        if header.is_idempotent:
            verdict = partition.log.producers.verdict(header)
            if isinstance(verdict, AlpacaError):
                raise verdict
            if verdict is not None:
                return data, header  # a duplicate, which the log recognises
            if (
                not header.is_transactional
                and partition.log.transactions.open_offset(header.producer_id) is not None
            ):
                raise outside_transaction(header.producer_id)
        try:
            return await self._split(partition, data, header, origin)
        except RETRIABLE as error:
            # A retriable error for the producer.
            raise StorageFailed(f"delayed records were not scheduled: {error}") from error

    async def _split(
        self, partition: Partition, data: bytearray | memoryview, header: BatchHeader, origin: Origin
    ) -> Batch:
        now_ms: int = self._clock.now_ms()
        source = None
        if header.is_idempotent:
            last = (header.base_sequence + header.last_offset_delta) & _SEQUENCE_MASK
            source = ProducerBatch(
                header.producer_id, header.producer_epoch, header.base_sequence, last, now_ms
            )
            # A batch that was interrupted half-way is split as it was then.
            now_ms = await self._delays.first_seen_ms(partition, source) or now_ms
        split = await asyncio.get_running_loop().run_in_executor(
            self._executor, split_delayed, data, header, now_ms, self._unpacked_limit_bytes
        )
        if split is None:
            return data, header
        await self._delays.schedule_records(
            partition, split.delayed, source, origin, base_offset=header.base_offset
        )
        return split.immediate


class SplitBatch(NamedTuple):
    """The delayed records with their due times, and the batch without them."""

    delayed: list[tuple[int, Record]]
    immediate: Batch


def split_delayed(
    data: bytearray | memoryview, header: BatchHeader, now_ms: int, limit_bytes: int
) -> SplitBatch | None:
    """Split a batch by due time; None if no record is delayed. Slow: run it in a thread."""
    delayed: list[tuple[int, Record]] = []
    invalid: list[RecordError] = []
    for index, record in enumerate(read_records(data, limit_bytes)):
        try:
            due_ms = _due_ms(record)
        except InvalidDelay as error:
            invalid.append(RecordError(index, str(error)))
            if len(invalid) == MAX_RECORD_ERRORS:
                break
            continue
        if due_ms is not None and due_ms > now_ms:
            delayed.append((due_ms, record))
            if len(delayed) > MAX_DELAYED_RECORDS:
                raise InvalidRecord(f"more than {MAX_DELAYED_RECORDS} records of the batch are delayed")
    if invalid:
        raise InvalidDelay(f"record {invalid[0].place} of the batch: {invalid[0].reason}").naming(invalid)
    if not delayed:
        return None
    if header.is_transactional:
        reason = "a delayed record cannot be part of a transaction"
        raise InvalidRecord(reason).naming(
            RecordError(record.offset - header.base_offset, reason) for _, record in delayed
        )
    if len(delayed) == header.record_count:
        left = placeholder_batch(header)
        return SplitBatch(delayed, (left, check_batch(left)))
    # Read again, one at a time, instead of holding all of them.
    offsets = {record.offset for _, record in delayed}
    left = write_batch(
        (record for record in read_records(data, limit_bytes) if record.offset not in offsets),
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        codec=header.codec,
        attributes=header.attributes,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp if header.attributes & LOG_APPEND_TIME else None,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return SplitBatch(delayed, (left, check_batch(left)))


def _due_ms(record: Record) -> int | None:
    for name, value in reversed(record.headers):
        if name == DELIVER_AT:
            if value is None or not _MILLISECONDS.fullmatch(value):
                raise InvalidDelay(
                    f"{DELIVER_AT}={(value or b'')[:40]!r} is not a time in milliseconds since 1970"
                )
            return int(value)
    return None
