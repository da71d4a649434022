"""Publishing one message, or up to a thousand per request."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import ConflictingInput, InvalidInput, Problem, problem_of
from alpacamq.api.rest.message_json import NewMessage
from alpacamq.api.rest.parameters import OfTopic
from alpacamq.api.rest.route import AnyRoute, Call, Route
from alpacamq.broker.later import Later
from alpacamq.broker.publishing import Message, Published, TransactionalProducer
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.errors import (
    AlpacaError,
    BatchTooLarge,
    DiskFull,
    InvalidDelay,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTopicName,
    PolicyViolation,
    SchemasUnavailable,
    TooManyDelayed,
    UnknownTopic,
)
from alpacamq.security.quotas import QuotaKey
from alpacamq.telemetry.tracing import ClientApi

T = TypeVar("T")

MAX_MESSAGES = 1000
SeveralMessages = Annotated[list[NewMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class NewMessages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages to publish together, up to a thousand."""

    messages: SeveralMessages


class OneOrMore(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message or NewMessages, as one type so that it is parsed once."""

    messages: SeveralMessages | UnsetType = UNSET


class PublishedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a published message. A delayed one has `delayed_id` and `deliver_at`, no `offset`."""

    topic: str
    partition: int
    timestamp: int
    offset: int | UnsetType = UNSET
    delayed_id: int | UnsetType = UNSET
    deliver_at: int | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET


class MessageResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one message: the fields of PublishedMessage, or `error`."""

    partition: int | UnsetType = UNSET
    timestamp: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    delayed_id: int | UnsetType = UNSET
    deliver_at: int | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET
    error: Problem | UnsetType = UNSET


class PublishedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The result of each message, in order, and the number of failures."""

    topic: str
    results: list[MessageResult]
    errors: int


_Answer = Callable[[Sequence[Published | AlpacaError]], PublishedMessage | PublishedMessages]


def publish(call: Call[OfTopic, OneOrMore]) -> Later[PublishedMessage | PublishedMessages]:
    body, topic = call.body, call.parameters.topic
    broker = call.backend.broker
    now_ms = broker.time.now_ms()
    answer: _Answer
    if body.messages is UNSET:
        messages = [body.to_message(now_ms)]
        answer = _of_one
    elif _has_fields(body):
        raise ConflictingInput("/messages: must not be combined with fields of a single message", "/messages")
    else:
        messages = to_messages(body.messages, now_ms)
        answer = partial(published_messages, topic)
    published = broker.publisher.publish_later(
        topic, messages, origin=_origin(call), traceparent=_traceparent(call)
    )
    return published.map(answer)


def _has_fields(body: OneOrMore) -> bool:
    return not (body.value is body.value_base64 is UNSET and body.has_only_value)


def _origin(call: Call[Any, Any]) -> Origin:
    return Origin(ClientApi.HTTP, call.request.peer)


def _traceparent(call: Call[Any, Any]) -> bytes | None:
    traceparent = call.request.headers.get("traceparent")
    return None if traceparent is None else traceparent.encode()


async def publish_all(
    call: Call[Any, Any],
    topic: str,
    messages: Sequence[Message],
    producer: TransactionalProducer | None = None,
) -> list[Published | AlpacaError]:
    """Publish messages, in the trace context of the request."""
    return await call.backend.broker.publisher.publish(
        topic,
        messages,
        producer=producer,
        origin=_origin(call),
        traceparent=_traceparent(call),
    )


def to_messages(messages: Sequence[NewMessage], now_ms: int) -> list[Message]:
    """Convert messages, in order."""
    try:
        return [each.to_message(now_ms) for each in messages]
    except InvalidInput:  # again, to name the message
        return [each.to_message(now_ms, f"/messages/{at}") for at, each in enumerate(messages)]


def published_messages(topic: str, results: Sequence[Published | AlpacaError]) -> PublishedMessages:
    """Return the results of a batch; if all failed with the same error, raise it."""
    refused = [result for result in results if isinstance(result, AlpacaError)]
    if refused and len(refused) == len(results) and len({type(error) for error in refused}) == 1:
        raise refused[0]
    return PublishedMessages(topic=topic, results=[*map(_result, results)], errors=len(refused))


def _of_one(results: Sequence[Published | AlpacaError]) -> PublishedMessage:
    (published,) = results
    if isinstance(published, AlpacaError):
        raise published
    return PublishedMessage(
        topic=published.topic,
        partition=published.partition,
        timestamp=published.timestamp_ms,
        offset=_or_unset(published.offset),
        delayed_id=_or_unset(published.delayed_id),
        deliver_at=_or_unset(published.deliver_at_ms),
        trace_id=_or_unset(published.trace_id),
    )


def _result(result: Published | AlpacaError) -> MessageResult:
    if isinstance(result, Published):
        if result.offset is not None and result.trace_id is None:
            return MessageResult(
                partition=result.partition, timestamp=result.timestamp_ms, offset=result.offset
            )
    else:
        return MessageResult(error=problem_of(result))
    return MessageResult(
        partition=result.partition,
        timestamp=result.timestamp_ms,
        offset=_or_unset(result.offset),
        delayed_id=_or_unset(result.delayed_id),
        deliver_at=_or_unset(result.deliver_at_ms),
        trace_id=_or_unset(result.trace_id),
    )


def _or_unset(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


PUBLISH_ERRORS = (
    UnknownTopic,
    InvalidTopicName,
    PolicyViolation,
    BatchTooLarge,
    InvalidRecord,
    SchemasUnavailable,
    InvalidTimestamp,
    InvalidDelay,
    TooManyDelayed,
    DiskFull,
)

ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="POST",
        path="/topics/{topic}/messages",
        summary="Publish a message, or up to a thousand",
        handler=publish,
        parameters=OfTopic,
        body=OneOrMore,
        body_shapes=(NewMessage, NewMessages),
        answers=(PublishedMessage, PublishedMessages),
        errors=PUBLISH_ERRORS,
        quota=QuotaKey.PRODUCE,
    ),
)
