"""What does a message cost the broker, compared with an earlier version?

`python -m benchmarks.earlier_version REVISION [rounds]` runs both versions in turns on the same Python and
compares the CPU time of the broker. The least of all rounds is compared: other work on the machine adds to a
sample and never takes away.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

ROUNDS = 6
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


def costs(version: AlpacaMQ, directory: Path) -> dict[str, float]:
    """Return the cost of a message in each case, on a new broker, after one run to warm up."""
    found = {}
    with running(version, directory) as server:
        for case, work in CASES.items():
            runs = work(server)
            next(runs)
            began_ns = cpu_ns(server.pid)
            messages = next(runs)
            found[case] = (cpu_ns(server.pid) - began_ns) / messages / 1000
    return found


def main(revision: str, rounds: int = ROUNDS) -> None:
    load_average = machine.load_average()
    collected = Report("earlier_version", (__doc__ or "").splitlines()[0])
    with checked_out(revision) as tree, tempfile.TemporaryDirectory(dir=ROOM) as room:
        versions = [AlpacaMQ(source=REPOSITORY), AlpacaMQ(name=revision, source=tree)]
        samples: dict[str, list[dict[str, float]]] = {each.name: [] for each in versions}
        for number in range(rounds):
            for version in versions if number % 2 else reversed(versions):
                samples[version.name].append(costs(version, Path(room) / f"{version.name}-{number}"))
                print(f"  round {number + 1} of {rounds}: {version.name}", flush=True)
    for case in CASES:
        least = {name: min(each[case] for each in runs) for name, runs in samples.items()}
        for name in samples:
            collected(case=case, server=name, unit=UNIT, samples=[least[name]])
    results = collected.results(
        machine.machine(ROOM), machine.commit(), machine.client_versions(), load_average
    )
    print(report.table(results))
    report.write(results, page.RESULTS)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
