"""`alpacactl transactions`: transactional ids and their open transactions."""

import argparse
from typing import TYPE_CHECKING

from . import cells
from .commands import add_verb, connect, verbs_of
from .output import Output, Table, print_message, timestamp_text
from .parsing import CommandError

if TYPE_CHECKING:
    from .yaml import Plain


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(verbs, common, "list", "list transactional ids", _list, ["alpacactl transactions list"])
    describe = add_verb(
        verbs, common, "describe", "show a transactional id and the partitions of its transaction", _describe,
        ["alpacactl transactions describe till-7"],
    )  # fmt: skip
    describe.add_argument("id")
    hanging = add_verb(
        verbs, common, "find-hanging", "find open transactions that no coordinator will end", _find_hanging,
        ["alpacactl transactions find-hanging"],
    )  # fmt: skip
    hanging.add_argument("--topic", metavar="TOPIC", help="only this topic")
    abort = add_verb(
        verbs, common, "abort", "abort an open transaction and fence its producer", _abort,
        [
            "alpacactl transactions abort till-7",
            "alpacactl transactions abort --topic payments --partition 0 --start-offset 41",
        ],
    )  # fmt: skip
    abort.add_argument("id", nargs="?", help="the transactional id")
    abort.add_argument(
        "--topic", metavar="TOPIC", help="instead of an id: its topic, as shown by find-hanging"
    )
    abort.add_argument("--partition", type=int, metavar="PARTITION", help="the partition of the topic")
    abort.add_argument("--start-offset", type=int, metavar="OFFSET", help="its first offset there")


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.transactions import list_transactions

    with connect(parsed) as cluster:
        found: list[dict[str, Plain]] = [
            {"id": each.id, "state": each.state, "producer_id": each.producer_id}
            for each in list_transactions(cluster)
        ]
    output.show(
        found,
        Table(
            ["transactional id", "state", "producer id"],
            [[each["id"], cells.state(str(each["state"])), each["producer_id"]] for each in found],
        ),
    )


def _describe(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.transactions import find_transaction

    with connect(parsed) as cluster:
        found = find_transaction(cluster, parsed.id)
    started = None if found.started_at_ms is None else timestamp_text(found.started_at_ms)
    output.show(
        {
            "id": found.id,
            "state": found.state,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "timeout_ms": found.timeout_ms,
            "started_at": started,
            "partitions": [
                {"topic": place.topic, "partition": place.partition} for place in found.partitions
            ],
        },
        Table(
            ["transactional id", "state", "started", "started at"],
            [[found.id, cells.state(found.state), cells.age(found.started_at_ms), started]],
        ),
        Table(
            ["producer id", "epoch", "timeout ms"],
            [[found.producer_id, found.producer_epoch, found.timeout_ms]],
        ),
        Table(
            ["topic", "partition"],
            [[place.topic, place.partition] for place in found.partitions],
            title="partitions",
        ),
    )


def _find_hanging(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.topics import find_topic, list_topics
    from alpacamq.client.kafka.transactions import hanging_transactions

    with connect(parsed) as cluster:
        topics = list_topics(cluster) if parsed.topic is None else [find_topic(cluster, parsed.topic)]
        found = hanging_transactions(cluster, {topic.name: len(topic.partitions) for topic in topics})
    output.show(
        [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "start_offset": each.start_offset,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "last_written_at": timestamp_text(each.last_written_at_ms),
            }
            for each in found
        ],
        Table(
            ["topic", "partition", "start offset", "producer id", "epoch", "last written"],
            [
                [
                    *each.partition,
                    each.start_offset,
                    each.producer_id,
                    each.producer_epoch,
                    cells.age(each.last_written_at_ms),
                ]
                for each in found
            ],
        ),
    )


def _abort(parsed: argparse.Namespace, output: Output) -> None:
    place = (parsed.topic, parsed.partition, parsed.start_offset)
    if parsed.id is not None and place == (None, None, None):
        _abort_id(parsed, output)
    elif parsed.id is None and None not in place:
        _abort_hanging(parsed, output)
    else:
        parsed.verb.error("give a transactional id, or --topic, --partition and --start-offset together")


def _abort_id(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.transactions import abort_transaction

    with connect(parsed) as cluster:
        abort_transaction(cluster, parsed.id)
    output.show({"id": parsed.id, "aborted": True})
    print_message(f"aborted the transaction of {parsed.id} and fenced its producer")


def _abort_hanging(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.topics import find_topic
    from alpacamq.client.kafka.transactions import abort_in_partition, open_transactions

    with connect(parsed) as cluster:
        topic = find_topic(cluster, parsed.topic)
        open_there = open_transactions(cluster, {topic.name: len(topic.partitions)})
        for each in open_there:
            if (each.partition.partition, each.start_offset) == (parsed.partition, parsed.start_offset):
                abort_in_partition(cluster, each)
                break
        else:
            raise CommandError(
                f"no open transaction starts at offset {parsed.start_offset} of "
                f"{topic.name}-{parsed.partition}"
            )
    output.show(
        {
            "topic": topic.name,
            "partition": parsed.partition,
            "start_offset": parsed.start_offset,
            "producer_id": each.producer_id,
            "aborted": True,
        }
    )
    print_message(f"aborted the transaction of producer {each.producer_id} in {each.partition}")
