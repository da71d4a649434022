"""How many records a second does one core of the broker write and read over gRPC?

grpcio in this process, one stream, 100 B, batches of 100. By the processor time of the broker: the client
takes more of it than the broker does.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from alpacamq.v1 import log_pb2, messages_pb2, producer_pb2

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
