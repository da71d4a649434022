"""How long is a message on its way from publisher to consumer at 1,000 and 10,000 messages a second?

As publish_latency, with a consumer that waits at the other end (long polling, one message at a time).
"""

from itertools import product

from .clients import PACED_PRODUCER, percentile
from .publish_latency import PERCENTILES, RATES, paced
from .report import Report
from .session import Session


def run(session: Session, report: Report) -> None:
    report.settings["producer"] = {**PACED_PRODUCER, "acks": "1"}
    for contender in session.contenders:
        with session.server(contender) as server:
            for client, rate in product(session.clients, RATES):
                runs, usages = paced(session, server, client, rate, watched=True)
                for name, share in PERCENTILES.items():
                    report(
                        case=f"{rate:,} msg/s, {name}, {client.name}",
                        server=server.name,
                        unit="ms",
                        samples=[percentile(each.seen_ns, share) / 1e6 for each in runs],
                        usages=usages,
                    )
