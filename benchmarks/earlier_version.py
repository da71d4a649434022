"""What does a message cost the broker, compared with an earlier version?

`python -m benchmarks.earlier_version REVISION [rounds]` starts both versions on the same Python, gives them
the same load in turns and compares the CPU time of the brokers. On a shared machine a sample varies by more
than the versions differ, so both have the same neighbours in every round, and there are many rounds.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from . import http_load, machine, page, report, topics, wire
from .clients import Load
from .confluent import ConfluentClient
from .machine import REPOSITORY
from .report import Report
from .server_cost import SIZE, cpu_ns
from .servers import AlpacaMQ, Server, running
from .session import ROOM
from .sqs_load import SqsQueue
from .writers import pipelined

ROUNDS = 15
UNIT = "µs of broker CPU per message"
VALUE = "x" * SIZE
BATCHED = 300_000
QUEUED = 4_000


def produced(server: Server) -> Iterator[int]:
    load = Load(topic="batches", partitions=4, size=SIZE, count=BATCHED)
    topics.create(server.address, load.topic, load.partitions)
    client = ConfluentClient()
    while True:
        client.produce(server.address, load, "all")
        yield BATCHED


def fetched(server: Server) -> Iterator[int]:
    load = Load(topic="fetched", partitions=4, size=SIZE, count=BATCHED)
    topics.create(server.address, load.topic, load.partitions)
    client = ConfluentClient()
    client.produce(server.address, load, "all")
    while True:
        client.fetch(server.address, load)
        yield BATCHED


def small_requests(depth: int) -> Callable[[Server], Iterator[int]]:
    def work(server: Server) -> Iterator[int]:
        topic = f"small-{depth}"
        topics.create(server.address, topic, 1)
        request = wire.produce_request(topic, 0, wire.one_record_batch(SIZE), acks=1)
        answer_bytes = wire.produce_response_bytes(topic)
        while True:
            done = pipelined(server.address, request, answer_bytes, connections=1, depth=depth, seconds=2)
            yield done.requests

    return work


def http_queue(server: Server) -> Iterator[int]:
    topics.create(server.address, "http-queue", 3)
    address = server.addresses["http"]
    while True:
        http_load.fill(address, "http-queue", QUEUED, VALUE)
        http_load.drain(address, "http-queue", QUEUED, 1)
        yield QUEUED


def sqs_queue(server: Server) -> Iterator[int]:
    queue = SqsQueue(server.addresses["sqs"], "sqs-queue")
    queue.create()
    while True:
        queue.fill(QUEUED, VALUE, 1)
        queue.drain(QUEUED, 1)
        yield QUEUED


# Each runs a load again and again, and yields how many messages each run handled.
CASES: Mapping[str, Callable[[Server], Iterator[int]]] = {
    "produce, batches of confluent-kafka": produced,
    "fetch, confluent-kafka": fetched,
    "produce, one message per request, one in flight": small_requests(1),
    "produce, one message per request, 64 in flight": small_requests(64),
    "HTTP: publish, receive and acknowledge by ten": http_queue,
    "SQS: send, receive and delete by ten": sqs_queue,
}


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check out a revision in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tree"
        git = ["git", "-C", str(REPOSITORY), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), revision], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def costs(
    work: Callable[[Server], Iterator[int]], servers: Sequence[Server], rounds: int
) -> list[list[float]]:
    """Return the cost of a message in every round, by server, after one run each to warm up."""
    found: list[list[float]] = [[] for _ in servers]
    runs = [work(server) for server in servers]
    for each in runs:
        next(each)
    for number in range(rounds):
        places = range(len(servers))
        for place in places if number % 2 else reversed(places):
            began_ns = cpu_ns(servers[place].pid)
            messages = next(runs[place])
            found[place].append((cpu_ns(servers[place].pid) - began_ns) / messages / 1000)
    return found


def main(revision: str, rounds: int = ROUNDS) -> None:
    load_average = machine.load_average()
    collected = Report("earlier_version", (__doc__ or "").splitlines()[0])
    with ExitStack() as stack:
        tree = stack.enter_context(checked_out(revision))
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOM)))
        versions = [AlpacaMQ(source=REPOSITORY), AlpacaMQ(name=revision, source=tree)]
        servers = [stack.enter_context(running(each, room / each.name)) for each in versions]
        for case, work in CASES.items():
            for version, samples in zip(versions, costs(work, servers, rounds), strict=True):
                collected(case=case, server=version.name, unit=UNIT, samples=samples)
            print(f"  {case}", flush=True)
    results = collected.results(
        machine.machine(ROOM), machine.commit(), machine.client_versions(), load_average
    )
    print(report.table(results))
    report.write(results, page.RESULTS)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
