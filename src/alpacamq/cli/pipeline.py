"""`alpacactl pipeline`: data pipelines on Spark.

Pipelines are implemented in the package `alpacamq_spark`, which is imported when a verb runs; Spark itself
is imported only by verbs that need it.
"""

import argparse
import signal
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from alpacamq.model.errors import AlpacaError

from .commands import add_verb, broker_addresses, verbs_of
from .output import Output, Table, print_message
from .parsing import CommandError

if TYPE_CHECKING:
    from alpacamq_spark.pipelines import Pipeline
    from alpacamq_spark.pipelines.run import BrokerAccess, Report

    from .target import Target
    from .yaml import Plain

DIRECTORY = "pipelines"
_FILE_HELP = "the pipeline's file, TOML or YAML"
_NO_SPARK = (
    "pipelines run on Spark, which is not installed; install it with `pip install '.[spark]'` in a checkout "
    "of AlpacaMQ"
)


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    run = add_verb(
        verbs, common, "run", "run a pipeline to its end, or until Ctrl-C", _run,
        ["alpacactl pipeline run archive.toml"],
    )  # fmt: skip
    run.add_argument("file", type=Path, help=_FILE_HELP)
    run.add_argument(
        "--execute",
        action="store_true",
        help="perform the redrive that a dead-letters pipeline otherwise only shows",
    )

    lists = add_verb(
        verbs, common, "list", "list the pipelines of a directory", _list, ["alpacactl pipeline list ."]
    )
    lists.add_argument(
        "directory", type=Path, nargs="?", default=Path(DIRECTORY), help=f"default: {DIRECTORY}"
    )

    validate = add_verb(
        verbs, common, "validate", "check pipeline files without running them", _validate,
        ["alpacactl pipeline validate archive.toml"],
    )  # fmt: skip
    validate.add_argument("files", type=Path, nargs="+", metavar="file", help=_FILE_HELP)

    status = add_verb(
        verbs, common, "status", "show the progress and lag of a pipeline", _status,
        ["alpacactl pipeline status archive.toml"],
    )  # fmt: skip
    status.add_argument("file", type=Path, help=_FILE_HELP)

    sql = add_verb(
        verbs, common, "sql", "query an archive or a table with SQL", _sql,
        ["alpacactl pipeline sql archive.toml 'SELECT count(*) FROM archive'"],
    )  # fmt: skip
    sql.description = (
        "Run a Spark SQL query over the archive or the Iceberg table of a pipeline. Of an archive, the table "
        "archive contains all messages, and each topic has its own table; an Iceberg table has its name."
    )
    sql.add_argument("file", type=Path, help=_FILE_HELP)
    sql.add_argument("query", help="for example: SELECT count(*) FROM archive")

    doctor = add_verb(
        verbs, common, "doctor", "check the requirements of pipelines on this machine", _doctor,
        ["alpacactl pipeline doctor"],
    )  # fmt: skip
    doctor.add_argument("file", type=Path, nargs="?", help="also check this pipeline")
    doctor.add_argument("--start-spark", action="store_true", help="also start Spark, which takes a while")


def _loaded(path: Path, parsed: argparse.Namespace) -> "Pipeline":
    """Load a pipeline; its broker is that of the command line, its own, or the default target."""
    from alpacamq_spark.pipelines import load

    if parsed.target.is_explicit:
        pipeline = load(path).at(_brokers(parsed), _http(parsed))
    else:
        pipeline = load(path)
        if pipeline.definition.broker is None:
            pipeline = pipeline.at(_brokers(parsed), _http(parsed))
    return pipeline.using(_access(pipeline.access, parsed.target, tls=pipeline.definition.tls))


def _access(access: "BrokerAccess", target: "Target", *, tls: bool | None = None) -> "BrokerAccess":
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


def _need_spark() -> None:
    if find_spec("pyspark") is None:
        raise CommandError(_NO_SPARK)


def _run(parsed: argparse.Namespace, output: Output) -> None:
    pipeline = _loaded(parsed.file, parsed)
    _need_spark()
    from alpacamq_spark.pipelines.run import Interruption, ProgressListener

    from .progress import ProgressLine

    interruption = Interruption()
    line = ProgressLine()
    listener = ProgressListener(say=line.say, batch=line.batch, running=line.running)
    runnable = pipeline.executing() if parsed.execute else pipeline
    try:
        outcome = runnable.run(listener=listener, interruption=interruption)
    finally:
        line.end()
    _show(outcome.report, output)
    if outcome.is_stopped and interruption.signal == signal.SIGINT:
        raise KeyboardInterrupt


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.errors import NotFound
    from alpacamq_spark.pipelines.pipeline import listed

    if not parsed.directory.is_dir():
        raise NotFound("directory", str(parsed.directory))
    _show(listed(parsed.directory), output)


def _validate(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq_spark.pipelines import load

    checked: list[dict[str, Plain]] = []
    errors: list[AlpacaError] = []
    for path in parsed.files:
        try:
            pipeline = load(path)
        except AlpacaError as error:
            errors.append(error)
            checked.append(
                {"file": str(path), "name": None, "kind": None, "valid": False, "error": str(error)}
            )
        else:
            kind = pipeline.definition.kind
            checked.append(
                {"file": str(path), "name": pipeline.name, "kind": kind, "valid": True, "error": None}
            )
    if len(parsed.files) > len(errors) or len(errors) > 1:
        rows = [list(row.values())[:4] for row in checked]
        output.show(checked, Table(["file", "pipeline", "kind", "valid"], rows))
    if len(errors) == 1:
        raise errors[0]
    for each in errors:
        print_message(str(each))
    if errors:
        raise CommandError(f"{len(errors)} of {len(checked)} files are not valid")


def _status(parsed: argparse.Namespace, output: Output) -> None:
    _show(_loaded(parsed.file, parsed).status(), output)


def _sql(parsed: argparse.Namespace, output: Output) -> None:
    pipeline = _loaded(parsed.file, parsed)
    _need_spark()
    from alpacamq_spark.pipelines.archive.queries import query_sink

    _show(query_sink(pipeline, parsed.query), output)


def _doctor(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq_spark.doctor import examine_pipeline
    from alpacamq_spark.pipelines.run import ANYONE

    if parsed.file is None:
        pipeline, broker, access = None, _brokers(parsed), _access(ANYONE, parsed.target)
    else:
        pipeline = _loaded(parsed.file, parsed)
        broker, access = pipeline.broker, pipeline.access
    findings = examine_pipeline(pipeline, broker, access, start_spark=parsed.start_spark)
    rows = [
        {"subject": each.subject, "well": each.is_well, "detail": each.detail, "advice": each.advice or None}
        for each in findings
    ]
    output.show(rows, Table(["subject", "well", "detail", "advice"], [list(row.values()) for row in rows]))
    if unwell := [each.subject for each in findings if not each.is_well]:
        raise CommandError(f"checks failed: {', '.join(unwell)}")


def _show(report: "Report", output: Output) -> None:
    tables = [Table(section.columns, section.rows, section.title) for section in report.sections]
    output.show(report.data, *tables)
    for note in report.notes:
        print_message(note)


def _http(parsed: argparse.Namespace) -> str | None:
    """Return the HTTP API of the target broker; None if only its Kafka API is known."""
    target: Target = parsed.target
    is_of_broker = target.broker is None or target.http.precedence <= target.broker.precedence
    return target.http.address.partition(",")[0] if is_of_broker else None


def _brokers(parsed: argparse.Namespace) -> str:
    return ",".join(map(str, broker_addresses(parsed)))
