"""How long after a kill -9 does another node serve a coordinator with a lot of state?

Three nodes, three replicas; all state is in one partition of its internal topic, and the broker that leads
this partition is killed. In one case it is the controller as well, so that a controller is elected first.
Measured from the kill: when the successor began to load, when it had loaded, the first answer to a client.

- A million committed offsets: the first OffsetFetch is answered, and the first OffsetCommit confirmed. Then
  every offset is read and compared.
- 100,000 messages in flight, while a consumer acknowledges: the first acknowledgement that is confirmed.
  Then half of the messages are acknowledged with their receipts, and the others come back once each when
  their visibility timeout ends; none comes back whose acknowledgement was confirmed.
- 100,000 delayed messages, and a few that are due every 20 ms around the kill: the first of these that was
  due after the kill is received. Then all are delivered, once each and not early.

A benchmark and not a test, because times on a busy machine say little; the checks fail the run all the same.
"""

import http.client
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import count, cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.topics import DELAYS_TOPIC, OFFSETS_TOPIC, QUEUES_TOPIC

from . import commits, topics, wire
from .clusters import NODES, AlpacaCluster, ClusterServer
from .report import OURS, Floor, Report
from .servers import START_S
from .session import Session

SERVED = Floor(at_most=5.0)
# Each sample takes up to a minute.
REPEATS = 2
TOPIC = "work"
WAIT_S = 120.0
LOOK_AGAIN_S = 0.005
# Of a committed topic; each group commits all of them.
PARTITIONS = 200
PIPELINED = 20
QUEUE_PARTITIONS = 6
RECEIVED_AT_ONCE = 1000
ACKED_AT_ONCE = 100
# Acknowledged before the kill, while those in flight stay in flight.
ACKED_BEFORE = 5000
HEADER = "alpacamq-deliver-at"
PROBE_MS = 20
PROBED_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """The times of one failover, in seconds after the kill."""

    # The successor was elected and began to load; it had loaded.
    began_s: float
    loaded_s: float
    # First answers by description.
    answers_s: dict[str, float]


def run(session: Session, report: Report) -> None:
    for name, full, quick, measure in CASES:
        amount = session.scaled(full, quick)
        for is_controller in (False, True):
            found = []
            for _ in range(min(session.repeats, REPEATS)):
                directory = session.new_directory()
                contender = AlpacaCluster(settings={"ALPACAMQ_LOGGING_FORMAT": "json"})
                server = contender.start(directory)
                try:
                    assert isinstance(server, ClusterServer)
                    found.append(measure(Cluster(server, directory, session, is_controller), amount))
                finally:
                    server.kill()
            case = name.format(amount) + (", of the controller" if is_controller else "")
            _report(report, case, found)


def _report(report: Report, case: str, found: Sequence[Failover]) -> None:
    report(case=f"{case}: loading begins", server=OURS, unit="s", samples=[each.began_s for each in found])
    report(case=f"{case}: loaded", server=OURS, unit="s", samples=[each.loaded_s for each in found])
    for answer in found[0].answers_s:
        samples = [each.answers_s[answer] for each in found]
        report(case=f"{case}: {answer}", server=OURS, unit="s", samples=samples, floor=SERVED)


class Cluster:
    """A cluster of which the node that leads a partition of an internal topic is killed."""

    def __init__(self, server: ClusterServer, directory: Path, session: Session, is_controller: bool) -> None:
        self.server = server
        self._directory = directory
        self._session = session
        self._is_controller = is_controller
        self._admin = AdminClient({"bootstrap.servers": server.address, "log_level": 3})
        self._topic = ""
        self._index = self._victim = -1
        self._killed_at_ms = 0

    def create(self, topic: str, partitions: int, **config: str) -> None:
        topics.create(
            self.server.address, topic, partitions, {"min.insync.replicas": "2", **config}, replicas=NODES
        )

    def choose(self, internal_topic: str) -> None:
        """Choose the partition whose leader is to be killed; the topic has been created by a request."""
        self._topic = internal_topic
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            found = self._admin.list_topics(internal_topic, WAIT_S)
            leaders = {index: each.leader for index, each in found.topics[internal_topic].partitions.items()}
            self._count = len(leaders)
            is_wanted = {(leader == found.controller_id): index for index, leader in leaders.items()}
            if set(leaders.values()) <= set(self.server.kafka) and self._is_controller in is_wanted:
                self._index = is_wanted[self._is_controller]
                self._victim = leaders[self._index]
                return
            time.sleep(LOOK_AGAIN_S)
        raise TimeoutError(f"{internal_topic} has no such leader")

    def names(self, pattern: str, routing_key: str = "{}") -> Iterator[str]:
        """Yield names that belong to the chosen partition."""
        for number in count():
            name = pattern.format(number)
            if crc32c(routing_key.format(name).encode()) % self._count == self._index:
                yield name

    @property
    def survivors(self) -> list[int]:
        return [each for each in self.server.kafka if each != self._victim]

    def kill(self) -> float:
        """Kill the node; return the time."""
        self._killed_at_ms = time.time_ns() // 1_000_000
        killed_at = time.monotonic()
        self.server.kill_node(self._victim)
        return killed_at

    def settle(self) -> None:
        self._session.settle()

    @property
    def visibility_ms(self) -> int:
        """Long enough to receive everything, and to acknowledge half of it."""
        return self._session.scaled(40_000, 20_000)

    def failover(self, answers_s: dict[str, float]) -> Failover:
        """Return the times of the failover, with those that the successor has logged."""
        for node_id in self.survivors:
            for line in (self._directory / f"node-{node_id}.log").read_text().splitlines():
                event = json.loads(line) if line.startswith("{") else {}
                if event.get("event") != "coordinator_loaded":
                    continue
                loaded_ms = datetime.fromisoformat(event["timestamp"]).timestamp() * 1000
                if event["partition"] == f"{self._topic}-{self._index}" and loaded_ms > self._killed_at_ms:
                    loaded_s = (loaded_ms - self._killed_at_ms) / 1000
                    return Failover(
                        began_s=loaded_s - event["took_ms"] / 1000, loaded_s=loaded_s, answers_s=answers_s
                    )
        raise AssertionError(f"no survivor has loaded {self._topic}-{self._index}")


def _offsets(cluster: Cluster, amount: int) -> Failover:
    addresses = cluster.server.kafka
    cluster.create(TOPIC, PARTITIONS)
    commits.commit(addresses[1], "first", TOPIC, {}, START_S)
    cluster.choose(OFFSETS_TOPIC)
    names = cluster.names("group-{}")
    groups = [next(names) for _ in range(amount // PARTITIONS)]
    _commit(_coordinator(addresses, groups[0], START_S), groups)
    cluster.settle()
    killed_at = cluster.kill()
    left = {each: addresses[each] for each in cluster.survivors}
    answers_s = {}
    with wire.connect(_coordinator(left, groups[0], WAIT_S)) as connection:
        found = commits.committed(connection, groups[-1], TOPIC, [0], WAIT_S)
        answers_s["first offset read"] = time.monotonic() - killed_at
        assert found == [_offset(len(groups) - 1, 0)], found
        connection.sendall(commits.commit_request(groups[-1], TOPIC, {0: 7}))
        assert not commits.check_commit(wire.receive(connection))
        answers_s["first commit"] = time.monotonic() - killed_at
        connection.sendall(commits.commit_request(groups[-1], TOPIC, {0: _offset(len(groups) - 1, 0)}))
        assert not commits.check_commit(wire.receive(connection))
        for number, group in enumerate(groups):
            found = commits.committed(connection, group, TOPIC, range(PARTITIONS), WAIT_S)
            assert found == [_offset(number, index) for index in range(PARTITIONS)], (group, found)
    return cluster.failover(answers_s)


def _offset(number: int, index: int) -> int:
    return number * PARTITIONS + index + 1


def _commit(address: str, groups: Sequence[str]) -> None:
    """Commit all partitions for each group, with several requests under way."""
    with wire.connect(address) as connection:
        under_way = 0
        for number, group in enumerate(groups):
            offsets = {index: _offset(number, index) for index in range(PARTITIONS)}
            connection.sendall(commits.commit_request(group, TOPIC, offsets))
            under_way += 1
            if under_way == PIPELINED:
                assert not commits.check_commit(wire.receive(connection))
                under_way -= 1
        for _ in range(under_way):
            assert not commits.check_commit(wire.receive(connection))


def _coordinator(addresses: dict[int, str], group: str, within_s: float) -> str:
    """Return the address of a group's coordinator, once it is one of these nodes."""
    deadline = time.monotonic() + within_s
    for address in cycle(addresses.values()):
        with wire.connect(address) as connection:
            found = commits.find_coordinator(connection, group)
        if found.error_code == 0 and found.node_id in addresses:
            return addresses[found.node_id]
        if time.monotonic() > deadline:
            raise TimeoutError(f"group {group} has no coordinator")
        time.sleep(LOOK_AGAIN_S)
    raise AssertionError("there are no addresses")


class Http:
    """The HTTP API of one node, one request at a time."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=WAIT_S)

    def poll(self, group: str, topic: str, **options: int | str) -> list[Any]:
        query = {"topic": topic, "max": RECEIVED_AT_ONCE, "max_bytes": 16 << 20, **options}
        return list(self._ask("GET", f"/groups/{group}/poll?{urlencode(query)}")["messages"])

    def ack(self, messages: Sequence[Any]) -> list[Any]:
        """Acknowledge; return the messages whose acknowledgement is confirmed."""
        answer = self._ask("POST", "/messages/ack", {"receipts": [each["receipt"] for each in messages]})
        return [
            each for each, result in zip(messages, answer["results"], strict=True) if "error" not in result
        ]

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status} {answer[:500]!r}")
        return json.loads(answer)

    def close(self) -> None:
        self._connection.close()


def _in_flight(cluster: Cluster, amount: int) -> Failover:
    visibility_ms = cluster.visibility_ms
    cluster.create(TOPIC, QUEUE_PARTITIONS, **{"queue.max.in.flight": str(2 * amount + ACKED_BEFORE)})
    first = Http(cluster.server.http[1])
    first.poll("first", TOPIC, wait_ms=0)
    cluster.choose(QUEUES_TOPIC)
    group = next(cluster.names("workers-{}", "{}\0" + TOPIC))
    _publish(cluster.server.address, TOPIC, amount + ACKED_BEFORE)
    apis = [Http(cluster.server.http[node_id]) for node_id in cluster.survivors]
    held: list[Any] = []
    deadline = time.monotonic() + visibility_ms / 1000
    for api in cycle(apis):
        held += api.poll(group, TOPIC, wait_ms=1000, visibility_ms=visibility_ms, start="earliest")
        if len(held) == amount + ACKED_BEFORE:
            break
        assert time.monotonic() < deadline, f"only {len(held)} messages were received"
    received_at = time.monotonic()
    confirmed: set[str] = set()
    unknown: set[str] = set()
    acked_at: list[tuple[float, float]] = []

    def acknowledge(messages: Sequence[Any]) -> None:
        for at, api in zip(range(0, len(messages), ACKED_AT_ONCE), cycle(apis), strict=False):
            some = messages[at : at + ACKED_AT_ONCE]
            begun_at = time.monotonic()
            done = {each["value"] for each in api.ack(some)}
            if done:
                acked_at.append((begun_at, time.monotonic()))
            confirmed.update(done)
            unknown.update({each["value"] for each in some} - done)

    with ThreadPoolExecutor(1) as thread:
        acknowledging = thread.submit(acknowledge, held[: ACKED_BEFORE + amount // 2])
        while len(confirmed) < ACKED_BEFORE:
            time.sleep(LOOK_AGAIN_S)
        killed_at = cluster.kill()
        acknowledging.result()
    assert time.monotonic() < received_at + visibility_ms / 1000, "the leases have ended"
    # The node may have answered what it had received; with few messages it has answered all.
    answers = [ended for _, ended in acked_at if ended > killed_at + 0.1] or [acked_at[-1][1]]
    served_s = answers[0] - killed_at
    assert not unknown, f"{len(unknown)} acknowledgements are not confirmed"
    back: Counter[str] = Counter()
    expected = {each["value"] for each in held} - confirmed
    deadline = time.monotonic() + visibility_ms / 1000 + WAIT_S
    for api in cycle(apis):
        messages = api.poll(group, TOPIC, wait_ms=1000, visibility_ms=10 * visibility_ms)
        assert all(each["delivery_count"] == 2 for each in messages)
        back.update(each["value"] for each in messages)
        if messages:
            assert len(api.ack(messages)) == len(messages)
        elif len(back) >= len(expected):
            break
        assert time.monotonic() < deadline, f"{len(expected - back.keys())} messages did not come back"
    assert back == Counter(expected), "messages came back that were acknowledged, or more than once"
    for api in (first, *apis):
        api.close()
    return cluster.failover({"first acknowledgement": served_s})


def _publish(address: str, topic: str, amount: int, dues_ms: Sequence[int] = ()) -> None:
    """Publish numbers, to be delivered at these times if there are some."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
    for number in range(amount):
        headers = [(HEADER, b"%d" % dues_ms[number])] if dues_ms else []
        while True:
            try:
                producer.produce(topic, str(number).encode(), headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def _delays(cluster: Cluster, amount: int) -> Failover:
    cluster.create("first", 1, **{"message.delays": "true"})
    _publish(cluster.server.address, "first", 1, [_now_ms() + 5000])
    cluster.choose(DELAYS_TOPIC)
    topic = next(cluster.names("later-{}", "{}-0"))
    cluster.create(topic, 1, **{"message.delays": "true"})
    consumer = Consumer({"bootstrap.servers": cluster.server.address, "group.id": "bench", "log_level": 2})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        # Those that are due later come later, so that only few are due around the kill.
        begin_ms = _now_ms() + 20_000
        probes = [begin_ms + at for at in range(0, PROBED_MS, PROBE_MS)]
        pending = [begin_ms + PROBED_MS + at * PROBED_MS // amount for at in range(amount)]
        dues_ms = probes + pending
        _publish(cluster.server.address, topic, len(dues_ms), dues_ms)
        assert _now_ms() < begin_ms, "they were not taken in before the first was due"
        found: list[tuple[float, Any]] = []

        def receive(until: Callable[[], bool]) -> None:
            deadline = time.monotonic() + WAIT_S
            while not until():
                messages = [each for each in consumer.consume(1000, 0.02) if each.error() is None]
                found.extend((time.monotonic(), each) for each in messages)
                assert time.monotonic() < deadline, f"{len(found)} of {len(dues_ms)} were delivered"

        receive(lambda: len(found) >= 1000 // PROBE_MS)
        killed_ms = _now_ms()
        killed_at = cluster.kill()
        receive(lambda: len(found) >= len(dues_ms))
        ends_at = time.monotonic() + 1
        receive(lambda: time.monotonic() > ends_at)
    finally:
        consumer.close()
    assert Counter(int(each.value()) for _, each in found) == Counter(range(len(dues_ms)))
    assert all(each.timestamp()[1] >= _due_ms(each) for _, each in found)
    served_s = min(at for at, each in found if _due_ms(each) > killed_ms) - killed_at
    return cluster.failover({"first delivery": served_s})


def _due_ms(message: Any) -> int:
    return int(dict(message.headers())[HEADER])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# Name, amount in full and in a quick run, measurement.
CASES: Sequence[tuple[str, int, int, Callable[[Cluster, int], Failover]]] = (
    ("{:,} committed offsets", 1_000_000, 20_000, _offsets),
    ("{:,} messages in flight", 100_000, 4000, _in_flight),
    ("{:,} delayed messages", 100_000, 4000, _delays),
)
