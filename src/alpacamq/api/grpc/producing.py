"""The service `alpacamq.v1.Producer`.

A stream reads the next request as soon as the records of the last one are staged, in order, and sends
responses as they become durable. What is not acknowledged is bounded in bytes: then the stream stops reading,
and flow control of the connection holds back the client.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from google.protobuf.message import DecodeError
from grpclib.const import Cardinality, Handler

from alpacamq.broker.partition.appends import Acks
from alpacamq.broker.publishing import Message, Publication, Published, TransactionalProducer
from alpacamq.broker.remote.appends import Placed
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.batch import HEADER_BYTES, read_header
from alpacamq.model.errors import (
    AlpacaError,
    InvalidDelay,
    UnknownTopic,
)
from alpacamq.model.ids import TopicName
from alpacamq.model.lanes import Lane
from alpacamq.model.murmur2 import partition_for_key, partitions_for_keys
from alpacamq.model.records import Header, Record, frame_records, write_batch
from alpacamq.model.topics import INT64_MAX, TopicConfig
from alpacamq.security.acls import Operation, ResourceType
from alpacamq.security.quotas import QuotaKey
from alpacamq.telemetry.tracing import ClientApi, read_traceparent
from alpacamq.v1 import messages_pb2 as m
from alpacamq.v1 import producer_pb2 as p
from alpacamq.v1.producer_grpc import ProducerBase

from .call import Backend, Call
from .errors import InvalidField, Malformed, ShuttingDown, to_status
from .record_encoding import Produced, batch_body

# Of one stream. Then it reads no more until something is acknowledged.
MAX_UNACKNOWLEDGED_BYTES = 4 << 20
MAX_UNACKNOWLEDGED_REQUESTS = 1000
MAX_RECORDS = 100_000
MAX_EPOCH = 32_767
MAX_TIMEOUT_MS = 300_000
TIMEOUT_MS = 30_000
NO_OFFSET = -1

_ACKS: Mapping[int, Acks | None] = {
    p.ACKS_UNSPECIFIED: Acks.ALL,
    p.ACKS_NONE: None,
    p.ACKS_LEADER: Acks.LEADER,
    p.ACKS_ALL: Acks.ALL,
}


class ProducerService(ProducerBase):
    """Writes records."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @cached_property
    def _writer(self) -> "RecordWriter":
        return RecordWriter(self._backend)

    def __mapping__(self) -> dict[str, Handler]:
        found: dict[str, Handler] = super().__mapping__()
        path = "/alpacamq.v1.Producer/Produce"
        found[path] = Handler(self.Produce, Cardinality.STREAM_STREAM, Produced, p.ProduceResponse)
        return found

    async def Produce(self, call: Call[Produced, p.ProduceResponse]) -> None:  # noqa: N802
        # Rights are checked with each request.
        await call.while_allowed(ProduceStream(call, self._writer).run(), lambda: None)

    async def Send(self, call: Call[p.SendRequest, p.SendResponse]) -> None:  # noqa: N802
        request = await call.only_message()
        call.check_quota(QuotaKey.PRODUCE)
        envelope = p.ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms, records=request.records)
        if request.HasField("producer"):
            envelope.producer.CopyFrom(request.producer)
        write = await self._writer.begin(call, Produced(b"", [], envelope), request.topic)
        await write.finished()
        call.charge(QuotaKey.PRODUCE, request.ByteSize(), len(request.records))
        write.raise_common_error()
        await call.send_message(p.SendResponse(result=write.to_result(call.tenant)))


class Write:
    """The records, or batches, of one request, on their way into partitions."""

    def __init__(self, count: int, *, waits: bool) -> None:
        self._partitions = [0] * count
        self._offsets = [NO_OFFSET] * count
        self._delayed: list[p.DelayedRecord] = []
        self._errors: dict[int, AlpacaError] = {}
        # Whether the client waits for the outcome.
        self._waits = waits
        self._missing = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def place(self, index: int, partition: int) -> None:
        """Note the partition of a record."""
        self._partitions[index] = partition

    def refuse(self, index: int, error: AlpacaError) -> None:
        self._errors[index] = error

    def add_batch(self, indexes: Sequence[int], appended: "asyncio.Future[Placed | AlpacaError]") -> None:
        """Add a batch on its way, and the indexes of its records."""
        self._missing += 1

        def ended(appended: "asyncio.Future[Placed | AlpacaError]") -> None:
            outcome = appended.result()
            if isinstance(outcome, AlpacaError):
                for index in indexes:
                    self._errors[index] = outcome
            else:
                offset = outcome.base_offset
                for delta, index in enumerate(indexes):
                    self._offsets[index] = offset + delta
            self._end_one()

        appended.add_done_callback(ended)

    def add_publication(self, publication: Publication) -> None:
        """Add the records of a publication, in order."""
        self._missing += 1

        def ended(results: list[Published | AlpacaError]) -> None:
            for index, result in enumerate(results):
                self._set(index, result)
            self._end_one()

        publication.when_done(ended)

    def _set(self, index: int, result: Published | AlpacaError) -> None:
        if isinstance(result, AlpacaError):
            self._errors[index] = result
            return
        self._partitions[index] = result.partition
        if result.offset is not None:
            self._offsets[index] = result.offset
        elif result.delayed_id is not None:
            self._delayed.append(
                p.DelayedRecord(index=index, id=result.delayed_id, deliver_at_ms=result.deliver_at_ms)
            )

    def _end_one(self) -> None:
        self._missing -= 1
        if not self._missing and not self._done.done():
            self._done.set_result(None)

    def when_done(self, act: Callable[[], None]) -> None:
        """Call something once everything is durable or refused; now if the client does not wait."""
        if self._missing and self._waits:
            self._done.add_done_callback(lambda _: act())
        else:
            act()

    async def finished(self) -> None:
        """Return once everything is durable or refused, or if the client does not wait."""
        if self._missing and self._waits:
            await self._done

    def raise_common_error(self) -> None:
        """Raise the error of all records, if it is the same."""
        errors = list(self._errors.values())
        if len(errors) == len(self._offsets) and len({type(error) for error in errors}) == 1:
            raise errors[0]

    def to_result(self, tenant: str | None) -> p.ProduceResult:
        result = p.ProduceResult(
            partitions=self._partitions,
            offsets=self._offsets if self._waits else [NO_OFFSET] * len(self._offsets),
            delayed=self._delayed,
        )
        for index, error in sorted(self._errors.items()):
            result.errors.add(index=index, status=to_status(error, tenant))
        return result


class RecordWriter:
    """Begins to write the records of requests."""

    def __init__(self, backend: Backend) -> None:
        self._broker = backend.broker

    async def begin(self, call: Call[Any, Any], request: Produced, name: str) -> Write:
        """Stage the records of a request. Raises an error if nothing of it is written."""
        envelope = request.envelope
        topic = await self._checked_topic(call, name)
        if envelope.acks not in _ACKS:
            raise InvalidField("acks", f"unknown value {envelope.acks}")
        if not 0 <= envelope.timeout_ms <= MAX_TIMEOUT_MS:
            raise InvalidField("timeout_ms", f"must be 0 to {MAX_TIMEOUT_MS}, not {envelope.timeout_ms}")
        if envelope.batches:
            if request.count:
                raise InvalidField("batches", "must not be combined with records")
            return await self._begin_batches(call, envelope, topic)
        if not 1 <= request.count <= MAX_RECORDS:
            raise InvalidField("records", f"must be 1 to {MAX_RECORDS}, not {request.count}")
        if envelope.HasField("producer"):
            if not envelope.producer.transactional_id:
                return await self._begin_idempotent(call, request, topic)
        elif (write := await self._begin_plain(call, request, topic)) is not None:
            return write
        return await self._publish(call, request, topic)

    async def _checked_topic(self, call: Call[Any, Any], name: str) -> str:
        """Return the stored name of a topic that the client may write to."""
        if not name:
            raise InvalidField("topic", "is missing")
        access = self._broker.access
        topic = call.stored_topic(name)
        if call.tenant is not None:
            access.check_active(call.caller)
        call.check_topic(Operation.WRITE, topic)
        if topic not in self._broker.topics.image.topics:
            await call.learn_topic(topic)
        if topic not in self._broker.topics.image.topics:
            kind = ResourceType.TOPIC
            if not access.may_or_on_cluster(call.caller, Operation.CREATE, kind, topic):
                raise access.denial(call.caller, Operation.CREATE, kind, topic)
        return topic

    def _transactional_id(self, call: Call[Any, Any], envelope: p.ProduceRequest) -> str | None:
        """Return the stored transactional id of a request whose client may use it; None if it has none."""
        if not envelope.producer.transactional_id:
            return None
        transactional_id = call.stored_id(envelope.producer.transactional_id)
        self._broker.access.check_transactional_id(call.caller, Operation.WRITE, transactional_id)
        return transactional_id

    async def _begin_batches(self, call: Call[Any, Any], envelope: p.ProduceRequest, topic: str) -> Write:
        acks = _ACKS[envelope.acks]
        write = Write(len(envelope.batches), waits=acks is not None)
        transactional_id = self._transactional_id(call, envelope)
        origin = Origin(ClientApi.GRPC, call.peer)
        for index, batch in enumerate(envelope.batches):
            write.place(index, batch.partition)
            try:
                appended = await self._broker.batch_appends.begin(
                    topic,
                    batch.partition,
                    bytearray(batch.data),
                    acks=acks or Acks.LEADER,
                    timeout_ms=envelope.timeout_ms or TIMEOUT_MS,
                    origin=origin,
                    transactional_id=transactional_id,
                )
            except AlpacaError as error:
                write.refuse(index, error.with_traceback(None))
            else:
                write.add_batch((index,), appended)
        return write

    async def _begin_plain(self, call: Call[Any, Any], request: Produced, topic: str) -> Write | None:
        """Stage records that have nothing but key, value and partition; None if there are others.

        Also None if the topic has rules for single records.
        """
        known = self._broker.topics.image.topics.get(TopicName(topic))
        if known is None or read_traceparent(call.traceparent.encode()) is not None:
            return None
        config = self._broker.topics.config_of(known)
        # More than the records take in a batch.
        size = request.size_bytes + 16 * request.count
        if not _is_plain(config) or size > config.max_message_bytes or (records := request.plain()) is None:
            return None
        acks = _ACKS[request.envelope.acks]
        write = Write(len(records), waits=acks is not None)
        by_partition: dict[int, list[int]] = {}
        spread: int | None = None
        keys = [key for _, key, partition in records if partition is None and key is not None]
        of_keys = iter(partitions_for_keys(keys, known.partitions))
        for index, (_, key, partition) in enumerate(records):
            if partition is None:
                if key is not None:
                    partition = next(of_keys)
                else:
                    if spread is None:
                        spread = self._broker.publisher.next_in_turn(topic, known.partitions)
                    partition = spread
            elif partition >= known.partitions:
                write.refuse(index, UnknownTopic(f"topic {topic!r} has no partition {partition}"))
                continue
            if (indexes := by_partition.get(partition)) is None:
                indexes = by_partition[partition] = []
            indexes.append(index)
            write.place(index, partition)
        now_ms = self._broker.time.now_ms()
        for partition, indexes in by_partition.items():
            body = batch_body([records[index][0] for index in indexes])
            await self._begin_batch(
                call,
                request,
                write,
                topic,
                partition,
                indexes,
                frame_records(body, len(indexes), (now_ms, now_ms)),
            )
        return write

    async def _begin_batch(
        self,
        call: Call[Any, Any],
        request: Produced,
        write: Write,
        topic: str,
        partition: int,
        indexes: Sequence[int],
        data: bytearray,
    ) -> None:
        """Stage the batch of one partition."""
        envelope = request.envelope
        try:
            appended = await self._broker.batch_appends.begin(
                topic,
                partition,
                data,
                acks=_ACKS[envelope.acks] or Acks.LEADER,
                timeout_ms=envelope.timeout_ms or TIMEOUT_MS,
                origin=Origin(ClientApi.GRPC, call.peer),
            )
        except AlpacaError as error:
            for index in indexes:
                write.refuse(index, error.with_traceback(None))
        else:
            write.add_batch(indexes, appended)

    async def _begin_idempotent(self, call: Call[Any, Any], request: Produced, topic: str) -> Write:
        """Stage the records of an idempotent producer, which are one batch."""
        envelope = request.envelope
        producer = envelope.producer
        if (
            not 0 <= producer.producer_epoch <= 32767
            or producer.producer_id < 0
            or producer.base_sequence < 0
        ):
            raise InvalidField(
                "producer", "producer_id, producer_epoch and base_sequence must not be negative"
            )
        known = self._broker.topics.image.topics.get(TopicName(topic))
        if known is None:
            raise self._broker.topics.absence(topic.encode(), 0)
        messages = self._messages(request)
        if any(each.deliver_at_ms is not None for each in messages):
            raise InvalidDelay("a delayed record cannot have a sequence")
        places = {
            partition_for_key(each.key, known.partitions)
            if each.partition is None and each.key is not None
            else each.partition or 0
            for each in messages
        }
        is_spread = any(each.partition is None and each.key is None for each in messages)
        if len(places) != 1 or (known.partitions > 1 and is_spread):
            raise InvalidField("records", "all records with a base_sequence must be for one partition")
        (partition,) = places
        now_ms = self._broker.time.now_ms()
        data = write_batch(
            (
                Record(
                    delta,
                    now_ms if each.timestamp_ms is None else each.timestamp_ms,
                    each.key,
                    each.value,
                    each.all_headers,
                )
                for delta, each in enumerate(messages)
            ),
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=producer.base_sequence,
        )
        write = Write(len(messages), waits=_ACKS[envelope.acks] is not None)
        for index in range(len(messages)):
            write.place(index, partition)
        await self._begin_batch(call, request, write, topic, partition, range(len(messages)), data)
        return write

    async def _publish(self, call: Call[Any, Any], request: Produced, topic: str) -> Write:
        """Stage records of every kind."""
        envelope = request.envelope
        acks = _ACKS[envelope.acks]
        producer = None
        if (transactional_id := self._transactional_id(call, envelope)) is not None:
            producer = TransactionalProducer(
                transactional_id=transactional_id,
                producer_id=envelope.producer.producer_id,
                producer_epoch=envelope.producer.producer_epoch,
            )
        publication = await self._broker.publisher.begin(
            topic,
            self._messages(request),
            producer=producer,
            origin=Origin(ClientApi.GRPC, call.peer),
            traceparent=call.traceparent.encode() or None,
            acks=acks or Acks.LEADER,
            timeout_ms=envelope.timeout_ms or TIMEOUT_MS,
        )
        write = Write(request.count, waits=acks is not None)
        write.add_publication(publication)
        return write

    def _messages(self, request: Produced) -> list[Message]:
        now_ms = self._broker.time.now_ms()
        try:
            return [_message(each, now_ms, index) for index, each in enumerate(request.messages())]
        except DecodeError as error:
            raise Malformed(f"the message has a malformed record: {error}") from None


def _record_count(batch: p.EncodedBatch) -> int:
    """Return how many records a batch says it has."""
    return max(read_header(batch.data).record_count, 0) if len(batch.data) >= HEADER_BYTES else 0


def _is_plain(config: TopicConfig) -> bool:
    """Return whether a topic has no rules for single records."""
    return not (config.is_compacted or config.checks_schemas or config.queue_delay_ms)


def _message(record: m.NewRecord, now_ms: int, index: int) -> Message:
    lane = None
    if record.priority:
        try:
            lane = Lane(record.priority - 1)
        except ValueError:
            raise InvalidField(f"records[{index}].priority", f"unknown value {record.priority}") from None
    deliver_at_ms = None
    if (due := record.WhichOneof("due")) is not None:
        if (given := getattr(record, due)) < 0:
            raise InvalidField(f"records[{index}].{due}", "must not be negative")
        deliver_at_ms = given if due == "deliver_at_ms" else min(now_ms + given, INT64_MAX)
    return Message(
        value=record.value if record.HasField("value") else None,
        key=record.key if record.HasField("key") else None,
        headers=tuple(
            Header(each.key, each.value if each.HasField("value") else None) for each in record.headers
        ),
        partition=record.partition if record.HasField("partition") else None,
        timestamp_ms=record.timestamp_ms if record.HasField("timestamp_ms") else None,
        lane=lane,
        deliver_at_ms=deliver_at_ms,
    )


class ProduceStream:
    """One stream of `Produce`."""

    def __init__(self, call: Call[Produced, p.ProduceResponse], writer: RecordWriter) -> None:
        self._call = call
        self._writer = writer
        self._topic = ""
        # Responses to send, with the bytes of their requests.
        self._responses: deque[tuple[p.ProduceResponse, int]] = deque()
        self._has_responses = asyncio.Event()
        self._has_room = asyncio.Event()
        # Requests that are not durable yet, and the bytes of those without a response.
        self._pending = 0
        self._unacknowledged_bytes = 0
        self._is_over = False

    async def run(self) -> None:
        """Serve the stream until the client has ended its side and has all responses."""
        receiving = asyncio.ensure_future(self._call.timed(self._receive()))
        sending = asyncio.ensure_future(self._call.timed(self._send()))
        stopping = asyncio.ensure_future(self._call.backend.stopping.wait())
        tasks: set[asyncio.Future[Any]] = {receiving, sending, stopping}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                await receiving
            receiving.cancel()
            self._is_over = True
            self._has_responses.set()
            await sending
            if stopping.done():
                raise ShuttingDown("the broker is shutting down")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _receive(self) -> None:
        call = self._call
        while (request := await call.recv_message()) is not None:
            size = request.size_bytes
            self._pending += 1
            self._unacknowledged_bytes += size
            correlation_id = request.envelope.correlation_id
            self._topic = request.envelope.topic or self._topic
            messages = request.count or sum(map(_record_count, request.envelope.batches))
            try:
                write = await self._writer.begin(call, request, self._topic)
            except AlpacaError as error:
                status = to_status(error, call.tenant)
                self._respond(size, p.ProduceResponse(correlation_id=correlation_id, error=status))
            except asyncio.CancelledError:
                self._pending -= 1  # the broker stops; the client does not learn what became of it
                raise
            else:
                write.when_done(partial(self._acknowledge, size, correlation_id, write))
            await call.pay(QuotaKey.PRODUCE, size, messages)
            while (
                self._unacknowledged_bytes > MAX_UNACKNOWLEDGED_BYTES
                or self._pending + len(self._responses) > MAX_UNACKNOWLEDGED_REQUESTS
            ):
                self._has_room.clear()
                await self._has_room.wait()

    def _acknowledge(self, size: int, correlation_id: int, write: Write) -> None:
        result = write.to_result(self._call.tenant)
        self._respond(size, p.ProduceResponse(correlation_id=correlation_id, result=result))

    def _respond(self, size: int, response: p.ProduceResponse) -> None:
        self._pending -= 1
        self._responses.append((response, size))
        self._has_responses.set()

    async def _send(self) -> None:
        """Send responses until there will be no more."""
        while self._pending or self._responses or not self._is_over:
            while self._responses:
                response, size = self._responses.popleft()
                await self._call.send_message(response)
                self._unacknowledged_bytes -= size
                self._has_room.set()
            self._has_responses.clear()
            if self._pending or not self._is_over:
                await self._has_responses.wait()
