"""What the topics of one client share: connections, a producer, transactional producers, schemas.

Everything is opened on first use and closed with the session, in reverse order.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from alpacamq.client.codecs import Codec, Schemas
from alpacamq.client.errors import ClientError, Closed
from alpacamq.client.messages import Codecs, Message
from alpacamq.client.url import Target
from alpacamq.model.address import Address
from alpacamq.model.lanes import Lane
from alpacamq.model.records import Header

from .cluster import Cluster
from .producer import Producer, ProducerSettings, RecordMetadata
from .transactions import TransactionalProducer

if TYPE_CHECKING:
    # These load gRPC: not when the client is imported, but when it connects.
    from .grpc import Endpoints, Nodes

# How long a look for other nodes may take.
REFRESH_S = 2.0
# Transactional producers that are kept; each has state at the broker.
MAX_TRANSACTIONAL = 100


class Closable(Protocol):
    """Something that is closed with a session, if it is open then."""

    async def close(self) -> None: ...


class Session:
    """The connections of a client to a cluster."""

    def __init__(
        self,
        target: Target,
        *,
        kafka: Sequence[Address] = (),
        client_id: str = "alpacamq",
        timeout_s: float = 30.0,
    ) -> None:
        self._target = target
        self._kafka = tuple(kafka)
        self._client_id = client_id
        self.timeout_s = timeout_s
        self._nodes: Nodes | None = None
        self._endpoints: Endpoints | None = None
        self._cluster: Cluster | None = None
        self._producer: Producer | None = None
        self._transactional: dict[str, TransactionalProducer] = {}
        self._schemas: Schemas | None = None
        # One of each is opened, however many tasks ask at a time.
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._receivers: set[Closable] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        if self._nodes is not None or self._is_closed:
            raise RuntimeError("a client is opened once")
        from .grpc import Nodes

        self._nodes = Nodes(self._target)
        self._stack.push_async_callback(self._nodes.close)
        if not self._kafka:
            try:
                await self._discover()
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Return all leases, send what is buffered, and close all connections. Idempotent."""
        self._is_closed = True
        for each in list(self._receivers):
            await each.close()
        await self._stack.aclose()

    def track(self, receiver: Closable) -> None:
        """Close a receiver with the session, if it is open then."""
        self._receivers.add(receiver)

    def forget(self, receiver: Closable) -> None:
        """Do not close a receiver: it is closed."""
        self._receivers.discard(receiver)

    @property
    def nodes(self) -> "Nodes":
        """The connections to the gRPC API."""
        if self._nodes is None:
            raise RuntimeError("a client is used in a block: `async with alpacamq.aio.connect(…) as mq:`")
        self._check()
        return self._nodes

    def _check(self) -> None:
        if self._is_closed:
            raise Closed("the client is closed")

    async def _discover(self) -> "Endpoints":
        if self._endpoints is None:
            from .grpc import discover

            self._endpoints = await discover(self.nodes, self.timeout_s)
            self.nodes.learn(self._endpoints.grpc)
        return self._endpoints

    async def refresh_nodes(self) -> None:
        """Ask for the nodes again, if one answers: after a failure there may be others.

        Not if the addresses of the Kafka API were given: then those that the cluster names are not reached.
        """
        if self._kafka:
            return
        from .grpc import discover

        with suppress(ClientError):
            found = await discover(self.nodes, REFRESH_S)
            self._endpoints = found
            self.nodes.learn(found.grpc)

    async def cluster(self) -> Cluster:
        """Return the client of the log."""
        self._check()
        if self._cluster is None:
            async with self._opening:
                if self._cluster is None:
                    bootstrap = self._kafka or (await self._discover()).kafka
                    self._cluster = await self._stack.enter_async_context(
                        Cluster(
                            bootstrap,
                            tls=self._target.tls,
                            credentials=self._target.credentials,
                            client_id=self._client_id,
                            request_s=self.timeout_s,
                        )
                    )
                    self._stack.push_async_callback(self._close_transactional)
        return self._cluster

    async def producer(self) -> Producer:
        """Return the producer that single sends share: it collects while a request is on its way."""
        self._check()
        if self._producer is None:
            cluster = await self.cluster()
            async with self._opening:
                if self._producer is None:
                    settings = ProducerSettings(linger_ms=0, delivery_s=self.timeout_s)
                    self._producer = await self._stack.enter_async_context(Producer(cluster, settings))
        return self._producer

    async def transactional(self, transactional_id: str, timeout_ms: int) -> TransactionalProducer:
        """Return the producer of a transactional id, which fences others with the id when it is opened.

        One that was fenced, or is in doubt, is replaced by another.
        """
        self._check()
        known = self._transactional.get(transactional_id)
        if known is not None and not known.has_ended:
            return known
        cluster = await self.cluster()
        async with self._opening:
            known = self._transactional.get(transactional_id)
            if known is not None and known.has_ended:
                del self._transactional[transactional_id]
                await known.close()
                known = None
            if known is None:
                if len(self._transactional) >= MAX_TRANSACTIONAL:
                    raise ValueError(f"more than {MAX_TRANSACTIONAL} transactional ids in one client")
                known = TransactionalProducer(cluster, transactional_id, timeout_ms=timeout_ms)
                await known.open()
                self._transactional[transactional_id] = known
        return known

    async def _close_transactional(self) -> None:
        for each in self._transactional.values():
            await each.close()

    async def send_delayed(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        delay_ms: int | None,
        deliver_at_ms: int | None,
        priority: Lane | None,
    ) -> RecordMetadata:
        """Write a delayed message over gRPC, for topics where Kafka's protocol has no delays.

        It is sent once: if the connection is cut before the answer, Unreachable is raised, and the message
        may be written.
        """
        from alpacamq.v1.messages_pb2 import NewRecord
        from alpacamq.v1.producer_grpc import ProducerStub
        from alpacamq.v1.producer_pb2 import SendRequest, SendResponse

        record = NewRecord(key=key, value=value, partition=partition, delay_ms=delay_ms)
        if deliver_at_ms is not None:
            record.deliver_at_ms = deliver_at_ms
        if priority is not None:
            record.priority = priority + 1  # type: ignore[assignment]
        for name, content in headers:
            record.headers.add(key=name, value=content)
        response: SendResponse = await self.nodes.call(
            lambda connection: ProducerStub(connection).Send,
            SendRequest(topic=topic, records=[record]),
            about=f"send to topic {topic}",
            deadline_s=self.timeout_s,
            is_repeatable=False,
        )
        result = response.result
        return RecordMetadata(topic, result.partitions[0], result.offsets[0], -1)

    async def configure_queue(self, topic: str, group: str, settings: Mapping[str, str | None]) -> None:
        """Change the settings of a queue."""
        from alpacamq.v1.groups_grpc import GroupsStub
        from alpacamq.v1.groups_pb2 import ConfigureQueueRequest

        request = ConfigureQueueRequest(
            group=group,
            topic=topic,
            settings={name: text for name, text in settings.items() if text is not None},
            unset=[name for name, text in settings.items() if text is None],
        )
        await self.nodes.call(
            lambda connection: GroupsStub(connection).ConfigureQueue,
            request,
            about=f"settings of group {group} on topic {topic}",
            deadline_s=self.timeout_s,
        )

    # Codecs of the schema registry.

    async def prepare_encoding(self, codecs: Codecs[Any]) -> None:
        """Load the schemas with which new keys and values are encoded."""
        for codec in (codecs.value, codecs.key):
            if not codec.can_encode():
                await self._load(codec, None)

    async def prepare_decoding(self, codecs: Codecs[Any], messages: Sequence[Message[Any]]) -> None:
        """Load the schemas that messages name. A message whose schema is unknown fails when it is decoded."""
        if not (codecs.value.is_remote or codecs.key.is_remote):
            return
        for message in messages:
            if not codecs.value.can_decode(message.raw_value):
                await self._load(codecs.value, message.raw_value)
            if not codecs.key.can_decode(message.raw_key):
                await self._load(codecs.key, message.raw_key)

    async def _load(self, codec: Codec[Any], data: bytes | None) -> None:
        if self._schemas is None:
            from alpacamq.client.schemas import RegistrySchemas

            endpoints = await self._discover()
            self._schemas = RegistrySchemas(
                endpoints.http, tls=self._target.tls, credentials=self._target.credentials
            )
            self._stack.callback(self._schemas.close)
        # The registry's client blocks; it is used by one thread at a time.
        async with self._opening:
            await asyncio.to_thread(codec.load, self._schemas, data)
