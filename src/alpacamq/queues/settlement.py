"""Settlement of deliveries by consumers, and the end of leases and backoffs."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from alpacamq.model.errors import (
    AlpacaError,
    InvalidDelay,
    InvalidRequest,
    NotAcquired,
    StaleReceipt,
)
from alpacamq.model.topics import DAY_MS, check_topic_name

from .chunks import CHUNK_BITS, IN_CHUNK, LeaseGroup, State
from .messages import Action, EndedLease, QueueId, Settlement
from .partition import SharePartition
from .queue import Queue
from .receiving import MAX_LEASE_MS

MAX_REASON_LENGTH = 1000
EXPIRED = "lease expired"
_Handler = Callable[[Queue, SharePartition, LeaseGroup, Settlement, int], None]


def settle(queue: Queue, settlements: Sequence[Settlement], now_ms: int) -> tuple[AlpacaError | None, ...]:
    """Apply settlements; return None or an error for each."""
    results: list[AlpacaError | None] = [None] * len(settlements)
    acked = 0
    partition: SharePartition | None = None
    # Acknowledged messages of one lease group, which are not finished yet.
    run: LeaseGroup | None = None
    mask = 0
    for at, settlement in enumerate(settlements):
        number, offset, action, count, generation, consumer, _, _, _ = settlement
        if partition is None or partition.number != number:
            if run is not None and partition is not None:
                partition.finish_run(run, mask)
                run = None
            partition = queue.partitions.get(number)
        leases = None if partition is None else partition.progress.find(offset)
        is_plain = (
            leases is not None and partition is not None and leases.state is State.ACQUIRED
            and count == leases.count and generation == partition.generation
            and consumer is None and leases.due_ms > now_ms
        )  # fmt: skip
        if is_plain and action is Action.ACK and partition is not None and leases is not None:
            acked += 1
            bit = 1 << (offset & IN_CHUNK)
            if leases is not run:
                if run is not None:
                    partition.finish_run(run, mask)
                run, mask = leases, bit
                continue
            if not mask & bit:
                mask |= bit
                continue
            acked -= 1  # the same message twice
        if run is not None and partition is not None:
            partition.finish_run(run, mask)
            run = None
            leases = partition.progress.find(offset)
            is_plain = is_plain and leases is not None and leases.state is State.ACQUIRED
        if is_plain and partition is not None and leases is not None:
            results[at] = _apply(queue, partition, leases, settlement, now_ms)
        else:
            results[at] = _settle_special(queue, partition, leases, settlement, now_ms)
    if run is not None and partition is not None:
        partition.finish_run(run, mask)
    queue.totals.acked += acked
    return tuple(results)


def stale_receipts(queue_id: QueueId, settlements: Sequence[Settlement]) -> tuple[AlpacaError | None, ...]:
    """Return the results of settlements for a queue that does not exist."""
    reason = f"group {queue_id.group!r} does not use topic {queue_id.topic!r} as a queue"
    return tuple(
        StaleReceipt(f"message {settlement.offset} of partition {settlement.partition}: {reason}")
        for settlement in settlements
    )


def end_leases(queue: Queue, leases: LeaseGroup, now_ms: int, reason: str = EXPIRED) -> None:
    """End the lease or backoff of all messages of a group."""
    partition = queue.partitions[leases.chunk.partition.number]
    if leases.state is State.ACQUIRED:
        is_expired = reason is EXPIRED
        queue.totals.expired_leases += leases.mask.bit_count() if is_expired else 0
        first_offset = leases.chunk.index << CHUNK_BITS
        queue.output.ended.append(
            EndedLease(
                queue.id, partition.number, first_offset, leases.mask, leases.count, leases.owner, is_expired
            )
        )
    if leases.state is State.ACQUIRED and queue.is_spent(leases.count):
        for offset in [*leases.offsets()]:
            queue.dead_letter(partition, leases, offset, reason)
    else:
        partition.release_all(leases, _released_ms(leases, now_ms, reason))


def _released_ms(leases: LeaseGroup, now_ms: int, reason: str) -> int:
    """Return when messages were released; 0 if they keep their place in the order.

    A message whose lease expires for the first time keeps it. Later it goes behind the messages that are
    ready, which a message that no consumer can process would otherwise hold up.
    """
    if leases.state is State.ACQUIRED and (reason is not EXPIRED or leases.count <= 1):
        return 0
    return now_ms + 1


def release_consumer(queue: Queue, consumer: str, partitions: Sequence[int] | None, now_ms: int) -> None:
    """End all leases of a consumer that has disconnected, in some partitions or in all."""
    if not queue.consumers.has_leases(consumer):
        return
    for number, partition in queue.partitions.items():
        if partitions is not None and number not in partitions:
            continue
        for leases in [*partition.progress.lease_groups()]:
            if leases.state is State.ACQUIRED and leases.owner == consumer:
                end_leases(queue, leases, now_ms, "consumer disconnected")


def _settle_special(
    queue: Queue,
    partition: SharePartition | None,
    leases: LeaseGroup | None,
    settlement: Settlement,
    now_ms: int,
) -> AlpacaError | None:
    """Settle by consumer, late or repeatedly, or return why that is not possible."""
    where = f"message {settlement.offset} of {queue.id.topic}-{settlement.partition}"
    if partition is None:
        return NotAcquired(f"{where} was never delivered to group {queue.id.group!r}")
    if leases is not None and leases.state is State.ACQUIRED and leases.due_ms <= now_ms:
        end_leases(queue, leases, now_ms)  # expired, but not ended by a tick yet
        leases = partition.progress.find(settlement.offset)
    by_receipt = settlement.delivery_count is not None or settlement.generation is not None
    if settlement.generation not in (None, partition.generation):
        return StaleReceipt(f"{where} was delivered before its queue was reset")
    if by_receipt and partition.progress.is_done(settlement.offset):
        return None if settlement.action is Action.ACK else StaleReceipt(f"{where} is done", is_done=True)
    if by_receipt and settlement.action is Action.EXTEND and _is_free(leases, settlement):
        # Late, also by an earlier receipt, but no consumer holds the message: accept it.
        return _apply(queue, partition, leases, settlement, now_ms)
    if leases is None or settlement.delivery_count not in (None, leases.count):
        return _not_leased(where, by_receipt=by_receipt)
    if leases.state is State.ACQUIRED:
        if settlement.consumer not in (None, leases.owner):
            return NotAcquired(f"{where} is leased to {leases.owner!r}, not to {settlement.consumer!r}")
        return _apply(queue, partition, leases, settlement, now_ms)
    if by_receipt and settlement.action is Action.ACK and leases.state is not State.MOVING:
        # Late, but the message was not delivered again: accept it.
        return _apply(queue, partition, leases, settlement, now_ms)
    return _not_leased(where, by_receipt=by_receipt)


def _is_free(leases: LeaseGroup | None, settlement: Settlement) -> TypeGuard[LeaseGroup]:
    """Return whether a message is available after the delivery of this settlement's receipt."""
    return (
        leases is not None
        and leases.state is State.AVAILABLE
        and settlement.delivery_count is not None
        and settlement.delivery_count <= leases.count
    )


def _not_leased(where: str, *, by_receipt: bool) -> AlpacaError:
    if by_receipt:
        return StaleReceipt(f"the lease of {where} has ended, or it was delivered again")
    return NotAcquired(f"{where} is not leased")


def _apply(
    queue: Queue, partition: SharePartition, leases: LeaseGroup, settlement: Settlement, now_ms: int
) -> AlpacaError | None:
    try:
        _ACTIONS[settlement.action](queue, partition, leases, settlement, now_ms)
    except AlpacaError as error:
        return error
    return None


def _ack(
    queue: Queue, partition: SharePartition, leases: LeaseGroup, settlement: Settlement, _now_ms: int
) -> None:
    partition.finish(leases, settlement.offset)
    queue.totals.acked += 1


def _discard(
    _queue: Queue, partition: SharePartition, leases: LeaseGroup, settlement: Settlement, _now_ms: int
) -> None:
    partition.finish(leases, settlement.offset)


def _nack(
    queue: Queue, partition: SharePartition, leases: LeaseGroup, settlement: Settlement, now_ms: int
) -> None:
    delay_ms = settlement.delay_ms
    if delay_ms is not None and not 0 <= delay_ms <= DAY_MS:
        raise InvalidDelay(f"backoff must be 0 to {DAY_MS} ms, not {delay_ms}")
    queue.totals.nacked += 1
    if queue.is_spent(leases.count):
        reason = _reason(settlement, "not acknowledged")
        queue.dead_letter(partition, leases, settlement.offset, reason)
        return
    if delay_ms is None:
        delay_ms = backoff_ms(queue, leases.count)
    if delay_ms:
        partition.back_off(leases, settlement.offset, now_ms + delay_ms)
    else:
        partition.release(leases, settlement.offset, leases.count, now_ms + 1)


def _release(
    queue: Queue, partition: SharePartition, leases: LeaseGroup, settlement: Settlement, now_ms: int
) -> None:
    if queue.is_spent(leases.count):
        queue.dead_letter(partition, leases, settlement.offset, _reason(settlement, "released too often"))
    else:
        partition.release(leases, settlement.offset, leases.count, now_ms + 1)


def _release_unseen(
    _queue: Queue, partition: SharePartition, leases: LeaseGroup, settlement: Settlement, _now_ms: int
) -> None:
    partition.release(leases, settlement.offset, leases.count - 1)


def _reject(
    queue: Queue, partition: SharePartition, leases: LeaseGroup, settlement: Settlement, now_ms: int
) -> None:
    if queue.dead_letter_topic is None:
        _nack(queue, partition, leases, settlement, now_ms)
        return
    queue.totals.rejected += 1
    queue.dead_letter(partition, leases, settlement.offset, _reason(settlement, "rejected"))


def _extend(
    queue: Queue, partition: SharePartition, leases: LeaseGroup, settlement: Settlement, now_ms: int
) -> None:
    lease_ms = settlement.delay_ms
    if lease_ms is None:
        lease_ms = queue.settings.queue_visibility_timeout_ms
    if not 0 <= lease_ms <= MAX_LEASE_MS:
        raise InvalidDelay(f"a lease can be extended by 0 to {MAX_LEASE_MS} ms, not {lease_ms}")
    if not lease_ms and leases.state is State.AVAILABLE:
        return
    if lease_ms:
        due_ms = min(now_ms + lease_ms, leases.acquired_ms + MAX_LEASE_MS)
        if due_ms <= now_ms:
            raise StaleReceipt(f"a lease ends {MAX_LEASE_MS} ms after the message was received")
        partition.extend(leases, settlement.offset, due_ms)
    elif queue.is_spent(leases.count):
        queue.dead_letter(partition, leases, settlement.offset, EXPIRED)
    else:
        partition.release(leases, settlement.offset, leases.count, now_ms + 1)


def _move(
    queue: Queue, partition: SharePartition, leases: LeaseGroup, settlement: Settlement, _now_ms: int
) -> None:
    if not settlement.target:
        raise InvalidRequest(f"message {settlement.offset} cannot be moved: no target")
    queue.move(partition, leases, settlement.offset, check_topic_name(settlement.target), "")


_ACTIONS: Mapping[Action, _Handler] = {
    Action.ACK: _ack,
    Action.NACK: _nack,
    Action.RELEASE: _release,
    Action.RELEASE_UNSEEN: _release_unseen,
    Action.REJECT: _reject,
    Action.EXTEND: _extend,
    Action.MOVE: _move,
    Action.DISCARD: _discard,
}


def backoff_ms(queue: Queue, delivery_count: int) -> int:
    """Return the backoff after this many deliveries."""
    settings = queue.settings
    max_ms = settings.queue_backoff_max_ms
    try:
        delay_ms = settings.queue_backoff_initial_ms * settings.queue_backoff_multiplier ** (
            delivery_count - 1
        )
    except OverflowError:
        return max_ms
    return int(min(delay_ms, max_ms))


def _reason(settlement: Settlement, default: str) -> str:
    """Return the reason of a settlement as storable text."""
    text = settlement.reason[:MAX_REASON_LENGTH].encode(errors="replace").decode()
    return text or default
