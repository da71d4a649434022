"""Consumers of a queue over gRPC: streams of Queue.Work by grpcio, each on a connection of its own."""

import asyncio
from typing import Any

import grpc

from alpacamq.v1 import queue_pb2

CREDIT = 200
GROUP = "bench"


class _Drain:
    """Receives and acknowledges a number of messages."""

    def __init__(self, address: str, topic: str, messages: int) -> None:
        self._address = address
        self._opened = queue_pb2.WorkOpen(topic=topic, group=GROUP, credit=CREDIT)
        self._left = messages
        self._is_done = asyncio.Event()

    async def run(self, consumers: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._consume()) for _ in range(consumers)]
            await self._is_done.wait()
            for task in running:
                task.cancel()

    async def _consume(self) -> None:
        # Without it, channels to one address share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._address, options) as channel:
            work: Any = channel.stream_stream(
                "/alpacamq.v1.Queue/Work",
                request_serializer=queue_pb2.WorkRequest.SerializeToString,
                response_deserializer=queue_pb2.WorkResponse.FromString,
            )()
            await work.write(queue_pb2.WorkRequest(open=self._opened))
            while True:
                response = await work.read()
                assert not response.errors, response.errors[0]
                self._left -= len(response.settled)
                if self._left <= 0:
                    self._is_done.set()
                if response.messages:
                    ids = [each.delivery_id for each in response.messages]
                    await work.write(queue_pb2.WorkRequest(ack=ids))


def drain(address: str, topic: str, messages: int, consumers: int) -> None:
    """Receive and acknowledge all messages of a topic."""

    async def run() -> None:
        await _Drain(address, topic, messages).run(consumers)

    asyncio.run(run())
