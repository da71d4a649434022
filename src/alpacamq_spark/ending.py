"""Ends staged transactions from the driver: shows winners, drops losers, reaps what was left behind."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from alpacamq.client.cluster import Cluster
from alpacamq.client.errors import ErrorCode, Refused
from alpacamq.client.transactional import ProducerIdentity, claim, end_transaction
from alpacamq.client.transactions import every_transaction, transaction

from .reconnecting import persistently
from .staging import OPEN, AttemptId, alone

# The transaction is another's by now, or was ended the other way.
ENDED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE})
# The broker remembers transactional ids for days, not for ever.
FORGOTTEN = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND})
_REAPING_MS = 60_000


def show(cluster: Cluster, producers: Iterable[ProducerIdentity]) -> list[ProducerIdentity]:
    """Commit transactions; those that were dropped before are returned. Showing twice is showing once."""
    lost = []
    for producer in producers:
        try:
            _end(cluster, producer, committed=True)
        except Refused as refused:
            if refused.code not in ENDED:
                raise
            lost.append(producer)
    return lost


def settle(cluster: Cluster, producers: Iterable[ProducerIdentity]) -> None:
    """Wait until transactions that were shown are seen; a broker that is slow with it does not undo them."""
    for producer in producers:
        with suppress(Refused):
            # Asked again, the broker answers when it has marked the end in every partition.
            _end(cluster, producer, committed=True)


def drop(cluster: Cluster, producers: Iterable[ProducerIdentity]) -> None:
    """Abort transactions; of those that were ended before there is nothing to drop."""
    for producer in producers:
        with suppress(Refused):
            _end(cluster, producer, committed=False)


def is_dropped(cluster: Cluster, producer: ProducerIdentity) -> bool:
    """Abort a transaction unless it was shown already, and say which it is."""
    try:
        _end(cluster, producer, committed=False)
    except Refused as refused:
        if refused.code not in ENDED:
            raise
        # Aborted by its timeout, or shown.
        return refused.code != ErrorCode.INVALID_TXN_STATE
    return True


def not_open(cluster: Cluster, producers: Sequence[ProducerIdentity]) -> list[ProducerIdentity]:
    """Those whose transaction has ended, whichever way."""
    return [producer for producer in producers if not _is_open(cluster, producer)]


def reap(
    cluster: Cluster, sink: str, kept: Iterable[ProducerIdentity], is_over: Callable[[str], bool]
) -> None:
    """Abort what attempts at a sink have left open, of runs that are over, but for those to be kept.

    And what attempts of other jobs have left that were over before: such a job has nobody else.
    """
    spared = {producer.transactional_id for producer in kept}
    for summary in persistently(lambda: every_transaction(cluster, OPEN)):
        attempt = AttemptId.parse(summary.id)
        if attempt is None or summary.id in spared:
            continue
        mine = attempt.sink == sink
        if is_over(attempt.run) if mine else _is_orphan(cluster, attempt):
            persistently(lambda name=summary.id: claim(cluster, name, _REAPING_MS))  # type: ignore[misc]


def _is_orphan(cluster: Cluster, attempt: AttemptId) -> bool:
    """Whether an attempt is of a job without a name that has ended: by then it has claimed its own id."""
    if attempt.sink != alone(attempt.run):
        return False
    return persistently(lambda: transaction(cluster, attempt.sink)) is not None


def _is_open(cluster: Cluster, producer: ProducerIdentity) -> bool:
    found = persistently(lambda: transaction(cluster, producer.transactional_id))
    return found is not None and found.state == OPEN and found.producer_epoch == producer.epoch


def _end(cluster: Cluster, producer: ProducerIdentity, *, committed: bool) -> None:
    persistently(lambda: end_transaction(cluster, producer, committed=committed))
