"""Reads the records of leases, decides which of them are delivered, and gives each a receipt handle.

A receipt contains everything needed to settle its delivery, so it survives a restart of the broker. It is
not a secret: the checksum detects mistyped and truncated handles.
"""

import binascii
import struct
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.read.block_cache import Block, StoredBlocks
from alpacamq.broker.remote.views import AnyPartition, PartitionViews, RemotePartition, is_only_copy
from alpacamq.model.errors import (
    AlpacaError,
    DamagedLog,
    InvalidGroupId,
    InvalidReceipt,
    OffsetOutOfRange,
    PartitionNotReady,
)
from alpacamq.model.lanes import Lane
from alpacamq.model.record_index import IndexedBatch
from alpacamq.model.records import Record
from alpacamq.model.topics import INT64_MAX, TopicConfig
from alpacamq.queues.messages import Acquired, Action, QueueId, Settlement
from alpacamq.telemetry.logs import get_logger

MAX_RECEIPT_CHARS = 1024
MAX_GROUP_BYTES = 255
TOPIC_TAG_BYTES = 8

_VERSION = 1
# Version, partition, offset, delivery count, generation, start of the topic's id, length of the group.
_FIXED = struct.Struct(f">BIqIq{TOPIC_TAG_BYTES}sB")
_CHECK = struct.Struct(">I")
_TO_OURS = bytes.maketrans(b"+/", b"-_")
# Characters of the standard alphabet become one that is invalid in both.
_FROM_OURS = bytes.maketrans(b"-_+/=", b"+/!!!")
# By the length of the text modulo 4.
_PADDING = (b"", b"===", b"==", b"=")


class Receipt(NamedTuple):
    """One delivery. `topic_tag` distinguishes a topic from a later one of the same name."""

    queue: QueueId
    topic_tag: bytes
    partition: int
    offset: int
    delivery_count: int
    generation: int


@lru_cache(maxsize=1024)
def check_group(group: str) -> None:
    """Raise InvalidGroupId for a name that does not fit into a receipt."""
    if not group:
        raise InvalidGroupId("invalid group id: must not be empty")
    try:
        size = len(group.encode())
    except UnicodeEncodeError:
        raise InvalidGroupId("invalid group id: not valid Unicode") from None
    if size > MAX_GROUP_BYTES:
        raise InvalidGroupId(f"invalid group id: {size} bytes, the limit is {MAX_GROUP_BYTES}")


def write_receipt(receipt: Receipt) -> str:
    """Encode a receipt as letters, digits, '-' and '_'."""
    queue, topic_tag, partition, offset, delivery_count, generation = receipt
    return ReceiptWriter(queue, topic_tag).write(partition, offset, delivery_count, generation)


class ReceiptWriter:
    """Writes the receipts of one queue."""

    __slots__ = ("_chars", "_group_bytes", "_names", "_topic_tag")

    def __init__(self, queue: QueueId, topic_tag: bytes) -> None:
        group = queue.group.encode()
        self._group_bytes = len(group)
        self._names = group + queue.topic.encode()
        self._topic_tag = topic_tag
        size = _FIXED.size + len(self._names) + _CHECK.size
        self._chars = (4 * size + 2) // 3  # without padding

    def write(self, partition: int, offset: int, delivery_count: int, generation: int) -> str:
        """Encode the receipt of a delivery."""
        body = (
            _FIXED.pack(
                _VERSION, partition, offset, delivery_count, generation, self._topic_tag, self._group_bytes
            )
            + self._names
        )
        encoded = binascii.b2a_base64(body + crc32c(body).to_bytes(4, "big"), newline=False)
        return encoded[: self._chars].translate(_TO_OURS).decode("ascii")


def read_receipt(text: str) -> Receipt:
    """Decode a receipt; raises InvalidReceipt."""
    if not 0 < len(text) <= MAX_RECEIPT_CHARS:
        raise InvalidReceipt(f"a receipt handle has 1 to {MAX_RECEIPT_CHARS} characters, not {len(text)}")
    try:
        encoded = text.encode("ascii").translate(_FROM_OURS)
        data = binascii.a2b_base64(encoded + _PADDING[len(encoded) % 4], strict_mode=True)
        body = data[: -_CHECK.size]
        if data[-_CHECK.size :] != crc32c(body).to_bytes(4, "big"):
            raise InvalidReceipt("the receipt handle is malformed or truncated")
        version, partition, offset, count, generation, tag, size = _FIXED.unpack_from(body)
        if version != _VERSION:
            raise InvalidReceipt(f"the receipt handle has an unknown version, {version}")
        queue = _queue_of(body[_FIXED.size :], size)
    except (binascii.Error, struct.error, UnicodeDecodeError, UnicodeEncodeError):
        raise InvalidReceipt("the receipt handle is malformed or truncated") from None
    return tuple.__new__(Receipt, (queue, tag, partition, offset, count, generation))


@lru_cache(maxsize=256)
def _queue_of(names: bytes, group_bytes: int) -> QueueId:
    return QueueId(names[:group_bytes].decode(), names[group_bytes:].decode())


Place = tuple[int, int]

# Limit of a search, in blocks.
_MAX_BLOCKS = 64


# Returns those of the offsets of a partition that are done.
Finished = Callable[[Sequence[int]], Awaitable[Collection[int]]]


class QueueReader:
    """Reads single records of topics; neighbours share one read."""

    def __init__(self, views: PartitionViews, blocks: StoredBlocks) -> None:
        self._views = views
        self._blocks = blocks

    async def read(
        self, topic: str, places: Iterable[Place], *, is_committed: bool = True
    ) -> dict[Place, Record]:
        """Return the records at these (partition, offset), without missing and damaged ones.

        They were readable before, so one that cannot be read yet is not missing: raises PartitionNotReady, as
        if the partition cannot be read, or UnknownTopic. Unless `is_committed`, records of open and aborted
        transactions are read too.
        """
        records: dict[Place, Record] = {}
        block: Block | None = None
        block_of = -1
        for place in sorted(places):
            index, offset = place
            if block is None or block_of != index or not block.first_offset <= offset < block.next_offset:
                partition = self._views.get(topic, index)
                block = await self._block(partition, offset, is_committed=is_committed)
                block_of = index
            if block is not None and (record := block.record(offset)) is not None:
                records[place] = record
        return records

    def read_now(
        self, topic: str, places: Iterable[Place], *, is_committed: bool = True
    ) -> dict[Place, Record] | None:
        """Do the same as `read`; None if that has to wait for a disk or another broker, or fails."""
        records: dict[Place, Record] = {}
        block: Block | None = None
        block_of = -1
        # The batch of the last record, if it has no gaps, and its offsets.
        batch: IndexedBatch | None = None
        first = end = 0
        for place in sorted(places):
            index, offset = place
            if block is None or block_of != index or not block.first_offset <= offset < block.next_offset:
                partition = self._views.find(topic, index)
                if partition is None or isinstance(partition, RemotePartition):
                    return None
                try:
                    block = self._block_now(partition, offset)
                except AlpacaError:
                    return None
                if block is None:
                    return None
                block_of = index
                end = 0
            if not first <= offset < end:
                batch = block.gapless_batch(offset)
                first, end = (0, 0) if batch is None else (batch.offsets[0], batch.offsets[-1] + 1)
            record = block.record(offset) if batch is None else block.record_in(batch, offset - first)
            if record is not None:
                records[place] = record
            elif not is_committed:
                return None  # it may be of an aborted transaction, which the blocks leave out
        return records

    async def unfinished(
        self, topic: str, index: int, offset: int, finished: Finished, limit: int
    ) -> list[Record]:
        """Return the first records from `offset` on that are not done, within a limited range."""
        records: list[Record] = []
        await self._views.refresh(topic)
        partition = self._views.get(topic, index)
        for _ in range(_MAX_BLOCKS):
            offset = max(offset, partition.start_offset)
            if offset >= partition.last_stable_offset or len(records) >= limit:
                break
            try:
                block = await self._loaded(partition, offset)
            except DamagedLog as error:
                if error.offsets is None:
                    break
                offset = error.offsets[1]
                continue
            except OffsetOutOfRange:
                break
            if block is None:
                break
            ranges = block.outline(offset, with_keys=False).ranges
            offsets = [each for run in ranges for each in range(run.first, run.last + 1)]
            done = await finished(offsets)
            for each in offsets:
                if len(records) == limit:
                    return records
                if each not in done and (record := block.record(each)) is not None:
                    records.append(record)
            offset = block.next_offset
        return records

    async def _block(self, partition: AnyPartition, offset: int, *, is_committed: bool) -> Block | None:
        # As it was before the read: what becomes visible meanwhile is not missing.
        is_visible = isinstance(partition, RemotePartition) or offset < (
            partition.last_stable_offset if is_committed else partition.high_watermark
        )
        try:
            if is_committed:
                block = await self._loaded(partition, offset)
            else:
                block = await self._blocks.load_uncommitted(partition, offset)
        except OffsetOutOfRange:
            if await self._is_before_start(partition, offset):
                return None
        except DamagedLog:
            if is_only_copy(partition):
                return None
        else:
            if block is not None or is_visible:
                return block
        raise PartitionNotReady(f"offset {offset} of {partition.identity} cannot be read yet")

    async def _is_before_start(self, partition: AnyPartition, offset: int) -> bool:
        """Return whether retention has deleted an offset that is out of range."""
        if isinstance(partition, RemotePartition):
            await self._views.refresh(partition.identity.topic)
        return offset < partition.start_offset

    async def _loaded(self, partition: AnyPartition, offset: int) -> Block | None:
        if isinstance(partition, RemotePartition):
            # How far it can be read is known where the block comes from.
            return self._blocks.cached(partition, offset) or await self._blocks.load(
                partition, offset, INT64_MAX
            )
        return self._block_now(partition, offset) or await self._blocks.load(
            partition, offset, partition.last_stable_offset
        )

    def _block_now(self, partition: Partition, offset: int) -> Block | None:
        return self._blocks.cached(partition, offset) or self._blocks.load_now(
            partition, offset, partition.last_stable_offset
        )


log = get_logger(__name__)

EXPIRED = "expired"


class Delivery(msgspec.Struct, frozen=True):
    """A leased message."""

    topic: str
    partition: int
    record: Record
    receipt: str
    delivery_count: int
    lane: Lane
    deadline_ms: int
    first_delivered_ms: int


class LeasedRecord(NamedTuple):
    """A lease and its message."""

    lease: Acquired
    record: Record


class ReceiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one receive, and the time for queue.ttl.ms."""

    max_messages: int
    max_bytes: int
    now_ms: int


def settled(lease: Acquired, action: Action, reason: str = "") -> Settlement:
    """Return the settlement of a lease."""
    partition, offset, count, *_ = lease
    return Settlement(partition, offset, action, count, lease.generation, reason=reason)


def select_deliverable(
    queue: QueueId,
    leases: Sequence[Acquired],
    records: dict[Place, Record],
    settings: TopicConfig,
    limits: ReceiveLimits,
) -> tuple[list[LeasedRecord], list[Settlement]]:
    """Split leases into those to deliver and settlements of the others."""
    deliveries: list[LeasedRecord] = []
    others: list[Settlement] = []
    missing = 0
    size = 0
    is_full = False
    oldest_ms = limits.now_ms - settings.queue_ttl_ms if settings.queue_ttl_ms >= 0 else None
    max_messages, max_bytes = limits.max_messages, limits.max_bytes
    for lease in leases:
        record = records.get(lease[:2])
        if record is None:
            missing += 1
            others.append(settled(lease, Action.DISCARD))
        elif oldest_ms is not None and record.timestamp_ms < oldest_ms:
            is_dropped = settings.queue_ttl_action == "drop"
            others.append(settled(lease, Action.DISCARD if is_dropped else Action.REJECT, EXPIRED))
        else:
            _, _, key, value, headers = record
            size += size_of(record) if headers else len(key or b"") + len(value or b"")
            is_full = is_full or len(deliveries) == max_messages or (size > max_bytes and bool(deliveries))
            if is_full:
                others.append(settled(lease, Action.RELEASE_UNSEEN))
            else:
                deliveries.append(tuple.__new__(LeasedRecord, (lease, record)))
    if missing:
        log.warning("leased_records_missing", group=queue.group, topic=queue.topic, records=missing)
    return deliveries, others


def size_of(record: Record) -> int:
    """Return the size of a record's key, value and headers."""
    _, _, key, value, headers = record
    size = len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name) + len(content or b"")
    return size


def deliveries_of(queue: QueueId, topic_tag: bytes, leased: Iterable[LeasedRecord]) -> list[Delivery]:
    """Return leased messages with their receipts."""
    topic = queue.topic
    write = ReceiptWriter(queue, topic_tag).write
    deliveries = []
    for (partition, offset, count, lane, deadline_ms, first_delivered_ms, generation), record in leased:
        receipt = write(partition, offset, count, generation)
        deliveries.append(
            Delivery(topic, partition, record, receipt, count, lane, deadline_ms, first_delivered_ms)
        )
    return deliveries
