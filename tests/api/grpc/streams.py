"""Streams of Producer and Log, by grpcio, unmodified."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from alpacamq.v1 import admin_pb2, log_pb2, messages_pb2, producer_pb2, transactions_pb2

from .client import TIMEOUT_S, Client

V1 = "/alpacamq.v1."


def record(value: bytes | None, **fields: Any) -> Any:
    return messages_pb2.NewRecord(value=value, **fields)


async def create_topic(client: Client, name: str, partitions: int = 1, **settings: str) -> None:
    call = client.unary(f"{V1}Admin/CreateTopic", admin_pb2.CreateTopicRequest, admin_pb2.TopicDescription)
    named = {key.replace("_", "."): value for key, value in settings.items()}
    await call(admin_pb2.CreateTopicRequest(name=name, partitions=partitions, settings=named))


async def send(client: Client, topic: str, *records: Any, **fields: Any) -> Any:
    call = client.unary(f"{V1}Producer/Send", producer_pb2.SendRequest, producer_pb2.SendResponse)
    request = producer_pb2.SendRequest(topic=topic, records=records, **fields)
    return (await call(request, timeout=TIMEOUT_S)).result


async def init_producer(client: Client, **fields: Any) -> Any:
    call = client.unary(
        f"{V1}Transactions/InitProducer",
        transactions_pb2.InitProducerRequest,
        transactions_pb2.ProducerIdentity,
    )
    return await call(transactions_pb2.InitProducerRequest(**fields), timeout=TIMEOUT_S)


class Produce:
    """A stream of Producer.Produce."""

    def __init__(self, client: Client, metadata: Sequence[tuple[str, str]] = ()) -> None:
        produce = client.channel.stream_stream(
            f"{V1}Producer/Produce",
            request_serializer=producer_pb2.ProduceRequest.SerializeToString,
            response_deserializer=producer_pb2.ProduceResponse.FromString,
        )
        self.stream = produce(metadata=tuple(metadata), timeout=TIMEOUT_S)

    async def write(self, correlation_id: int, topic: str, *records: Any, **fields: Any) -> None:
        await self.stream.write(
            producer_pb2.ProduceRequest(correlation_id=correlation_id, topic=topic, records=records, **fields)
        )

    async def response(self) -> Any:
        response = await self.stream.read()
        assert response is not grpc.aio.EOF, (await self.stream.code(), await self.stream.details())
        return response

    async def end(self) -> list[Any]:
        """End the client's side; return the rest of the responses."""
        await self.stream.done_writing()
        found = []
        while (response := await self.stream.read()) is not grpc.aio.EOF:
            found.append(response)
        assert await self.stream.code() is grpc.StatusCode.OK, await self.stream.details()
        return found


def read(client: Client, topic: str, metadata: Sequence[tuple[str, str]] = (), **fields: Any) -> Any:
    call = client.channel.unary_stream(
        f"{V1}Log/Read",
        request_serializer=log_pb2.ReadRequest.SerializeToString,
        response_deserializer=log_pb2.ReadResponse.FromString,
    )
    request = log_pb2.ReadRequest(topic=topic, **fields)
    return call(request, metadata=tuple(metadata), timeout=TIMEOUT_S)


NOW = log_pb2.Until(current_end=True)


async def read_all(client: Client, topic: str, **fields: Any) -> list[Any]:
    """Read the records that a topic has now."""
    fields.setdefault("until", NOW)
    return [each async for response in read(client, topic, **fields) for each in response.records]


async def read_some(stream: Any, count: int) -> list[Any]:
    """Read until so many records have come."""
    found: list[Any] = []
    while len(found) < count:
        response = await stream.read()
        assert response is not grpc.aio.EOF, (await stream.code(), await stream.details())
        found += response.records
    return found


class Subscription:
    """A stream of Log.Subscribe."""

    def __init__(self, client: Client, metadata: Sequence[tuple[str, str]] = ()) -> None:
        subscribe = client.channel.stream_stream(
            f"{V1}Log/Subscribe",
            request_serializer=log_pb2.SubscribeRequest.SerializeToString,
            response_deserializer=log_pb2.SubscribeResponse.FromString,
        )
        self.stream = subscribe(metadata=tuple(metadata), timeout=TIMEOUT_S)
        # What came while something else was waited for.
        self._waiting: list[Any] = []

    @classmethod
    async def open(cls, client: Client, group: str, *topics: str, **fields: Any) -> "Subscription":
        found = cls(client)
        await found.send(open=log_pb2.SubscribeOpen(group=group, topics=topics, **fields))
        await found.next("joined")
        return found

    async def send(self, **fields: Any) -> None:
        await self.stream.write(log_pb2.SubscribeRequest(**fields))

    async def next(self, kind: str) -> Any:
        """Return the next response of a kind; others are kept."""
        for index, response in enumerate(self._waiting):
            if response.WhichOneof("response") == kind:
                return getattr(self._waiting.pop(index), kind)
        while True:
            response = await asyncio.wait_for(self.stream.read(), TIMEOUT_S)
            assert response is not grpc.aio.EOF, (await self.stream.code(), await self.stream.details())
            if response.WhichOneof("response") == kind:
                return getattr(response, kind)
            self._waiting.append(response)

    async def assigned(self, count: int) -> dict[tuple[str, int], int]:
        """Wait for so many partitions; return where each starts."""
        found: dict[tuple[str, int], int] = {}
        while len(found) < count:
            for each in (await self.next("assigned")).partitions:
                found[each.topic, each.partition] = each.offset
        return found

    async def records(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            found += (await self.next("records")).records
        return found

    async def commit(self, *offsets: tuple[str, int, int]) -> Any:
        wanted = [
            log_pb2.OffsetToCommit(topic=topic, partition=partition, offset=offset)
            for topic, partition, offset in offsets
        ]
        await self.send(commit=log_pb2.CommitOffsets(correlation_id=1, offsets=wanted))
        return await self.next("committed")

    async def end(self) -> Any:
        """End the client's side; return the status."""
        await self.stream.done_writing()
        while await self.stream.read() is not grpc.aio.EOF:
            pass
        return await self.stream.code()
