"""`alpacactl pipeline tables`: Iceberg tables that are kept in step with topics."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from alpacamq.cli.commands import add_verb, connect, topic_name, verbs_of
from alpacamq.cli.output import Output, Table
from alpacamq.cli.parsing import Parser, UsageError

from .loading import TRIGGER_HELP, loaded, need_spark, run_and_show, with_target

if TYPE_CHECKING:
    from alpacamq.cli.yaml import Plain
    from alpacamq_spark.pipelines import Pipeline

_SUMMARY = "keep Iceberg tables in step with topics"
_RUNNER = "tables"
_WAREHOUSE = "warehouse"


def add_verbs(
    parents: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    parser = parents.add_parser("tables", help=_SUMMARY, description=_SUMMARY)
    if isinstance(parser, Parser):
        parser.add_examples(["alpacactl pipeline tables list"])
    parser.set_defaults(verb=parser)
    verbs = verbs_of(parser)
    enable = add_verb(
        verbs, common, "enable", "keep a table in step with topics, by their settings", _enable,
        [
            "alpacactl pipeline tables enable orders",
            "alpacactl pipeline tables enable prices --mode upsert --name shop.prices",
        ],
    )  # fmt: skip
    enable.description = (
        "Set table.enable on topics, and table.name, table.mode and table.key if they are given. The runner, "
        "`alpacactl pipeline tables run`, follows the settings."
    )
    enable.add_argument("topics", nargs="+", type=topic_name, metavar="topic")
    enable.add_argument("--name", metavar="NAMESPACE.NAME", help="default: topics.TOPIC")
    enable.add_argument(
        "--mode", choices=("append", "upsert"),
        help="a row for each record, or the last one for each key; default: append",
    )  # fmt: skip
    enable.add_argument(
        "--key-columns", metavar="COLUMN,…",
        help="with --mode upsert: the columns of the value that are the key; default: the record's key",
    )  # fmt: skip

    disable = add_verb(
        verbs, common, "disable", "stop following topics; their tables stay", _disable,
        ["alpacactl pipeline tables disable orders"],
    )  # fmt: skip
    disable.add_argument("topics", nargs="+", type=topic_name, metavar="topic")

    lists = add_verb(
        verbs, common, "list", "list the tables of topics with their lag", _list,
        ["alpacactl pipeline tables list"],
    )  # fmt: skip
    lists.add_argument(
        "file", type=Path, nargs="?", help="the runner's file, if it has a namespace of its own"
    )

    run = add_verb(
        verbs, common, "run", "keep all enabled tables in step, until Ctrl-C", _run,
        [
            "alpacactl pipeline tables run --warehouse lake",
            "alpacactl pipeline tables run tables.toml --trigger available-now",
        ],
    )  # fmt: skip
    run.description = (
        "Follow all topics with table.enable. Without a file, the catalog is in SQLite in the warehouse, and "
        "positions are in .checkpoints/tables; for another catalog, or as a service, write a file of the "
        'kind "tables", and run or start it.'
    )
    run.add_argument("file", type=Path, nargs="?", help="a file of the kind tables, TOML or YAML")
    run.add_argument("--warehouse", metavar="DIRECTORY", help=f"where the tables are; default: {_WAREHOUSE}")
    run.add_argument("--trigger", metavar="TRIGGER", help=f"{TRIGGER_HELP}; default: 10s")


def _enable(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.topics import alter_topic
    from alpacamq_spark.pipelines.tables.topic_settings import ENABLE, KEY, MODE, NAME

    if parsed.key_columns is not None and parsed.mode != "upsert":
        raise UsageError("--key-columns is for --mode upsert")
    if parsed.name is not None and len(parsed.topics) > 1:
        raise UsageError("--name is for one topic")
    given = {NAME: parsed.name, MODE: parsed.mode, KEY: parsed.key_columns}
    put = {ENABLE: "true", **{name: text for name, text in given.items() if text is not None}}
    # A key that was set for upserts before.
    drop = [KEY] if parsed.mode == "append" else []
    with connect(parsed) as cluster:
        for topic in parsed.topics:
            alter_topic(cluster, topic, put=put, drop=drop)
    rows: list[Plain] = [{"topic": topic, "set": put} for topic in parsed.topics]
    shown = " ".join(f"{name}={text}" for name, text in put.items())
    output.show(rows, Table(["topic", "set"], [[topic, shown] for topic in parsed.topics]))


def _disable(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.topics import alter_topic
    from alpacamq_spark.pipelines.tables.topic_settings import ENABLE

    with connect(parsed) as cluster:
        for topic in parsed.topics:
            alter_topic(cluster, topic, put={}, drop=[ENABLE])
    rows: list[Plain] = [{"topic": topic, "reset": [ENABLE]} for topic in parsed.topics]
    output.show(rows, Table(["topic", "reset"], [[topic, ENABLE] for topic in parsed.topics]))


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq_spark.pipelines.definition import Tables
    from alpacamq_spark.pipelines.tables.topic_list import listed_tables

    definition = Tables() if parsed.file is None else loaded(parsed.file, parsed).definition
    if not isinstance(definition, Tables):
        raise UsageError(f"{parsed.file} is a pipeline of kind {definition.kind}, not tables")
    with connect(parsed) as cluster:
        rows = [dict(row) for row in listed_tables(cluster, definition.namespace)]
    columns = ["topic", "table", "mode", "key", "state", "lag", "rows", "malformed", "last batch", "error"]
    output.show(rows, Table(columns, [list(row.values()) for row in rows]))


def _run(parsed: argparse.Namespace, output: Output) -> None:
    need_spark()
    if parsed.file is not None and parsed.warehouse is not None:
        raise UsageError("a file has the warehouse in its [catalog]: give one of them")
    pipeline = _runner(parsed) if parsed.file is None else loaded(parsed.file, parsed)
    if parsed.trigger is not None:
        pipeline = pipeline.triggered(parsed.trigger)
    run_and_show(pipeline, output)


def _runner(parsed: argparse.Namespace) -> "Pipeline":
    from alpacamq_spark.pipelines.definition import CatalogSettings, Tables
    from alpacamq_spark.pipelines.pipeline import DEFAULT_BROKER, Pipeline

    definition = Tables(catalog=CatalogSettings(warehouse=parsed.warehouse or _WAREHOUSE))
    pipeline = Pipeline(name=_RUNNER, definition=definition, directory=Path.cwd(), broker=DEFAULT_BROKER)
    return with_target(pipeline, parsed)
