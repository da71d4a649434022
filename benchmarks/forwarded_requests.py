"""How much longer does a request over HTTP wait at a node that has to forward it to the leader?

Three nodes, three replicas, acks=all with a flush on each. One message of 100 B is published at a fixed rate,
and one is read at a fixed rate, at the node that leads the partition and at another one. Latency counts from
the intended send time. The client and three nodes share the machine's cores.
"""

import asyncio
import time
from array import array
from collections.abc import Mapping
from itertools import count
from typing import Self

import uvloop
from confluent_kafka.admin import AdminClient

from . import topics
from .clients import percentile
from .clusters import NODES, AlpacaCluster, ClusterServer
from .publish_latency import PERCENTILES
from .report import OURS, Floor, Report
from .session import Session
from .usage import Meter, Usage

TOPIC = "orders"
RATE = 500
CONNECTIONS = 32
FLOOR = Floor(at_most=12.0)
_PUBLISH = b'{"value": "%s"}' % (b"v" * 100)


def run(session: Session, report: Report) -> None:
    report.settings["load"] = {"requests a second": RATE, "connections": CONNECTIONS}
    with session.server(AlpacaCluster()) as server:
        assert isinstance(server, ClusterServer)
        topics.create(server.address, TOPIC, 1, {"min.insync.replicas": "2"}, replicas=NODES)
        leader = _leader(server)
        places = {"the leader": leader, "another node": next(each for each in server.http if each != leader)}
        # In turns, so that what else happens on the machine meets both.
        for request, path, body in (
            ("publish", f"POST /topics/{TOPIC}/messages", _PUBLISH),
            ("read", f"GET /topics/{TOPIC}/partitions/0/messages?offset=0&limit=1", b""),
        ):
            runs, usages = _in_turns(session, server, places, path, body)
            for place in places:
                for name, share in PERCENTILES.items():
                    report(
                        case=f"{request} at {place}, {RATE}/s, {name}",
                        server=OURS,
                        unit="ms",
                        samples=[percentile(each, share) / 1e6 for each in runs[place]],
                        usages=usages[place],
                        floor=FLOOR if (place, name) == ("another node", "p99") else None,
                    )


def _leader(server: ClusterServer) -> int:
    admin = AdminClient({"bootstrap.servers": server.address, "log_level": 3})
    found: int = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0].leader
    return found


def _in_turns(
    session: Session, server: ClusterServer, places: Mapping[str, int], path: str, body: bytes
) -> tuple[dict[str, list["array[int]"]], dict[str, list[Usage]]]:
    """Return the latencies of each run at each place, after one warm-up run."""
    runs: dict[str, list[array[int]]] = {place: [] for place in places}
    usages: dict[str, list[Usage]] = {place: [] for place in places}
    requests = session.scaled(6, 1) * RATE
    for sample in range(session.repeats + 1):
        session.settle()
        for place, node_id in places.items():
            address = server.http[node_id]
            head = f"{path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json".encode()
            with Meter(*server.pids) as meter:
                latencies = uvloop.run(_paced(address, head, body, requests))
            if sample:
                runs[place].append(latencies)
                usages[place].append(meter.usage)
    return runs, usages


async def _paced(address: str, head: bytes, body: bytes, requests: int) -> "array[int]":
    """Send requests at the rate on several connections; return their latencies in nanoseconds."""
    latencies = array("q")
    numbers = count()
    began_ns = time.monotonic_ns() + 50_000_000

    async def send(client: _HttpClient) -> None:
        while (number := next(numbers)) < requests:
            due_ns = began_ns + number * 1_000_000_000 // RATE
            if (ahead_ns := due_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(ahead_ns / 1e9)
            await client.ask(head, body)
            latencies.append(time.monotonic_ns() - due_ns)

    clients = [await _HttpClient.connect(address) for _ in range(CONNECTIONS)]
    try:
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(send(client))
    finally:
        for client in clients:
            await client.close()
    return latencies


class _HttpClient:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str) -> Self:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 24))

    async def ask(self, head: bytes, body: bytes = b"") -> bytes:
        """The body of the answer to `head` (request line and headers, without a length) and `body`."""
        self._writer.write(b"%b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in answer.split(b"\r\n"):
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        content = await self._reader.readexactly(length) if length else b""
        if answer[9:12] not in (b"200", b"201", b"204"):
            raise RuntimeError(f"{answer[:200]!r} {content[:500]!r}")
        return content

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
