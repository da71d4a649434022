"""`alpacactl cluster`: shows brokers and their health."""

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING

from . import cells
from .commands import add_verb, connect, connect_http, verbs_of
from .output import Output, Table

if TYPE_CHECKING:
    from .yaml import Plain


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(
        verbs, common, "describe", "show the brokers of the cluster", _describe,
        ["alpacactl cluster describe", "alpacactl cluster describe -o yaml"],
    )  # fmt: skip
    add_verb(
        verbs, common, "status", "show a broker's health, API addresses and contents", _status,
        ["alpacactl cluster status", "alpacactl cluster status -o json"],
    )  # fmt: skip


def _describe(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.cluster import describe_cluster

    with connect(parsed) as cluster:
        description = describe_cluster(cluster)
    brokers: list[dict[str, Plain]] = [
        {
            "id": broker.id,
            "address": str(broker.address),
            "rack": broker.rack,
            "controller": broker.id == description.controller,
        }
        for broker in description.brokers
    ]
    output.show(
        {"cluster": description.id, "controller": description.controller, "brokers": brokers},
        Table(["cluster"], [[description.id]]),
        Table(["broker", "address", "rack", "controller"], [list(broker.values()) for broker in brokers]),
    )


def _status(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.connection import Problem
    from alpacamq.client.http.health import HELD, broker_addresses, broker_stats, health

    with connect_http(parsed) as api:
        well = health(api)
        addresses = broker_addresses(api)
        stats = None
        # Show the rest if part of the broker cannot answer now.
        with suppress(Problem):
            stats = broker_stats(api)
    held: dict[str, Plain] = {} if stats is None else {name: getattr(stats, name) for name in HELD}
    output.show(
        {
            "node": addresses.node_id,
            "cluster": addresses.cluster_id,
            "version": addresses.version,
            "status": "ok" if well is None else "degraded",
            "trouble": well,
            "doors": addresses.addresses,
            "holds": held or None,
        },
        Table(
            ["node", "version", "status", "up", "cluster"],
            [
                [
                    addresses.node_id,
                    addresses.version,
                    cells.state("ok" if well is None else "degraded"),
                    None if stats is None else cells.span_text(stats.uptime_ms),
                    addresses.cluster_id,
                ]
            ],
        ),
        Table(["trouble"], [] if well is None else [[well]]),
        Table(["api", "address"], list(addresses.addresses.items()), title="APIs"),
        Table(
            ["topics", "partitions", "messages", "size", "groups", "queues", "delayed"],
            []
            if stats is None
            else [
                [
                    stats.topics,
                    stats.partitions,
                    stats.messages,
                    cells.size(stats.size_bytes),
                    stats.groups,
                    stats.queues,
                    stats.delayed,
                ]
            ],
            title="holds",
        ),
    )
