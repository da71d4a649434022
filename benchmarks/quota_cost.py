"""What do quotas cost: how much more processor time does a request take with quotas that it does not reach?

One broker does the same work with quotas and without, in many short turns: two processes of the same broker
differ by more than quotas cost. With one request in flight nearly all of its cost is that of the connection,
and the time of a turn is charged for every request.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from alpacamq.client.connect import parse_address
from alpacamq.client.kafka.access import USER, EntityPart, remove_quotas, set_quotas
from alpacamq.client.kafka.cluster import Cluster

from . import topics, wire
from .report import OURS, Floor, Report
from .server_cost import cpu_ns, middle_half
from .servers import AlpacaMQ, Server
from .session import Session
from .writers import pipelined

SIZE = 100
SECONDS = 0.3
WITHOUT = "alpacamq without quotas"
COST = "µs of server CPU per request"
ADDED = "µs of server CPU added per request"
FLOOR = Floor(at_most=1.0)
EVERYONE = (EntityPart(USER, None),)
QUOTAS = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6}


class _Load(NamedTuple):
    """How a case sends its requests."""

    connections: int
    depth: int


LOADS = {
    "4 connections, pipelined": _Load(4, 256),
    "1 connection that waits": _Load(1, 1),
    "16 connections that wait": _Load(16, 1),
}


def run(session: Session, report: Report) -> None:
    batch = wire.one_record_batch(SIZE)
    with session.server(AlpacaMQ()) as server, Cluster(parse_address(server.address)) as cluster:
        switches = {
            OURS: partial(set_quotas, cluster, EVERYONE, QUOTAS),
            WITHOUT: partial(remove_quotas, cluster, EVERYONE, QUOTAS),
        }
        topic = "measured"
        topics.create(server.address, topic, 1)
        with wire.connect(server.address) as connection:
            produce = wire.produce_request(topic, 0, batch, acks=1)
            # For the fetches to find: the first batch, and with their limit no second one.
            connection.sendall(produce)
            wire.receive(connection)
        requests = {
            "produced": (produce, wire.produce_response_bytes(topic)),
            "fetched": (
                wire.fetch_request(topic, 0, 0, 1),
                wire.fetch_response_bytes(topic) + len(batch),
            ),
        }
        for name, load in LOADS.items():
            for verb, (request, response_bytes) in requests.items():
                work = partial(_sample, server, request, response_bytes, load)
                _compare(session, report, f"one message a request, {verb}, {name}", switches, work)


def _compare(
    session: Session,
    report: Report,
    case: str,
    switches: Mapping[str, Callable[[], None]],
    work: Callable[[], float],
) -> None:
    costs: dict[str, list[float]] = {OURS: [], WITHOUT: []}
    session.settle()
    for number in range(session.scaled(40, 3) + 1):
        # The first one has colder caches: take turns at that, too.
        for name in (OURS, WITHOUT) if number % 2 else (WITHOUT, OURS):
            switches[name]()
            cost = work()
            if number:  # the first pair warms up
                costs[name].append(cost)
    for name, samples in costs.items():
        report(case=case, server=name, unit=COST, samples=middle_half(samples))
    added = [with_them - without for with_them, without in zip(costs[OURS], costs[WITHOUT], strict=True)]
    report(case=case, server=OURS, unit=ADDED, samples=middle_half(added), floor=FLOOR)


def _sample(server: Server, request: bytes, response_bytes: int, load: _Load) -> float:
    """Return the cost of a request, in µs of processor time."""
    began_ns = cpu_ns(server.pid)
    done = pipelined(
        server.address,
        request,
        response_bytes,
        connections=load.connections,
        depth=load.depth,
        seconds=SECONDS,
    )
    return (cpu_ns(server.pid) - began_ns) / done.requests / 1000
