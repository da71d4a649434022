"""`alpacactl transactions`: transactional ids and what their open transactions hold up."""

import argparse

from . import cells
from .asking import add_verb, reach, verbs_of
from .output import Output, Table, moment
from .yaml import Plain


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(verbs, common, "list", "list transactional ids", _list, ["alpacactl transactions list"])
    describe = add_verb(
        verbs, common, "describe", "show a transactional id and what it writes to", _describe,
        ["alpacactl transactions describe till-7"],
    )  # fmt: skip
    describe.add_argument("id")


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.transactions import every_transaction

    with reach(parsed) as cluster:
        found: list[dict[str, Plain]] = [
            {"id": each.id, "state": each.state, "producer_id": each.producer_id}
            for each in every_transaction(cluster)
        ]
    output.show(
        found,
        Table(
            ["transactional id", "state", "producer id"],
            [[each["id"], cells.state(str(each["state"])), each["producer_id"]] for each in found],
        ),
    )


def _describe(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.transactions import find_transaction

    with reach(parsed) as cluster:
        found = find_transaction(cluster, parsed.id)
    started = None if found.started_at_ms is None else moment(found.started_at_ms)
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
