"""Does the cost of a message depend on the backlog, on the number of topics or of connections?

Messages of 100 B are received and acknowledged over HTTP, ten at a time, by 8 consumers: from backlogs of up
to ten million, from up to 10,000 topics one after the other, and beside up to 5,000 connections that are open
or wait for messages of another topic.
"""

import resource
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, cycle, islice, repeat

from confluent_kafka.admin import AdminClient, NewTopic

from . import http_load, topics, wire
from .dialogue import http_head, http_request
from .queue_apis import CONSUMERS, SIZE
from .report import OURS, Report
from .server_cost import cpu_ns
from .servers import AlpacaMQ, Server
from .session import Session
from .writers import append

BACKLOGS = (10_000, 1_000_000, 10_000_000)
TOPICS = (10, 1_000, 10_000)
CONNECTIONS = (1, 500, 5_000)
BATCH = 10
PARTITIONS = 3
# Of one sample.
MESSAGES = 9_000
STORED_TOGETHER = 1_000
SAMPLES = 7
# Of ours and of the load: files besides the connections.
FILES = 1_000
WAIT_S = 600
WAIT_MS = 30_000
EMPTY = "empty"
SETTINGS = {
    "ALPACAMQ_TOPICS_MAX_PARTITIONS": "20000",
    "ALPACAMQ_HTTP_MAX_CONNECTIONS": str(2 * max(CONNECTIONS)),
    "ALPACAMQ_KAFKA_MAX_CONNECTIONS": "100",
}


def run(session: Session, report: Report) -> None:
    report.settings["load"] = {"message bytes": SIZE, "consumers": CONSUMERS, "messages a request": BATCH}
    contender = AlpacaMQ(settings=SETTINGS)
    for backlog in BACKLOGS[:1] if session.is_quick else BACKLOGS:
        with session.server(contender) as server:
            _measure(session, report, server, f"backlog of {backlog:,}", _backlog(server, backlog))
    for count in TOPICS[:1] if session.is_quick else TOPICS:
        with session.server(contender) as server:
            _measure(session, report, server, f"{count:,} topics", _topics(server, count, _samples(session)))
    with session.server(contender) as server:
        topics.create(server.address, EMPTY, 1)
        work = _backlog(server, 2 * MESSAGES)
        for count in CONNECTIONS[:2] if session.is_quick else CONNECTIONS:
            for state, request in (("open", _health(server)), ("waiting", _wait(server))):
                name = f"beside {count:,} {state} connection{'s' if count > 1 else ''}"
                limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                if limit < count + FILES:
                    report.skip(name, f"at most {limit} files can be open (ulimit -n)")
                    continue
                with _connected(server.addresses["http"], count, request, is_answered=state == "open"):
                    _measure(session, report, server, name, work)


# Prepares and returns work, which returns the number of messages.
Prepare = Callable[[], Callable[[], int]]


def _samples(session: Session) -> int:
    return session.scaled(SAMPLES, 1)


def _measure(session: Session, report: Report, server: Server, case: str, prepare: Prepare) -> None:
    costs_us: list[float] = []
    for sample in range(_samples(session) + 1):
        work = prepare()
        if sample == 1:
            session.settle()
        began_ns = cpu_ns(server.pid)
        messages = work()
        if sample:  # the first one warms up
            costs_us.append((cpu_ns(server.pid) - began_ns) / messages / 1000)
    report(case=case, server=OURS, unit="µs of server CPU per message", samples=costs_us)


def _backlog(server: Server, backlog: int) -> Prepare:
    """Take messages from a backlog that is as long before each sample."""
    topic = "backlog"
    topics.create(server.address, topic, PARTITIONS)
    lacking = backlog

    def prepare() -> Callable[[], int]:
        nonlocal lacking
        append(server.address, topic, PARTITIONS, lacking, size=SIZE, batch=STORED_TOGETHER)
        lacking = MESSAGES
        return work

    def work() -> int:
        http_load.drain(server.addresses["http"], topic, MESSAGES, CONSUMERS, BATCH)
        return MESSAGES

    return prepare


def _topics(server: Server, count: int, samples: int) -> Prepare:
    """Take messages from one topic after another: of many topics, from others in each sample."""
    names = [f"topic-{number}" for number in range(count)]
    admin = AdminClient({"bootstrap.servers": server.address, "log_level": 3})
    wanted = [NewTopic(name, num_partitions=1, replication_factor=1) for name in names]
    for made in admin.create_topics(wanted, request_timeout=WAIT_S, operation_timeout=WAIT_S).values():
        made.result(WAIT_S)
    taken = min(count, MESSAGES // BATCH)
    of_each = MESSAGES // taken
    stored = BATCH + of_each * -(-samples * taken // count)
    for name in names:
        append(server.address, name, 1, stored, size=SIZE, batch=stored)
    address = server.addresses["http"]
    places = cycle(range(count))

    def warm_up() -> int:
        """Receive from every topic once, which loads its queue."""
        http_load.drain_each(address, names, BATCH, CONSUMERS, BATCH)
        return count * BATCH

    def work() -> int:
        some = [names[place] for place in islice(places, taken)]
        http_load.drain_each(address, some, of_each, CONSUMERS, BATCH)
        return taken * of_each

    works = chain([warm_up], repeat(work))
    return lambda: next(works)


def _health(server: Server) -> bytes:
    return http_request(http_head(server.addresses["http"], "GET", "/healthz"))


def _wait(server: Server) -> bytes:
    path = f"/groups/waiting/poll?topic={EMPTY}&max=1&wait_ms={WAIT_MS}"
    return http_request(http_head(server.addresses["http"], "GET", path))


@contextmanager
def _connected(address: str, count: int, request: bytes, *, is_answered: bool) -> Iterator[None]:
    """Hold connections that have made a request, whose answer has come or is awaited."""
    with ExitStack() as stack, select.epoll() as poll:
        for _ in range(count):
            connection = stack.enter_context(wire.connect(address))
            connection.sendall(request)
            if is_answered:
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            poll.register(connection, select.EPOLLIN)
        yield
        assert not poll.poll(0), "a connection was closed, or did not wait as long as the work took"
