"""Turning leases into deliveries: records read, those past their time and those gone set aside."""

from collections.abc import Sequence

import msgspec

from alpacamq.model.lanes import Lane
from alpacamq.model.records import Record
from alpacamq.model.topics import TopicConfig
from alpacamq.queues.messages import Acquired, Action, QueueId, Settlement
from alpacamq.telemetry.logs import get_logger

from .queue_reader import Place
from .receipts import Receipt, write_receipt

log = get_logger(__name__)

EXPIRED = "expired"


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message and the lease on it."""

    topic: str
    partition: int
    record: Record
    receipt: str
    delivery_count: int
    lane: Lane
    deadline_ms: int
    first_delivered_ms: int


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """How much a receive takes, and from when on messages are too old for it."""

    max_messages: int
    max_bytes: int
    now_ms: int


def settled(lease: Acquired, action: Action, reason: str = "") -> Settlement:
    """What becomes of a lease, by its receipt."""
    partition, offset, count, *_ = lease
    return Settlement(partition, offset, action, count, lease.generation, reason=reason)


def sorted_out(
    queue: QueueId,
    topic_tag: bytes,
    leases: Sequence[Acquired],
    records: dict[Place, Record],
    settings: TopicConfig,
    wish: Wish,
) -> tuple[list[Delivery], list[Settlement]]:
    """What is delivered of these leases, and what becomes of the others."""
    deliveries: list[Delivery] = []
    others: list[Settlement] = []
    gone = 0
    size = 0
    is_full = False
    oldest_ms = wish.now_ms - settings.queue_ttl_ms if settings.queue_ttl_ms >= 0 else None
    for lease in leases:
        record = records.get((lease.partition, lease.offset))
        if record is None:
            gone += 1
            others.append(settled(lease, Action.DROP))
        elif oldest_ms is not None and record.timestamp_ms < oldest_ms:
            is_dropped = settings.queue_ttl_action == "drop"
            others.append(settled(lease, Action.DROP if is_dropped else Action.REJECT, EXPIRED))
        else:
            size += size_of(record)
            is_full = (
                is_full
                or len(deliveries) == wish.max_messages
                or (bool(deliveries) and size > wish.max_bytes)
            )
            if is_full:
                others.append(settled(lease, Action.UNDO))
            else:
                deliveries.append(_delivery(queue, topic_tag, lease, record))
    if gone:
        log.warning("leased_records_gone", group=queue.group, topic=queue.topic, records=gone)
    return deliveries, others


def size_of(record: Record) -> int:
    """Bytes of what a record carries."""
    size = len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"")
    return size


def _delivery(queue: QueueId, topic_tag: bytes, lease: Acquired, record: Record) -> Delivery:
    receipt = Receipt(queue, topic_tag, lease.partition, lease.offset, lease.delivery_count, lease.generation)
    return Delivery(
        topic=queue.topic,
        partition=lease.partition,
        record=record,
        receipt=write_receipt(receipt),
        delivery_count=lease.delivery_count,
        lane=lease.lane,
        deadline_ms=lease.deadline_ms,
        first_delivered_ms=lease.first_delivered_ms,
    )
