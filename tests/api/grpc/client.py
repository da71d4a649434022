"""Calls of the gRPC API by grpcio, unmodified, and by frames of HTTP/2."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import httpx
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpclib.health.v1 import health_pb2

from alpacamq.v1 import cluster_pb2, queue_pb2

TIMEOUT_S = 60.0
QUEUE = "/alpacamq.v1.Queue"


class Client:
    """A channel of grpcio, and the methods that tests call."""

    def __init__(self, channel: "grpc.aio.Channel") -> None:
        self.channel = channel

    def unary(self, path: str, request: Any, reply: Any) -> Any:
        return self.channel.unary_unary(
            path, request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )

    @property
    def receive(self) -> Any:
        return self.unary(f"{QUEUE}/Receive", queue_pb2.ReceiveRequest, queue_pb2.ReceiveResponse)

    @property
    def settle(self) -> Any:
        return self.unary(f"{QUEUE}/Settle", queue_pb2.SettleRequest, queue_pb2.SettleResponse)

    @property
    def endpoints(self) -> Any:
        path = "/alpacamq.v1.Cluster/Endpoints"
        return self.unary(path, cluster_pb2.EndpointsRequest, cluster_pb2.EndpointsResponse)

    @property
    def check_health(self) -> Any:
        path = "/grpc.health.v1.Health/Check"
        return self.unary(path, health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)

    @property
    def watch_health(self) -> Any:
        return self.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

    def stream(self, metadata: Sequence[tuple[str, str]] = ()) -> Any:
        work = self.channel.stream_stream(
            f"{QUEUE}/Work",
            request_serializer=queue_pb2.WorkRequest.SerializeToString,
            response_deserializer=queue_pb2.WorkResponse.FromString,
        )
        return work(metadata=tuple(metadata), timeout=TIMEOUT_S)

    async def work(
        self,
        topic: str,
        group: str = "g",
        *,
        credit: int = 10,
        metadata: Sequence[tuple[str, str]] = (),
        **more: Any,
    ) -> "Work":
        stream = self.stream(metadata)
        opened = queue_pb2.WorkOpen(topic=topic, group=group, credit=credit, **more)
        await stream.write(queue_pb2.WorkRequest(open=opened))
        return Work(stream)


class Work:
    """An open stream of Queue.Work."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    async def send(self, **fields: Any) -> None:
        await self.stream.write(queue_pb2.WorkRequest(**fields))

    async def messages(self, count: int) -> list[Any]:
        """Read until so many messages have come."""
        found: list[Any] = []
        while len(found) < count:
            found += (await self.response()).messages
        return found

    async def results(self, count: int) -> tuple[list[int], dict[int, Any]]:
        """Read until so many settlements have a result: those that succeeded, and the others' statuses."""
        settled: list[int] = []
        errors: dict[int, Any] = {}
        while len(settled) + len(errors) < count:
            response = await self.response()
            settled += response.settled
            errors |= {each.delivery_id: each.status for each in response.errors}
        return settled, errors

    async def response(self) -> Any:
        response = await self.stream.read()
        assert response is not grpc.aio.EOF, (await self.stream.code(), await self.stream.details())
        return response

    async def end(self) -> Any:
        """End the client's side; return the status."""
        await self.stream.done_writing()
        while await self.stream.read() is not grpc.aio.EOF:
            pass
        return await self.stream.code()


@asynccontextmanager
async def connected(address: str, **options: Any) -> AsyncIterator[Client]:
    settings = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1), *options.items()]
    async with grpc.aio.insecure_channel(address, settings) as channel:
        yield Client(channel)


def publish(http: str, topic: str, values: Sequence[str], partitions: int = 1, **fields: Any) -> None:
    """Create a topic and write messages to it."""
    with httpx.Client(base_url=f"http://{http}", timeout=TIMEOUT_S) as client:
        client.post("/topics", json={"name": topic, "partitions": partitions})
        if not values:
            return
        messages = [{"value": value, **fields} for value in values]
        client.post(f"/topics/{topic}/messages", json={"messages": messages}).raise_for_status()


class Refusal:
    """The status of a call that failed, with its details."""

    def __init__(self, code: int, message: str, details: Any) -> None:
        self.code = code
        self.message = message
        self.reason = ""
        self.fields: list[str] = []
        self.retry_ms: int | None = None
        for detail in details:
            info, request, retry = ErrorInfo(), BadRequest(), RetryInfo()
            if detail.Unpack(info):
                assert info.domain == "alpacamq"
                self.reason = info.reason
            elif detail.Unpack(request):
                self.fields = [each.field for each in request.field_violations]
            elif detail.Unpack(retry):
                self.retry_ms = retry.retry_delay.ToMilliseconds()


def refusal(error: "grpc.aio.AioRpcError") -> Refusal:
    status = Status()
    for name, value in error.trailing_metadata():
        if name == "grpc-status-details-bin":
            status.ParseFromString(value)
    assert status.code == error.code().value[0], error
    assert status.message == error.details()
    return Refusal(status.code, status.message, status.details)


class RawConnection:
    """A client that sends frames as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self.h2.config.validate_outbound_headers = False
        self.events: list[Any] = []
        # Whether the server may send more for what has arrived.
        self.is_reading = True

    def begin(self) -> None:
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    def call(self, path: str, *, headers: Sequence[tuple[str, str]] = (), end_stream: bool = False) -> int:
        """Begin a call; return the id of its stream."""
        number: int = self.h2.get_next_available_stream_id()
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "test"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *headers,
        ]
        self.h2.send_headers(number, fields, end_stream=end_stream)
        self.flush()
        return number

    def send(self, number: int, message: bytes, *, flag: int = 0, end_stream: bool = False) -> None:
        """Send a message of a call."""
        self.h2.send_data(number, bytes([flag]) + len(message).to_bytes(4) + message, end_stream=end_stream)
        self.flush()

    async def receive(self) -> bool:
        """Handle what arrives next; return False if the server has closed the connection."""
        try:
            data = await asyncio.wait_for(self._reader.read(1 << 16), TIMEOUT_S)
        except ConnectionError:
            return False
        if not data:
            return False
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length and self.is_reading:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.events.append(event)
        self.flush()
        return True

    async def status_of(self, number: int) -> dict[str, str]:
        """Return the trailers of a call."""
        while True:
            for event in self.events:
                kinds = (h2.events.TrailersReceived, h2.events.ResponseReceived)
                if isinstance(event, kinds) and event.stream_id == number:
                    found = dict(event.headers)
                    if "grpc-status" in found or isinstance(event, h2.events.TrailersReceived):
                        return found
            assert await self.receive(), "closed"

    async def end_reason(self) -> Any:
        """Wait until the server closes; return the error code of its GOAWAY, None without one."""
        while await self.receive():
            pass
        for event in self.events:
            if isinstance(event, h2.events.ConnectionTerminated):
                return event.error_code
        return None


@asynccontextmanager
async def raw_connection(address: str) -> AsyncIterator[RawConnection]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
