"""The blocking client: the asyncio client, run by a thread of its own.

Objects may be used by any number of threads. A client that is used after a fork raises ForkedClient: threads
and connections do not survive a fork. One that was not used before it works in each process.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Literal, Protocol, Self, TypeVar, overload

from alpacamq.client.aio import client as aio_client
from alpacamq.client.aio import producer as aio_producer
from alpacamq.client.aio import topic as aio_topic
from alpacamq.client.aio.producer import RecordMetadata
from alpacamq.client.aio.topic import AcksName, Compression, NewRecord, Priority, Start, encoded
from alpacamq.client.codecs import Codec
from alpacamq.client.errors import ClientError, Closed
from alpacamq.client.messages import Message, NewHeaders
from alpacamq.client.outcomes import Duration
from alpacamq.client.url import Token

T = TypeVar("T")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])

# Messages that a producer has taken from threads and its event loop has not seen yet.
_MAX_HANDED_OVER: Final = 10_000
# Messages per call into the event loop when iterating.
_CHUNK: Final = 500
_STOP_S: Final = 10.0


class ForkedClient(ClientError):
    """A client was opened before a fork and used after it. Open one in each process."""


class _Documented(Protocol):
    __doc__: str | None


def _as(original: _Documented) -> Callable[[F], F]:
    """Give a method the description of its original in the asyncio client."""

    def described(method: F) -> F:
        method.__doc__ = (
            (original.__doc__ or "").replace("async with ", "with ").replace("async for ", "for ")
        )
        method.__doc__ = method.__doc__.replace("await ", "")
        return method

    return described


class _EventLoop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="alpacamq", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for each in left:
                each.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def check(self) -> None:
        """Raise ForkedClient in another process, and RuntimeError in the loop's own thread."""
        if os.getpid() != self._pid:
            raise ForkedClient("this client was opened before a fork; open one in each process")
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("the blocking client cannot be used in its own callbacks; use alpacamq.aio")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. Ctrl-C cancels it."""
        try:
            self.check()
            if self._loop.is_closed():
                raise Closed("the client is closed")
            future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            # Of the waiting thread, such as KeyboardInterrupt; a failed future is done.
            future.cancel()
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, without waiting."""
        self.check()
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """End the thread and everything that runs in it."""
        self.check()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_S)


class Delivery:
    """The outcome of a message of a producer."""

    __slots__ = ("_failure", "_is_asked", "_producer", "_sent")

    def __init__(self, producer: "TopicProducer[Any]") -> None:
        self._producer = producer
        self._sent: aio_producer.Delivery | None = None
        self._failure: Exception | None = None
        self._is_asked = False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the message to be written and return where it is. Raises TimeoutError."""
        self._is_asked = True
        return self._producer.loop.run(self._wait(timeout))

    async def _wait(self, timeout: float | None) -> RecordMetadata:
        async with asyncio.timeout(timeout):
            if self._sent is None and self._failure is None:
                await self._producer.drained()
            if self._failure is not None:
                raise self._failure
            assert self._sent is not None
            return await self._sent


class TopicProducer(Generic[T]):
    """Sends messages of one topic in batches. Leaving the block sends what is buffered and waits for it."""

    def __init__(self, loop: _EventLoop, topic: "Topic[T]", producer: aio_topic.TopicProducer[T]) -> None:
        self.loop = loop
        self._topic = topic
        self._producer = producer
        self._handed_over: deque[tuple[NewRecord, Delivery]] = deque()
        self._room = threading.BoundedSemaphore(_MAX_HANDED_OVER)
        self._draining: asyncio.Task[None] | None = None
        # Set by any thread when `_drain` has been asked for, and cleared when it begins.
        self._is_drain_due = False
        # The first message that could not even be buffered since the last flush.
        self._failed: Delivery | None = None
        self._is_open = False

    def __enter__(self) -> Self:
        self.loop.run(self._producer.__aenter__())
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self.loop.run(self._end(kind, error, trace))

    async def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drained()
        await self._producer.__aexit__(kind, error, trace)
        if error is None:
            self._raise_failure()

    @_as(aio_topic.TopicProducer.flush)
    def flush(self) -> None:
        self.loop.run(self._flush())

    async def _flush(self) -> None:
        await self.drained()
        await self._producer.flush()
        self._raise_failure()

    def _raise_failure(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None and failed._failure is not None and not failed._is_asked:
            raise failed._failure

    def send(
        self,
        value: T | None,
        *,
        key: object = None,
        headers: NewHeaders | None = None,
        partition: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | float | None = None,
        priority: Priority | None = None,
    ) -> Delivery:
        """Buffer a message and return its delivery. Waits if the buffer is full.

        Errors of deliveries whose result is not read are raised by `flush` and at the end of the block.
        """
        if not self._is_open:
            raise Closed("a producer is used in a block: `with topic.producer() as p:`")
        codecs = self._topic.codecs
        new = encoded(codecs, value, key, headers, delay, deliver_at, priority, partition)
        delivery = Delivery(self)
        self.loop.check()
        self._room.acquire()
        self._handed_over.append((new, delivery))
        if not self._is_drain_due:
            self._is_drain_due = True
            self.loop.call(self._drain)
        return delivery

    def _drain(self) -> None:
        """Pass messages on to the producer, in the event loop."""
        self._is_drain_due = False  # before it looks, so that what is added from now on asks again
        if self._draining is None or self._draining.done():
            self._draining = asyncio.get_running_loop().create_task(self._pass_on())

    async def _pass_on(self) -> None:
        while self._handed_over:
            new, delivery = self._handed_over[0]
            try:
                delivery._sent = await self._producer.put_encoded(new)
            except Exception as error:  # noqa: BLE001 - raised to the thread that asks for the result
                delivery._failure = error
                if self._failed is None or self._failed._is_asked:
                    self._failed = delivery
            finally:
                self._handed_over.popleft()
                self._room.release()

    async def drained(self) -> None:
        """Wait until the producer of the event loop has all messages so far."""
        while self._handed_over:
            self._drain()
            assert self._draining is not None
            await asyncio.wait([self._draining])  # which is not cancelled with this wait


class TopicReader(Generic[T]):
    """Reads a topic from a position. Iterate over it; `with` closes it at the end of the block."""

    def __init__(self, loop: _EventLoop, reader: aio_topic.TopicReader[T]) -> None:
        self._loop = loop
        self._reader = reader
        self._is_open = False

    def __enter__(self) -> Self:
        self._loop.run(self._reader.__aenter__())
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._reader.close())

    def __iter__(self) -> Iterator[Message[T]]:
        if self._is_open:
            while messages := self.take():
                yield from messages
            return
        with self:
            while messages := self.take():
                yield from messages

    @_as(aio_topic.TopicReader.take)
    def take(self, max_messages: int = _CHUNK, wait: Duration | None = None) -> list[Message[T]]:
        return self._loop.run(self._reader.take(max_messages, wait))

    @_as(aio_topic.TopicReader.positions)
    def positions(self) -> dict[int, int]:
        return self._reader.positions()


class TopicConsumer(Generic[T]):
    """A member of a consumer group. Iterate over it inside `with`, and commit what is processed."""

    def __init__(self, loop: _EventLoop, consumer: aio_topic.TopicConsumer[T]) -> None:
        self._loop = loop
        self._consumer = consumer

    @property
    def aio(self) -> aio_topic.TopicConsumer[T]:
        """The consumer of the asyncio client."""
        return self._consumer

    def __enter__(self) -> Self:
        self._loop.run(self._consumer.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._consumer.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[T]:
        return self._loop.run(_next(self._consumer))

    @_as(aio_topic.TopicConsumer.take)
    def take(self, max_messages: int = _CHUNK, wait: Duration | None = None) -> list[Message[T]]:
        return self._loop.run(self._consumer.take(max_messages, wait))

    @_as(aio_topic.TopicConsumer.commit)
    def commit(self, message: Message[T] | None = None) -> None:
        self._loop.run(self._consumer.commit(message))

    @property
    @_as(aio_topic.TopicConsumer.assignment)
    def assignment(self) -> frozenset[int]:
        return self._consumer.assignment

    @_as(aio_topic.TopicConsumer.seek)
    def seek(self, partition: int, offset: int) -> None:
        self._loop.run(_call(lambda: self._consumer.seek(partition, offset)))

    @_as(aio_topic.TopicConsumer.pause)
    def pause(self, *partitions: int) -> None:
        self._loop.run(_call(lambda: self._consumer.pause(*partitions)))

    @_as(aio_topic.TopicConsumer.resume)
    def resume(self, *partitions: int) -> None:
        self._loop.run(_call(lambda: self._consumer.resume(*partitions)))


async def _call(function: Callable[[], T]) -> T:
    return function()


async def _next(messages: aio_topic.TopicConsumer[T]) -> Message[T]:
    return await anext(messages)


class Job(Message[T]):
    """A leased message. `with job:` acknowledges it, or returns it if the block raises.

    An exception of the block is raised on, except Retry and Reject, which only say how to settle the message.
    """

    __slots__ = ("_job", "_loop", "delivery_count", "priority")

    def __init__(self, loop: _EventLoop, job: Any) -> None:
        super().__init__(
            job.topic,
            job.partition,
            job.offset,
            job.timestamp_ms,
            job.raw_key,
            job.raw_value,
            job.raw_headers,
            job.codecs,
        )
        self._loop = loop
        # A job of the asyncio client; its module loads grpclib, which users of the log do not need.
        self._job = job
        self.delivery_count: int = job.delivery_count
        self.priority: str = job.priority

    @property
    def deadline_ms(self) -> int:
        """When the lease ends, in milliseconds since 1970."""
        deadline: int = self._job.deadline_ms
        return deadline

    @property
    def is_leased(self) -> bool:
        """Whether the job is neither settled nor lost with its connection."""
        return bool(self._job.is_leased)

    def ack(self) -> None:
        """Mark the message as done. It is not delivered again."""
        self._loop.run(_awaited(self._job.ack))

    def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """Have the message delivered again, after `delay` or the queue's backoff."""
        self._loop.run(_awaited(lambda: self._job.nack(delay=delay, reason=reason)))

    def reject(self, reason: str = "") -> None:
        """Make the message a dead letter."""
        self._loop.run(_awaited(lambda: self._job.reject(reason)))

    def extend(self, by: Duration) -> None:
        """End the lease this long from now, instead of at its deadline."""
        self._loop.run(_awaited(lambda: self._job.extend(by)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._loop.call(self._job.release)
            return False
        handled: bool = self._loop.run(self._job.__aexit__(kind, error, trace))
        return handled


async def _awaited(settle: Callable[[], Any]) -> None:
    await settle()


class Receiver(Generic[T]):
    """Delivers the jobs of a queue.

    Iterate over it, best inside `with`. Leaving the block returns the leases of jobs that are not settled at
    once.
    """

    def __init__(self, loop: _EventLoop, make: Callable[[], Any]) -> None:
        self._loop = loop
        self._make = make
        self._receiver: Any = None

    def __enter__(self) -> Self:
        self._receiver = self._loop.run(self._open())
        return self

    async def _open(self) -> Any:
        return await self._make().__aenter__()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the results of settlements, return all other leases and close the stream."""
        if self._receiver is not None:
            self._loop.run(self._receiver.close())

    def __iter__(self) -> Iterator[Job[T]]:
        if self._receiver is not None:
            yield from self._jobs()
            return
        with self:
            yield from self._jobs()

    def _jobs(self) -> Iterator[Job[T]]:
        """Yield jobs until the receiver is closed."""
        while True:
            try:
                jobs = self.take()
            except Closed:
                return
            yield from jobs

    def take(self, max_jobs: int = _CHUNK) -> list[Job[T]]:
        """Wait for jobs and return those that have arrived."""
        return [Job(self._loop, each) for each in self._loop.run(self._take(max_jobs))]

    async def _take(self, max_jobs: int) -> list[Any]:
        return [await self._receiver.next(), *self._receiver.take(max_jobs - 1)]


class Queue(Generic[T]):
    """A topic as a queue of one group."""

    def __init__(self, loop: _EventLoop, queue: aio_topic.Queue[T]) -> None:
        self._loop = loop
        self._queue = queue
        self.topic = queue.topic
        self.group = queue.group

    @_as(aio_topic.Queue.receive)
    def receive(
        self,
        *,
        credit: int = 100,
        visibility: Duration | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        consumer: str = "",
    ) -> Receiver[T]:
        return Receiver(
            self._loop,
            lambda: self._queue.receive(credit=credit, visibility=visibility, start=start, consumer=consumer),
        )


class Topic(Generic[T]):
    """A topic whose values have a type."""

    def __init__(
        self, client: "Client", make: Callable[[aio_client.Client], aio_topic.Topic[T]], name: str
    ) -> None:
        self._client = client
        self._make = make
        self.name = name

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    @property
    def aio(self) -> aio_topic.Topic[T]:
        """The topic of the asyncio client."""
        return self._make(self._client.aio)

    @property
    def codecs(self) -> Any:
        """The codecs of the topic."""
        return self.aio.codecs

    @_as(aio_topic.Topic.send)
    def send(
        self,
        value: T | None,
        *,
        key: object = None,
        headers: NewHeaders | None = None,
        partition: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | float | None = None,
        priority: Priority | None = None,
    ) -> RecordMetadata:
        return self._client.loop.run(
            self.aio.send(
                value,
                key=key,
                headers=headers,
                partition=partition,
                delay=delay,
                deliver_at=deliver_at,
                priority=priority,
            )
        )

    @_as(aio_topic.Topic.producer)
    def producer(
        self,
        *,
        acks: AcksName = "all",
        compression: Compression = "none",
        batch_records: int = 100,
        batch_bytes: int = 64 << 10,
        linger: Duration = timedelta(milliseconds=5),
        timeout: Duration = 30.0,
        buffer_bytes: int = 8 << 20,
    ) -> TopicProducer[T]:
        producer = self.aio.producer(
            acks=acks,
            compression=compression,
            batch_records=batch_records,
            batch_bytes=batch_bytes,
            linger=linger,
            timeout=timeout,
            buffer_bytes=buffer_bytes,
        )
        return TopicProducer(self._client.loop, self, producer)

    @_as(aio_topic.Topic.read)
    def read(
        self,
        *,
        start: Start = "earliest",
        until: Start | None = None,
        partitions: Collection[int] | None = None,
    ) -> TopicReader[T]:
        return TopicReader(self._client.loop, self.aio.read(start=start, until=until, partitions=partitions))

    @_as(aio_topic.Topic.subscribe)
    def subscribe(
        self,
        group: str,
        *,
        start: str | datetime = "earliest",
        auto_commit: Duration | None = None,
        instance_id: str | None = None,
    ) -> TopicConsumer[T]:
        consumer = self.aio.subscribe(group, start=start, auto_commit=auto_commit, instance_id=instance_id)
        return TopicConsumer(self._client.loop, consumer)

    @_as(aio_topic.Topic.queue)
    def queue(self, group: str) -> Queue[T]:
        return Queue(self._client.loop, self.aio.queue(group))


class TopicTransaction:
    """A transaction: messages and offsets that become visible together when the block ends."""

    def __init__(self, loop: _EventLoop, transaction: aio_topic.TopicTransaction) -> None:
        self._loop = loop
        self._transaction = transaction

    def __enter__(self) -> Self:
        self._loop.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._transaction.__aexit__(kind, error, trace))

    def send(
        self,
        topic: Topic[V],
        value: V | None,
        *,
        key: object = None,
        headers: NewHeaders | None = None,
        partition: int | None = None,
        priority: Priority | None = None,
    ) -> None:
        """Add a message of a topic to the transaction. The end of the block waits for it."""
        self._loop.run(
            self._transaction.send(
                topic.aio, value, key=key, headers=headers, partition=partition, priority=priority
            )
        )

    @_as(aio_topic.TopicTransaction.commit_offsets)
    def commit_offsets(self, consumer: TopicConsumer[Any]) -> None:
        self._loop.run(_call(lambda: self._transaction.commit_offsets(consumer.aio)))


class Client:
    """A client of a cluster, opened on first use. Use it as a context manager, or call `close`."""

    def __init__(self, make: Callable[[], aio_client.Client]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._loop: _EventLoop | None = None
        self._client: aio_client.Client | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> tuple[_EventLoop, aio_client.Client]:
        if self._loop is not None:
            self._loop.check()
        with self._lock:
            if self._is_closed:
                raise Closed("the client is closed")
            if self._loop is None or self._client is None:
                loop = _EventLoop()
                try:
                    self._client = loop.run(self._enter())
                except BaseException:
                    loop.stop()
                    raise
                self._loop = loop
            return self._loop, self._client

    async def _enter(self) -> aio_client.Client:
        return await self._make().__aenter__()

    def close(self) -> None:
        """Return all leases, close all connections and end the thread. Idempotent."""
        if self._loop is not None:
            self._loop.check()
        with self._lock:
            self._is_closed = True
            if self._loop is None or self._client is None:
                return
            client, self._client = self._client, None
            try:
                self._loop.run(client.close())
            finally:
                self._loop.stop()

    @property
    def loop(self) -> _EventLoop:
        """The event loop of the client."""
        return self._open()[0]

    @property
    def aio(self) -> aio_client.Client:
        """The asyncio client, which belongs to the event loop of this one."""
        return self._open()[1]

    @overload
    def topic(self, name: str, *, key: type[Any] | Codec[Any] | None = None) -> Topic[bytes]: ...

    @overload
    def topic(self, name: str, *, value: Codec[T], key: type[Any] | Codec[Any] | None = None) -> Topic[T]: ...

    @overload
    def topic(self, name: str, *, value: type[T], key: type[Any] | Codec[Any] | None = None) -> Topic[T]: ...

    @_as(aio_client.Client.topic)
    def topic(
        self,
        name: str,
        *,
        value: type[Any] | Codec[Any] | None = None,
        key: type[Any] | Codec[Any] | None = None,
    ) -> Topic[Any]:
        codecs = aio_client.codecs_of(value, key)
        return Topic(self, lambda client: client.topic_with(name, codecs), name)

    @_as(aio_client.Client.transaction)
    def transaction(self, transactional_id: str, *, timeout: Duration = 60.0) -> TopicTransaction:
        loop, client = self._open()
        return TopicTransaction(loop, client.transaction(transactional_id, timeout=timeout))


def connect(
    url: str = "alpaca://localhost",
    *,
    token: Token | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    kafka: str | None = None,
    client_id: str = "alpacamq",
    timeout: Duration = 30.0,
) -> Client:
    """Return a client, which connects on first use. Close it, or use it as `with connect(url) as mq:`.

    The URL is `alpaca://[user:password@]host[:port][,host2…]`, with `alpacas://` for TLS; the port is that of
    the gRPC API, 9095 by default. `token` is an API key (`amq_…`), a JSON Web Token, or a function that
    returns one. `ca`, `certificate` and `key` are PEM files. `kafka` replaces the addresses of the Kafka API
    that the cluster names, if clients have to use others. `timeout` is how long a call may take with retries.
    """
    make = partial(
        aio_client.connect,
        url,
        token=token,
        ca=ca,
        certificate=certificate,
        key=key,
        kafka=kafka,
        client_id=client_id,
        timeout=timeout,
    )
    make()  # raises InvalidUrl here, not on first use
    return Client(make)
