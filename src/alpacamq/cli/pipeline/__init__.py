"""`alpacactl pipeline`: data pipelines on Spark.

Pipelines are implemented in the package `alpacamq_spark`, which is imported when a verb runs; Spark itself
is imported only by verbs that need it.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from alpacamq.cli.cells import size
from alpacamq.cli.commands import add_verb, verbs_of
from alpacamq.cli.output import Output, Table, print_message
from alpacamq.cli.parsing import CommandError
from alpacamq.model.errors import AlpacaError

from . import checkpoint, service, tables
from .loading import FILE_HELP, TRIGGER_HELP, access_of, brokers, loaded, need_spark, run_and_show, show

if TYPE_CHECKING:
    from alpacamq.cli.yaml import Plain

DIRECTORY = "pipelines"
PACKAGE = "alpacamq-workers.zip"


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    run = add_verb(
        verbs, common, "run", "run a pipeline to its end, or until Ctrl-C", _run,
        ["alpacactl pipeline run archive.toml"],
    )  # fmt: skip
    run.add_argument("file", type=Path, help=FILE_HELP)
    run.add_argument(
        "--execute",
        action="store_true",
        help="perform the redrive that a dead-letters pipeline otherwise only shows",
    )
    run.add_argument("--trigger", metavar="TRIGGER", help=TRIGGER_HELP)
    service.add_verbs(verbs, common)
    checkpoint.add_verbs(verbs, common)
    tables.add_verbs(verbs, common)

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
    validate.add_argument("files", type=Path, nargs="+", metavar="file", help=FILE_HELP)

    status = add_verb(
        verbs, common, "status", "show the progress and lag of a pipeline", _status,
        ["alpacactl pipeline status archive.toml"],
    )  # fmt: skip
    status.add_argument("file", type=Path, help=FILE_HELP)

    sql = add_verb(
        verbs, common, "sql", "query an archive or a table with SQL", _sql,
        ["alpacactl pipeline sql archive.toml 'SELECT count(*) FROM archive'"],
    )  # fmt: skip
    sql.description = (
        "Run a Spark SQL query over the archive or the table of a pipeline. Of an archive, the table archive "
        "contains all messages, and each topic has its own table; an Iceberg table has its name, a Delta "
        "table that of its directory."
    )
    sql.add_argument("file", type=Path, help=FILE_HELP)
    sql.add_argument("query", help="for example: SELECT count(*) FROM archive")

    package = add_verb(
        verbs, common, "package", "build the archive for a Spark cluster without AlpacaMQ", _package,
        ["alpacactl pipeline package", "alpacactl pipeline package workers.zip --with-numpy"],
    )  # fmt: skip
    package.description = (
        "Build an archive of the connector and of the packages that it needs on workers, from those "
        "installed here, for the setting spark.package of a pipeline. Workers need PySpark with PyArrow and "
        "NumPy, the same version of Python and the same kind of machine as this one; this is checked."
    )
    package.add_argument("file", type=Path, nargs="?", default=Path(PACKAGE), help=f"default: {PACKAGE}")
    package.add_argument(
        "--with-numpy", action="store_true", help="for workers that have no NumPy: a larger archive"
    )

    doctor = add_verb(
        verbs, common, "doctor", "check the requirements of pipelines on this machine", _doctor,
        ["alpacactl pipeline doctor"],
    )  # fmt: skip
    doctor.add_argument("file", type=Path, nargs="?", help="also check this pipeline")
    doctor.add_argument("--start-spark", action="store_true", help="also start Spark, which takes a while")


def _run(parsed: argparse.Namespace, output: Output) -> None:
    pipeline = loaded(parsed.file, parsed)
    need_spark()
    runnable = pipeline.executing() if parsed.execute else pipeline
    if parsed.trigger is not None:
        runnable = runnable.triggered(parsed.trigger)
    run_and_show(runnable, output)


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.errors import NotFound
    from alpacamq_spark.pipelines.pipeline import listed

    if not parsed.directory.is_dir():
        raise NotFound("directory", str(parsed.directory))
    show(listed(parsed.directory), output)


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
    show(loaded(parsed.file, parsed).status(), output)


def _sql(parsed: argparse.Namespace, output: Output) -> None:
    pipeline = loaded(parsed.file, parsed)
    need_spark()
    from alpacamq_spark.pipelines.archive.queries import query_sink

    show(query_sink(pipeline, parsed.query), output)


def _package(parsed: argparse.Namespace, output: Output) -> None:
    need_spark()
    from alpacamq_spark.package.build import build_package

    built = build_package(parsed.file, numpy=parsed.with_numpy)
    output.show(
        {
            "file": str(built.path),
            "for": built.manifest.described,
            "files": built.files,
            "bytes": built.size,
            "unpacked_bytes": built.unpacked_size,
        },
        Table(
            ["file", "for", "size", "unpacked"],
            [[str(built.path), built.manifest.described, size(built.size), size(built.unpacked_size)]],
        ),
    )


def _doctor(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq_spark.doctor import examine_pipeline
    from alpacamq_spark.pipelines.run import ANYONE

    if parsed.file is None:
        pipeline, broker, access = None, brokers(parsed), access_of(ANYONE, parsed.target)
    else:
        pipeline = loaded(parsed.file, parsed)
        broker, access = pipeline.broker, pipeline.access
    findings = examine_pipeline(pipeline, broker, access, start_spark=parsed.start_spark)
    rows = [
        {"subject": each.subject, "well": each.is_well, "detail": each.detail, "advice": each.advice or None}
        for each in findings
    ]
    output.show(rows, Table(["subject", "well", "detail", "advice"], [list(row.values()) for row in rows]))
    if unwell := [each.subject for each in findings if not each.is_well]:
        raise CommandError(f"checks failed: {', '.join(unwell)}")
