"""What does a message cost the broker, compared with an earlier version?

`python -m benchmarks.earlier_version REVISION` starts both versions on the same Python, gives them the same
load in turns and compares the CPU time of the brokers. On a shared machine a sample varies by more than the
versions differ, so both have the same neighbours in every round, and there are many rounds.
"""

import argparse
import compileall
import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from . import commits, grpc_load, http_load, machine, page, report, topics, wire
from .clients import Load
from .confluent import ConfluentClient
from .dialogue import Turns
from .machine import REPOSITORY
from .report import Report
from .server_cost import SIZE, cpu_ns
from .servers import START_S, AlpacaMQ, Server, running
from .session import ROOM
from .sqs_load import BATCH, SqsQueue
from .writers import one_in_flight, pipelined

ROUNDS = 15
UNIT = "µs of broker CPU per message"
START_CASE, START_UNIT = "start, to the first answer", "s of broker CPU"
VALUE = "x" * SIZE
BATCHED = 300_000
CONSUMERS = 8
SECONDS = 1.0
DEPTH = 256
CREDIT = 200

# Does the work that is measured; returns the number of messages.
Work = Callable[[], int]
# Prepares a server, then prepares and yields work again and again.
Case = Callable[[Server], Iterator[Work]]


def produced(server: Server) -> Iterator[Work]:
    load = Load(topic="batches", partitions=4, size=SIZE, count=BATCHED)
    topics.create(server.address, load.topic, load.partitions)

    def work() -> int:
        ConfluentClient().produce(server.address, load, "all")
        return load.count

    while True:
        yield work


def fetched(server: Server) -> Iterator[Work]:
    load = Load(topic="fetched", partitions=4, size=SIZE, count=BATCHED)
    topics.create(server.address, load.topic, load.partitions)
    ConfluentClient().produce(server.address, load, "all")

    def work() -> int:
        ConfluentClient().fetch(server.address, load)
        return load.count

    while True:
        yield work


def kafka_pipelined(server: Server) -> Iterator[Work]:
    topic = "pipelined"
    topics.create(server.address, topic, 1)
    request = wire.produce_request(topic, 0, wire.one_record_batch(SIZE), acks=1)
    size = wire.produce_response_bytes(topic)

    def work() -> int:
        return pipelined(server.address, request, size, connections=4, depth=DEPTH, seconds=SECONDS).requests

    while True:
        yield work


def kafka_waiting(connections: int) -> Case:
    def case(server: Server) -> Iterator[Work]:
        topic = f"waiting-{connections}"
        topics.create(server.address, topic, 1)

        def work() -> int:
            return one_in_flight(
                server.address, topic, connections=connections, size=SIZE, seconds=SECONDS
            ).requests

        while True:
            yield work

    return case


def offset_commits(connections: int, depth: int) -> Case:
    def case(server: Server) -> Iterator[Work]:
        topic, group = f"commits-{connections}-{depth}", f"group-{connections}-{depth}"
        topics.create(server.address, topic, 1)
        size = commits.commit(server.address, group, topic, {0: 1}, START_S)
        request = commits.commit_request(group, topic, {0: 2})

        def work() -> int:
            return pipelined(
                server.address, request, size, connections=connections, depth=depth, seconds=SECONDS
            ).requests

        while True:
            yield work

    return case


def http_publish(connections: int, batch: int, requests: int) -> Case:
    def case(server: Server) -> Iterator[Work]:
        address, topic = server.addresses["http"], f"http-publish-{connections}-{batch}"
        topics.create(server.address, topic, 3)

        def work() -> int:
            http_load.publish(address, topic, Turns(requests), VALUE, connections=connections, batch=batch)
            return requests * batch

        while True:
            yield work

    return case


def http_drain(batch: int, messages: int) -> Case:
    def case(server: Server) -> Iterator[Work]:
        address, topic = server.addresses["http"], f"http-queue-{batch}"
        topics.create(server.address, topic, 3)

        def work() -> int:
            http_load.drain(address, topic, messages, CONSUMERS, batch)
            return messages

        while True:
            http_load.fill(address, topic, messages, VALUE)
            yield work

    return case


def grpc_drain(messages: int) -> Case:
    def case(server: Server) -> Iterator[Work]:
        topic = "grpc-queue"
        topics.create(server.address, topic, 3)

        def work() -> int:
            grpc_load.drain(server.addresses["grpc"], topic, messages, CONSUMERS, credit=CREDIT, batch=1)
            return messages

        while True:
            http_load.fill(server.addresses["http"], topic, messages, VALUE)
            yield work

    return case


def sqs_send(messages: int) -> Case:
    def case(server: Server) -> Iterator[Work]:
        queue = SqsQueue(server.addresses["sqs"], "sqs-send")
        queue.create()

        def work() -> int:
            queue.publish(Turns(messages // BATCH), VALUE, connections=CONSUMERS, batch=BATCH)
            return messages

        while True:
            yield work

    return case


def sqs_drain(messages: int) -> Case:
    def case(server: Server) -> Iterator[Work]:
        queue = SqsQueue(server.addresses["sqs"], "sqs-drain")
        queue.create()

        def work() -> int:
            queue.drain(messages, CONSUMERS)
            return messages

        while True:
            queue.publish(Turns(messages // BATCH), VALUE, connections=CONSUMERS, batch=BATCH)
            yield work

    return case


CASES: Mapping[str, Case] = {
    "produce, batches of confluent-kafka": produced,
    "fetch, confluent-kafka": fetched,
    "produce, one message per request, pipelined on 4 connections": kafka_pipelined,
    "produce, one message per request, 1 connection, one in flight": kafka_waiting(1),
    "produce, one message per request, 16 connections, one in flight": kafka_waiting(16),
    "offset commit, 1 connection, one in flight": offset_commits(1, 1),
    "offset commit, 16 connections, one in flight": offset_commits(16, 1),
    "offset commit, pipelined on 4 connections": offset_commits(4, DEPTH),
    "HTTP: publish, one message per request, 1 connection": http_publish(1, 1, 2_000),
    "HTTP: publish, one message per request, 16 connections": http_publish(16, 1, 6_000),
    "HTTP: publish, one message per request, 64 connections": http_publish(64, 1, 6_000),
    "HTTP: publish, 1,000 messages per request": http_publish(1, 1_000, 60),
    "HTTP: receive and acknowledge one by one": http_drain(1, 2_000),
    "HTTP: receive and acknowledge by ten": http_drain(10, 8_000),
    "HTTP: receive and acknowledge by a hundred": http_drain(100, 20_000),
    "gRPC: receive and acknowledge by streams": grpc_drain(40_000),
    "SQS: send by ten": sqs_send(8_000),
    "SQS: receive and delete by ten": sqs_drain(6_000),
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


def installed(tree: Path, directory: Path) -> Path:
    """Install the packages that a revision needs and this environment does not have."""
    lock = (tree / "requirements" / "run.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))
    present = {each.name.lower().replace("_", "-") for each in importlib.metadata.distributions()}
    missing = [f"{name}=={version}" for name, version in locked.items() if name not in present]
    if missing:
        uv = subprocess.run(
            [REPOSITORY / "scripts" / "setup", "uv"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        install = ["pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
        subprocess.run([REPOSITORY / uv, *install, "--target", directory, *missing], check=True)
    return directory


def costs(case: Case, servers: Sequence[Server], rounds: int) -> list[list[float]]:
    """Return the cost of a message in every round, by server, after one run each to warm up."""
    found: list[list[float]] = [[] for _ in servers]
    runs = [case(server) for server in servers]
    for each in runs:
        next(each)()
    for number in range(rounds):
        for place in _places(len(servers), number):
            work = next(runs[place])
            began_ns = cpu_ns(servers[place].pid)
            messages = work()
            found[place].append((cpu_ns(servers[place].pid) - began_ns) / messages / 1000)
    return found


def start_costs(versions: Sequence[AlpacaMQ], room: Path, rounds: int) -> list[list[float]]:
    """Return the CPU time of every start on an empty directory, by version, after one each to warm up."""
    found: list[list[float]] = [[] for _ in versions]
    for number in range(rounds + 1):
        for place in _places(len(versions), number):
            with running(versions[place], room / f"start-{place}") as server:
                spent = psutil.Process(server.pid).cpu_times()
            if number:
                found[place].append(spent.user + spent.system)
    return found


def compare(
    versions: Sequence[AlpacaMQ], cases: Sequence[str], room: Path, rounds: int, collected: Report
) -> None:
    """Measure the cost of every case, with all versions in every round."""
    with ExitStack() as stack:
        servers: list[Server] = []
        for case in cases:
            if case == START_CASE:
                unit, found = START_UNIT, start_costs(versions, room, rounds)
            else:
                servers = servers or [
                    stack.enter_context(running(each, room / f"server-{place}"))
                    for place, each in enumerate(versions)
                ]
                if case.startswith("gRPC") and any("grpc" not in each.addresses for each in servers):
                    print(f"  {case}: a version has no gRPC API", flush=True)
                    continue
                unit, found = UNIT, costs(CASES[case], servers, rounds)
            for version, samples in zip(versions, found, strict=True):
                collected(case=case, server=version.name, unit=unit, samples=samples)
            print(f"  {case}", flush=True)


def _places(count: int, turn: int) -> Sequence[int]:
    """Return places in an order that changes from turn to turn."""
    return range(count) if turn % 2 else range(count)[::-1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.earlier_version", description=__doc__)
    parser.add_argument("revision")
    parser.add_argument("rounds", nargs="?", type=int, default=ROUNDS)
    parser.add_argument(
        "--case",
        action="append",
        metavar="TEXT",
        help="only cases whose names contain it; may be repeated; writes no results",
    )
    parsed = parser.parse_args()
    wanted = [name for name in (START_CASE, *CASES) if any(each in name for each in parsed.case or ("",))]
    if not wanted:
        parser.error(f"no case is named so; cases are:\n{chr(10).join((START_CASE, *CASES))}")
    load_average = machine.load_average()
    collected = Report("earlier_version", (__doc__ or "").splitlines()[0])
    with ExitStack() as stack:
        tree = stack.enter_context(checked_out(parsed.revision))
        for source in (REPOSITORY, tree):
            # As installed: otherwise a start compiles what has changed.
            compileall.compile_dir(source / "src", quiet=1)
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOM)))
        packages = installed(tree, room / "packages")
        versions = [
            AlpacaMQ(source=REPOSITORY),
            AlpacaMQ(name=parsed.revision, source=tree, packages=packages),
        ]
        compare(versions, wanted, room, parsed.rounds, collected)
    results = collected.results(
        machine.machine(ROOM), machine.commit(), machine.client_versions(), load_average
    )
    print(report.table(results))
    if not parsed.case:
        report.write(results, page.RESULTS)


if __name__ == "__main__":
    main()
