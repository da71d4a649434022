"""Appends to partitions that other brokers lead.

Batches of this broker for one partition are sent one call after another, up to five in one call. Each is
stamped with a producer id of this broker and a sequence, so a call whose outcome is unknown can be repeated,
at the next leader too: a batch that is there already is recognised and answered with its offsets.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from alpacamq.broker.partition.appends import Append
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.link import Peers
from alpacamq.broker.peers.values import RemoteError, decode_error, encode_error
from alpacamq.broker.producer_ids import ProducerIds
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.batch import read_header, stamp_producer
from alpacamq.model.errors import (
    AlpacaError,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OutOfOrderSequence,
    PartitionNotReady,
    PeerFailed,
    PeerUnavailable,
    RequestTimedOut,
    UnknownBroker,
    UnknownTopic,
    UnknownTopicId,
)
from alpacamq.model.ids import BrokerId, ProducerId, TopicId
from alpacamq.model.state_machine import Request
from alpacamq.telemetry.tracing import ClientApi

TIMEOUT_MS = 30_000
# A call is repeated at the next leader once there is one; this is how often to look for it.
FIRST_RETRY_SECONDS = 0.02
MAX_RETRY_SECONDS = 0.5
# Batches of one call at most. A leader recognises only so many of the last ones of a producer.
MAX_CALL_BATCHES = 5
MAX_CALL_BYTES = 4 << 20
# Of all partitions together, while their leaders do not answer. More is refused.
MAX_WAITING_BYTES = 128 << 20
# Partitions whose producer ids are kept while nothing is sent to them.
MAX_IDLE = 10_000
_SEQUENCES = 1 << 31

BY_BROKER = Origin()


class Placed(msgspec.Struct, frozen=True):
    """The offsets of an appended batch, and the traces of its messages by offset."""

    base_offset: int
    next_offset: int
    timestamp_ms: int
    traces: dict[int, str] = {}


class AppendedBatches(msgspec.Struct, frozen=True):
    """The outcome of each batch, in order: its place, or an error."""

    results: tuple[tuple[Placed | None, RemoteError | None], ...]

    @classmethod
    def of(cls, outcomes: Iterable[Placed | AlpacaError]) -> Self:
        """Encode outcomes."""
        return cls(
            tuple(
                (None, encode_error(each)) if isinstance(each, AlpacaError) else (each, None)
                for each in outcomes
            )
        )

    @property
    def outcomes(self) -> list[Placed | AlpacaError]:
        """The outcomes, decoded."""
        return [self._outcome(placed, error) for placed, error in self.results]

    def _outcome(self, placed: Placed | None, error: RemoteError | None) -> Placed | AlpacaError:
        if placed is not None:
            return placed
        return PeerFailed("a result is missing") if error is None else decode_error(error)


class AppendBatches(Request[AppendedBatches], frozen=True, kw_only=True, tag="append-batches"):
    """Batches for one partition, in order. Answered once they are on all replicas in sync."""

    topic: TopicId
    partition: int
    batches: tuple[bytes, ...]
    origins: tuple[tuple[ClientApi, str], ...]


VALUES: tuple[type[msgspec.Struct], ...] = (AppendBatches,)


# Errors after which a batch is sent again: it was not appended, or is recognised.
REPEATABLE = (
    LeaderNotAvailable,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    PartitionNotReady,
    PeerUnavailable,
    RequestTimedOut,
    UnknownBroker,
    # The leader's image is behind that of this broker, which has the topic.
    UnknownTopic,
    UnknownTopicId,
)


class _Sent:
    """A batch on its way, and the future of its outcome."""

    __slots__ = (
        "data",
        "deadline",
        "has_own_producer",
        "is_in_doubt",
        "is_stamped",
        "may_send",
        "origin",
        "outcome",
        "records",
    )

    def __init__(
        self, data: bytearray, origin: Origin, deadline: float, may_send: Callable[[], bool] | None
    ) -> None:
        self.data = data
        self.origin = origin
        self.deadline = deadline
        self.may_send = may_send
        # Whether an attempt may have appended it.
        self.is_in_doubt = False
        header = read_header(data)
        self.records = header.record_count
        # Its sequences are the caller's: with others, a repeated batch would not be recognised.
        self.has_own_producer = self.is_stamped = header.producer_id >= 0
        self.outcome: asyncio.Future[Placed | AlpacaError] = asyncio.get_running_loop().create_future()

    def end(self, outcome: Placed | AlpacaError) -> None:
        if self.outcome.done():
            return
        if self.is_in_doubt and not isinstance(outcome, Placed):
            outcome = RequestTimedOut(f"the batch may have been appended: {outcome}")
        elif isinstance(outcome, UnknownBroker):
            outcome = LeaderNotAvailable(str(outcome))
        self.outcome.set_result(outcome)


class _PartitionSender:
    """The batches of this broker for one partition: one call at a time."""

    def __init__(self, appends: "RemoteAppends", place: PartitionId) -> None:
        self._appends = appends
        self._place = place
        self._waiting: deque[_Sent] = deque()
        self._producer_id: ProducerId | None = None
        self._sequence = 0
        self._sending: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self._sending is None

    def submit(self, sent: _Sent) -> None:
        self._waiting.append(sent)
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())

    async def _send_all(self) -> None:
        taken: list[_Sent] = []
        try:
            while self._waiting:
                taken = self._take()
                await self._place_all(taken)
        finally:
            self._sending = None
            for left in (*taken, *self._waiting):  # only if this task was cancelled
                left.end(RequestTimedOut("the broker is stopping; the batch may have been appended"))
            self._waiting.clear()

    def _take(self) -> list[_Sent]:
        taken: list[_Sent] = []
        size = 0
        while (
            self._waiting
            and len(taken) < MAX_CALL_BATCHES
            and (not taken or size + len(self._waiting[0].data) <= MAX_CALL_BYTES)
        ):
            size += len(self._waiting[0].data)
            taken.append(self._waiting.popleft())
        return taken

    async def _place_all(self, sent: list[_Sent]) -> None:
        """Send batches until each has an outcome."""
        loop = asyncio.get_running_loop()
        pause = FIRST_RETRY_SECONDS
        while sent := [each for each in sent if self._may_send(each)]:
            is_answered = False
            try:
                await self._stamp(sent)
                results = await self._appends.call(self._place, sent, sent[0].deadline)
                is_answered = True
            except AlpacaError as error:
                results = [error.with_traceback(None)] * len(sent)
            for each, result in zip(sent, results, strict=True):
                # A leader that is replaced answers for batches that it has appended, too.
                each.is_in_doubt |= isinstance(result, RequestTimedOut | NotEnoughReplicasAfterAppend)
                each.is_in_doubt |= is_answered and isinstance(result, NotLeader)
            sent = self._settle(sent, results, loop.time() + pause)
            if sent:
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_SECONDS)

    def _may_send(self, sent: _Sent) -> bool:
        if sent.may_send is None or sent.may_send():
            return True
        self._producer_id = None
        sent.end(NotLeader("this broker may not append it any more"))
        return False

    async def _stamp(self, sent: Sequence[_Sent]) -> None:
        """Give each batch without a producer id one of this broker and the next sequence."""
        for each in sent:
            if each.is_stamped:
                continue
            if self._producer_id is None:
                self._producer_id, self._sequence = await self._appends.producer_ids.new(), 0
            stamp_producer(each.data, self._producer_id, 0, self._sequence)
            self._sequence = (self._sequence + each.records) % _SEQUENCES
            each.is_stamped = True

    def _settle(
        self, sent: Sequence[_Sent], results: Sequence[Placed | AlpacaError], retry_at: float
    ) -> list[_Sent]:
        """End the batches whose outcome is certain or whose time is up; return the others."""
        left = []
        exists = self._appends.exists(self._place)
        for each, result in zip(sent, results, strict=True):
            if isinstance(result, Placed):
                each.end(result)
            elif isinstance(result, OutOfOrderSequence) and not each.has_own_producer:
                # One before it was refused, or the leader has forgotten the producer: it was not appended.
                self._producer_id, each.is_stamped = None, False
                left.append(each)
            elif is_repeatable(each, result) and retry_at < each.deadline and exists:
                left.append(each)
            else:
                # Whether its sequence was used may be unknown.
                self._producer_id = None
                each.end(result)
        return left


def is_repeatable(sent: _Sent, error: AlpacaError) -> bool:
    """Return whether to send a batch again. One that may be in the log is refused below min ISR, too."""
    return isinstance(error, REPEATABLE) or (sent.is_in_doubt and isinstance(error, NotEnoughReplicas))


class RemoteAppends:
    """Appends to any partition of the cluster."""

    def __init__(self, topics: Topics, producer_ids: ProducerIds, peers: Peers | None) -> None:
        self._topics = topics
        self._peers = peers
        self.producer_ids = producer_ids
        self._senders: dict[PartitionId, _PartitionSender] = {}
        self._waiting_bytes = 0

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {AppendBatches: self._on_append}

    async def append(
        self, topic: TopicId, index: int, batch: bytearray, *, timeout_ms: int = TIMEOUT_MS
    ) -> Placed:
        """Append one batch to a partition of any broker, and wait until all replicas in sync have it.

        A batch with a producer id is sent as it is. Raises RequestTimedOut if the outcome is unknown.
        """
        outcome = await self.submit(PartitionId(topic, index), batch, timeout_ms=timeout_ms)
        if isinstance(outcome, AlpacaError):
            raise outcome.with_traceback(None)
        return outcome

    def submit(
        self,
        place: PartitionId,
        batch: bytearray,
        origin: Origin = BY_BROKER,
        *,
        timeout_ms: int = TIMEOUT_MS,
        may_send: Callable[[], bool] | None = None,
    ) -> "asyncio.Future[Placed | AlpacaError]":
        """Append one batch as `append` does; the outcome comes with the future.

        Batches for one partition are appended in the order of these calls, except those that carry a producer
        id of their own. `may_send` is asked before every attempt.
        """
        sent = _Sent(batch, origin, asyncio.get_running_loop().time() + timeout_ms / 1000, may_send)
        size = len(batch)
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            sent.end(LeaderNotAvailable(f"{MAX_WAITING_BYTES} bytes wait for the leaders of partitions"))
            return sent.outcome
        self._waiting_bytes += size
        sent.outcome.add_done_callback(lambda _: self._ended(size))
        if sent.is_stamped:
            _PartitionSender(self, place).submit(sent)
        else:
            self._sender(place).submit(sent)
        return sent.outcome

    def _ended(self, size: int) -> None:
        self._waiting_bytes -= size

    def _sender(self, place: PartitionId) -> _PartitionSender:
        if (sender := self._senders.get(place)) is None:
            if len(self._senders) >= MAX_IDLE:
                self._senders = {key: each for key, each in self._senders.items() if not each.is_idle}
            sender = self._senders[place] = _PartitionSender(self, place)
        return sender

    @property
    def is_alone(self) -> bool:
        """Whether there are no other brokers."""
        return self._peers is None

    def exists(self, place: PartitionId) -> bool:
        """Return whether the cluster has a partition: its topic may have been deleted."""
        return self._topics.exists(place.topic_id.bytes, place.partition)

    async def call(
        self, place: PartitionId, sent: Sequence[_Sent], deadline: float
    ) -> list[Placed | AlpacaError]:
        """Append batches at the leader of a partition, and return the outcome of each."""
        topics = self._topics
        key = place.topic_id.bytes
        if (partition := topics.find(key, place.partition)) is not None:
            entries = [(each.data, each.origin) for each in sent]
            return await begin_appends(partition, entries, TIMEOUT_MS)
        error = topics.absence(key, place.partition)
        if not isinstance(error, NotLeader) or error.leader is None or self._peers is None:
            raise error
        left_ms = max(int((deadline - asyncio.get_running_loop().time()) * 1000), 1)
        reply = await self._peers.call(
            BrokerId(error.leader),
            AppendBatches(
                topic=place.topic_id,
                partition=place.partition,
                batches=tuple(bytes(each.data) for each in sent),
                origins=tuple((each.origin.api, each.origin.client) for each in sent),
            ),
            left_ms,
        )
        return reply.outcomes

    async def _on_append(self, value: AppendBatches, peer: Peer) -> AppendedBatches:
        partition = self._topics.find(value.topic.bytes, value.partition)
        if partition is None:
            raise self._topics.absence(value.topic.bytes, value.partition)
        entries = [
            (bytearray(batch), Origin(api, client))
            for batch, (api, client) in zip(value.batches, value.origins, strict=True)
        ]
        assert peer.deadline is not None, "calls have one"
        left_ms = max(int((peer.deadline - asyncio.get_running_loop().time()) * 1000), 1)
        return AppendedBatches.of(await begin_appends(partition, entries, left_ms))


def begin_appends(
    partition: Partition, batches: Sequence[tuple[bytearray, Origin]], timeout_ms: int
) -> "asyncio.Future[list[Placed | AlpacaError]]":
    """Append batches in order, now; their outcomes come once all replicas in sync have them."""
    done: asyncio.Future[list[Placed | AlpacaError]] = asyncio.get_running_loop().create_future()
    missing = len(batches)

    def one_done() -> None:
        nonlocal missing
        missing -= 1
        if not missing and not done.done():
            done.set_result([placed(partition, each) for each in appends])

    traces = partition.traces
    appends = []
    for data, origin in batches:
        header = read_header(data)
        trace = None
        # What the broker writes itself, as dead letters, has events of its own.
        if traces is not None and not header.is_control and origin.api is not ClientApi.BROKER:
            trace = traces.produce_trace(data, header, origin.client, origin.api)
        appends.append(Append(data, header, one_done, trace, timeout_ms=timeout_ms))
    for each in appends:
        partition.stage(each)
    partition.commit()
    return done


def placed(partition: Partition, append: Append) -> Placed | AlpacaError:
    """Return the outcome of an append that is done."""
    outcome = append.outcome
    assert outcome is not None
    if isinstance(outcome, AlpacaError):
        return outcome
    traces = partition.traces
    return Placed(
        outcome.base_offset,
        outcome.next_offset,
        append.header.max_timestamp,
        traces.ids(outcome.base_offset, outcome.next_offset) if traces and traces.has_offsets else {},
    )
