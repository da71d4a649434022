"""`alpacactl pipeline checkpoint`: shows, rewinds and moves the position of a pipeline that does not run."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from alpacamq.cli.commands import add_verb, verbs_of
from alpacamq.cli.output import Output, Table, print_message
from alpacamq.cli.parsing import CommandError, Parser
from alpacamq.cli.position import AtOffset, AtTime, Position, Selection, locate, parse_position

from .loading import FILE_HELP, loaded, show

if TYPE_CHECKING:
    from alpacamq.cli.yaml import Plain
    from alpacamq.client.kafka.cluster import Cluster
    from alpacamq.model.ids import TopicPartition
    from alpacamq_spark.pipelines import Pipeline

_SUMMARY = "show, rewind or move the position of a pipeline"


def add_verbs(
    parents: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    parser = parents.add_parser("checkpoint", help=_SUMMARY, description=_SUMMARY)
    if isinstance(parser, Parser):
        parser.add_examples(["alpacactl pipeline checkpoint show archive.toml"])
    parser.set_defaults(verb=parser)
    verbs = verbs_of(parser)
    shows = add_verb(
        verbs, common, "show", "show the batches and the position of a checkpoint", _show,
        ["alpacactl pipeline checkpoint show archive.toml"],
    )  # fmt: skip
    shows.add_argument("file", type=Path, help=FILE_HELP)

    rewind = add_verb(
        verbs, common, "rewind", "continue from an earlier offset or time", _rewind,
        [
            "alpacactl pipeline checkpoint rewind archive.toml --to-time 2h",
            "alpacactl pipeline checkpoint rewind archive.toml --to-offset 1200 --topic orders:0 --execute",
        ],
    )  # fmt: skip
    rewind.description = (
        "Show what a rewind would change, and change it with --execute. Records after the new position are "
        "processed again: sinks that append have them twice. The pipeline must not run."
    )
    rewind.add_argument("file", type=Path, help=FILE_HELP)
    to = rewind.add_mutually_exclusive_group(required=True)
    to.add_argument(
        "--to-offset", type=_offset, metavar="OFFSET", dest="to", help="or the nearest existing one"
    )
    to.add_argument(
        "--to-time", type=_time, metavar="TIME", dest="to",
        help="the first record at or after it: 2026-01-31T12:00:00Z, or a time ago (30s, 15m, 1h, 7d)",
    )  # fmt: skip
    rewind.add_argument(
        "--topic", type=Selection.parse, action="append", default=[], metavar="TOPIC[:0,3]",
        help="only this topic or these partitions; may be repeated. Default: all of the pipeline",
    )  # fmt: skip
    rewind.add_argument("--execute", action="store_true", help="change the position")

    move = add_verb(
        verbs, common, "move", "move a checkpoint to another directory", _move,
        ["alpacactl pipeline checkpoint move archive.toml /var/lib/pipelines/archive"],
    )  # fmt: skip
    move.add_argument("file", type=Path, help=FILE_HELP)
    move.add_argument("directory", help="its new directory, relative to the file of the pipeline")


def _offset(text: str) -> Position:
    position = parse_position(text)
    if not isinstance(position, AtOffset):
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset")
    return position


def _time(text: str) -> Position:
    position = parse_position(text)
    if not isinstance(position, AtTime):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-01-31T12:00:00Z or 15m")
    return position


def _show(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq_spark.pipelines.pipeline import checkpoint_report

    show(checkpoint_report(loaded(parsed.file, parsed)), output)


def _rewind(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq_spark.pipelines.checkpoint_tools import Rewind, check_rewindable, position_of, rewind
    from alpacamq_spark.pipelines.sources import reach

    pipeline = loaded(parsed.file, parsed)
    before = position_of(pipeline).offsets
    with reach(pipeline.broker, pipeline.access) as cluster:
        after = _located(cluster, pipeline, before, parsed)
    change = rewind(pipeline, after) if parsed.execute else Rewind(before=before, after=after)
    rows: list[dict[str, Plain]] = [
        {
            "topic": place.topic,
            "partition": place.partition,
            "before": change.before[place],
            "after": offset,
        }
        for place, offset in sorted(change.after.items())
    ]
    output.show(
        {
            "pipeline": pipeline.name,
            "executed": parsed.execute,
            "again": change.again,
            "skipped": change.skipped,
            "offsets": rows,
        },
        Table(
            ["topic", "partition", "before", "", "after"],
            [[row["topic"], row["partition"], row["before"], "→", row["after"]] for row in rows],
        ),
    )
    verb = "will be" if parsed.execute else "would be"
    if change.again:
        print_message(f"up to {change.again:,} records {verb} processed again: {_effect(pipeline)}")
    if change.skipped:
        print_message(f"up to {change.skipped:,} records {verb} skipped")
    if parsed.execute:
        print_message(f"set the position of {pipeline.name}")
    else:
        check_rewindable(pipeline)
        print_message("nothing was changed; use --execute to apply")


def _effect(pipeline: "Pipeline") -> str:
    """Say what the sink has of records that are processed twice."""
    from alpacamq_spark.pipelines.definition import Archive, Transform

    definition = pipeline.definition
    assert isinstance(definition, Archive | Transform)
    if definition.sink.mode == "upsert":
        return "rows of their keys go back to these states, and are up to date again at the end"
    return "the sink has them twice"


def _located(
    cluster: "Cluster",
    pipeline: "Pipeline",
    before: "Mapping[TopicPartition, int]",
    parsed: argparse.Namespace,
) -> "dict[TopicPartition, int]":
    """Return the new offsets of the chosen partitions of a pipeline that still exist."""
    from alpacamq.client.kafka.offsets import extents
    from alpacamq.client.kafka.topics import list_topics

    there = {place for topic in list_topics(cluster) for place in topic.all_partitions()}
    chosen = [place for place in before if place in there]
    for each in parsed.topic:
        mine = {place.partition for place in chosen if place.topic == each.topic}
        if not mine or not set(each.partitions) <= mine:
            raise CommandError(
                f"the pipeline {pipeline.name} has no position in {each.topic}"
                + (f":{','.join(map(str, each.partitions))}" if each.partitions else "")
            )
    if parsed.topic:
        wanted = [
            (each.topic, partition)
            for each in parsed.topic
            for partition in each.partitions or [place.partition for place in chosen]
        ]
        chosen = [place for place in chosen if (place.topic, place.partition) in wanted]
    return locate(cluster, parsed.to, extents(cluster, chosen))


def _move(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq_spark.pipelines.checkpoint_tools import move

    pipeline = loaded(parsed.file, parsed)
    place = move(pipeline, parsed.directory)
    output.show(
        {"pipeline": pipeline.name, "from": pipeline.checkpoint_place, "to": place},
        Table(["pipeline", "checkpoint"], [[pipeline.name, place]]),
    )
    print_message(f'set checkpoint = "{parsed.directory}" in {parsed.file}')
