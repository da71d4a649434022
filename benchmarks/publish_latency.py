"""How long does a publisher wait for its acknowledgement at 1,000 and 10,000 messages a second?

100 B messages with acks=1 at a fixed rate, one partition, fsync every second as by default. Latency counts
from the intended send time, so that a stall affects every message that it delays.
"""

import time
from array import array
from itertools import product

from . import topics
from .clients import PACED_PRODUCER, Client, Latencies, Pace, percentile
from .report import OURS, Floor, Report
from .servers import Server
from .session import Session
from .usage import Meter, Usage

RATES = (1_000, 10_000)
SIZE = 100
PERCENTILES = {"p50": 0.50, "p99": 0.99, "p99.9": 0.999}
FLOOR = Floor(at_most=10.0)


def run(session: Session, report: Report) -> None:
    report.settings["producer"] = {**PACED_PRODUCER, "acks": "1"}
    _bare_machine(session, report)
    for contender in session.contenders:
        with session.server(contender) as server:
            for client, rate in product(session.clients, RATES):
                runs, usages = paced(session, server, client, rate, watched=False)
                for name, share in PERCENTILES.items():
                    promised = server.name == OURS and name == "p99"
                    report(
                        case=f"{rate:,} msg/s, {name}, {client.name}",
                        server=server.name,
                        unit="ms",
                        samples=[percentile(each.acked_ns, share) / 1e6 for each in runs],
                        usages=usages,
                        floor=FLOOR if promised else None,
                    )


def _bare_machine(session: Session, report: Report) -> None:
    """Measure how late an idle process wakes up: what the machine adds to every value here."""
    interval_ns = 1_000_000_000 // max(RATES)
    runs: list[array[int]] = []
    for _ in range(session.repeats):
        late_ns = array("q")
        began_ns = time.monotonic_ns()
        for index in range(session.scaled(3, 1) * max(RATES)):
            due_ns = began_ns + index * interval_ns
            while (now_ns := time.monotonic_ns()) < due_ns:
                time.sleep((due_ns - now_ns) / 1e9)
            late_ns.append(now_ns - due_ns)
        runs.append(late_ns)
    for name, share in PERCENTILES.items():
        report(
            case=f"waking up {max(RATES):,} times a second, {name}",
            server="the machine",
            unit="ms",
            samples=[percentile(run, share) / 1e6 for run in runs],
        )


def paced(
    session: Session, server: Server, client: Client, rate: int, *, watched: bool
) -> tuple[list[Latencies], list[Usage]]:
    """Return latencies of several runs at a rate, each on a new topic, after one warm-up run."""
    runs: list[Latencies] = []
    usages: list[Usage] = []
    for sample in range(session.repeats + 1):
        seconds = session.scaled(4, 1)
        topic = f"{client.name.replace(' ', '-')}-{rate}-{sample}"
        topics.create(server.address, topic, 1)
        pace = Pace(topic=topic, size=SIZE, per_second=rate, seconds=seconds)
        session.settle()
        with Meter(server.pid) as meter:
            latencies = client.pace(server.address, pace, watched=watched)
        topics.delete(server.address, topic)
        if sample:
            runs.append(latencies)
            usages.append(meter.usage)
    return runs, usages
