"""The queue engine: every queue of a shard, as one state machine.

Requests come many at a time; what they change is written as one batch of few records, and the
replies leave once those are durable. An AlpacaError within a request becomes its answer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec

from alpacamq.model.outcome import Change, Outcome

from .messages import Move, QueueRequest
from .views import LogView


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine may hold at most."""

    max_queues: int = 10_000
    max_waiting_receives: int = 10_000
    max_indexed_runs: int = 100_000  # per queue and partition
    max_blocked_messages: int = 20_000  # per queue and partition: read ahead in key order


@dataclass(slots=True)
class QueueOutcome(Outcome):
    """`moves` are carried out once `changes` are durable."""

    moves: list[Move] = field(default_factory=list)

    def __iadd__(self, other: Outcome) -> Self:
        Outcome.__iadd__(self, other)
        if isinstance(other, QueueOutcome):
            self.moves += other.moves
        return self


class QueueEngine:
    """The state machine behind one partition of the internal topic of queues."""

    def __init__(self, log: LogView, take_producer_id: Callable[[], int], limits: EngineLimits) -> None:
        self._log = log
        self._take_producer_id = take_producer_id
        self._limits = limits

    def perform(self, requests: Sequence[tuple[QueueRequest, object]], now_ms: int) -> QueueOutcome:
        """Carry out (request, ticket) pairs in order: one outcome with every change and every reply due."""
        raise NotImplementedError

    def records_arrived(self, topic: str, partition: int, now_ms: int) -> QueueOutcome:
        """More of a partition is known: serve receives that wait for it."""
        raise NotImplementedError

    def moved(self, moves: Sequence[Move], now_ms: int) -> QueueOutcome:
        """These moves have been carried out: their messages are done."""
        raise NotImplementedError

    def topic_deleted(self, topic: str) -> QueueOutcome:
        """A topic is no more: forget its queues, and answer whoever waits on them."""
        raise NotImplementedError

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `tick`; may be early, never late."""
        raise NotImplementedError

    def tick(self, now_ms: int) -> QueueOutcome:
        """End leases, rests and waits whose time has come."""
        raise NotImplementedError

    def gone(self, ticket: object) -> None:
        """Nobody waits for the reply to this ticket any more."""
        raise NotImplementedError

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in a stored record; kinds of a later version are passed over."""
        raise NotImplementedError

    def loaded(self, now_ms: int) -> QueueOutcome:
        """Everything stored has been replayed: every move that is not known to be done is to be done."""
        raise NotImplementedError

    def snapshot(self) -> Iterator[Change]:
        """Changes that lead to the durable state as it is."""
        raise NotImplementedError
