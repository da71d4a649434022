"""How many messages a second does one consumer get, and is the broker or the client the limit?

One consumer with its partitions assigned, reading a log that was just written:
100 B and 1 KiB, 1 and 6 partitions.
"""

from itertools import product

from . import topics
from .clients import CONSUMER, Client, Load
from .report import OURS, Floor, Report, counted
from .servers import Server
from .session import Session
from .usage import Meter, Usage

SIZES = (100, 1024)
PARTITIONS = (1, 6)
FLOOR = Floor(at_least=500_000)


def run(session: Session, report: Report) -> None:
    report.settings["consumer"] = dict(CONSUMER)
    for contender in session.contenders:
        with session.server(contender) as server:
            for size, partitions in product(SIZES, PARTITIONS):
                load = _written(session, server, size, partitions)
                for client in session.clients:
                    _measure(session, report, server, client, load)
                topics.delete(server.address, load.topic)


def _written(session: Session, server: Server, size: int, partitions: int) -> Load:
    full = {100: 2_000_000, 1024: 600_000}[size]
    load = Load(
        topic=f"read-{size}-{partitions}",
        partitions=partitions,
        size=size,
        count=session.scaled(full, full // 4),
    )
    topics.create(server.address, load.topic, partitions)
    session.clients[-1].produce(server.address, load, "all")
    # Reading it once lets a server that compiles itself while it runs do so before it is measured.
    session.clients[-1].fetch(server.address, load)
    return load


def _measure(session: Session, report: Report, server: Server, client: Client, load: Load) -> None:
    rates: list[float] = []
    usages: list[Usage] = []
    for _ in range(session.repeats):
        session.settle()
        with Meter(server.pid) as meter:
            took_s = client.fetch(server.address, load)
        rates.append(load.count / took_s)
        usages.append(meter.usage.over(took_s))
    case = f"{load.size} B, {counted(load.partitions, 'partition')}, {client.name}"
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
