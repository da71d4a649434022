"""`alpacactl topics`: lists, describes and changes topics."""

import argparse
from typing import TYPE_CHECKING

from . import cells
from .commands import (
    add_confirmation,
    add_verb,
    confirm,
    connect,
    connect_http,
    count,
    pair,
    topic_name,
    verbs_of,
)
from .output import Output, Table, print_message
from .parsing import UsageError

if TYPE_CHECKING:
    from .yaml import Plain


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    lists = add_verb(
        verbs, common, "list", "list topics with message counts and sizes", _list,
        ["alpacactl topics list", "alpacactl topics list --internal -o json"],
    )  # fmt: skip
    lists.add_argument("--internal", action="store_true", help="include internal topics")

    describe = add_verb(
        verbs, common, "describe", "show a topic's partitions and settings", _describe,
        ["alpacactl topics describe orders", "alpacactl topics describe orders --all -o yaml"],
    )  # fmt: skip
    describe.add_argument("topic", type=topic_name)
    describe.add_argument("--all", action="store_true", help="include settings with default values")

    partitions = add_verb(
        verbs, common, "partitions", "show leaders, offsets and sizes of a topic's partitions", _partitions,
        ["alpacactl topics partitions orders", "alpacactl topics partitions orders -o json"],
    )  # fmt: skip
    partitions.add_argument("topic", type=topic_name)

    create = add_verb(
        verbs, common, "create", "create topics", _create,
        [
            "alpacactl topics create payments refunds",
            "alpacactl topics create invoices --partitions 6 --set retention.ms=86400000",
        ],
    )  # fmt: skip
    create.add_argument("topics", nargs="+", metavar="topic")
    create.add_argument("--partitions", type=count, default=-1, metavar="N", help="default: the broker's")
    create.add_argument("--replicas", type=count, default=-1, metavar="N", help="default: the broker's")
    create.add_argument(
        "--set", type=pair, action="append", default=[], metavar="NAME=VALUE",
        help="a setting; may be repeated",
    )  # fmt: skip

    alter = add_verb(
        verbs, common, "alter", "change a topic's settings", _alter,
        ["alpacactl topics alter orders --set retention.ms=3600000 --unset cleanup.policy"],
    )  # fmt: skip
    alter.add_argument("topic", type=topic_name)
    alter.add_argument(
        "--set", type=pair, action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    alter.add_argument(
        "--unset", action="append", default=[], metavar="NAME", help="reset to the default; may be repeated"
    )

    widen = add_verb(
        verbs, common, "add-partitions", "add partitions to a topic", _add_partitions,
        ["alpacactl topics add-partitions orders --total 12"],
    )  # fmt: skip
    widen.add_argument("topic", type=topic_name)
    widen.add_argument(
        "--total", type=count, required=True, metavar="N", help="new total number of partitions"
    )

    compacts = add_verb(
        verbs, common, "compact", "compact a topic now, and wait for it", _compact,
        ["alpacactl topics compact users"],
    )  # fmt: skip
    compacts.add_argument("topic", type=topic_name)

    delete = add_verb(
        verbs, common, "delete", "delete topics and everything in them", _delete,
        ["alpacactl topics delete payments invoices --yes"],
    )  # fmt: skip
    delete.add_argument("topics", nargs="+", metavar="topic", type=topic_name)
    add_confirmation(delete)


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.offsets import extents
    from alpacamq.client.kafka.topics import list_topics, partition_bytes

    with connect(parsed) as cluster:
        topics = [topic for topic in list_topics(cluster) if parsed.internal or not topic.is_internal]
        spans = extents(cluster, [place for topic in topics for place in topic.all_partitions()])
        sizes = partition_bytes(cluster)
    sizes_by_topic = {
        topic.name: sum(sizes.get(place, 0) for place in topic.all_partitions()) if sizes else None
        for topic in topics
    }
    listed: list[dict[str, Plain]] = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replicas": topic.replication,
            "messages": sum(spans[place].end - spans[place].start for place in topic.all_partitions()),
            "size_bytes": sizes_by_topic[topic.name],
            "internal": topic.is_internal,
        }
        for topic in topics
    ]
    output.show(
        listed,
        Table(
            ["topic", "partitions", "replicas", "messages", "size", "internal"],
            [
                [
                    each["name"],
                    each["partitions"],
                    each["replicas"],
                    each["messages"],
                    cells.size(sizes_by_topic[topic.name]),
                    each["internal"],
                ]
                for topic, each in zip(topics, listed, strict=True)
            ],
        ),
    )


def _describe(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.offsets import extents
    from alpacamq.client.kafka.topics import find_topic, partition_bytes, topic_settings

    with connect(parsed) as cluster:
        topic = find_topic(cluster, parsed.topic)
        spans = extents(cluster, topic.all_partitions())
        sizes = partition_bytes(cluster)
        settings = [each for each in topic_settings(cluster, topic.name) if parsed.all or each.is_own]
    partitions: list[dict[str, Plain]] = [
        {
            "partition": partition.index,
            "leader": partition.leader,
            "replicas": partition.replicas,
            "in_sync": partition.in_sync,
            "start": spans[place].start,
            "end": spans[place].end,
            "size_bytes": sizes.get(place),
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
            ["partition", "leader", "replicas", "in sync", "start", "end", "size"],
            [
                [*list(partition.values())[:-1], cells.size(sizes.get(place))]
                for place, partition in zip(topic.all_partitions(), partitions, strict=True)
            ],
        ),
        Table(
            ["setting", "value"],
            [[setting.name, setting.value] for setting in settings],
            title="settings" if parsed.all else "own settings",
        ),
    )


def _partitions(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.admin import partitions

    with connect_http(parsed) as api:
        found = partitions(api, parsed.topic)
    listed: list[dict[str, Plain]] = [
        {
            "partition": each.partition,
            "leader": each.leader,
            "leader_epoch": each.leader_epoch,
            "replicas": list(each.replicas),
            "in_sync": list(each.in_sync_replicas),
            "start": each.start_offset,
            "high_watermark": each.high_watermark,
            "last_stable": each.last_stable_offset,
            "messages": each.messages,
            "size_bytes": each.size_bytes,
        }
        for each in found
    ]
    output.show(
        listed,
        Table(
            [
                "partition", "leader", "epoch", "replicas", "in sync", "start", "high watermark",
                "last stable", "messages", "size",
            ],
            [
                [*list(each.values())[:-1], cells.size(partition.size_bytes)]
                for each, partition in zip(listed, found, strict=True)
            ],
        ),
    )  # fmt: skip


def _compact(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.admin import compact

    with connect_http(parsed) as api:
        results = compact(api, parsed.topic)
    listed: list[dict[str, Plain]] = [
        {
            "partition": each.partition,
            "compacted": each.compacted,
            "before_bytes": each.size_before_bytes,
            "after_bytes": each.size_bytes,
        }
        for each in results
    ]
    output.show(
        listed,
        Table(
            ["partition", "compacted", "before", "after"],
            [
                [
                    each.partition,
                    each.compacted,
                    cells.size(each.size_before_bytes),
                    cells.size(each.size_bytes),
                ]
                for each in results
            ],
        ),
    )


def _create(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.topics import create_topics, find_topic

    names = list(dict.fromkeys(parsed.topics))
    with connect(parsed) as cluster:
        outcomes = create_topics(
            cluster,
            names,
            partitions=parsed.partitions,
            replicas=parsed.replicas,
            settings=dict(parsed.set),
        )
        created = [each for each in outcomes if each.refusal is None]
        partitions = created[0].partitions if created else -1
        if created and partitions < 0:
            partitions = len(find_topic(cluster, created[0].name).partitions)
    done = ", ".join(each.name for each in created)
    if refusals := [each.refusal for each in outcomes if each.refusal is not None]:
        for refusal in refusals[:-1]:
            print_message(str(refusal))
        if done:
            print_message(f"created {done}")
        raise refusals[-1]
    output.done(
        {"created": [each.name for each in created], "partitions": partitions},
        f"created topic {done}, partitions: {partitions}"
        if len(created) == 1
        else f"created topics {done}, partitions of each: {partitions}",
    )


def _delete(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.topics import delete_topics

    names = list(dict.fromkeys(parsed.topics))
    with connect(parsed) as cluster:
        cluster.topics(names)  # what does not exist is not asked about
        confirm(parsed, f"delete {', '.join(names)} and everything in it")
        delete_topics(cluster, names)
    output.done({"deleted": names}, f"deleted {', '.join(names)}")


def _alter(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.topics import alter_topic

    put = dict(parsed.set)
    if not put and not parsed.unset:
        raise UsageError("nothing to change: give --set NAME=VALUE or --unset NAME")
    with connect(parsed) as cluster:
        alter_topic(cluster, parsed.topic, put=put, drop=parsed.unset)
    output.done({"altered": parsed.topic, "set": put, "unset": parsed.unset}, f"altered topic {parsed.topic}")


def _add_partitions(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.topics import add_topic_partitions

    with connect(parsed) as cluster:
        add_topic_partitions(cluster, parsed.topic, parsed.total)
    output.done(
        {"topic": parsed.topic, "partitions": parsed.total},
        f"topic {parsed.topic} has {parsed.total} partitions; keys may now map to different partitions",
    )
