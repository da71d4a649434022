"""Settles leased messages by receipt: ack, nack, reject and extend."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.errors import ConflictingInput, Problem, problem_of
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.queue.service import Receipted
from alpacamq.model.errors import InvalidReceipt, NotAcquired, StaleReceipt, UnknownTopic
from alpacamq.model.topics import DAY_MS
from alpacamq.queues.messages import Action
from alpacamq.telemetry.tracing import ClientApi

from .names import ReasonText

MAX_RECEIPTS = 1000
Receipt = Annotated[str, Meta(max_length=1024)]


class Receipts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processed deliveries, by one `receipt` or up to a thousand `receipts`."""

    receipt: Receipt | UnsetType = UNSET
    receipts: Annotated[list[Receipt], Meta(min_length=1, max_length=MAX_RECEIPTS)] | UnsetType = UNSET

    def all(self) -> Sequence[str]:
        if self.receipt is not UNSET and self.receipts is UNSET:
            return (self.receipt,)
        if self.receipts is not UNSET and self.receipt is UNSET:
            return self.receipts
        raise ConflictingInput("/receipt: give one of receipt and receipts", "/receipt")


class Failed(Receipts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Failed deliveries, retried after the queue's backoff, or after `delay_ms`."""

    delay_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] | UnsetType = UNSET
    reason: ReasonText = ""


class Rejected(Receipts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rejected deliveries, which become dead letters."""

    reason: ReasonText = ""


class Extended(Receipts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deliveries whose leases end in `timeout_ms` from now; 0 releases them."""

    timeout_ms: Annotated[int, Meta(ge=0, le=DAY_MS)]


class SettledMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one receipt."""

    receipt: str
    error: Problem | UnsetType = UNSET


class SettledMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The result of each receipt, in order, and the number of failures. A single failure is an error."""

    results: list[SettledMessage]
    errors: int


async def ack(call: Call[Nothing, Receipts]) -> SettledMessages:
    return await _settled(
        call.backend, [Receipted(receipt=each, action=Action.ACK) for each in call.body.all()]
    )


async def nack(call: Call[Nothing, Failed]) -> SettledMessages:
    body = call.body
    delay_ms = None if body.delay_ms is UNSET else body.delay_ms
    return await _settled(
        call.backend,
        [
            Receipted(receipt=each, action=Action.NACK, delay_ms=delay_ms, reason=body.reason)
            for each in body.all()
        ],
    )


async def reject(call: Call[Nothing, Rejected]) -> SettledMessages:
    body = call.body
    return await _settled(
        call.backend,
        [Receipted(receipt=each, action=Action.REJECT, reason=body.reason) for each in body.all()],
    )


async def extend(call: Call[Nothing, Extended]) -> SettledMessages:
    body = call.body
    return await _settled(
        call.backend,
        [Receipted(receipt=each, action=Action.EXTEND, delay_ms=body.timeout_ms) for each in body.all()],
    )


async def _settled(backend: Backend, settlements: Sequence[Receipted]) -> SettledMessages:
    outcomes = await backend.broker.queues.settle(settlements, api=ClientApi.HTTP)
    errors = [error for error in outcomes if error is not None]
    if errors and len(settlements) == 1:
        raise errors[0]
    return SettledMessages(
        results=[
            SettledMessage(receipt=each.receipt, error=UNSET if error is None else problem_of(error))
            for each, error in zip(settlements, outcomes, strict=True)
        ],
        errors=len(errors),
    )


_ERRORS = (InvalidReceipt, StaleReceipt, NotAcquired, UnknownTopic)

ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="POST",
        path="/messages/ack",
        summary="Acknowledge messages as processed",
        handler=ack,
        parameters=Nothing,
        body=Receipts,
        answers=(SettledMessages,),
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path="/messages/nack",
        summary="Return failed messages for a later retry",
        handler=nack,
        parameters=Nothing,
        body=Failed,
        answers=(SettledMessages,),
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path="/messages/reject",
        summary="Reject messages: move them to the dead-letter topic",
        handler=reject,
        parameters=Nothing,
        body=Rejected,
        answers=(SettledMessages,),
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path="/messages/visibility",
        summary="Extend leases, or release messages",
        handler=extend,
        parameters=Nothing,
        body=Extended,
        answers=(SettledMessages,),
        errors=_ERRORS,
    ),
)
