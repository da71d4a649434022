"""Converts acknowledgement batches of share consumers to settlements."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.queue.service import Queues
from alpacamq.model.errors import AlpacaError, InvalidRequest, NotAcquired
from alpacamq.protocol.messages.share_fetch import AcknowledgementBatch, ShareTopic
from alpacamq.queues.messages import Action, QueueId, Settlement
from alpacamq.telemetry.tracing import ClientApi

MAX_ACKNOWLEDGED = 1_000_000
# Settled per call, so that other requests get their turn in between.
_AT_ONCE = 500
_CHECKED_AT_ONCE = 128

RENEW = 4
ACTIONS: Mapping[int, Action] = {
    0: Action.ACK,  # a gap: there is no record at this offset
    1: Action.ACK,
    2: Action.RELEASE,
    3: Action.REJECT,
    RENEW: Action.EXTEND,
}
REASON = "rejected by a share consumer"


def check_count(topics: Iterable[ShareTopic]) -> Generator[None, None, None]:
    """Raise InvalidRequest for too many acknowledged records; with stops in between."""
    count = 0
    for topic in topics:
        for each in topic.partitions:
            yield
            for start in range(0, len(each.acknowledgement_batches), _CHECKED_AT_ONCE):
                yield
                for batch in each.acknowledgement_batches[start : start + _CHECKED_AT_ONCE]:
                    count += max(batch.last_offset - batch.first_offset + 1, 0)
    if count > MAX_ACKNOWLEDGED:
        raise InvalidRequest(f"a request must not acknowledge more than {MAX_ACKNOWLEDGED} records: {count}")


def check_batches(batches: Sequence[AcknowledgementBatch], *, may_renew: bool) -> Generator[None, None, None]:
    """Raise InvalidRequest unless batches are in order with one type per offset; with stops in between."""
    after = 0
    for number, batch in enumerate(batches):
        if not number % _CHECKED_AT_ONCE:
            yield
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if not after <= first <= last:
            raise InvalidRequest(
                f"batch of offsets {first} to {last} is out of order: expected {after} or later"
            )
        if len(types) not in (1, last - first + 1):
            raise InvalidRequest(f"batch of offsets {first} to {last} has {len(types)} acknowledgement types")
        for kind in set(types):
            if kind not in ACTIONS or (kind == RENEW and not may_renew):
                raise InvalidRequest(f"unsupported acknowledgement type {kind}")
        after = last + 1


async def settle(
    queues: Queues,
    queue: QueueId,
    partition: Partition,
    batches: Sequence[AcknowledgementBatch],
    *,
    member_id: str,
    lock_ms: int,
) -> AlpacaError | None:
    """Settle the acknowledged records that the member holds; return the first error."""
    if batches[-1].last_offset >= partition.high_watermark:
        return NotAcquired(f"{partition.identity} has no offset {batches[-1].last_offset} yet")
    wrong: list[AlpacaError] = []
    settlements = _settlements(partition.identity.partition, batches, member_id, lock_ms)
    while some := [*islice(settlements, _AT_ONCE)]:
        results = await queues.settle_acquired(queue, some, api=ClientApi.KAFKA)
        wrong += [error for error in results if error is not None][:1]
    return wrong[0] if wrong else None


def _settlements(
    index: int, batches: Sequence[AcknowledgementBatch], member_id: str, lock_ms: int
) -> Iterator[Settlement]:
    for batch in batches:
        types = batch.acknowledge_types
        for place in range(batch.last_offset - batch.first_offset + 1):
            action = ACTIONS[types[0] if len(types) == 1 else types[place]]
            yield Settlement(
                index,
                batch.first_offset + place,
                action,
                consumer=member_id,
                delay_ms=lock_ms if action is Action.EXTEND else None,
                reason=REASON if action is Action.REJECT else "",
            )
