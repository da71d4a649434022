"""Reports results: a table on the terminal and a file to quote from.

All benchmarks report here, so that each value has its unit, its samples, its spread and its cost for
the server.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec

from .machine import Commit, Machine
from .usage import Usage

OURS = "alpacamq"


class Floor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bound that the product guarantees; one of the two fields is set."""

    at_least: float | None = None
    at_most: float | None = None

    def holds(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of the samples, as medians; a fully used core is 1.0."""

    server_cpu_s: float
    server_cores: float
    client_cores: float
    # Other load: near 0 on an otherwise idle machine.
    others_cores: float
    server_rss_mib: float


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measured quantity; the median of its samples may be quoted."""

    case: str
    server: str
    unit: str
    median: float
    lowest: float
    highest: float
    # The distance of the extremes, as a share of the median.
    spread: float
    samples: Sequence[float]
    cost: Cost | None = None
    floor: Floor | None = None
    floor_holds: bool | None = None
    # Median over the peer's median for the same case and unit.
    of_peer: float | None = None


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one file in results/."""

    benchmark: str
    question: str
    taken_at: str
    commit: Commit
    machine: Machine
    # The load average of the minute before the benchmark, which shows other work on the machine.
    load_average_before: float
    clients: dict[str, str]
    settings: dict[str, dict[str, object]]
    skipped: Sequence[str]
    measurements: Sequence[Measurement]


class Report:
    """Collects the results of one benchmark."""

    def __init__(self, name: str, question: str) -> None:
        self.name = name
        self.question = question
        self.skipped: list[str] = []
        self.settings: dict[str, dict[str, object]] = {}
        self.measurements: list[Measurement] = []

    def __call__(
        self,
        *,
        case: str,
        server: str,
        unit: str,
        samples: Sequence[float],
        usages: Sequence[Usage] = (),
        floor: Floor | None = None,
    ) -> None:
        """Add a result; `usages` is the cost of each sample if it was measured."""
        middle = median(samples)
        measurement = Measurement(
            case=case,
            server=server,
            unit=unit,
            median=_rounded(middle),
            lowest=_rounded(min(samples)),
            highest=_rounded(max(samples)),
            spread=round((max(samples) - min(samples)) / middle, 3) if middle else 0.0,
            samples=[_rounded(sample) for sample in samples],
            cost=_cost(usages) if usages else None,
            floor=floor,
            floor_holds=None if floor is None else floor.holds(middle),
        )
        self.measurements.append(measurement)

    def skip(self, what: str, reason: str) -> None:
        """Record what was not measured and why."""
        note = f"{what}: {reason}"
        if note not in self.skipped:
            self.skipped.append(note)

    def results(
        self, machine: Machine, commit: Commit, clients: dict[str, str], load_average_before: float
    ) -> Results:
        return Results(
            benchmark=self.name,
            question=self.question,
            taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=commit,
            machine=machine,
            load_average_before=load_average_before,
            clients=clients,
            settings=self.settings,
            skipped=self.skipped,
            measurements=self._compared(),
        )

    def _compared(self) -> list[Measurement]:
        """Return the results, ours with their ratio to the peer's, to its first variant if it has several."""
        peers: dict[tuple[str, str], float] = {}
        for measurement in self.measurements:
            if measurement.server != OURS:
                peers.setdefault((measurement.case, measurement.unit), measurement.median)
        return [
            msgspec.structs.replace(
                measurement, of_peer=round(measurement.median / peers[measurement.case, measurement.unit], 3)
            )
            if measurement.server == OURS and peers.get((measurement.case, measurement.unit))
            else measurement
            for measurement in self.measurements
        ]


def counted(count: int, noun: str) -> str:
    """Format a number and its noun, for the name of a case."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def write(results: Results, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(results), indent=2)
    (directory / f"{results.benchmark}.json").write_bytes(text + b"\n")


def read(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


def table(results: Results) -> str:
    """Format the results for a terminal."""
    heads = (
        "case",
        "server",
        "median",
        "unit",
        "spread",
        "server",
        "client",
        "others",
        "memory",
        "of peer",
        "floor",
    )
    rows = [heads, *(_row(measurement) for measurement in results.measurements)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = [f"\n{results.benchmark}: {results.question}"]
    lines += [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]
    lines += [f"  not measured: {note}" for note in results.skipped]
    return "\n".join(line.rstrip() for line in lines)


def _row(measurement: Measurement) -> tuple[str, ...]:
    cost = measurement.cost
    return (
        measurement.case,
        measurement.server,
        f"{measurement.median:,.0f}" if measurement.median >= 1000 else f"{measurement.median:g}",
        measurement.unit,
        f"{measurement.spread:.0%}" if len(measurement.samples) > 1 else "",
        f"{cost.server_cores:.0%} core" if cost else "",
        f"{cost.client_cores:.0%} core" if cost else "",
        f"{cost.others_cores:.0%} core" if cost else "",
        f"{cost.server_rss_mib:.0f} MiB" if cost else "",
        f"x{measurement.of_peer:g}" if measurement.of_peer is not None else "",
        "" if measurement.floor_holds is None else "holds" if measurement.floor_holds else "MISSED",
    )


def _cost(usages: Sequence[Usage]) -> Cost:
    return Cost(
        server_cpu_s=round(median(usage.server_cpu_s for usage in usages), 3),
        server_cores=round(median(usage.server_cores for usage in usages), 3),
        client_cores=round(median(usage.client_cores for usage in usages), 3),
        others_cores=round(median(usage.others_cores for usage in usages), 3),
        server_rss_mib=round(median(usage.server_rss_mib for usage in usages), 1),
    )


def _rounded(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)
