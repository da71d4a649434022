"""`alpacactl doctor`: checks every node of a cluster, and says what to do about what is wrong."""

import argparse
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from . import cells
from .commands import connect_http
from .output import Output, Table
from .parsing import CommandError, Parser

if TYPE_CHECKING:
    from alpacamq.client.http.connection import HttpApi
    from alpacamq.model.address import Address
    from alpacamq.wire.cluster import ClusterStatus, NodeStatus

    from .target import Target
    from .yaml import Plain

# Of the space of a disk: below the first share a warning, below the second a failure.
LOW_DISK, FULL_DISK = 0.15, 0.05
LOW_FILES = 4096
BUSY_FILES = 0.8
# The Date header has no fractions of a second, and a request takes a while.
CLOCK_SECONDS = 3.0
# Ahead of cluster time.
DRIFT_SECONDS = 0.5
DAY_SECONDS = 86_400
CERTIFICATE_DAYS = 14
CONNECT_SECONDS = 4.0
MIB, GIB = 1 << 20, 1 << 30
_SAMPLE = re.compile(r'^(\w+)(?:\{(?:\w+="([^"]*)")?[^}]*\})? (\S+)$', re.MULTILINE)


class Status(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check of a node, or of the cluster if `node` is None."""

    node: int | None
    check: str
    status: Status
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics that checks use: values by name and the first label."""

    values: Mapping[tuple[str, str], float]

    @classmethod
    def parse(cls, text: str) -> "Metrics":
        """Read Prometheus' text format."""
        return cls({(name, label): float(value) for name, label, value in _SAMPLE.findall(text)})

    def get(self, name: str) -> float | None:
        return self.values.get((name, ""))

    def labelled(self, name: str) -> dict[str, float]:
        return {label: value for (found, label), value in self.values.items() if found == name}


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    del common  # a command without verbs has them already
    if isinstance(parser, Parser):
        parser.add_examples(["alpacactl doctor", "alpacactl doctor -o json"])
    parser.set_defaults(run=_doctor, verb=parser)


def _doctor(parsed: argparse.Namespace, output: Output) -> None:
    findings = list(_findings(parsed))
    plain: list[Plain] = [
        {name: str(value) if isinstance(value, Status) else value for name, value in asdict(each).items()}
        for each in findings
    ]
    output.show(
        plain,
        Table(
            ["node", "check", "status", "detail"],
            [[each.node, each.check, cells.state(each.status), each.detail] for each in findings],
        ),
        Table(
            ["node", "check", "advice"],
            [[each.node, each.check, each.advice] for each in findings if each.advice],
        ),
    )
    failed = sum(each.status is Status.FAILED for each in findings)
    if failed:
        raise CommandError(f"{failed} of {len(findings)} checks failed")


def _findings(parsed: argparse.Namespace) -> Iterator[Finding]:
    from alpacamq.client.http.cluster import cluster_status

    # Without an answer there is nothing to check: the error says what to do.
    with connect_http(parsed) as api:
        status = cluster_status(api)
        asked = api.address
    yield from _cluster(status)
    for node in status.nodes:
        yield from _node(parsed, node, asked if node.node_id == status.node_id else None)


def _cluster(status: "ClusterStatus") -> Iterator[Finding]:
    def finding(check: str, problem: str, detail: str, advice: str, worst: Status = Status.FAILED) -> Finding:
        found = worst if problem else Status.OK
        return Finding(
            node=None, check=check, status=found, detail=problem or detail, advice=advice if problem else ""
        )

    controller, totals = status.controller.node_id, status.partitions
    yield finding(
        "controller",
        "none" if controller is None else "",
        f"node {controller}, {len(status.voters)} voters",
        "start the nodes that vote: a majority of them must run",
    )
    problem = ""
    if totals.offline:
        problem = f"{totals.offline} of {totals.partitions} partitions have no leader"
    elif totals.below_min_isr:
        problem = f"{totals.below_min_isr} partitions have fewer replicas in sync than min.insync.replicas"
    elif totals.under_replicated:
        problem = f"{totals.under_replicated} of {totals.partitions} partitions lack replicas"
    yield finding(
        "partitions",
        problem,
        f"{totals.partitions}, all with their replicas in sync",
        "see which: alpacactl cluster partitions --state "
        f"{'offline' if totals.offline else 'under-replicated'}",
        Status.FAILED if totals.offline or totals.below_min_isr else Status.WARNING,
    )
    versions = sorted({node.version for node in status.nodes if node.version and not node.fenced})
    yield finding(
        "versions",
        f"nodes run {', '.join(versions)}" if len(versions) > 1 else "",
        ", ".join(versions),
        "finish the upgrade: install the same version on every node",
        Status.WARNING,
    )


def _node(parsed: argparse.Namespace, node: "NodeStatus", asked: "Address | None") -> Iterator[Finding]:
    from alpacamq.client.connect import parse_address
    from alpacamq.model.errors import AlpacaError

    def finding(check: str, status: Status, detail: str, advice: str = "") -> Finding:
        return Finding(node=node.node_id, check=check, status=status, detail=detail, advice=advice)

    if node.fenced:
        yield finding(
            "state",
            Status.FAILED,
            node.error or "the controller does not hear it",
            "start it, or see its log and /readyz for what it waits for",
        )
        return
    yield finding("state", Status.OK, node.state)
    for listener, setting in _CHECKED.items():
        if listener in node.addresses:
            yield _address(parsed, finding, listener, node.addresses[listener], setting)
    address = asked
    if address is None and "http" in node.addresses:
        address = parse_address(node.addresses["http"])
    if address is None:
        yield finding(
            "metrics",
            Status.WARNING,
            "the HTTP API is disabled",
            "set http.enabled = true to have the rest checked",
        )
        return
    try:
        with _http(parsed, address) as api:
            metrics = Metrics.parse(api.text(["metrics"]))
            yield _clock(finding, api.date, metrics)
    except AlpacaError as error:
        yield finding(
            "metrics",
            Status.WARNING,
            str(error),
            "disk, clock, limits and certificates of this node are not checked",
        )
        return
    yield from _resources(finding, metrics)


Make = Callable[..., Finding]
# The listeners that clients are sent to by others, and where their addresses come from.
_CHECKED = {"kafka": "kafka.advertised", "http": "http.listen", "grpc": "grpc.advertised"}


def _http(parsed: argparse.Namespace, address: "Address") -> "HttpApi":
    from alpacamq.client.http.connection import Credentials, HttpApi

    target: Target = parsed.target
    login = None if target.user is None else target.login
    credentials = None if login is None else Credentials(user=login.user, password=login.password)
    return HttpApi(address, credentials=credentials, tls=target.http_tls)


def _address(parsed: argparse.Namespace, finding: Make, listener: str, text: str, setting: str) -> Finding:
    """Connect to an advertised address, as clients would."""
    from alpacamq.client.connect import connect, parse_address
    from alpacamq.client.errors import Unreachable

    target: Target = parsed.target
    tls = target.http_tls if listener == "http" else target.tls
    try:
        address = parse_address(text)
        connect(address, time.monotonic() + CONNECT_SECONDS, named_by=setting, tls=tls).close()
    except (Unreachable, ValueError) as error:
        return finding(
            f"{listener} address",
            Status.FAILED,
            str(error).partition("; is it running?")[0],
            f"set {setting} of this node to an address that clients reach",
        )
    return finding(f"{listener} address", Status.OK, text)


def _clock(finding: Make, date: str, metrics: Metrics) -> Finding:
    ahead = metrics.get("alpacamq_clock_ahead_seconds") or 0.0
    advice = "synchronise the clocks of all machines (chrony, systemd-timesyncd)"
    if abs(ahead) > DRIFT_SECONDS:
        return finding(
            "clock", Status.FAILED, f"{abs(ahead):.1f} s {_side(ahead)} the clock of the cluster", advice
        )
    difference = parsedate_to_datetime(date).timestamp() - time.time() if date else 0.0
    if abs(difference) > CLOCK_SECONDS:
        return finding(
            "clock", Status.WARNING, f"{abs(difference):.0f} s {_side(difference)} the clock here", advice
        )
    return finding("clock", Status.OK, f"{abs(ahead) * 1000:.0f} ms from the clock of the cluster")


def _side(seconds: float) -> str:
    return "ahead of" if seconds > 0 else "behind"


def _resources(finding: Make, metrics: Metrics) -> Iterator[Finding]:
    failing = [check for check, value in metrics.labelled("alpacamq_health").items() if value == 0]
    yield finding(
        "health",
        Status.FAILED if failing else Status.OK,
        f"failing: {', '.join(failing)}" if failing else "all checks pass",
        "see what: curl http://HOST:PORT/healthz" if failing else "",
    )
    free, size = metrics.get("alpacamq_disk_free_bytes"), metrics.get("alpacamq_disk_size_bytes")
    if free is not None and size:
        share = free / size
        status = Status.FAILED if share < FULL_DISK else Status.WARNING if share < LOW_DISK else Status.OK
        yield finding(
            "disk",
            status,
            f"{free / GIB:.1f} of {size / GIB:.1f} GiB free ({share:.0%})",
            "" if status is Status.OK else "lower retention.ms or retention.bytes, or enlarge the disk",
        )
    used, limit = metrics.get("process_open_fds"), metrics.get("process_max_fds")
    if used is not None and limit:
        is_scarce = limit < LOW_FILES or used > BUSY_FILES * limit
        yield finding(
            "open files",
            Status.WARNING if is_scarce else Status.OK,
            f"{used:.0f} of {limit:.0f}",
            "raise the limit: LimitNOFILE= of the unit, ulimit -Hn, or --ulimit nofile=" if is_scarce else "",
        )
    for setting, seconds in metrics.labelled("alpacamq_certificate_expiry_seconds").items():
        days = seconds / DAY_SECONDS
        status = Status.OK
        if seconds <= 0:
            status = Status.FAILED
        elif days < CERTIFICATE_DAYS:
            status = Status.WARNING
        yield finding(
            f"certificate {setting}",
            status,
            "expired" if seconds <= 0 else f"{days:.0f} days left",
            "" if status is Status.OK else "replace the file: it is loaded again by itself",
        )
