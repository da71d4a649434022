"""What does a million messages cost the broker in CPU time, and what memory does it hold afterwards?

100 B messages in 6 partitions, written with acks=all and read back.
"""

from . import topics
from .clients import Load
from .report import OURS, Floor, Report
from .servers import Server
from .session import Session
from .usage import Meter, Usage

FLOOR = Floor(at_most=80.0)


def run(session: Session, report: Report) -> None:
    for contender in session.contenders:
        with session.server(contender) as server:
            _measure(session, report, server)


def _measure(session: Session, report: Report, server: Server) -> None:
    client = session.clients[-1]
    load = Load(topic="footprint", partitions=6, size=100, count=session.scaled(3_000_000, 500_000))
    written: list[Usage] = []
    read: list[Usage] = []
    for sample in range(session.repeats + 1):
        topics.create(server.address, load.topic, load.partitions)
        session.settle()
        with Meter(server.pid) as producing:
            client.produce(server.address, load, "all")
        with Meter(server.pid) as fetching:
            client.fetch(server.address, load)
        topics.delete(server.address, load.topic)
        if sample:  # the first one warms up
            written.append(producing.usage)
            read.append(fetching.usage)
    millions = load.count / 1e6
    for what, usages in (("produce", written), ("fetch", read)):
        report(
            case=f"{what}, {client.name}",
            server=server.name,
            unit="CPU s per million messages",
            samples=[usage.server_cpu_s / millions for usage in usages],
            usages=usages,
        )
    report(
        case="resident after writing and reading it all",
        server=server.name,
        unit="MiB",
        samples=[usage.server_rss_mib for usage in read],
        floor=FLOOR if server.name == OURS else None,
    )
