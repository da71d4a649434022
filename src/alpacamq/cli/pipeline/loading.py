"""Loads the pipelines of a command with the broker and the user of its command line, and shows reports."""

import argparse
import signal
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from alpacamq.cli.commands import broker_addresses
from alpacamq.cli.output import Output, Table, print_message
from alpacamq.cli.parsing import CommandError

if TYPE_CHECKING:
    from alpacamq.cli.target import Target
    from alpacamq_spark.pipelines import Pipeline
    from alpacamq_spark.pipelines.run import BrokerAccess, Report

FILE_HELP = "the pipeline's file, TOML or YAML"
TRIGGER_HELP = (
    "when a stream runs, instead of what the file says: available-now, once, or an interval like 30s"
)
_NO_SPARK = (
    "pipelines run on Spark, which is not installed; install it with `pip install '.[spark]'` in a checkout "
    "of AlpacaMQ"
)


def loaded(path: Path, parsed: argparse.Namespace) -> "Pipeline":
    """Load a pipeline; its broker is that of the command line, its own, or the default target."""
    from alpacamq_spark.pipelines import load

    return with_target(load(path), parsed)


def with_target(pipeline: "Pipeline", parsed: argparse.Namespace) -> "Pipeline":
    """Return a pipeline with the broker and the user of the command line, or of the default target."""
    if parsed.target.is_explicit or pipeline.definition.broker is None:
        pipeline = pipeline.at(brokers(parsed), _http(parsed))
    return pipeline.using(access_of(pipeline.access, parsed.target, tls=pipeline.definition.tls))


def run_and_show(pipeline: "Pipeline", output: Output) -> None:
    """Run a pipeline with its progress on standard error, and show its report."""
    from alpacamq.cli.progress import ProgressLine
    from alpacamq_spark.pipelines.run import Interruption, ProgressListener

    interruption = Interruption()
    line = ProgressLine()
    listener = ProgressListener(say=line.say, batch=line.batch, running=line.running)
    try:
        outcome = pipeline.run(listener=listener, interruption=interruption)
    finally:
        line.end()
    show(outcome.report, output)
    if outcome.is_stopped and interruption.signal == signal.SIGINT:
        raise KeyboardInterrupt


def access_of(access: "BrokerAccess", target: "Target", *, tls: bool | None = None) -> "BrokerAccess":
    """Return user and TLS of the command line, of a pipeline, or else of the environment or the context.

    `tls`: whether the pipeline's file says to use TLS or not.
    """
    from alpacamq.client.connect import Tls

    is_explicit = target.tls_source.startswith("--")
    if target.tls is not None and (is_explicit or (access.tls is None and tls is not False)):
        given = target.tls
        absolute = Tls(
            ca=given.ca and _absolute(given.ca),
            certificate=given.certificate and _absolute(given.certificate),
            key=given.key and _absolute(given.key),
        )
        access = replace(access, tls=absolute)
    user = target.user
    if user is None or (access.user is not None and target.user_source[1] != "--user"):
        return access
    if (password_file := target.password_file) is None:
        raise CommandError(
            f"pipelines read the password of {user} from a file, on every machine that needs it: use "
            "--password-file FILE, or user and password_file in the pipeline's file"
        )
    return replace(access, user=user, password_file=_absolute(password_file))


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def need_spark() -> None:
    if find_spec("pyspark") is None:
        raise CommandError(_NO_SPARK)


def show(report: "Report", output: Output) -> None:
    tables = [Table(section.columns, section.rows, section.title) for section in report.sections]
    output.show(report.data, *tables)
    for note in report.notes:
        print_message(note)


def _http(parsed: argparse.Namespace) -> str | None:
    """Return the HTTP API of the target broker; None if only its Kafka API is known."""
    target: Target = parsed.target
    is_of_broker = target.broker is None or target.http.precedence <= target.broker.precedence
    return target.http.address.partition(",")[0] if is_of_broker else None


def brokers(parsed: argparse.Namespace) -> str:
    return ",".join(map(str, broker_addresses(parsed)))
