"""How many messages a second does one producer get acknowledged, and is the broker or the client the limit?

One producer, a fresh topic for each sample, 1 and 6 partitions: 100 B with acks=1 and acks=all, 1 KiB with
acks=all.
"""

from dataclasses import replace
from itertools import product

from . import topics
from .clients import PRODUCER, Client, Load
from .report import OURS, Floor, Report, counted
from .servers import Server
from .session import Session
from .usage import Meter, Usage

SIZES_AND_ACKS = ((100, "1"), (100, "all"), (1024, "all"))
PARTITIONS = (1, 6)
FLOOR = Floor(at_least=500_000)


def run(session: Session, report: Report) -> None:
    report.settings["producer"] = dict(PRODUCER)
    for contender in session.contenders:
        with session.server(contender) as server:
            _warm_up(session, server)
            for client, (size, acks), partitions in product(session.clients, SIZES_AND_ACKS, PARTITIONS):
                _measure(session, report, server, client, _load(session, client, size, partitions), acks)


def _load(session: Session, client: Client, size: int, partitions: int) -> Load:
    # About a second and a half of work for each client at each size.
    lean = client.name != "confluent-kafka"
    full = {100: 2_000_000 if lean else 1_000_000, 1024: 500_000 if lean else 400_000}[size]
    return Load(topic="load", partitions=partitions, size=size, count=session.scaled(full, full // 4))


def _measure(session: Session, report: Report, server: Server, client: Client, load: Load, acks: str) -> None:
    rates: list[float] = []
    usages: list[Usage] = []
    for sample in range(session.repeats):
        mine = replace(
            load, topic=f"{client.name.replace(' ', '-')}-{load.size}-{load.partitions}-{acks}-{sample}"
        )
        topics.create(server.address, mine.topic, mine.partitions)
        session.settle()
        with Meter(server.pid) as meter:
            took_s = client.produce(server.address, mine, acks)
        written = topics.record_count(server.address, mine.topic, mine.partitions)
        assert written == mine.count, f"{written} of {mine.count} messages are there"
        topics.delete(server.address, mine.topic)
        rates.append(mine.count / took_s)
        usages.append(meter.usage.over(took_s))
    case = f"{load.size} B, {counted(load.partitions, 'partition')}, acks={acks}, {client.name}"
    promised = server.name == OURS and load.size == 100
    report(
        case=case,
        server=server.name,
        unit="msg/s",
        samples=rates,
        usages=usages,
        floor=FLOOR if promised else None,
    )
    if load.size >= 1000:
        report(case=case, server=server.name, unit="MB/s", samples=[rate * load.size / 1e6 for rate in rates])


def _warm_up(session: Session, server: Server) -> None:
    """Let a server that compiles itself while it runs do so before it is measured."""
    load = Load(topic="warm-up", partitions=6, size=100, count=session.scaled(1_000_000, 100_000))
    topics.create(server.address, load.topic, load.partitions)
    for client in session.clients:
        client.produce(server.address, load, "all")
    topics.delete(server.address, load.topic)
