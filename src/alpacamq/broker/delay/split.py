"""Batches of Kafka clients with records for later among them: those are taken out and wait elsewhere.

What is left goes into the partition as a batch with gaps, or as a placeholder where nothing is left: the
records keep their places and the batch its range of sequences, so that idempotent producers find what
they expect.
"""

import asyncio
import re
from concurrent.futures import Executor
from typing import NamedTuple

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.batch import LOG_APPEND_TIME, BatchHeader, Codec, check_batch
from alpacamq.model.control import placeholder_batch
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    CoordinatorUnavailable,
    InvalidDelay,
    InvalidRecord,
    StorageFailed,
)
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.ports import Buffer, Clock
from alpacamq.model.records import Record, read_records, write_batch
from alpacamq.timers.messages import Source

from .service import Delays

_NAME = re.compile(re.escape(DELIVER_AT.encode()))
_MILLISECONDS = re.compile(rb"[0-9]{1,18}")
_SEQUENCE_MASK = 0x7FFF_FFFF
_NOBODY = Origin()

Batch = tuple[bytearray | memoryview, BatchHeader]


def may_hold_delays(data: Buffer, header: BatchHeader) -> bool:
    """Whether some record may have the header that delays it. Quick where nothing is packed."""
    return header.codec is not Codec.NONE or _NAME.search(data) is not None


class DelayedBatches:
    """Takes out of batches what is for later, and has it wait."""

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
        origin: Origin = _NOBODY,
    ) -> Batch:
        """What of the batch is for now, once all that is for later is on the medium."""
        if header.is_idempotent:
            verdict = partition.log.producers.verdict(header)
            if isinstance(verdict, AlpacaError):
                raise verdict
            if verdict is not None:
                return data, header  # a repetition, which the log will recognise
        try:
            return await self._part(partition, data, header, origin)
        except (CoordinatorLoading, CoordinatorUnavailable) as error:
            # In words that make a producer try again.
            raise StorageFailed(f"delayed records were not taken in: {error}") from error

    async def _part(
        self, partition: Partition, data: bytearray | memoryview, header: BatchHeader, origin: Origin
    ) -> Batch:
        now_ms: int = self._clock.now_ms()
        source = None
        if header.is_idempotent:
            last = (header.base_sequence + header.last_offset_delta) & _SEQUENCE_MASK
            source = Source(header.producer_id, header.producer_epoch, header.base_sequence, last, now_ms)
            # A batch that was interrupted half-way is parted as it was then.
            now_ms = await self._delays.first_seen_ms(partition, source) or now_ms
        parted = await asyncio.get_running_loop().run_in_executor(
            self._executor, part, data, header, now_ms, self._unpacked_limit_bytes
        )
        if parted is None:
            return data, header
        await self._delays.set_aside(partition, parted.later, source, origin)
        return parted.now


class SplitBatch(NamedTuple):
    """Records and when they are due, and the batch without them."""

    later: list[tuple[int, Record]]
    now: Batch


def part(
    data: bytearray | memoryview, header: BatchHeader, now_ms: int, limit_bytes: int
) -> SplitBatch | None:
    """Part a batch into what is for now and what is for later; None if all is for now. Slow: for a thread."""
    later: list[tuple[int, Record]] = []
    now: list[Record] = []
    for index, record in enumerate(read_records(data, limit_bytes)):
        due_ms = _due_ms(index, record)
        if due_ms is None or due_ms <= now_ms:
            now.append(record)
        else:
            later.append((due_ms, record))
    if not later:
        return None
    if header.is_transactional:
        raise InvalidRecord("a delayed record cannot be part of a transaction")
    if not now:
        left = placeholder_batch(header)
        return SplitBatch(later, (left, check_batch(left)))
    left = write_batch(
        now,
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
    return SplitBatch(later, (left, check_batch(left)))


def _due_ms(index: int, record: Record) -> int | None:
    for name, value in reversed(record.headers):
        if name == DELIVER_AT:
            if value is None or not _MILLISECONDS.fullmatch(value):
                raise InvalidDelay(
                    f"record {index} of the batch has {DELIVER_AT}={(value or b'')[:40]!r}, "
                    "which is no time in milliseconds since 1970"
                )
            return int(value)
    return None
