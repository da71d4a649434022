"""The Kafka API of a broker in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from alpacamq.api.kafka.call import Backend
from alpacamq.api.kafka.listener import Listener
from alpacamq.api.kafka.requests import KafkaRequests
from alpacamq.broker.broker import Broker
from alpacamq.node.config import KafkaConfig

from .wire import Wire


@asynccontextmanager
async def served(broker: Broker) -> AsyncIterator[tuple[Wire, tuple[str, int]]]:
    """Serve a broker; yield a connection, and the address for more."""
    listener = Listener("127.0.0.1", 0, KafkaConfig())
    host, port = listener.bind()
    serving = asyncio.create_task(listener.run(KafkaRequests(Backend(broker=broker, host=host, port=port))))
    await listener.listening.wait()
    wire = await asyncio.to_thread(Wire, (host, port))
    try:
        yield wire, (host, port)
    finally:
        wire.close()
        serving.cancel()
        await asyncio.wait([serving])
