"""How long is a message on its way over gRPC, and its acknowledgement, at 1,000 messages a second?

Producer and consumer are processes of their own, which write frames themselves. 100 B messages, each in a
request of its own on a stream of `Producer.Produce`; a stream of `Queue.Work` acknowledges each at once.
Latency counts from the intended send time, so that a stall counts for every message that it delays.
"""

import multiprocessing
import select
import time
from array import array
from multiprocessing.connection import Connection
from struct import Struct

from alpacamq.v1 import producer_pb2, queue_pb2

from . import topics
from .clients import percentile
from .grpc_load import GROUP, Stream
from .publish_latency import PERCENTILES
from .report import OURS, Floor, Report
from .servers import AlpacaMQ
from .session import Session
from .usage import Meter, Usage

RATE = 1_000
SIZE = 100
CREDIT = 200
FLOOR = Floor(at_most=5.0)
PRODUCED = "produce to response"
DELIVERED = "produce to delivery"
SETTLED = "acknowledgement to result"
TIMEOUT_S = 30.0
# The intended send time of a message, with which its value begins.
_SENT_AT = Struct(">q")

_Latencies = dict[str, "array[int]"]


def run(session: Session, report: Report) -> None:
    report.settings["load"] = {"message bytes": SIZE, "messages/s": RATE, "credit": CREDIT}
    count = RATE * session.scaled(10, 1)
    runs: list[_Latencies] = []
    usages: list[Usage] = []
    with session.server(AlpacaMQ()) as server:
        for number in range(session.repeats + 1):
            topic = f"paced-{number}"
            topics.create(server.address, topic, 1)
            session.settle()
            with Meter(server.pid) as meter:
                latencies = _measured(server.addresses["grpc"], topic, count)
            topics.delete(server.address, topic)
            if number:  # the first one warms up
                runs.append(latencies)
                usages.append(meter.usage.over(count / RATE))
    for case in (PRODUCED, DELIVERED, SETTLED):
        for name, share in PERCENTILES.items():
            report(
                case=f"{RATE:,} msg/s, {case}, {name}",
                server=OURS,
                unit="ms",
                samples=[percentile(each[case], share) / 1e6 for each in runs],
                usages=usages,
                floor=FLOOR if name == "p99" else None,
            )


def _measured(address: str, topic: str, count: int) -> _Latencies:
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe(duplex=False) for _ in range(2)]
    works = (_consume, _produce)
    processes = [
        context.Process(target=work, args=(address, topic, count, sender), daemon=True)
        for work, (_, sender) in zip(works, ends, strict=True)
    ]
    found: _Latencies = {}
    try:
        (consumer, _), (producer, _) = ends
        processes[0].start()
        _received(consumer)  # it has its stream
        processes[1].start()
        found |= _received(producer)
        found |= _received(consumer)
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
    return found


def _received(end: Connection) -> _Latencies:
    if not end.poll(TIMEOUT_S + 30):
        raise TimeoutError("a client of the benchmark did not finish")
    latencies: _Latencies = end.recv()
    return latencies


def _produce(address: str, topic: str, count: int, end: Connection) -> None:
    stream = Stream(address, "Producer/Produce", producer_pb2.ProduceResponse)
    padding = bytes(SIZE - _SENT_AT.size)
    interval_ns = 1_000_000_000 // RATE
    acked_ns = array("q")
    # After the start of the process, whose first steps are slow.
    began_ns = time.monotonic_ns() + 300_000_000
    sent = 0
    while len(acked_ns) < count:
        now_ns = time.monotonic_ns()
        while sent < count and (due_ns := began_ns + sent * interval_ns) <= now_ns:
            request = producer_pb2.ProduceRequest(correlation_id=sent, topic=topic)
            request.records.add(value=_SENT_AT.pack(due_ns) + padding)
            stream.send(request)
            sent += 1
        wait_s = TIMEOUT_S if sent == count else max(0.0, (began_ns + sent * interval_ns - now_ns) / 1e9)
        if select.select([stream.socket], [], [], wait_s)[0]:
            for response in stream.receive():
                assert not response.HasField("error"), response.error
                acked_ns.append(time.monotonic_ns() - began_ns - response.correlation_id * interval_ns)
        elif sent == count:
            raise TimeoutError("requests were not answered")
    end.send({PRODUCED: acked_ns})
    stream.close()


def _consume(address: str, topic: str, count: int, end: Connection) -> None:
    stream = Stream(address, "Queue/Work", queue_pb2.WorkResponse)
    stream.socket.settimeout(TIMEOUT_S)
    opened = queue_pb2.WorkOpen(topic=topic, group=GROUP, credit=CREDIT)
    stream.send(queue_pb2.WorkRequest(open=opened))
    while not stream.receive():  # the first response says that the stream is open
        pass
    end.send({})
    seen_ns, settled_ns = array("q"), array("q")
    acked_at: dict[int, int] = {}
    while len(settled_ns) < count:
        responses = stream.receive()
        now_ns = time.monotonic_ns()
        done = []
        for response in responses:
            assert not response.errors, response.errors[0]
            settled_ns.extend(now_ns - acked_at.pop(each) for each in response.settled)
            for each in response.messages:
                seen_ns.append(now_ns - _SENT_AT.unpack_from(each.record.value)[0])
                done.append(each.delivery_id)
        if done:
            acked_at |= dict.fromkeys(done, time.monotonic_ns())
            stream.send(queue_pb2.WorkRequest(ack=done))
    end.send({DELIVERED: seen_ns, SETTLED: settled_ns})
    stream.close()
