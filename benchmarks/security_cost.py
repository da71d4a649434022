"""What do logins, access rules and quotas cost: how much more processor time does the broker take with them?

Two brokers do the same work in turns with prebuilt requests. Clients of one of them log in as a user; there
are ten thousand rules, a few of which are about the user and its topics, and quotas that it does not reach.
Processor time is compared pair by pair, with several pairs of processes, because two processes of the same
broker differ by a few per cent. The time of logins is not part of it: a connection has one.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from alpacamq.client.connect import parse_address
from alpacamq.client.kafka.access import (
    CLUSTER_NAME,
    USER,
    Acl,
    EntityPart,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    create_acls,
    set_quotas,
)
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import Login

from . import topics, wire
from .report import OURS, Floor, Report
from .server_cost import cpu_ns, middle_half
from .servers import AlpacaMQ, Server
from .session import Session
from .writers import pipelined

OTHERS = 10_000
AT_ONCE = 1000
SIZE = 100
RECORDS = 9_000
SECONDS = 0.5
COST = "µs of server CPU per request"
ADDED = "µs of server CPU added per request"
RATIO = "times the CPU without them"
SMALL_FLOOR = Floor(at_most=2.0)
BATCH_FLOOR = Floor(at_most=1.03)
ADMIN, WRITER = "admin", "writer"
QUOTAS = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6}
PASSWORD = "of the benchmark"  # noqa: S105 - it opens nothing


class _Work(NamedTuple):
    """A request that is sent over and over, on connections with a number of them in flight."""

    request: Callable[[str], bytes]
    response_bytes: Callable[[str], int]
    connections: int
    depth: int

    @property
    def is_small(self) -> bool:
        """Whether it is about one message."""
        return self.depth > 1


def run(session: Session, report: Report) -> None:
    users = session.new_directory()
    users.mkdir(parents=True, exist_ok=True)
    secured = AlpacaMQ(f"login, {OTHERS:,} rules, quotas", _settings(users / "users"))
    cases = _cases()
    # Of each case: the costs with and without, sample by sample.
    pairs: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(session.scaled(3, 1)):
        with session.server(AlpacaMQ()) as open_server, session.server(secured) as server:
            _create_rules(server)
            for case, work in cases.items():
                pairs[case] += _measure(session, work, server, open_server)
    for case, work in cases.items():
        with_them, without = zip(*pairs[case], strict=True)
        for name, costs in ((secured.name, with_them), (OURS, without)):
            report(case=case, server=name, unit=COST, samples=middle_half(list(costs)))
        added = middle_half([a - b for a, b in pairs[case]])
        ratios = middle_half([a / b for a, b in pairs[case]])
        small_floor, batch_floor = (SMALL_FLOOR, None) if work.is_small else (None, BATCH_FLOOR)
        report(case=case, server=secured.name, unit=ADDED, samples=added, floor=small_floor)
        report(case=case, server=secured.name, unit=RATIO, samples=ratios, floor=batch_floor)


def _settings(users: Path) -> dict[str, str]:
    users.write_text(f"{ADMIN}:{PASSWORD}\n{WRITER}:{PASSWORD}\n")
    users.chmod(0o600)
    return {
        "ALPACAMQ_SECURITY_ACLS": "true",
        "ALPACAMQ_SECURITY_SUPER_USERS": f"User:{ADMIN},User:ANONYMOUS",
        "ALPACAMQ_SECURITY_USERS_FILE": os.fspath(users),
    }


def _create_rules(server: Server) -> None:
    rules = [
        Acl(
            ResourceType.TOPIC,
            f"other-{number}",
            PatternType.LITERAL if number % 2 else PatternType.PREFIXED,
            f"User:{number % 100}",
            "*",
            Operation.WRITE,
            Permission.ALLOW,
        )
        for number in range(OTHERS)
    ]
    allowed = (
        (ResourceType.TOPIC, "sample-", PatternType.PREFIXED),
        (ResourceType.GROUP, "*", PatternType.LITERAL),
        (ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL),
    )
    rules += [
        Acl(kind, name, pattern, f"User:{WRITER}", "*", Operation.ALL, Permission.ALLOW)
        for kind, name, pattern in allowed
    ]
    with Cluster(parse_address(server.address), login=Login(user=ADMIN, password=PASSWORD)) as cluster:
        for start in range(0, len(rules), AT_ONCE):
            create_acls(cluster, rules[start : start + AT_ONCE])
        set_quotas(cluster, (EntityPart(USER, None),), QUOTAS)


def _cases() -> dict[str, _Work]:
    one, batch = wire.one_record_batch(SIZE), wire.batch_of(RECORDS, SIZE)

    def produce(records: bytes) -> Callable[[str], bytes]:
        return lambda topic: wire.produce_request(topic, 0, records, acks=1)

    # The first batch, and with this limit no second one.
    def fetch(topic: str) -> bytes:
        return wire.fetch_request(topic, 0, 0, 1)

    def fetched_bytes(records: bytes) -> Callable[[str], int]:
        return lambda topic: wire.fetch_response_bytes(topic) + len(records)

    answer_bytes = wire.produce_response_bytes
    return {
        "one message a request, produced": _Work(produce(one), answer_bytes, 4, 256),
        "one message a request, fetched": _Work(fetch, fetched_bytes(one), 4, 256),
        f"batches of {RECORDS:,} messages, produced": _Work(produce(batch), answer_bytes, 4, 1),
        f"batches of {RECORDS:,} messages, fetched": _Work(fetch, fetched_bytes(batch), 4, 1),
    }


def _measure(
    session: Session, work: _Work, secured: Server, open_server: Server
) -> list[tuple[float, float]]:
    """Return the cost of requests at both servers, in µs of processor time, sample by sample."""
    pairs: list[tuple[float, float]] = []
    session.settle()
    for number in range(session.scaled(8, 6) + 1):
        costs = {}
        for server in (secured, open_server) if number % 2 else (open_server, secured):
            costs[server.name] = _sample(work, server, f"sample-{number}", logs_in=server is secured)
        if number:  # the first round warms up
            pairs.append((costs[secured.name], costs[open_server.name]))
    return pairs


def _sample(work: _Work, server: Server, topic: str, *, logs_in: bool) -> float:
    topics.create(server.address, topic, 1)
    request = work.request(topic)
    # For the fetches to find.
    first = wire.batch_of(1 if work.is_small else RECORDS, SIZE)
    with wire.connect(server.address) as connection:
        connection.sendall(wire.produce_request(topic, 0, first, acks=1))
        wire.receive(connection)
    began_ns = 0

    def prepare(connection: socket.socket) -> None:
        nonlocal began_ns
        if logs_in:
            wire.log_in(connection, WRITER, PASSWORD)
        began_ns = cpu_ns(server.pid)

    done = pipelined(
        server.address,
        request,
        work.response_bytes(topic),
        connections=work.connections,
        depth=work.depth,
        seconds=SECONDS,
        prepare=prepare,
    )
    cost_us = (cpu_ns(server.pid) - began_ns) / done.requests / 1000
    topics.delete(server.address, topic)
    return cost_us
