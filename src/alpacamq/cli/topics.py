"""`alpacactl topics`: what topics there are, and changing them."""

import argparse

from .asking import WrongUsage, add_verb, count, pair, reach, verbs_of
from .output import Output, Table
from .yaml import Plain


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    lists = add_verb(verbs, common, "list", "list topics", _list)
    lists.add_argument("--internal", action="store_true", help="also those the broker keeps for itself")

    describe = add_verb(verbs, common, "describe", "show a topic's partitions and settings", _describe)
    describe.add_argument("topic")
    describe.add_argument("--all", action="store_true", help="also settings that have their default value")

    create = add_verb(verbs, common, "create", "create a topic", _create)
    create.add_argument("topic")
    create.add_argument("--partitions", type=count, default=-1, metavar="N", help="default: the broker's")
    create.add_argument("--replicas", type=count, default=-1, metavar="N", help="default: the broker's")
    create.add_argument(
        "--set",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting; may be repeated",
    )

    delete = add_verb(verbs, common, "delete", "delete topics and everything in them", _delete)
    delete.add_argument("topics", nargs="+", metavar="topic")

    alter = add_verb(verbs, common, "alter", "change a topic's settings", _alter)
    alter.add_argument("topic")
    alter.add_argument(
        "--set", type=pair, action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    alter.add_argument(
        "--unset", action="append", default=[], metavar="NAME", help="back to the default; may be repeated"
    )

    widen = add_verb(verbs, common, "add-partitions", "bring a topic to more partitions", _add_partitions)
    widen.add_argument("topic")
    widen.add_argument("--total", type=count, required=True, metavar="N", help="partitions it will have")


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.topics import every_topic

    with reach(parsed) as cluster:
        topics = [topic for topic in every_topic(cluster) if parsed.internal or not topic.is_internal]
    listed: list[dict[str, Plain]] = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replicas": topic.replication,
            "internal": topic.is_internal,
        }
        for topic in topics
    ]
    columns = ["topic", "partitions", "replicas", "internal"]
    output.show(listed, Table(columns, [list(topic.values()) for topic in listed]))


def _describe(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.offsets import extents
    from alpacamq.client.topics import find_topic, topic_settings

    with reach(parsed) as cluster:
        topic = find_topic(cluster, parsed.topic)
        spans = extents(cluster, topic.all_partitions())
        settings = [each for each in topic_settings(cluster, topic.name) if parsed.all or each.is_own]
    partitions: list[dict[str, Plain]] = [
        {
            "partition": partition.index,
            "leader": partition.leader,
            "replicas": partition.replicas,
            "in_sync": partition.in_sync,
            "start": spans[place].start,
            "end": spans[place].end,
        }
        for place, partition in zip(topic.all_partitions(), topic.partitions, strict=True)
    ]
    output.show(
        {
            "name": topic.name,
            "id": topic.id,
            "internal": topic.is_internal,
            "partitions": partitions,
            "settings": {setting.name: setting.value for setting in settings},
        },
        Table(["topic", "id"], [[topic.name, topic.id]]),
        Table(
            ["partition", "leader", "replicas", "in sync", "start", "end"],
            [list(partition.values()) for partition in partitions],
        ),
        Table(
            ["setting", "value"],
            [[setting.name, setting.value] for setting in settings],
            title="settings" if parsed.all else "settings of its own",
        ),
    )


def _create(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.topics import create_topic, find_topic

    with reach(parsed) as cluster:
        create_topic(
            cluster,
            parsed.topic,
            partitions=parsed.partitions,
            replicas=parsed.replicas,
            settings=dict(parsed.set),
        )
        partitions = len(find_topic(cluster, parsed.topic).partitions)
    output.done(
        {"created": parsed.topic, "partitions": partitions},
        f"created topic {parsed.topic}, partitions: {partitions}",
    )


def _delete(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.topics import delete_topic, find_topic

    with reach(parsed) as cluster:
        # A misspelt name must not leave half of the others deleted.
        for name in parsed.topics:
            find_topic(cluster, name)
        for name in parsed.topics:
            delete_topic(cluster, name)
    output.done({"deleted": parsed.topics}, f"deleted {', '.join(parsed.topics)}")


def _alter(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.topics import alter_topic

    put = dict(parsed.set)
    if not put and not parsed.unset:
        raise WrongUsage("nothing to change: give --set NAME=VALUE or --unset NAME")
    with reach(parsed) as cluster:
        alter_topic(cluster, parsed.topic, put=put, drop=parsed.unset)
    output.done({"altered": parsed.topic, "set": put, "unset": parsed.unset}, f"altered topic {parsed.topic}")


def _add_partitions(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.topics import widen_topic

    with reach(parsed) as cluster:
        widen_topic(cluster, parsed.topic, parsed.total)
    output.done(
        {"topic": parsed.topic, "partitions": parsed.total},
        f"topic {parsed.topic} has {parsed.total} partitions; keys may now go to others than before",
    )
