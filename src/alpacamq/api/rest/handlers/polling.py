"""Polling as a group: leasing messages of a queue and settling them, or reading assigned partitions."""

import asyncio
import re
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.queue_rights import check_received, settle
from alpacamq.api.rest.errors import ConflictingInput, Problem, problem_of
from alpacamq.api.rest.membership import Membership, member, send_heartbeat
from alpacamq.api.rest.message_json import (
    LeasedMessage,
    TopicMessage,
    Values,
    leased_message,
    topic_message,
)
from alpacamq.api.rest.parameters import TOPIC_PATTERN, MemberText, OfGroup, ReasonText, TopicText, WaitMs
from alpacamq.api.rest.partition_reading import (
    PartitionReading,
    PartitionView,
    SkippedBatch,
    known_bounds,
    read_fairly,
)
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.later import Later
from alpacamq.broker.queue.service import Delivery, Receipted
from alpacamq.broker.remote.read_values import Bounds
from alpacamq.broker.tracing.partition import Origin
from alpacamq.coordinator.consumer.messages import ConsumerMemberDescription
from alpacamq.coordinator.messages import FetchOffsetsReply, FetchOffsetsRequest, OffsetToCommit
from alpacamq.model.errors import (
    AlpacaError,
    FencedInstanceId,
    FencedMemberEpoch,
    InvalidGroupId,
    InvalidReceipt,
    NotAcquired,
    OffsetOutOfRange,
    PolicyViolation,
    StaleMemberEpoch,
    StaleReceipt,
    TooManyGroups,
    TooManyInFlight,
    TooManyWaiting,
    UnknownMember,
    UnknownTopic,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.topics import DAY_MS, INT32_MAX, INT64_MAX
from alpacamq.queues.messages import Action, QueueId, ReceiveRequest, Start
from alpacamq.security.acls import Operation
from alpacamq.security.quotas import QuotaKey
from alpacamq.telemetry.tracing import ClientApi

from .groups import MembershipAnswer, membership_answer
from .offsets import commit_offsets

_PLACES = r"(:[0-9]{1,10}@[0-9]{1,18})+"
CURSOR_PATTERN = f"^{TOPIC_PATTERN}{_PLACES}(,{TOPIC_PATTERN}{_PLACES})*$"
_PART = re.compile(r"(.+?)((?::[0-9]+@[0-9]+)+)")
_PLACE = re.compile(r"([0-9]+)@([0-9]+)")


def write_cursor(positions: Mapping[TopicPartition, int]) -> str:
    """Format positions as text; empty if there are none."""
    by_topic: dict[str, str] = {}
    for (topic, partition), offset in sorted(positions.items()):
        by_topic[topic] = by_topic.get(topic, topic) + f":{partition}@{offset}"
    return ",".join(by_topic.values())


def read_cursor(cursor: str) -> dict[TopicPartition, int]:
    """Parse a well-formed cursor."""
    positions: dict[TopicPartition, int] = {}
    for partition, offset in _places(cursor):
        if partition in positions:
            raise ConflictingInput(f"cursor: duplicate partition {partition}", "cursor")
        positions[partition] = offset
    return positions


def _places(cursor: str) -> Iterator[tuple[TopicPartition, int]]:
    for part in cursor.split(","):
        split = _PART.fullmatch(part)
        assert split is not None, "a cursor matches its pattern"
        topic, places = split.groups()
        for index, offset in _PLACE.findall(places):
            yield TopicPartition(TopicName(topic), int(index)), int(offset)


MAX_BYTES = 16 << 20
# How soon to look again for partitions whose leaders do not answer.
UNAVAILABLE_MS = 500


# What became of settlements, in order.
Outcomes = Later[list[AlpacaError | None]]
MAX_RECEIPTS = 1000
Receipt = Annotated[str, Meta(max_length=1024)]


class Wanted(OfGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What messages to return, and how long to wait for the first."""

    max: Annotated[int, Meta(ge=1, le=1000, description="messages at most")] = 10
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_BYTES)] = 1 << 20
    wait_ms: WaitMs = 30_000
    start: Annotated[Start, Meta(description="where the group starts without an offset")] = Start.EARLIEST
    values: Values = Values.TEXT
    visibility_ms: (
        Annotated[int, Meta(ge=0, le=DAY_MS, description="of a queue: duration of the lease")] | UnsetType
    ) = UNSET
    consumer: Annotated[str, Meta(max_length=255, description="of a queue: name of the consumer")] = ""


class Poll(Wanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With `topic`: lease its messages. With `member`: read the partitions of that member."""

    topic: TopicText | UnsetType = UNSET
    member: MemberText | UnsetType = UNSET
    member_epoch: (
        Annotated[int, Meta(ge=0, le=INT32_MAX, description="of a member: refuse it if it missed a change")]
        | UnsetType
    ) = UNSET
    cursor: (
        Annotated[
            str,
            Meta(
                pattern=CURSOR_PATTERN,
                max_length=12_000,
                description="of a member: the cursor of the last response, to continue there",
                examples=["orders:0@17:1@5"],
            ),
        ]
        | UnsetType
    ) = UNSET
    commit: Annotated[bool, Meta(description="of a member: commit the cursor before reading")] = False


class NextPoll(Wanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue."""

    topic: TopicText


class SettledMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one receipt."""

    receipt: str
    error: Problem | UnsetType = UNSET


class QueuePoll(msgspec.Struct, frozen=True, kw_only=True):
    """Leased messages, none if none was available in time; and receipts that were not acknowledged."""

    group: str
    topic: str
    messages: list[LeasedMessage]
    refused: list[SettledMessage] | UnsetType = UNSET


class Processed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deliveries of this queue that were processed since the last poll, by their receipts."""

    receipts: Annotated[list[Receipt], Meta(max_length=MAX_RECEIPTS)] = []


class MemberPoll(MembershipAnswer, frozen=True, kw_only=True):
    """Messages of a member's partitions, and the cursor to continue with."""

    messages: list[TopicMessage]
    cursor: str
    skipped: list[SkippedBatch] | UnsetType = UNSET


def poll(call: Call[Poll, Nothing]) -> Later[QueuePoll] | Awaitable[MemberPoll]:
    query = call.parameters
    if query.topic is not UNSET:
        if query.member is not UNSET or query.member_epoch is not UNSET or query.cursor is not UNSET:
            for name in ("member", "member_epoch", "cursor"):
                if getattr(query, name) is not UNSET:
                    message = f"{name}: must not be combined with topic: a queue has no members"
                    raise ConflictingInput(message, name)
        return _poll_queue(call, query.topic)
    if query.member is UNSET:
        raise ConflictingInput("topic: give one of topic (a queue) and member", "topic")
    return _MemberPolling(call, query.member).run()


def _poll_queue(call: Call[Any, Any], topic: str) -> Later[QueuePoll]:
    query = call.parameters
    queue = QueueId(query.group, topic)
    request = ReceiveRequest(
        queue=queue,
        consumer=query.consumer or call.request.peer,
        max_messages=query.max,
        visibility_ms=None if query.visibility_ms is UNSET else query.visibility_ms,
        wait_ms=query.wait_ms,
        start=query.start,
    )
    queues = call.backend.broker.queues
    received = queues.receive_later(request, max_bytes=query.max_bytes, api=ClientApi.HTTP)
    return received.map(partial(_received, call, queue))


def ack_and_poll(call: Call[NextPoll, Processed]) -> Later[QueuePoll]:
    topic = call.parameters.topic
    receipts = call.body.receipts
    if not receipts:
        return _poll_queue(call, topic)
    settlements = [Receipted(receipt=each, action=Action.ACK) for each in receipts]
    outcomes = _outcomes(call, settlements, only=QueueId(call.parameters.group, topic))
    if outcomes.done():  # it is the work that is left
        return Later.of(_poll_after(call, topic, receipts, outcomes))
    # Both in one turn, so that they are one record of the queue's state.
    return _poll_queue(call, topic).then(partial(_acknowledged, receipts, outcomes))


async def _poll_after(
    call: Call[NextPoll, Processed], topic: str, receipts: Sequence[str], outcomes: Outcomes
) -> QueuePoll:
    found = await outcomes
    return _with_refused(receipts, found, await _poll_queue(call, topic))


def _acknowledged(
    receipts: Sequence[str],
    outcomes: Outcomes,
    polled: QueuePoll | Exception | Coroutine[Any, Any, QueuePoll],
) -> QueuePoll | Exception | Coroutine[Any, Any, QueuePoll]:
    if (found := outcomes.value()) is None or isinstance(polled, Coroutine):
        return _acknowledged_later(receipts, outcomes, polled)
    return polled if isinstance(polled, Exception) else _with_refused(receipts, found, polled)


async def _acknowledged_later(
    receipts: Sequence[str],
    outcomes: Outcomes,
    polled: QueuePoll | Exception | Coroutine[Any, Any, QueuePoll],
) -> QueuePoll:
    """Acknowledge before the rest of the poll, which may take longer than the leases last, or fail."""
    try:
        found = await outcomes
    except BaseException:
        if isinstance(polled, Coroutine):
            polled.close()
        raise
    if isinstance(polled, Exception):
        raise polled
    return _with_refused(receipts, found, await polled if isinstance(polled, Coroutine) else polled)


def _with_refused(
    receipts: Sequence[str], outcomes: Sequence[AlpacaError | None], polled: QueuePoll
) -> QueuePoll:
    refused = [
        SettledMessage(receipt=receipt, error=problem_of(error))
        for receipt, error in zip(receipts, outcomes, strict=True)
        if error is not None
    ]
    return msgspec.structs.replace(polled, refused=refused) if refused else polled


def _received(
    call: Call[Any, Any], queue: QueueId, deliveries: Sequence[Delivery]
) -> QueuePoll | Coroutine[Any, Any, QueuePoll]:
    if call.sees_all:
        return _queue_poll(queue, call.parameters.values, deliveries)
    return _checked(call, queue, deliveries)


async def _checked(call: Call[Any, Any], queue: QueueId, deliveries: Sequence[Delivery]) -> QueuePoll:
    await check_received(call.backend.broker, call.caller, queue, deliveries, ClientApi.HTTP)
    return _queue_poll(queue, call.parameters.values, deliveries)


def _queue_poll(queue: QueueId, values: Values, deliveries: Sequence[Delivery]) -> QueuePoll:
    messages = [leased_message(each, values) for each in deliveries]
    return QueuePoll(group=queue.group, topic=queue.topic, messages=messages)


class _MemberPolling:
    """One poll of a member, with heartbeats while it waits."""

    def __init__(self, call: Call[Poll, Nothing], member_id: str) -> None:
        query = call.parameters
        self._call = call
        self._backend = call.backend
        self._broker = call.backend.broker
        self._wanted = query
        self._member_id = member_id
        self._positions = {} if query.cursor is UNSET else read_cursor(query.cursor)
        self._epoch = None if query.member_epoch is UNSET else query.member_epoch
        self._skipped: list[SkippedBatch] = []

    async def run(self) -> MemberPoll:
        query = self._wanted
        known = await member(self._broker, query.group, self._member_id, self._epoch)
        # Before the heartbeat, which may revoke partitions.
        if query.commit and self._positions:
            await self._commit(known)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + query.wait_ms / 1000
        while True:
            membership = await send_heartbeat(self._broker, query.group, known)
            views = await self._views(membership.assigned)
            messages = await self._read(membership, views)
            left_ms = int((deadline - loop.time()) * 1000)
            if messages or self._skipped or left_ms <= 0:
                return self._answer(membership, messages)
            positions = {
                view.place: self._positions[identity]
                for identity, view in views.items()
                if identity in self._positions
            }
            wait_ms = min(left_ms, membership.heartbeat_interval_ms)
            if len(views) < len(membership.assigned):
                wait_ms = min(wait_ms, UNAVAILABLE_MS)
            await self._broker.reads.wait(positions, wait_ms, committed=True)
            known = await member(self._broker, query.group, self._member_id)

    async def _commit(self, known: ConsumerMemberDescription) -> None:
        offsets = [
            OffsetToCommit(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in self._positions.items()
        ]
        await commit_offsets(
            self._broker,
            self._wanted.group,
            offsets,
            member_id=self._member_id,
            member_epoch=known.member_epoch,
        )

    async def _views(self, assigned: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionView]:
        """Return the partitions of a member that exist and can be read now."""
        topics = self._broker.topics
        for topic in {each.topic for each in assigned}:
            self._call.check_topic(Operation.READ, topic)
        return {
            identity: PartitionView(identity, topics.place(*identity), bounds)
            for identity, bounds in (await known_bounds(self._broker, assigned)).items()
        }

    async def _read(
        self, membership: Membership, views: Mapping[TopicPartition, PartitionView]
    ) -> list[TopicMessage]:
        query = self._wanted
        await self._find_positions(membership, views)
        readings = {
            identity: PartitionReading(
                self._broker.reads,
                view,
                self._in_range(view.bounds, self._positions[identity]),
                INT64_MAX,
                committed=True,
                reader=Origin(ClientApi.HTTP, self._member_id, query.group),
            )
            for identity, view in views.items()
            if identity in self._positions
        }
        found = await read_fairly(list(readings.values()), query.max, query.max_bytes)
        for identity, reading in readings.items():
            self._positions[identity] = reading.next_offset
            self._skipped += reading.skipped
        return [
            topic_message(reading.identity.topic, reading.index, record, query.values)
            for reading, record in found
        ]

    async def _find_positions(
        self, membership: Membership, views: Mapping[TopicPartition, PartitionView]
    ) -> None:
        """Add the committed offsets of partitions that the cursor does not contain."""
        missing = tuple(each for each in views if each not in self._positions)
        if not missing:
            return
        request = FetchOffsetsRequest(
            group=self._wanted.group,
            partitions=missing,
            member_id=membership.member_id,
            member_epoch=membership.member_epoch,
            require_stable=True,
        )
        reply: FetchOffsetsReply = await self._broker.groups.ask(request)
        for identity, committed in zip(missing, reply.offsets, strict=True):
            if committed.error is None:  # else a transaction that commits the offset is open; retried later
                offset = committed.offset
                self._positions[identity] = offset if offset >= 0 else self._start(views[identity].bounds)

    def _in_range(self, bounds: Bounds, offset: int) -> int:
        """Return the offset, or the start position if the log no longer contains it.

        A new leader may not know yet that everything up to the offset is committed.
        """
        if bounds.start_offset <= offset <= bounds.end_offset:
            return offset
        return self._start(bounds)

    def _start(self, bounds: Bounds) -> int:
        if self._wanted.start is Start.LATEST:
            return bounds.last_stable_offset
        return bounds.start_offset

    def _answer(self, membership: Membership, messages: list[TopicMessage]) -> MemberPoll:
        answer = membership_answer(self._backend, self._wanted.group, membership)
        held = {each: self._positions[each] for each in membership.assigned if each in self._positions}
        return MemberPoll(
            **msgspec.structs.asdict(answer),
            messages=messages,
            cursor=write_cursor(held),
            skipped=self._skipped or UNSET,
        )


_QUEUE_ERRORS: tuple[type[AlpacaError], ...] = (
    UnknownTopic,
    PolicyViolation,
    InvalidGroupId,
    TooManyGroups,
    TooManyInFlight,
    TooManyWaiting,
)
_ERRORS: tuple[type[AlpacaError], ...] = (
    *_QUEUE_ERRORS,
    UnknownMember,
    StaleMemberEpoch,
    FencedMemberEpoch,
    FencedInstanceId,
    OffsetOutOfRange,
)


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


class SettledMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The result of each receipt, in order, and the number of failures. A single failure is an error."""

    results: list[SettledMessage]
    errors: int


Settled = Later[SettledMessages]


def ack(call: Call[Nothing, Receipts]) -> Settled:
    return _settled(call, [Receipted(receipt=each, action=Action.ACK) for each in call.body.all()])


def nack(call: Call[Nothing, Failed]) -> Settled:
    body = call.body
    delay_ms = None if body.delay_ms is UNSET else body.delay_ms
    return _settled(
        call,
        [
            Receipted(receipt=each, action=Action.NACK, delay_ms=delay_ms, reason=body.reason)
            for each in body.all()
        ],
    )


def reject(call: Call[Nothing, Rejected]) -> Settled:
    body = call.body
    return _settled(
        call,
        [Receipted(receipt=each, action=Action.REJECT, reason=body.reason) for each in body.all()],
    )


def extend(call: Call[Nothing, Extended]) -> Settled:
    body = call.body
    return _settled(
        call,
        [Receipted(receipt=each, action=Action.EXTEND, delay_ms=body.timeout_ms) for each in body.all()],
    )


def _settled(call: Call[Nothing, Any], settlements: Sequence[Receipted]) -> Settled:
    return _outcomes(call, settlements).map(partial(_settled_messages, settlements))


def _outcomes(
    call: Call[Any, Any], settlements: Sequence[Receipted], *, only: QueueId | None = None
) -> Outcomes:
    broker = call.backend.broker
    if call.sees_all:
        return broker.queues.settle_later(settlements, only=only, api=ClientApi.HTTP)
    return Later.of(settle(broker, call.caller, settlements, ClientApi.HTTP, only=only))


def _settled_messages(
    settlements: Sequence[Receipted], outcomes: Sequence[AlpacaError | None]
) -> SettledMessages:
    errors = [error for error in outcomes if error is not None]
    if not errors:
        return SettledMessages(
            results=[SettledMessage(receipt=each.receipt) for each in settlements], errors=0
        )
    if len(settlements) == 1:
        raise errors[0]
    return SettledMessages(
        results=[
            SettledMessage(receipt=each.receipt, error=UNSET if error is None else problem_of(error))
            for each, error in zip(settlements, outcomes, strict=True)
        ],
        errors=len(errors),
    )


_SETTLE_ERRORS = (InvalidReceipt, StaleReceipt, NotAcquired, UnknownTopic)

ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/groups/{group}/poll",
        summary="Lease messages of a topic as a queue, or read as a member",
        handler=poll,
        parameters=Poll,
        body=Nothing,
        answers=(QueuePoll, MemberPoll),
        errors=_ERRORS,
        has_effects=True,
        quota=QuotaKey.FETCH,
    ),
    Route(
        method="POST",
        path="/groups/{group}/poll",
        summary="Acknowledge messages, and lease the next ones of a topic as a queue",
        handler=ack_and_poll,
        parameters=NextPoll,
        body=Processed,
        answers=(QueuePoll,),
        errors=_QUEUE_ERRORS,
        quota=QuotaKey.FETCH,
    ),
    Route(
        method="POST",
        path="/messages/ack",
        summary="Acknowledge messages as processed",
        handler=ack,
        parameters=Nothing,
        body=Receipts,
        answers=(SettledMessages,),
        errors=_SETTLE_ERRORS,
    ),
    Route(
        method="POST",
        path="/messages/nack",
        summary="Return failed messages for a later retry",
        handler=nack,
        parameters=Nothing,
        body=Failed,
        answers=(SettledMessages,),
        errors=_SETTLE_ERRORS,
    ),
    Route(
        method="POST",
        path="/messages/reject",
        summary="Reject messages: move them to the dead-letter topic",
        handler=reject,
        parameters=Nothing,
        body=Rejected,
        answers=(SettledMessages,),
        errors=_SETTLE_ERRORS,
    ),
    Route(
        method="POST",
        path="/messages/visibility",
        summary="Extend leases, or release messages",
        handler=extend,
        parameters=Nothing,
        body=Extended,
        answers=(SettledMessages,),
        errors=_SETTLE_ERRORS,
    ),
)
