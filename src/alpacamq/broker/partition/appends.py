"""Batches on their way into a partition, and what their producers wait for."""

from collections.abc import Callable, Collection, Iterable
from enum import Enum

from alpacamq.broker.tracing.partition import ProduceTrace
from alpacamq.log.partition_log import Appended
from alpacamq.model.batch import BatchHeader
from alpacamq.model.errors import AlpacaError


class Acks(Enum):
    """When an append to a partition with several replicas is complete."""

    LEADER = "leader"  # once it is in the leader's log, flushed if its topic says so
    ALL = "all"  # once every replica in sync has it


def _completed() -> None:
    pass


class Append:
    """A batch to be appended and its outcome.

    `timeout_ms` limits the wait for replicas; None waits until the leader changes. Without replicas, neither
    it nor `acks` matters.
    """

    __slots__ = ("acks", "data", "done", "header", "outcome", "timeout_ms", "trace")

    def __init__(
        self,
        data: bytearray | memoryview,
        header: BatchHeader,
        done: Callable[[], None],
        trace: ProduceTrace | None = None,
        acks: Acks = Acks.ALL,
        timeout_ms: int | None = None,
    ) -> None:
        self.trace = trace
        self.data = data
        self.header = header
        self.done = done
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.outcome: Appended | AlpacaError | None = None

    def complete(self) -> None:
        """Call `done`, after dropping it: it refers to the append, and would keep it until a collection."""
        done, self.done = self.done, _completed
        done()


def record_outcomes(appends: Iterable[Append], in_sync: Collection[int] = ()) -> None:
    """Record the outcome of batches in their traces, before it becomes visible.

    `in_sync` are the replicas that have them, if there are several.
    """
    for append in appends:
        if append.trace is not None:
            outcome = append.outcome
            if isinstance(outcome, Appended) and not outcome.duplicate:
                append.trace.replicated(in_sync)
                append.trace.persisted(outcome.base_offset, outcome.next_offset)
            else:
                append.trace.refused()


def fail(appends: Iterable[Append], error: AlpacaError) -> None:
    """Complete appends with an error."""
    appends = list(appends)
    for append in appends:
        append.outcome = error.with_traceback(None)
    record_outcomes(appends)
    for append in appends:
        append.complete()
