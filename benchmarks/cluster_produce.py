"""What does a cluster of three nodes take with acks=all, and how long does a publisher wait?

Three brokers on this machine, topics with three replicas of which two must be in sync. Ours flushes on all of
them before it acknowledges; Apache Kafka by default on none, so it is measured with flush.messages=1 too. The
clients and three brokers share the machine's cores.
"""

from . import topics
from .clients import PACED_PRODUCER, PRODUCER, Client, Load, Pace, percentile
from .clusters import NODES, ClusterServer, contenders
from .publish_latency import PERCENTILES
from .report import OURS, Floor, Report
from .session import Session
from .usage import Meter, Usage

SIZE = 100
PARTITIONS = 6
PACE = 10_000
CONFIG = {"min.insync.replicas": "2"}
THROUGHPUT = Floor(at_least=250_000)
LATENCY = Floor(at_most=10.0)


def run(session: Session, report: Report) -> None:
    report.settings["producer"] = {**PRODUCER, "acks": "all"}
    report.settings["paced producer"] = {**PACED_PRODUCER, "acks": "all"}
    for contender in contenders(session.contenders):
        with session.server(contender) as server:
            assert isinstance(server, ClusterServer)
            client = session.clients[-1]  # the leanest
            _throughput(session, report, server, client)
            _latency(session, report, server, client)


def _throughput(session: Session, report: Report, server: ClusterServer, client: Client) -> None:
    rates: list[float] = []
    usages: list[Usage] = []
    for sample in range(session.repeats + 1):
        load = Load(
            topic=f"load-{sample}",
            partitions=PARTITIONS,
            size=SIZE,
            count=session.scaled(1_000_000, 100_000),
        )
        topics.create(server.address, load.topic, load.partitions, CONFIG, replicas=NODES)
        session.settle()
        with Meter(*server.pids) as meter:
            took_s = client.produce(server.address, load, "all")
        written = topics.record_count(server.address, load.topic, load.partitions)
        assert written == load.count, f"{written} of {load.count} messages are there"
        topics.delete(server.address, load.topic)
        if sample:  # the first is the warm-up
            rates.append(load.count / took_s)
            usages.append(meter.usage.over(took_s))
    report(
        case=f"{SIZE} B, {PARTITIONS} partitions, acks=all, {client.name}",
        server=server.name,
        unit="msg/s",
        samples=rates,
        usages=usages,
        floor=THROUGHPUT if server.name == OURS else None,
    )


def _latency(session: Session, report: Report, server: ClusterServer, client: Client) -> None:
    runs = []
    usages: list[Usage] = []
    for sample in range(session.repeats + 1):
        topic = f"paced-{sample}"
        topics.create(server.address, topic, 1, CONFIG, replicas=NODES)
        pace = Pace(topic=topic, size=SIZE, per_second=PACE, seconds=session.scaled(4, 1), acks="all")
        session.settle()
        with Meter(*server.pids) as meter:
            latencies = client.pace(server.address, pace, watched=False)
        topics.delete(server.address, topic)
        if sample:
            runs.append(latencies)
            usages.append(meter.usage)
    for name, share in PERCENTILES.items():
        promised = server.name == OURS and name == "p99"
        report(
            case=f"{PACE:,} msg/s, acks=all, {name}, {client.name}",
            server=server.name,
            unit="ms",
            samples=[percentile(each.acked_ns, share) / 1e6 for each in runs],
            usages=usages,
            floor=LATENCY if promised else None,
        )
