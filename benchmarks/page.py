"""Writes the tables of docs/guide/benchmarks.md and of the README from the files in results/.

A full run updates the pages; `python -m benchmarks.page` does so without measuring.
"""

import re
from collections.abc import Iterator

from .machine import REPOSITORY
from .report import OURS, Measurement, Results, read

PAGES = (
    REPOSITORY / "docs" / "guide" / "benchmarks.md",
    REPOSITORY / "docs" / "internals" / "scale.md",
    REPOSITORY / "README.md",
)
RESULTS = REPOSITORY / "benchmarks" / "results"
# A selection for the README, good and bad: results, case, unit, description.
HIGHLIGHTS = (
    (
        "produce_throughput",
        "100 B, 6 partitions, acks=all, confluent-kafka",
        "msg/s",
        "produced, 100 B, Python client",
    ),
    ("produce_throughput", "1024 B, 1 partition, acks=all, C client", "MB/s", "produced, 1 KiB, C client"),
    ("fetch_throughput", "100 B, 1 partition, C client", "msg/s", "fetched, 100 B, C client"),
    (
        "end_to_end_latency",
        "1,000 msg/s, p99, confluent-kafka",
        "ms",
        "from producer to consumer at 1,000 a second, p99",
    ),
    ("fsync_modes", "fsync every batch, 64 writers", "acks/s", "64 writers that wait for the disk"),
    (
        "small_requests",
        "16 connections, one in flight on each",
        "requests/s",
        "16 connections, one message per request",
    ),
    ("footprint", "resident after writing and reading it all", "MiB", "memory of the broker"),
    ("recovery", "1024 MiB, left to the system, after kill -9", "s", "start after `kill -9`, 1 GiB"),
    (
        "queue_throughput",
        "SQS, by 10",
        "messages/s",
        "received and deleted over SQS",
    ),
    (
        "queue_throughput",
        "requests, by 10",
        "messages/s",
        "received and acknowledged over HTTP, ten at a time",
    ),
)
# The server that has its own column.
PEERS = ("compiled", "Apache", "ElasticMQ", "NATS", "RabbitMQ", "Redis", "Spark")
_BLOCK = re.compile(r"(<!-- results: ([a-z_]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def update() -> None:
    """Rewrite every table of the pages."""
    for page in PAGES:
        page.write_text(current(page.read_text()))


def current(text: str) -> str:
    """Return `text` with its tables updated from the results."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{_table(block[2])}\n{block[3]}", text)


def _table(name: str) -> str:
    if name == "highlights":
        return _highlights()
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return f"Not measured yet: `python -m benchmarks {name}` does.\n"
    results = read(path)
    peers = list(dict.fromkeys(each.server for each in results.measurements if each.server.startswith(PEERS)))
    if len({each.split()[0] for each in peers}) > 1:
        return (
            "\n".join([_provenance(results), "", *_by_server(results), "", *_skipped(results)]).rstrip()
            + "\n"
        )
    peer = peers[0] if peers else None
    lines = [_provenance(results), ""]
    heads = ["", "AlpacaMQ", "spread", "broker", "client", "others", "resident"]
    if peer is not None:
        heads += [peer, "AlpacaMQ is"]
    lines += ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in _rows(results, peer)]
    lines += ["", *_skipped(results)]
    return "\n".join(lines).rstrip() + "\n"


def _skipped(results: Results) -> list[str]:
    return [f"Not measured: {note}." for note in results.skipped]


def _by_server(results: Results) -> Iterator[str]:
    """Make the rows of results with several peers: one per server, each with what ours is of it."""
    heads = ["", "", "", "spread", "server", "client", "others", "resident", "AlpacaMQ is"]
    yield "| " + " | ".join(heads) + " |"
    yield "|---|---" + "|---:" * (len(heads) - 2) + "|"
    ours = {(each.case, each.unit): each.median for each in results.measurements if each.server == OURS}
    for measurement in results.measurements:
        median = ours.get((measurement.case, measurement.unit))
        is_ours = measurement.server == OURS
        name = "AlpacaMQ" if is_ours else measurement.server
        compared = (
            ""
            if is_ours or median is None or not measurement.median
            else f"×{median / measurement.median:.3g}"
        )
        cells = [
            measurement.case,
            name,
            _value(measurement),
            _spread(measurement),
            *_cost(measurement),
            compared,
        ]
        yield "| " + " | ".join(cells) + " |"


def _highlights() -> str:
    lines = ["| | AlpacaMQ | others |", "|---|---:|---:|"]
    for name, case, unit, words in HIGHLIGHTS:
        measurements = [
            each
            for each in read(RESULTS / f"{name}.json").measurements
            if (each.case, each.unit) == (case, unit)
        ]
        # A client may be missing where it was measured.
        ours = next((_value(each) for each in measurements if each.server == OURS), "not measured")
        others = ", ".join(f"{each.server} {_value(each)}" for each in measurements if each.server != OURS)
        lines.append(f"| {words} | {ours} | {others} |")
    return "\n".join(lines) + "\n"


def _provenance(results: Results) -> str:
    machine, commit = results.machine, results.commit
    changed = " with changes" if commit.modified else ""
    return (
        f"{results.taken_at[:10]}, commit `{commit.id[:12]}`{changed}, "
        f"{machine.cores} cores of {machine.cpu}, {machine.memory_gib:g} GiB, "
        f"{machine.kernel}, Python {machine.python}, {machine.file_system}; "
        f"load average before the run {results.load_average_before:g}."
    )


def _rows(results: Results, peer: str | None) -> Iterator[list[str]]:
    theirs = {(each.case, each.unit): each for each in results.measurements if each.server == peer}
    for measurement in results.measurements:
        if measurement.server == peer:
            continue
        case = measurement.case if measurement.server == OURS else f"{measurement.server}: {measurement.case}"
        row = [case, _value(measurement), _spread(measurement), *_cost(measurement)]
        if peer is not None:
            other = theirs.get((measurement.case, measurement.unit))
            row += [_value(other) if other else "", _compared(measurement)]
        yield row


def _value(measurement: Measurement) -> str:
    value = f"{measurement.median:,.0f}" if measurement.median >= 1000 else f"{measurement.median:g}"
    return f"{value} {measurement.unit}"


def _spread(measurement: Measurement) -> str:
    return f"{measurement.spread:.0%}" if len(measurement.samples) > 1 else ""


def _cost(measurement: Measurement) -> list[str]:
    cost = measurement.cost
    if cost is None:
        return ["", "", "", ""]
    shares = (cost.server_cores, cost.client_cores, cost.others_cores)
    return [*(f"{share:.0%}" for share in shares), f"{cost.server_rss_mib:.0f} MiB"]


def _compared(measurement: Measurement) -> str:
    return "" if measurement.of_peer is None else f"×{measurement.of_peer:.3g}"


if __name__ == "__main__":
    update()
