"""The HTTP/2 transport: its bounds, and clients that try to exceed them."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import h2.errors
import h2.events
import h2.settings
import httpx
import pytest
from grpclib.health.v1 import health_pb2

from alpacamq.v1 import queue_pb2
from tests.brokers import Broker
from tests.waiting import eventually

from .client import TIMEOUT_S, RawConnection, connected, publish, raw_connection, refusal

CHECK = "/grpc.health.v1.Health/Check"
WORK = "/alpacamq.v1.Queue/Work"
LIMIT = 1 << 20
OK, UNIMPLEMENTED, EXHAUSTED, INTERNAL = "0", "12", "8", "13"
CALM = h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
CALLS_MEANWHILE = 20


@asynccontextmanager
async def started(address: str) -> AsyncIterator[RawConnection]:
    async with raw_connection(address) as raw:
        raw.begin()
        yield raw


async def test_a_message_over_the_limit_is_refused_before_it_is_sent(broker: Broker) -> None:
    async with started(broker.grpc_address) as raw:
        number = raw.call(CHECK)
        raw.h2.send_data(number, b"\0" + (1 << 30).to_bytes(4) + b"x")
        raw.flush()
        assert (await raw.status_of(number))["grpc-status"] == EXHAUSTED
        # The connection still serves.
        number = raw.call(CHECK)
        raw.send(number, b"", end_stream=True)
        assert (await raw.status_of(number))["grpc-status"] == OK


async def test_a_large_message_within_the_limit_is_served(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, [])
    reason = "r" * (LIMIT - 1000)
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic)
        await work.send(reject=[queue_pb2.Reject(delivery_id=1, reason=reason)])
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await work.response()
    assert refusal(failed.value).fields == ["reject.reason"]


async def test_messages_in_progress_are_bounded_in_all(broker: Broker) -> None:
    """Nine calls of nearly a mebibyte each exceed in_flight_bytes; all are answered."""
    async with started(broker.grpc_address) as raw:
        while raw.h2.outbound_flow_control_window < 10 * LIMIT:
            assert await raw.receive()
        part = b"\0" + LIMIT.to_bytes(4) + b"x" * 16_000
        numbers = [raw.call(CHECK) for _ in range(9)]
        sent = dict.fromkeys(numbers, 0)
        refused: set[int] = set()
        while not refused and min(sent.values()) < LIMIT - 20_000:
            for number in numbers:
                if number not in refused and raw.h2.local_flow_control_window(number) > len(part):
                    raw.h2.send_data(number, part if not sent[number] else b"x" * 16_000)
                    sent[number] += 16_000
            raw.flush()
            await raw.writer.drain()
            while True:
                try:
                    async with asyncio.timeout(0.01):
                        await raw.receive()
                except TimeoutError:
                    break
            refused = {each.stream_id for each in raw.events if isinstance(each, h2.events.StreamEnded)}
        statuses = {(await raw.status_of(number))["grpc-status"] for number in refused}
    assert statuses == {EXHAUSTED}


async def test_many_small_messages_leave_others_their_turn(broker: Broker, topic: str) -> None:
    """Hundreds of thousands of empty requests are held as bytes, and taken a few at a time."""
    publish(broker.http_address, topic, [])
    opened = queue_pb2.WorkRequest(open=queue_pb2.WorkOpen(topic=topic, group="g", credit=1))
    async with started(broker.grpc_address) as raw, connected(broker.grpc_address) as bystander:
        await bystander.check_health(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        while raw.h2.outbound_flow_control_window < LIMIT:
            assert await raw.receive()
        number = raw.call(WORK)
        raw.send(number, opened.SerializeToString())
        before = broker.resident_bytes
        empty = b"\0\0\0\0\0" * 3000
        while raw.h2.local_flow_control_window(number) > len(empty):
            raw.h2.send_data(number, empty)
        raw.flush()
        for _ in range(CALLS_MEANWHILE):
            await bystander.check_health(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert broker.resident_bytes - before < 32 << 20


async def test_headers_over_the_limit_close_the_connection(broker: Broker) -> None:
    async with started(broker.grpc_address) as raw:
        raw.call(CHECK, headers=[(f"x-{number}", "v" * 1000) for number in range(30)])
        assert await raw.end_reason() == CALM


async def test_the_stream_beyond_the_limit_is_refused_and_the_others_stay(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, [])
    opened = queue_pb2.WorkRequest(open=queue_pb2.WorkOpen(topic=topic, group="g", credit=1))
    async with started(broker.grpc_address) as raw:
        while h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS not in raw.h2.remote_settings:
            assert await raw.receive()
        assert raw.h2.remote_settings.max_concurrent_streams == 100
        raw.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 1000
        raw.h2.remote_settings.acknowledge()
        numbers = [raw.call(WORK) for _ in range(100)]
        for number in numbers:
            raw.send(number, opened.SerializeToString())
        beyond = raw.call(WORK)

        def resets() -> dict[int, int]:
            found = [each for each in raw.events if isinstance(each, h2.events.StreamReset)]
            return {each.stream_id: each.error_code for each in found}

        while not resets():
            assert await raw.receive()
        assert resets() == {beyond: h2.errors.ErrorCodes.REFUSED_STREAM}
        # A place becomes free when a stream ends.
        raw.h2.end_stream(numbers[0])
        raw.flush()
        assert (await raw.status_of(numbers[0]))["grpc-status"] == OK
        number = raw.call(CHECK)
        raw.send(number, b"", end_stream=True)
        assert (await raw.status_of(number))["grpc-status"] == OK


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def empty_data(raw: RawConnection) -> bytes:
    return frame(0, stream=raw.call(WORK))


def continuations(raw: RawConnection) -> bytes:
    raw.writer.write(frame(1, b"", stream=1))
    return frame(9, b"", stream=1)


def resets(raw: RawConnection) -> bytes:
    """Calls that are cancelled at once, as in the attack "rapid reset"."""
    headers = [(":method", "POST"), (":path", CHECK), (":scheme", "http"), (":authority", "test")]
    for _ in range(1000):
        number = raw.h2.get_next_available_stream_id()
        raw.h2.send_headers(number, headers)
        raw.h2.reset_stream(number)
    sent: bytes = raw.h2.data_to_send()
    return sent


FLOODS: dict[str, Callable[[RawConnection], bytes]] = {
    "SETTINGS": lambda _raw: frame(4),
    "PING": lambda _raw: frame(6, b"12345678"),
    "PRIORITY": lambda _raw: frame(2, b"\0\0\0\0\0", stream=1),
    "WINDOW_UPDATE": lambda _raw: frame(8, b"\0\0\0\1"),
    "unknown": lambda _raw: frame(0xFA, b""),
    "empty DATA": empty_data,
    "CONTINUATION": continuations,
    "RST_STREAM": resets,
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_floods_close_the_connection_while_others_are_served(broker: Broker, kind: str) -> None:
    async with connected(broker.grpc_address) as bystander, started(broker.grpc_address) as raw:
        await bystander.check_health(health_pb2.HealthCheckRequest())
        frames = FLOODS[kind](raw)
        raw.writer.write(frames * (100_000 // len(frames) + 1))
        served = 0
        for _ in range(CALLS_MEANWHILE):
            await bystander.check_health(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
            served += 1
        assert await raw.end_reason() in (CALM, None)
        assert served == CALLS_MEANWHILE
    broker.errors.wait_for(f"too many {kind} frames", within_s=TIMEOUT_S)


@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04"])
async def test_connections_that_do_not_begin_are_closed(broker: Broker, sent: bytes) -> None:
    async with raw_connection(broker.grpc_address) as raw:
        raw.writer.write(sent)
        while await asyncio.wait_for(raw._reader.read(1000), TIMEOUT_S):
            pass


async def test_a_message_that_does_not_arrive_is_given_up(broker: Broker) -> None:
    async with started(broker.grpc_address) as raw:
        number = raw.call(CHECK)
        raw.h2.send_data(number, b"\0\0\0\1\0begin")
        raw.flush()
        assert (await raw.status_of(number))["grpc-status"] == "4"


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) * 4, b"\x16\x03\x01\x02\0"]
)
async def test_what_is_not_http2_is_closed(broker: Broker, data: bytes) -> None:
    async with raw_connection(broker.grpc_address) as raw:
        raw.writer.write(data)
        while await asyncio.wait_for(raw._reader.read(1000), TIMEOUT_S):
            pass


async def test_requests_that_are_not_grpc_get_an_http_status(broker: Broker) -> None:
    async with started(broker.grpc_address) as raw:
        fields = [(":scheme", "http"), (":path", CHECK), (":authority", "test")]
        for method, kind, status in (("GET", "application/grpc", "405"), ("POST", "text/html", "415")):
            number = raw.h2.get_next_available_stream_id()
            raw.h2.send_headers(
                number, [(":method", method), *fields, ("content-type", kind)], end_stream=True
            )
            raw.flush()

            def found(number: int = number) -> list[dict[str, str]]:
                kinds = h2.events.ResponseReceived
                return [
                    dict(each.headers)
                    for each in raw.events
                    if isinstance(each, kinds) and each.stream_id == number
                ]

            while not found():
                assert await raw.receive()
            assert found()[0][":status"] == status


async def test_unknown_methods_are_unimplemented(broker: Broker) -> None:
    async with started(broker.grpc_address) as raw:
        number = raw.call("/alpacamq.v1.Queue/Nothing")
        raw.send(number, b"", end_stream=True)
        assert (await raw.status_of(number))["grpc-status"] == UNIMPLEMENTED


async def test_gzip_messages_are_decompressed(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["a"])
    async with connected(broker.grpc_address) as client:
        reply = await client.receive(
            queue_pb2.ReceiveRequest(topic=topic, group="g", wait_ms=5000, consumer="c" * 200),
            compression=grpc.Compression.Gzip,
            timeout=TIMEOUT_S,
        )
    assert [each.record.value for each in reply.messages] == [b"a"]


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [
        pytest.param(gzip.compress(b"\n" + b"\0" * (LIMIT + 1)), "gzip", EXHAUSTED, id="bomb"),
        pytest.param(gzip.compress(b"")[:-4], "gzip", INTERNAL, id="truncated"),
        pytest.param(b"nonsense", "gzip", INTERNAL, id="nonsense"),
        pytest.param(zlib.compress(b""), "identity", INTERNAL, id="undeclared"),
        pytest.param(b"", "snappy", UNIMPLEMENTED, id="unknown"),
    ],
)
async def test_compressed_messages_have_bounds(
    broker: Broker, data: bytes, encoding: str, status: str
) -> None:
    async with started(broker.grpc_address) as raw:
        number = raw.call(CHECK, headers=[("grpc-encoding", encoding)])
        raw.send(number, data, flag=1, end_stream=True)
        found = await raw.status_of(number)
    assert found["grpc-status"] == status
    assert found["grpc-accept-encoding"] == "identity,gzip"


async def test_deadlines_end_calls(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, [])
    async with started(broker.grpc_address) as raw:
        number = raw.call(WORK, headers=[("grpc-timeout", "200m")])
        opened = queue_pb2.WorkRequest(open=queue_pb2.WorkOpen(topic=topic, group="g", credit=1))
        raw.send(number, opened.SerializeToString())
        assert (await raw.status_of(number))["grpc-status"] == "4"


async def test_a_client_that_does_not_read_gets_no_more_than_a_response(broker: Broker, topic: str) -> None:
    """Of 400 messages of 20 KB, those of one response beyond the client's window are leased."""
    publish(broker.http_address, topic, ["v" * 20_000] * 200)
    publish(broker.http_address, topic, ["v" * 20_000] * 200)
    opened = queue_pb2.WorkRequest(open=queue_pb2.WorkOpen(topic=topic, group="g", credit=1000))
    async with started(broker.grpc_address) as raw:
        number = raw.call(WORK)
        raw.send(number, opened.SerializeToString())

        def in_flight() -> int:
            path = f"http://{broker.http_address}/groups/g/queues/{topic}"
            found = httpx.get(path, timeout=TIMEOUT_S)
            return int(found.json()["totals"]["in_flight"]) if found.is_success else 0

        await asyncio.to_thread(eventually, lambda: in_flight() > 0)
        # Another call shows that the broker had time to send more.
        check = raw.call(CHECK)
        raw.send(check, b"", end_stream=True)
        assert (await raw.status_of(check))["grpc-status"] == OK
        assert 0 < in_flight() <= 2 * ((1 << 20) // 20_000 + 1)


def test_the_stack_is_loaded_with_the_first_connection(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data").start()
    try:

        def libraries() -> str:
            return Path(f"/proc/{broker.process.pid}/maps").read_text()

        assert "upb" not in libraries()

        async def call() -> None:
            async with connected(broker.grpc_address) as client:
                await client.check_health(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)

        asyncio.run(call())
        assert "upb" in libraries()
    finally:
        broker.end()


async def test_no_connection_or_call_is_left(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["a"] * 10)

    def left() -> tuple[float, float]:
        text = httpx.get(f"http://{broker.http_address}/metrics", timeout=TIMEOUT_S).text
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        found = {name: float(value) for name, _, value in lines}
        return found['alpacamq_connections{door="grpc"}'], found["alpacamq_grpc_calls_open"]

    async def use() -> None:
        # grpcio closes a connection when nothing refers to its channel.
        async with connected(broker.grpc_address) as client:
            streams = [await client.work(topic, credit=1) for _ in range(5)]
            await streams[0].messages(1)

    for _ in range(3):
        await use()
    await asyncio.to_thread(eventually, lambda: left() == (0, 0))


@pytest.mark.parametrize(
    ("kind", "size"),
    [(2, 4), (3, 5), (4, 5), (6, 7), (6, 9), (8, 3)],
    ids=["PRIORITY", "RST_STREAM", "SETTINGS", "short PING", "long PING", "WINDOW_UPDATE"],
)
async def test_a_frame_of_a_wrong_length_ends_the_connection_and_the_client_learns_why(
    broker: Broker, kind: int, size: int
) -> None:
    """Also a client that still sends while the broker closes: its end is not a reset."""
    async with started(broker.grpc_address) as raw:
        await raw.receive()
        sent = frame(kind, b"x" * size, stream=1 if kind in (2, 3) else 0)
        raw.writer.write(sent[:9])
        assert await raw.end_reason() == h2.errors.ErrorCodes.FRAME_SIZE_ERROR
        for part in (sent[9:], frame(6, b"has come"), b""):
            raw.writer.write(part)
            await raw.writer.drain()
            assert await raw._reader.read() == b""
        assert raw._reader.exception() is None


HEADERS, WINDOW_UPDATE = 1, 8
END_STREAM, END_HEADERS = 1, 4
LARGEST_WINDOW = (2**31 - 1).to_bytes(4)
PROTOCOL_ERROR, FLOW_ERROR = h2.errors.ErrorCodes.PROTOCOL_ERROR, h2.errors.ErrorCodes.FLOW_CONTROL_ERROR
# Frames that no client may send on an open stream, by what is wrong about them.
VIOLATIONS: dict[str, tuple[Callable[[RawConnection, int], bytes], h2.errors.ErrorCodes]] = {
    "headers again, not at the end": (
        lambda raw, number: frame(
            HEADERS, raw.h2.encoder.encode([("a", "b")]), flags=END_HEADERS, stream=number
        ),
        PROTOCOL_ERROR,
    ),
    "a pseudo-header in trailers": (
        lambda raw, number: frame(
            HEADERS,
            raw.h2.encoder.encode([(":path", "/")]),
            flags=END_HEADERS | END_STREAM,
            stream=number,
        ),
        PROTOCOL_ERROR,
    ),
    "a window of more than 2^31-1": (
        lambda _, number: frame(WINDOW_UPDATE, LARGEST_WINDOW, stream=number) * 2,
        FLOW_ERROR,
    ),
}


@pytest.mark.parametrize("violation", VIOLATIONS)
@pytest.mark.parametrize("is_late", [False, True], ids=["with the call", "after the call has begun"])
async def test_frames_that_a_stream_may_not_have_end_it(
    broker: Broker, violation: str, is_late: bool
) -> None:
    made, code = VIOLATIONS[violation]
    async with started(broker.grpc_address) as raw:
        number = raw.call(WORK)
        if is_late:
            raw.h2.ping(b"has come")
            raw.flush()
            while not any(isinstance(event, h2.events.PingAckReceived) for event in raw.events):
                assert await raw.receive()
        raw.writer.write(made(raw, number))
        kinds = h2.events.StreamReset, h2.events.ConnectionTerminated
        while not (ends := [event for event in raw.events if isinstance(event, kinds)]):
            assert await raw.receive()
        assert [event.error_code for event in ends] == [code]


@pytest.mark.parametrize("violation", VIOLATIONS)
async def test_what_comes_late_on_a_stream_that_was_answered_early_is_ignored(
    broker: Broker, violation: str
) -> None:
    """The client may have sent it before it saw the response (RFC 9113, 5.1 and 8.1)."""
    made, _ = VIOLATIONS[violation]
    async with started(broker.grpc_address) as raw:
        number = raw.h2.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "http"), (":path", CHECK), (":authority", "test")]
        raw.h2.send_headers(number, fields)
        raw.flush()
        while not any(isinstance(event, h2.events.StreamReset) for event in raw.events):
            assert await raw.receive()
        (reset,) = [event for event in raw.events if isinstance(event, h2.events.StreamReset)]
        assert reset.error_code == h2.errors.ErrorCodes.NO_ERROR
        raw.writer.write(made(raw, number))
        number = raw.call(CHECK)
        raw.send(number, b"", end_stream=True)
        assert (await raw.status_of(number))["grpc-status"] == OK
