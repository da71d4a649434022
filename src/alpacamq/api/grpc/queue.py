"""The service `alpacamq.v1.Queue`: receiving and settling messages of queues.

A stream of `Work` names its deliveries by small numbers. They stand for leases of the queue engine, so that
no receipt is made or read. All settlements that have arrived go to the engine in one request.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from alpacamq.api.queue_rights import check_receive, check_received, check_reject, settle
from alpacamq.broker.queue.deliveries import LeasedRecord, size_of
from alpacamq.broker.queue.service import Receipted
from alpacamq.model.errors import AlpacaError, InvalidRequest, NotAcquired, PolicyViolation
from alpacamq.model.records import Record
from alpacamq.model.topics import DAY_MS
from alpacamq.queues.messages import Acquired, Action, QueueId, Settlement, Start
from alpacamq.security.quotas import QuotaKey
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.tracing import ClientApi
from alpacamq.v1 import messages_pb2 as m
from alpacamq.v1 import queue_pb2 as q
from alpacamq.v1.queue_grpc import QueueBase

from .call import Backend, Call
from .errors import InvalidField, ShuttingDown, is_retriable, to_status

log = get_logger(__name__)

MAX_CREDIT = 10_000
MAX_RECEIVED = 1000
MAX_SETTLEMENTS = 1000
MAX_CONSUMER_LENGTH = 255
MAX_REASON_LENGTH = 1024
MAX_WAIT_MS = 30_000
# Of one response.
MAX_MESSAGES = 500
MAX_BYTES = 1 << 20
# An idle stream gets an empty response this often.
KEEP_ALIVE_MS = 15_000
# How long a stream whose client settles nothing waits before it looks for leases that have expired.
EXPIRY_SECONDS = 1.0
# How long settlements are taken after the broker began to stop, and how long leases may take to be returned.
STOP_SECONDS = 0.5
RELEASE_SECONDS = 5.0
# By which a unary receive ends before its deadline, so that the client gets its response in time.
MARGIN_SECONDS = 0.1

_STARTS = {
    m.START_UNSPECIFIED: Start.EARLIEST,
    m.START_EARLIEST: Start.EARLIEST,
    m.START_LATEST: Start.LATEST,
}
_ACTIONS = {
    q.Settlement.ACTION_ACK: Action.ACK,
    q.Settlement.ACTION_NACK: Action.NACK,
    q.Settlement.ACTION_REJECT: Action.REJECT,
    q.Settlement.ACTION_EXTEND: Action.EXTEND,
}


_UNKNOWN = to_status(NotAcquired("the delivery is settled, has expired or is not of this stream"))


class QueueService(QueueBase):
    """Queue mode."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def Work(self, call: Call[q.WorkRequest, q.WorkResponse]) -> None:  # noqa: N802
        first = await call.recv_message()
        if first is None or not first.HasField("open"):
            raise InvalidField("open", "the first request of a stream opens a queue")
        opened = first.open
        if not 1 <= opened.credit <= MAX_CREDIT:
            raise InvalidField("open.credit", f"must be 1 to {MAX_CREDIT}, not {opened.credit}")
        if not 0 <= opened.max_messages <= MAX_CREDIT:
            raise InvalidField("open.max_messages", f"must be 0 to {MAX_CREDIT}, not {opened.max_messages}")
        queue = await _opened(call, opened, "open.")
        stream = WorkStream(call, queue, opened)
        stream.check_request(first)
        check = partial(check_receive, self._backend.broker, call.caller, queue)
        await call.while_allowed(stream.run(first), check)

    async def Receive(self, call: Call[q.ReceiveRequest, q.ReceiveResponse]) -> None:  # noqa: N802
        request = await call.only_message()
        count = request.max_messages or 10
        if not 1 <= count <= MAX_RECEIVED:
            raise InvalidField("max_messages", f"must be 1 to {MAX_RECEIVED}, not {count}")
        if not 0 <= request.wait_ms <= MAX_WAIT_MS:
            raise InvalidField("wait_ms", f"must be 0 to {MAX_WAIT_MS}, not {request.wait_ms}")
        queue = await _opened(call, request)
        wait_ms = request.wait_ms
        if call.deadline is not None:
            left = call.deadline - asyncio.get_running_loop().time() - MARGIN_SECONDS
            wait_ms = max(0, min(wait_ms, int(left * 1000)))
        broker = self._backend.broker
        receiving = broker.queues.receive(
            queue,
            consumer=request.consumer or call.peer,
            max_messages=count,
            visibility_ms=request.visibility_ms if request.HasField("visibility_ms") else None,
            wait_ms=wait_ms,
            max_bytes=MAX_BYTES,
            start=_STARTS[request.start],
            api=ClientApi.GRPC,
        )
        check = partial(check_receive, broker, call.caller, queue)
        deliveries = await call.while_allowed(receiving, check)
        await check_received(broker, call.caller, queue, deliveries, ClientApi.GRPC)
        response = q.ReceiveResponse()
        size = 0
        for each in deliveries:
            size += size_of(each.record)
            found = response.messages.add(
                delivery_count=each.delivery_count,
                priority=each.lane + 1,
                deadline_ms=each.deadline_ms,
                first_delivered_ms=each.first_delivered_ms,
                receipt=each.receipt,
            )
            _write_record(found.record, each.partition, each.record)
        call.charge(QuotaKey.FETCH, size, len(deliveries))
        await call.send_message(response)

    async def Settle(self, call: Call[q.SettleRequest, q.SettleResponse]) -> None:  # noqa: N802
        request = await call.only_message()
        if not 1 <= len(request.settlements) <= MAX_SETTLEMENTS:
            raise InvalidField(
                "settlements", f"must be 1 to {MAX_SETTLEMENTS}, not {len(request.settlements)}"
            )
        settlements = [
            _receipted(each, f"settlements[{index}]") for index, each in enumerate(request.settlements)
        ]
        results = await settle(self._backend.broker, call.caller, settlements, ClientApi.GRPC)
        response = q.SettleResponse()
        for error in results:
            added = response.results.add()
            if error is not None:
                added.CopyFrom(to_status(error, call.tenant))
        await call.send_message(response)


async def _opened(call: Call[Any, Any], request: Any, path: str = "") -> QueueId:
    """Return the queue of a request whose client may receive from it, after checking the common fields."""
    if not request.topic:
        raise InvalidField(f"{path}topic", "is missing")
    if not request.group:
        raise InvalidField(f"{path}group", "is missing")
    if len(request.consumer) > MAX_CONSUMER_LENGTH:
        raise InvalidField(f"{path}consumer", f"is longer than {MAX_CONSUMER_LENGTH} characters")
    if request.start not in _STARTS:
        raise InvalidField(f"{path}start", f"unknown value {request.start}")
    if request.HasField("visibility_ms"):
        _check_ms(f"{path}visibility_ms", request.visibility_ms)
    queue = QueueId(call.stored_id(request.group), call.stored_topic(request.topic))
    check_receive(call.backend.broker, call.caller, queue)
    call.check_quota(QuotaKey.FETCH)
    await call.learn_topic(queue.topic)
    return queue


def _check_ms(field: str, value: int) -> None:
    if not 0 <= value <= DAY_MS:
        raise InvalidField(field, f"must be 0 to {DAY_MS}, not {value}")


def _check_reason(field: str, reason: str) -> None:
    if len(reason) > MAX_REASON_LENGTH:
        raise InvalidField(field, f"is longer than {MAX_REASON_LENGTH} characters")


def _receipted(settlement: q.Settlement, path: str) -> Receipted:
    action = _ACTIONS.get(settlement.action)
    if action is None:
        raise InvalidField(f"{path}.action", f"unknown value {settlement.action}")
    delay_ms = None
    if action is Action.EXTEND:
        if not settlement.HasField("visibility_ms"):
            raise InvalidField(f"{path}.visibility_ms", "is missing")
        delay_ms = settlement.visibility_ms
        _check_ms(f"{path}.visibility_ms", delay_ms)
    elif action is Action.NACK and settlement.HasField("delay_ms"):
        delay_ms = settlement.delay_ms
        _check_ms(f"{path}.delay_ms", delay_ms)
    _check_reason(f"{path}.reason", settlement.reason)
    return Receipted(receipt=settlement.receipt, action=action, delay_ms=delay_ms, reason=settlement.reason)


def _write_record(to: m.Record, partition: int, record: Record) -> None:
    """Fill in a record of a response."""
    offset, timestamp_ms, key, value, headers = record
    to.partition = partition
    to.offset = offset
    to.timestamp_ms = timestamp_ms
    if key is not None:
        to.key = key
    if value is not None:
        to.value = value
    for name, content in headers:
        to.headers.add(key=name, value=content)


class WorkStream:
    """One stream of `Work`: delivers within the credit of the client, and settles."""

    def __init__(self, call: Call[q.WorkRequest, q.WorkResponse], queue: QueueId, opened: q.WorkOpen) -> None:
        self._call = call
        self._broker = call.backend.broker
        self._queues = call.backend.broker.queues
        self._queue = queue
        self._credit = opened.credit
        self._visibility_ms = opened.visibility_ms if opened.HasField("visibility_ms") else None
        self._consumer = opened.consumer or call.peer
        self._start = _STARTS[opened.start]
        self._max_messages = opened.max_messages or MAX_MESSAGES
        # Unsettled deliveries by id, in order.
        self._leases: dict[int, Acquired] = {}
        self._last_id = 0
        # Set when the client may get more messages, or has settled some.
        self._has_room = asyncio.Event()
        # One response at a time.
        self._sending = asyncio.Lock()
        self._must_check_rejects = self._broker.access.limits(call.caller)

    async def run(self, first: q.WorkRequest) -> None:
        """Serve the stream until the client ends it, or the broker stops."""
        delivering = asyncio.ensure_future(self._call.timed(self._deliver()))
        settling = asyncio.ensure_future(self._call.timed(self._settle_requests(first)))
        stopping = asyncio.ensure_future(self._call.backend.stopping.wait())
        tasks: set[asyncio.Future[Any]] = {delivering, settling, stopping}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if done == {stopping}:
                await self._finish(delivering, settling)
                raise ShuttingDown("the broker is shutting down")
            for each in (settling, delivering):
                if each in done:
                    await each
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._release()

    async def _finish(self, delivering: "asyncio.Future[None]", settling: "asyncio.Future[None]") -> None:
        """Deliver nothing more, and take settlements for a short time."""
        delivering.cancel()
        loop = asyncio.get_running_loop()
        until = loop.time() + STOP_SECONDS
        while self._leases and not settling.done() and (left := until - loop.time()) > 0:
            self._has_room.clear()
            waiting = asyncio.ensure_future(self._has_room.wait())
            either: set[asyncio.Future[Any]] = {waiting, settling}
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    async def _release(self) -> None:
        """Return all leases, also if this task is being cancelled."""
        leases, self._leases = list(self._leases.values()), {}
        if not leases:
            return
        settlements = [_settlement(lease, Action.RELEASE) for lease in leases]
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._queues.settle_acquired(self._queue, settlements, api=ClientApi.GRPC)
        except asyncio.CancelledError:
            self._queues.settle_soon(self._queue, settlements)
            raise
        except (AlpacaError, TimeoutError) as error:
            # They expire by themselves.
            log.info(
                "leases_not_returned", group=self._queue.group, topic=self._queue.topic, reason=str(error)
            )

    # Deliveries.

    async def _deliver(self) -> None:
        while True:
            free = self._credit - len(self._leases)
            if free <= 0:
                await self._wait_for_room()
                continue
            leased = await self._queues.lease(
                self._queue,
                consumer=self._consumer,
                max_messages=min(free, self._max_messages),
                visibility_ms=self._visibility_ms,
                wait_ms=KEEP_ALIVE_MS,
                max_bytes=MAX_BYTES,
                start=self._start,
                api=ClientApi.GRPC,
            )
            response = q.WorkResponse()
            size = self._add(response, leased)
            await self._send(response)
            await self._call.pay(QuotaKey.FETCH, size, len(leased))

    def _add(self, response: q.WorkResponse, leased: Sequence[LeasedRecord]) -> int:
        """Add messages to a response; return the size of their contents."""
        size = 0
        delivery_id = self._last_id
        leases, add = self._leases, response.messages.add
        for lease, record in leased:
            delivery_id += 1
            leases[delivery_id] = lease
            message = add()
            message.delivery_id = delivery_id
            message.delivery_count = lease.delivery_count
            message.priority = lease.lane + 1
            message.deadline_ms = lease.deadline_ms
            message.first_delivered_ms = lease.first_delivered_ms
            _write_record(message.record, lease.partition, record)
            size += size_of(record)
        self._last_id = delivery_id
        return size

    async def _wait_for_room(self) -> None:
        """Return when the client has settled something, or when leases have expired."""
        self._has_room.clear()
        while True:
            try:
                async with asyncio.timeout(EXPIRY_SECONDS if self._leases else None):
                    await self._has_room.wait()
            except TimeoutError:
                if not self._drop_expired():
                    continue
            return

    def _drop_expired(self) -> bool:
        """Forget deliveries whose leases have expired; return whether there were any."""
        now_ms = self._broker.time.now_ms()
        expired = [number for number, lease in self._leases.items() if lease.deadline_ms < now_ms]
        for number in expired:
            del self._leases[number]
        return bool(expired)

    async def _send(self, response: q.WorkResponse) -> None:
        async with self._sending:
            await self._call.send_message(response)

    # Settlements.

    async def _settle_requests(self, first: q.WorkRequest) -> None:
        request: q.WorkRequest | None = first
        while request is not None:
            settlements: list[tuple[int, Settlement]] = []
            response = q.WorkResponse()
            while request is not None:
                if request is not first:
                    self.check_request(request)
                self._take(request, settlements, response)
                if len(settlements) + len(response.errors) >= MAX_CREDIT:
                    break
                request = self._call.recv_nowait()
            if settlements:
                await self._settle(settlements, response)
            if response.settled or response.errors:
                await self._send(response)
            request = await self._call.recv_message()

    def check_request(self, request: q.WorkRequest) -> None:
        """Raise InvalidField for a request that makes no sense."""
        if _size(request) > MAX_CREDIT:
            raise InvalidField("ack", f"a request has at most {MAX_CREDIT} settlements")
        if request.HasField("credit"):
            if not 0 <= request.credit <= MAX_CREDIT:
                raise InvalidField("credit", f"must be 0 to {MAX_CREDIT}, not {request.credit}")
            self._credit = request.credit
            self._has_room.set()
        for nack in request.nack:
            _check_reason("nack.reason", nack.reason)
            if nack.HasField("delay_ms"):
                _check_ms("nack.delay_ms", nack.delay_ms)
        for reject in request.reject:
            _check_reason("reject.reason", reject.reason)
        for extend in request.extend:
            _check_ms("extend.visibility_ms", extend.visibility_ms)

    def _take(
        self, request: q.WorkRequest, settlements: list[tuple[int, Settlement]], response: q.WorkResponse
    ) -> None:
        """Add the settlements of a request; those of unknown deliveries are errors of the response."""
        leases = self._leases
        for number in request.ack:
            if (lease := leases.get(number)) is None:
                response.errors.add(delivery_id=number, status=_UNKNOWN)
            else:
                settlements.append(
                    (
                        number,
                        Settlement(
                            lease.partition,
                            lease.offset,
                            Action.ACK,
                            lease.delivery_count,
                            lease.generation,
                        ),
                    )
                )
        for number, action, delay_ms, reason in _others(request):
            if (lease := leases.get(number)) is None:
                response.errors.add(delivery_id=number, status=_UNKNOWN)
            else:
                settlements.append((number, _settlement(lease, action, delay_ms, reason)))

    async def _settle(self, settlements: Sequence[tuple[int, Settlement]], response: q.WorkResponse) -> None:
        """Settle deliveries, and add the results to a response."""
        results = await self._results([settlement for _, settlement in settlements])
        now_ms = self._broker.time.now_ms()
        leases, settled = self._leases, response.settled
        for (number, settlement), error in zip(settlements, results, strict=True):
            if error is None:
                settled.append(number)
                if settlement.action is Action.EXTEND and settlement.delay_ms:
                    if (lease := leases.get(number)) is not None:
                        leases[number] = lease._replace(deadline_ms=now_ms + settlement.delay_ms)
                else:
                    leases.pop(number, None)
            else:
                response.errors.add(delivery_id=number, status=to_status(error, self._call.tenant))
                if not is_retriable(error) and not isinstance(error, PolicyViolation | InvalidRequest):
                    leases.pop(number, None)
        self._has_room.set()

    async def _results(self, settlements: Sequence[Settlement]) -> Sequence[AlpacaError | None]:
        try:
            if self._must_check_rejects and any(each.action is Action.REJECT for each in settlements):
                return await self._checked_results(settlements)
            return await self._queues.settle_acquired(self._queue, settlements, api=ClientApi.GRPC)
        except AlpacaError as error:
            return [error.with_traceback(None)] * len(settlements)

    async def _checked_results(self, settlements: Sequence[Settlement]) -> Sequence[AlpacaError | None]:
        """Settle what the client may: to reject, it needs the right to write to the dead-letter topic."""
        refusal: AlpacaError | None = None
        try:
            await check_reject(self._broker, self._call.caller, self._queue)
        except AlpacaError as error:
            refusal = error.with_traceback(None)
        if refusal is None:
            return await self._queues.settle_acquired(self._queue, settlements, api=ClientApi.GRPC)
        allowed = [each for each in settlements if each.action is not Action.REJECT]
        outcomes = iter(
            await self._queues.settle_acquired(self._queue, allowed, api=ClientApi.GRPC) if allowed else ()
        )
        return [refusal if each.action is Action.REJECT else next(outcomes) for each in settlements]


def _settlement(lease: Acquired, action: Action, delay_ms: int | None = None, reason: str = "") -> Settlement:
    return Settlement(
        lease.partition,
        lease.offset,
        action,
        lease.delivery_count,
        lease.generation,
        delay_ms=delay_ms,
        reason=reason,
    )


def _size(request: q.WorkRequest) -> int:
    """Return how many deliveries a request settles."""
    return len(request.ack) + len(request.nack) + len(request.reject) + len(request.extend)


def _others(request: q.WorkRequest) -> Iterator[tuple[int, Action, int | None, str]]:
    """Yield the settlements of a request that are not acknowledgements."""
    for nack in request.nack:
        delay_ms = nack.delay_ms if nack.HasField("delay_ms") else None
        yield nack.delivery_id, Action.NACK, delay_ms, nack.reason
    for reject in request.reject:
        yield reject.delivery_id, Action.REJECT, None, reject.reason
    for extend in request.extend:
        yield extend.delivery_id, Action.EXTEND, extend.visibility_ms, ""
