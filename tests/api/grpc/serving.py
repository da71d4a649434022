"""The gRPC API of a broker on the event loop of a test, so that the test can change its rules."""

import asyncio
import base64
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from alpacamq.api.grpc.listener import GrpcListener
from alpacamq.api.listening import ListenerSettings
from alpacamq.api.rest.app import RestApi
from alpacamq.broker.access import SecuritySettings
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.publishing import Message
from alpacamq.model.address import Address
from alpacamq.model.ids import BrokerId
from alpacamq.security.acls import AclFilter, Operation, ResourceType
from alpacamq.security.principals import user
from tests.secured import ADMIN, rule

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of the listener."""

    max_connections: int = 100
    idle_timeout_ms: int = 60_000
    header_timeout_ms: int = 60_000
    max_message_bytes: int = 4 << 20
    in_flight_bytes: int = 64 << 20


class GrpcBroker:
    """A broker with nothing but the gRPC API."""

    def __init__(self, broker: Broker, address: str, listener: GrpcListener) -> None:
        self.broker = broker
        self.address = address
        self._listener = listener

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._listener._connections)

    async def key_of(self, owner: str, scopes: Collection[Operation] = ()) -> Metadata:
        """Create an API key; return the metadata that sends it."""
        _, text = await self.broker.access.create_api_key(
            owner, expires_ms=None, scopes=scopes, description=""
        )
        return (("authorization", f"Bearer {text}"),)

    async def allow(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """Allow alice an operation."""
        results = await self.broker.access.create_acls([rule(operation, kind, name)])
        assert not any(results.failures), results.failures

    async def revoke(self) -> None:
        """Remove all rules."""
        await self.broker.access.delete_acls([AclFilter()])

    async def publish(self, topic: str, values: Collection[str]) -> None:
        """Create a topic and write messages to it."""
        await self.broker.topics.create(topic, partitions=1)
        if values:
            messages = [Message(value=value.encode()) for value in values]
            for result in await self.broker.publisher.publish(topic, messages):
                assert not isinstance(result, Exception), result


def basic(name: str, password: str) -> Metadata:
    return (("authorization", "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()),)


@asynccontextmanager
async def served(path: Path, security: SecuritySettings | None = None) -> AsyncIterator[GrpcBroker]:
    rules = security or SecuritySettings(authentication=True, acls=True, super_users=(user(ADMIN),))
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=path, security=rules))
    broker.open()
    listener = GrpcListener([ListenerSettings(name="grpc", address=Address("127.0.0.1", 0))], Limits(), None)
    address = listener.bind()
    tasks = [
        asyncio.create_task(broker.run()),
        asyncio.create_task(listener.run(broker, {}, partial(RestApi, broker, {}))),
    ]
    await listener.listening.wait()
    try:
        yield GrpcBroker(broker, str(address), listener)
    finally:
        await listener.drain()
        for task in reversed(tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await broker.close()
