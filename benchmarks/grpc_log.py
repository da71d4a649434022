"""How many records a second does one core of the broker write and read over gRPC, and what do streams take?

grpcio in this process, one stream, 100 B, batches of 100. By the processor time of the broker: the client
takes more of it than the broker does. Idle streams are of `Queue.Work`, on one queue.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import psutil

from alpacamq.v1 import log_pb2, messages_pb2, producer_pb2, queue_pb2

from . import topics
from .report import Floor, Report
from .server_cost import cpu_ns
from .servers import AlpacaMQ, Server
from .session import Session
from .usage import Meter

SIZE = 100
BATCH = 100
UNIT = "records/s per core of the server"
V1 = "/alpacamq.v1."
IDLE_STREAMS = 1000
STREAMS_PER_CONNECTION = 50
MIB = 1 << 20

# Does the work of a case; returns the number of records.
Work = Callable[[Any, str, int], Awaitable[int]]


def run(session: Session, report: Report) -> None:
    report.settings["client"] = {"grpcio": grpc.__version__, "streams": 1, "records of a batch": BATCH}
    batches = session.scaled(10_000, 1_000)
    with session.server(AlpacaMQ()) as server:
        for keyed, partitions in ((False, 1), (True, 3)):
            topic = f"keyed-{keyed}".lower()
            topics.create(server.address, topic, partitions)
            case = f"produce, {'with keys, ' if keyed else ''}{partitions} partition{'s' if keyed else ''}"
            floor = None if keyed else Floor(at_least=250_000)
            work = _produce_keyed if keyed else _produce
            _measure(session, report, server, case, work, topic, batches, floor)
        _measure(session, report, server, "read messages", _read, "keyed-false", 1, Floor(at_least=200_000))
        _measure(
            session, report, server, "read batches", _read_raw, "keyed-false", 5, Floor(at_least=2_000_000)
        )
        report(
            case=f"{IDLE_STREAMS:,} idle streams",
            server=server.name,
            unit="MiB more memory of the server",
            samples=[asyncio.run(_idle(server))],
            floor=Floor(at_most=50),
        )


async def _idle(server: Server) -> float:
    """Return how much memory the server takes for streams on which nothing happens."""
    topics.create(server.address, "idle", 1)
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with AsyncExitStack() as stack:
        streams = []
        for number in range(IDLE_STREAMS):
            if number % STREAMS_PER_CONNECTION == 0:
                channel = await stack.enter_async_context(
                    grpc.aio.insecure_channel(server.addresses["grpc"], options)
                )
            stream = channel.stream_stream(
                f"{V1}Queue/Work",
                request_serializer=queue_pb2.WorkRequest.SerializeToString,
                response_deserializer=queue_pb2.WorkResponse.FromString,
            )()
            opened = queue_pb2.WorkOpen(topic="idle", group="g", credit=1)
            await stream.write(queue_pb2.WorkRequest(open=opened))
            streams.append(stream)
        # Each has had a keep-alive, and is served.
        for stream in streams:
            assert await stream.read() is not grpc.aio.EOF
        return (process.memory_info().rss - before) / MIB


def _measure(
    session: Session,
    report: Report,
    server: Server,
    case: str,
    work: Work,
    topic: str,
    amount: int,
    floor: Floor | None,
) -> None:
    rates, usages = [], []
    for sample in range(session.repeats + 1):
        session.settle()
        began_ns = cpu_ns(server.pid)
        with Meter(server.pid) as meter:
            records = asyncio.run(_connected(server.addresses["grpc"], work, topic, amount))
        if sample:  # the first one warms up
            rates.append(records / (cpu_ns(server.pid) - began_ns) * 1e9)
            usages.append(meter.usage)
    report(case=case, server=server.name, unit=UNIT, samples=rates, usages=usages, floor=floor)


async def _connected(address: str, work: Work, topic: str, amount: int) -> int:
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        return await work(channel, topic, amount)


async def _produce(channel: Any, topic: str, batches: int) -> int:
    return await _write(channel, topic, batches, [None] * BATCH)


async def _produce_keyed(channel: Any, topic: str, batches: int) -> int:
    return await _write(channel, topic, batches, [b"%08d" % number for number in range(BATCH)])


async def _write(channel: Any, topic: str, batches: int, keys: list[Any]) -> int:
    records = [messages_pb2.NewRecord(key=key, value=os.urandom(SIZE)) for key in keys]
    request = producer_pb2.ProduceRequest(topic=topic, records=records)
    stream = channel.stream_stream(
        f"{V1}Producer/Produce",
        request_serializer=producer_pb2.ProduceRequest.SerializeToString,
        response_deserializer=producer_pb2.ProduceResponse.FromString,
    )()

    async def send() -> None:
        for _ in range(batches):
            await stream.write(request)
        await stream.done_writing()

    sending = asyncio.ensure_future(send())
    written = 0
    while (response := await stream.read()) is not grpc.aio.EOF:
        assert not response.error.code, response.error
        assert not response.result.errors, response.result.errors
        written += len(response.result.offsets)
    await sending
    assert written == batches * BATCH
    return written


async def _read(channel: Any, topic: str, times: int) -> int:
    return await _read_all(channel, topic, times, log_pb2.FORMAT_MESSAGES)


async def _read_raw(channel: Any, topic: str, times: int) -> int:
    return await _read_all(channel, topic, times, log_pb2.FORMAT_RECORD_BATCH)


async def _read_all(channel: Any, topic: str, times: int, form: Any) -> int:
    call = channel.unary_stream(
        f"{V1}Log/Read",
        request_serializer=log_pb2.ReadRequest.SerializeToString,
        response_deserializer=log_pb2.ReadResponse.FromString,
    )
    read = 0
    for _ in range(times):
        until = log_pb2.Until(current_end=True)
        async for response in call(log_pb2.ReadRequest(topic=topic, format=form, until=until)):
            end = response.positions[0].next_offset
        read += end
    return read
