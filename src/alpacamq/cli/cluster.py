"""`alpacactl cluster`: shows nodes and their health."""

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import cells, cluster_changes
from .commands import add_verb, connect, connect_http, verbs_of
from .output import Output, Table

if TYPE_CHECKING:
    from alpacamq.wire.cluster import ClusterStatus

    from .yaml import Plain

_STATES = ("under-replicated", "below-min-isr", "offline", "reassigning", "not-preferred", "all")


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(
        verbs, common, "describe", "show the brokers of the cluster", _describe,
        ["alpacactl cluster describe", "alpacactl cluster describe -o yaml"],
    )  # fmt: skip
    add_verb(
        verbs, common, "status", "show nodes, controller, replicas and the health of a broker", _status,
        ["alpacactl cluster status", "alpacactl cluster status -o json"],
    )  # fmt: skip
    partitions = add_verb(
        verbs, common, "partitions", "show partitions that lack replicas or a leader", _partitions,
        ["alpacactl cluster partitions", "alpacactl cluster partitions --state offline"],
    )  # fmt: skip
    partitions.add_argument(
        "--state",
        metavar="STATE",
        choices=_STATES,
        default=_STATES[0],
        help=f"{', '.join(_STATES)}; default: {_STATES[0]}",
    )
    cluster_changes.add_to(verbs, common)


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
    import msgspec

    from alpacamq.client.http.cluster import cluster_status
    from alpacamq.client.http.connection import Problem
    from alpacamq.client.http.health import HELD, broker_addresses, broker_stats, health

    with connect_http(parsed) as api:
        well = health(api)
        addresses = broker_addresses(api)
        status = cluster_status(api)
        stats = None
        # Show the rest if part of the broker cannot answer now.
        with suppress(Problem):
            stats = broker_stats(api)
    held: dict[str, Plain] = {} if stats is None else {name: getattr(stats, name) for name in HELD}
    plain: dict[str, Any] = msgspec.to_builtins(status)
    del plain["cluster_id"], plain["node_id"]
    output.show(
        {
            "node": addresses.node_id,
            "cluster": addresses.cluster_id,
            "version": addresses.version,
            "status": "ok" if well is None else "degraded",
            "trouble": well,
            "doors": addresses.addresses,
            "holds": held or None,
            **plain,
        },
        *_tables(status),
        Table(
            ["node", "version", "status", "up"],
            [
                [
                    addresses.node_id,
                    addresses.version,
                    cells.state("ok" if well is None else "degraded"),
                    None if stats is None else cells.span_text(stats.uptime_ms),
                ]
            ],
            title="this node",
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


def _tables(status: "ClusterStatus") -> list[Table]:
    totals, controller = status.partitions, status.controller
    voters = {voter.node_id: voter for voter in status.voters}
    known = {node.node_id for node in status.nodes}
    return [
        Table(
            ["cluster", "controller", "term", "partitions", "under-replicated", "below min isr", "offline"],
            [
                [
                    status.cluster_id,
                    controller.node_id if controller.node_id is not None else cells.state("none"),
                    controller.term,
                    totals.partitions,
                    cells.lag(totals.under_replicated),
                    cells.lag(totals.below_min_isr),
                    cells.lag(totals.offline),
                ]
            ],
        ),
        Table(
            [
                "node", "state", "rack", "address", "version", "voter", "leaders", "replicas", "in sync",
                "lag", "behind",
            ],
            [
                [
                    node.node_id,
                    cells.state(node.state),
                    node.rack,
                    node.addresses.get("cluster") or node.addresses.get("kafka"),
                    node.version,
                    _vote(voters[node.node_id].lag) if node.node_id in voters else "no",
                    node.leaders,
                    node.replicas,
                    node.in_sync,
                    cells.lag(node.lag_messages),
                    None if node.lag_ms is None else f"{node.lag_ms} ms",
                ]
                for node in status.nodes
            ],
            title="nodes",
        ),
        Table(
            ["node", "error"],
            [[node.node_id, node.error] for node in status.nodes if node.error],
        ),
        Table(
            ["node", "address", "link", "error"],
            [
                [link.node_id, link.address, cells.state(link.state), link.last_error]
                for link in status.links
                if link.state not in ("connected", "idle") and link.node_id in known
            ],
        ),
        *([cluster_changes.reassignment_table(status.reassignments)] if status.reassignments else []),
        Table(["warning"], [[each] for each in status.warnings]),
    ]  # fmt: skip


def _vote(lag: int | None) -> str:
    return "yes" if not lag else f"{lag} behind"


def _partitions(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    from alpacamq.client.http.cluster import cluster_partitions

    with connect_http(parsed) as api:
        found = cluster_partitions(api, state=None if parsed.state == "all" else parsed.state)
    output.show(
        msgspec.to_builtins(found),
        Table(
            ["topic", "partition", "leader", "replicas", "in sync", "state"],
            [
                [each.topic, each.partition, each.leader, each.replicas, each.in_sync, each.states]
                for each in found
            ],
            title="partitions" if parsed.state == "all" else f"{parsed.state} partitions",
        ),
    )
