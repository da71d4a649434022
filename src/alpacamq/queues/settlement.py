"""What becomes of deliveries: consumers settle them, or their leases end."""

from collections.abc import Callable, Mapping, Sequence

from alpacamq.model.errors import AlpacaError, InvalidDelay, InvalidRequest, NotAcquired, StaleReceipt
from alpacamq.model.topics import DAY_MS, check_topic_name

from .chunks import CHUNK_BITS, LeaseGroup, State
from .messages import Action, EndedLease, QueueId, Settlement
from .partition import SharePartition
from .queue import Queue
from .receiving import MAX_LEASE_MS

MAX_REASON_LENGTH = 1000
EXPIRED = "lease expired"
_Step = Callable[[Queue, SharePartition, LeaseGroup, Settlement, int], None]


def settle(queue: Queue, settlements: Sequence[Settlement], now_ms: int) -> tuple[AlpacaError | None, ...]:
    """Settle each; None where it was done, else why not."""
    results: list[AlpacaError | None] = []
    acked = 0
    partitions = queue.partitions
    for settlement in settlements:
        number, offset, action, count, generation, consumer, *_ = settlement
        partition = partitions.get(number)
        hold = None if partition is None else partition.progress.find(offset)
        if (
            hold is None or partition is None or hold.state is not State.ACQUIRED
            or count != hold.count or generation != partition.generation
            or consumer is not None or hold.due_ms <= now_ms
        ):  # fmt: skip
            results.append(_settled_otherwise(queue, partition, hold, settlement, now_ms))
        elif action is Action.ACK:
            partition.finish(hold, offset)
            acked += 1
            results.append(None)
        else:
            results.append(_step(queue, partition, hold, settlement, now_ms))
    queue.totals.acked += acked
    return tuple(results)


def stale(queue_id: QueueId, settlements: Sequence[Settlement]) -> tuple[AlpacaError | None, ...]:
    """What settlements come to of a queue that is no more."""
    gone = f"group {queue_id.group!r} no longer uses topic {queue_id.topic!r} as a queue"
    return tuple(
        StaleReceipt(f"message {settlement.offset} of partition {settlement.partition}: {gone}")
        for settlement in settlements
    )


def end(queue: Queue, hold: LeaseGroup, reason: str = EXPIRED) -> None:
    """A lease or a rest is over, for all messages of a hold."""
    partition = queue.partitions[hold.chunk.partition.number]
    if hold.state is State.ACQUIRED:
        is_expired = reason is EXPIRED
        queue.totals.expired_leases += hold.mask.bit_count() if is_expired else 0
        first_offset = hold.chunk.index << CHUNK_BITS
        queue.journal.ended.append(
            EndedLease(
                queue.id, partition.number, first_offset, hold.mask, hold.count, hold.owner, is_expired
            )
        )
    if hold.state is State.ACQUIRED and queue.is_spent(hold.count):
        for offset in [*hold.offsets()]:
            queue.dead_letter(partition, hold, offset, reason)
    else:
        partition.free_all(hold)


def release_consumer(queue: Queue, consumer: str) -> None:
    """The consumer is gone: its leases end."""
    if not queue.consumers.holds_any(consumer):
        return
    for partition in queue.partitions.values():
        for hold in [*partition.progress.holds()]:
            if hold.state is State.ACQUIRED and hold.owner == consumer:
                end(queue, hold, "its consumer is gone")


def _settled_otherwise(
    queue: Queue,
    partition: SharePartition | None,
    hold: LeaseGroup | None,
    settlement: Settlement,
    now_ms: int,
) -> AlpacaError | None:
    """Settle what is not simply leased under this receipt, or say why that cannot be."""
    where = f"message {settlement.offset} of {queue.id.topic}-{settlement.partition}"
    if partition is None:
        return NotAcquired(f"{where} was never delivered to group {queue.id.group!r}")
    if hold is not None and hold.state is State.ACQUIRED and hold.due_ms <= now_ms:
        end(queue, hold)  # which nobody has seen to yet
        hold = partition.progress.find(settlement.offset)
    by_receipt = settlement.delivery_count is not None or settlement.generation is not None
    if settlement.generation not in (None, partition.generation):
        return StaleReceipt(f"{where} was delivered before its queue began again")
    if by_receipt and settlement.action is Action.ACK and partition.progress.is_done(settlement.offset):
        return None
    if hold is None or settlement.delivery_count not in (None, hold.count):
        return _over(where, by_receipt=by_receipt)
    if hold.state is State.ACQUIRED:
        if settlement.consumer not in (None, hold.owner):
            return NotAcquired(f"{where} is leased to {hold.owner!r}, not to {settlement.consumer!r}")
        return _step(queue, partition, hold, settlement, now_ms)
    if by_receipt and settlement.action is Action.ACK and hold.state is not State.MOVING:
        # Late, but nobody has had the message since: it need not be delivered again.
        return _step(queue, partition, hold, settlement, now_ms)
    return _over(where, by_receipt=by_receipt)


def _over(where: str, *, by_receipt: bool) -> AlpacaError:
    if by_receipt:
        return StaleReceipt(f"the lease on {where} is over, or it was delivered again")
    return NotAcquired(f"{where} is not leased")


def _step(
    queue: Queue, partition: SharePartition, hold: LeaseGroup, settlement: Settlement, now_ms: int
) -> AlpacaError | None:
    try:
        _STEPS[settlement.action](queue, partition, hold, settlement, now_ms)
    except AlpacaError as error:
        return error
    return None


def _ack(
    queue: Queue, partition: SharePartition, hold: LeaseGroup, settlement: Settlement, _now_ms: int
) -> None:
    partition.finish(hold, settlement.offset)
    queue.totals.acked += 1


def _drop(
    _queue: Queue, partition: SharePartition, hold: LeaseGroup, settlement: Settlement, _now_ms: int
) -> None:
    partition.finish(hold, settlement.offset)


def _nack(
    queue: Queue, partition: SharePartition, hold: LeaseGroup, settlement: Settlement, now_ms: int
) -> None:
    rest_ms = settlement.delay_ms
    if rest_ms is not None and not 0 <= rest_ms <= DAY_MS:
        raise InvalidDelay(f"a message can rest between 0 and {DAY_MS} ms, not {rest_ms}")
    queue.totals.nacked += 1
    if queue.is_spent(hold.count):
        reason = _reason(settlement, "not acknowledged")
        queue.dead_letter(partition, hold, settlement.offset, reason)
        return
    if rest_ms is None:
        rest_ms = backoff_ms(queue, hold.count)
    if rest_ms:
        partition.rest(hold, settlement.offset, now_ms + rest_ms)
    else:
        partition.free(hold, settlement.offset, hold.count)


def _release(
    queue: Queue, partition: SharePartition, hold: LeaseGroup, settlement: Settlement, _now_ms: int
) -> None:
    if queue.is_spent(hold.count):
        queue.dead_letter(partition, hold, settlement.offset, _reason(settlement, "released too often"))
    else:
        partition.free(hold, settlement.offset, hold.count)


def _undo(
    _queue: Queue, partition: SharePartition, hold: LeaseGroup, settlement: Settlement, _now_ms: int
) -> None:
    partition.free(hold, settlement.offset, hold.count - 1)


def _reject(
    queue: Queue, partition: SharePartition, hold: LeaseGroup, settlement: Settlement, now_ms: int
) -> None:
    if queue.dead_letter_topic is None:
        _nack(queue, partition, hold, settlement, now_ms)
        return
    queue.totals.rejected += 1
    queue.dead_letter(partition, hold, settlement.offset, _reason(settlement, "rejected"))


def _extend(
    queue: Queue, partition: SharePartition, hold: LeaseGroup, settlement: Settlement, now_ms: int
) -> None:
    lease_ms = settlement.delay_ms
    if lease_ms is None:
        lease_ms = queue.settings.queue_visibility_timeout_ms
    if not 0 <= lease_ms <= MAX_LEASE_MS:
        raise InvalidDelay(f"a lease can be extended by 0 to {MAX_LEASE_MS} ms, not by {lease_ms}")
    if lease_ms:
        due_ms = min(now_ms + lease_ms, hold.acquired_ms + MAX_LEASE_MS)
        partition.extend(hold, settlement.offset, due_ms)
    elif queue.is_spent(hold.count):
        queue.dead_letter(partition, hold, settlement.offset, EXPIRED)
    else:
        partition.free(hold, settlement.offset, hold.count)


def _move(
    queue: Queue, partition: SharePartition, hold: LeaseGroup, settlement: Settlement, _now_ms: int
) -> None:
    if not settlement.target:
        raise InvalidRequest(f"message {settlement.offset} is to be moved, but not where")
    queue.move(partition, hold, settlement.offset, check_topic_name(settlement.target), "")


_STEPS: Mapping[Action, _Step] = {
    Action.ACK: _ack,
    Action.NACK: _nack,
    Action.RELEASE: _release,
    Action.RELEASE_UNSEEN: _undo,
    Action.REJECT: _reject,
    Action.EXTEND: _extend,
    Action.MOVE: _move,
    Action.DISCARD: _drop,
}


def backoff_ms(queue: Queue, delivery_count: int) -> int:
    """How long a message rests after so many failures."""
    settings = queue.settings
    most_ms = settings.queue_backoff_max_ms
    try:
        rest_ms = settings.queue_backoff_initial_ms * settings.queue_backoff_multiplier ** (
            delivery_count - 1
        )
    except OverflowError:
        return most_ms
    return int(min(rest_ms, most_ms))


def _reason(settlement: Settlement, otherwise: str) -> str:
    """Why, in words that can be stored."""
    text = settlement.reason[:MAX_REASON_LENGTH].encode(errors="replace").decode()
    return text or otherwise
