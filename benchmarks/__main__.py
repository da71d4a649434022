"""`python -m benchmarks [names] [--quick]`: run benchmarks, print tables, write results."""

import argparse
import importlib
import inspect
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from . import compiled, machine, page, report, servers
from .jars import Unavailable
from .report import Report
from .session import ROOM, Session, session

# In the order in which they run.
BENCHMARKS = (
    "produce_throughput",
    "fetch_throughput",
    "client_log",
    "publish_latency",
    "cluster_produce",
    "forwarded_requests",
    "end_to_end_latency",
    "fsync_modes",
    "small_requests",
    "metrics_cost",
    "tracing_cost",
    "security_cost",
    "quota_cost",
    "security_load",
    "tls_cost",
    "schema_validation",
    "quota_accuracy",
    "footprint",
    "startup",
    "deployment",
    "recovery",
    "many_partitions",
    "command_line",
    "console",
    "lookup",
    "rebalance",
    "offset_commits",
    "transactions",
    "coordinator_loading",
    "cluster_failover",
    "controller_scale",
    "schema_registry",
    "queue_engine",
    "queue_throughput",
    "queue_publish",
    "queue_flatness",
    "client_queue",
    "grpc_log",
    "grpc_latency",
    "delays",
    "spark_read",
    "spark_stream",
    "spark_write",
    "spark_latency",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="less work, one sample each, no peer; a smoke test that writes no results",
    )
    parser.add_argument(
        "--wheel",
        type=Path,
        help="measure this wheel of `make compiled` instead of the sources; results go to NAME_compiled",
    )
    parsed = parser.parse_args()
    if unknown := set(parsed.names) - set(BENCHMARKS):
        parser.error(
            f"unknown benchmark {', '.join(sorted(unknown))}; benchmarks are {', '.join(BENCHMARKS)}"
        )
    signal.signal(signal.SIGTERM, _end)  # so that servers are stopped on the way out
    # Taken before measuring: later the benchmarks themselves are the load.
    load_average = machine.load_average()
    print(f"load average {load_average}, values are medians; a fully used core is 100 %", flush=True)
    with tempfile.TemporaryDirectory(dir=ROOM) as unpacked:
        if parsed.wheel:
            compiled.unpack(parsed.wheel, Path(unpacked))
            servers.measured_source = Path(unpacked)
        _measure(parsed, load_average)
    return 0


def _measure(parsed: argparse.Namespace, load_average: float) -> None:
    with session(is_quick=parsed.quick) as opened:
        try:
            for name in parsed.names or BENCHMARKS:
                _ask(name, opened, load_average, f"{name}_compiled" if parsed.wheel else name)
        finally:
            if not parsed.quick:
                page.update()


def _ask(name: str, opened: Session, load_average: float, results_name: str) -> None:
    began_at = time.monotonic()
    module = importlib.import_module(f"{__package__}.{name}")
    question = inspect.cleandoc(module.__doc__ or "").splitlines()[0]
    collected = Report(results_name, question)
    opened.note_unavailable(collected)
    try:
        module.run(opened, collected)
    except Unavailable as error:
        collected.skip("the rest, for a peer that started before", str(error))
    results = collected.results(machine.machine(ROOM), machine.commit(), opened.client_versions, load_average)
    print(report.table(results))
    print(f"  took {time.monotonic() - began_at:.0f} s", flush=True)
    if not opened.is_quick:
        report.write(results, page.RESULTS)


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
