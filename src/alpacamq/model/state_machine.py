"""Replicated state machines: requests and events in, records, replies and effects out.

A machine is pure. It is given requests and the time, and returns an Outcome. Its host (broker/statemachine)
writes the changes to an internal topic, sends the replies once they are durable, and performs the effects.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import msgspec

from .errors import AlpacaError

R = TypeVar("R")


class Request(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """A request to a state machine. `R` is the type of its reply; an AlpacaError may take its place."""

    # Whether a second attempt does no harm if the first has taken effect, and its reply is as good.
    IS_IDEMPOTENT: ClassVar[bool] = False

    @property
    def routing_key(self) -> str:
        """The key that decides which machine of a topic handles the request."""
        raise NotImplementedError

    @property
    def may_be_repeated(self) -> bool:
        """Whether the request may be sent again when it is not known whether it has taken effect."""
        return self.IS_IDEMPOTENT

    @property
    def max_wait_ms(self) -> int:
        """How long the machine may keep the request on purpose before it replies."""
        return 0

    def after(self, spent_ms: int) -> Self:  # noqa: ARG002 - for requests that wait
        """Return the request for another attempt, which waits only for the rest of `max_wait_ms`."""
        return self


class Change(NamedTuple):
    """A keyed record of the machine's internal topic; a record without a value deletes the key."""

    key: bytes
    value: bytes | None


class Reply(NamedTuple):
    """The reply to a pending request: a result, or an AlpacaError as a value."""

    to: object
    answer: object


class Pending(NamedTuple):
    """A request and the handle its reply is sent to, any hashable object. Posted events have None."""

    request: Request[Any]
    reply_to: object


@dataclass(slots=True, init=False)
class Outcome:
    """The result of an event.

    Changes are written as one batch. Replies and effects wait until that batch, and all before it, are
    durable. Reads are effects that change nothing: they are performed at once.
    """

    changes: list[Change]
    replies: list[Reply]
    effects: list[Any]
    reads: list[Any]

    # By hand: there is one for every request, and factories of defaults are calls.
    def __init__(
        self,
        changes: list[Change] | None = None,
        replies: list[Reply] | None = None,
        effects: list[Any] | None = None,
        reads: list[Any] | None = None,
    ) -> None:
        self.changes = [] if changes is None else changes
        self.replies = [] if replies is None else replies
        self.effects = [] if effects is None else effects
        self.reads = [] if reads is None else reads

    def __iadd__(self, other: "Outcome") -> Self:
        self.changes += other.changes
        self.replies += other.replies
        self.effects += other.effects
        self.reads += other.reads
        return self


def reply(to: object, answer: object, changes: list[Change] | None = None) -> Outcome:
    """Return an outcome with one reply, and the changes it waits for."""
    return Outcome(changes or [], [Reply(to, answer)])


class StateMachine(Protocol):
    """A state machine that a host can run."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `tick`; may be early, never late."""
        ...

    def tick(self, now_ms: int) -> Outcome:
        """Do what is due."""
        ...

    def handle(self, batch: Sequence[Pending], now_ms: int) -> Outcome:
        """Handle requests in order; everything they change is one outcome."""
        ...

    def cancel(self, reply_to: object) -> None:
        """Forget a pending request: its client no longer waits."""
        ...

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a stored record."""
        ...

    def loaded(self, now_ms: int) -> Outcome:
        """Resume after the last stored record has been replayed."""
        ...

    def snapshot(self) -> Iterator[Change]:
        """Changes that lead to the durable state; events may come while they are taken.

        For each key they hold its value as of this call, or one that it was given since: replaying all
        changes since this call behind them must lead to the state that the machine has by then.
        """
        ...


class HandlesOneByOne:
    """Mixin for machines whose requests are independent of each other: a table of methods by request type.

    A method takes the request, the handle of its reply and the time. An AlpacaError that it raises means that
    nothing has changed, and is the reply.
    """

    HANDLERS: ClassVar[Mapping[type[Request[Any]], Callable[[Any, Any, object, int], Outcome]]]

    def handle(self, batch: Sequence[Pending], now_ms: int) -> Outcome:
        """Handle requests in order; everything they change is one outcome."""
        if len(batch) == 1:
            ((request, reply_to),) = batch
            try:
                return self.HANDLERS[type(request)](self, request, reply_to, now_ms)
            except AlpacaError as error:
                return Outcome(replies=[Reply(reply_to, error.with_traceback(None))])
        outcome = Outcome()
        for request, reply_to in batch:
            try:
                outcome += self.HANDLERS[type(request)](self, request, reply_to, now_ms)
            except AlpacaError as error:
                outcome.replies.append(Reply(reply_to, error.with_traceback(None)))
        return outcome
