"""Status of the cluster, and operations on its nodes and partitions, over HTTP."""

from collections.abc import Sequence

from alpacamq.client.errors import NotFound
from alpacamq.wire.cluster import (
    ClusterPartition,
    ClusterPartitions,
    ClusterStatus,
    DrainStatus,
    FeatureLevel,
    NodeStatus,
    PartitionOutcome,
    PartitionOutcomes,
    Throttle,
)

from .connection import HttpApi

_ALL = 10_000
# Commands wait for an election, and the controller for a commit.
_COMMAND_MS = 30_000


def cluster_status(api: HttpApi) -> ClusterStatus:
    return api.get(("cluster", "status"), ClusterStatus)


def find_node(status: ClusterStatus, node_id: int) -> NodeStatus:
    """Return a node of the status; NotFound if the cluster has none with this id."""
    for node in status.nodes:
        if node.node_id == node_id:
            return node
    raise NotFound("node", str(node_id), [str(node.node_id) for node in status.nodes])


def cluster_partitions(
    api: HttpApi, *, topic: str | None = None, state: str | None = None
) -> list[ClusterPartition]:
    """Return partitions with their replicas, at most 10,000."""
    query = {"topic": topic, "state": state, "limit": _ALL}
    return api.get(("cluster", "partitions"), ClusterPartitions, query=query).partitions


def drain_node(api: HttpApi, node_id: int, *, leaders_only: bool) -> DrainStatus:
    """Begin to drain a node, or look how far it is."""
    path = ("cluster", "nodes", str(node_id), "drain")
    return api.send("POST", path, DrainStatus, {"leaders_only": leaders_only}, wait_ms=_COMMAND_MS)


def upgrade_cluster(api: HttpApi, *, dry_run: bool) -> FeatureLevel:
    """Raise the feature level of the cluster to the highest that every node supports."""
    return api.send("POST", ("cluster", "upgrade"), FeatureLevel, {"dry_run": dry_run}, wait_ms=_COMMAND_MS)


def stop_draining(api: HttpApi, node_id: int) -> DrainStatus:
    path = ("cluster", "nodes", str(node_id), "drain")
    return api.send("DELETE", path, DrainStatus, wait_ms=_COMMAND_MS)


def remove_node(api: HttpApi, node_id: int, *, force: bool) -> None:
    """Remove a stopped node and its vote. Raises Problem while it runs or has replicas."""
    path = ("cluster", "nodes", str(node_id))
    api.send("DELETE", path, type(None), query={"force": "true"} if force else None, wait_ms=_COMMAND_MS)


def reassign(api: HttpApi, wanted: Sequence[tuple[str, int, list[int] | None]]) -> list[PartitionOutcome]:
    """Begin reassignments, or cancel those without replicas."""
    partitions = [
        {"topic": topic, "partition": partition, "replicas": replicas}
        for topic, partition, replicas in wanted
    ]
    found: list[PartitionOutcome] = []
    for first in range(0, len(partitions), _ALL):
        body = {"partitions": partitions[first : first + _ALL]}
        path = ("cluster", "reassignments")
        found += api.send("POST", path, PartitionOutcomes, body, wait_ms=_COMMAND_MS).partitions
    return found


def set_throttle(api: HttpApi, rate: int | None) -> None:
    """Limit the bytes a second of reassignments on each node; None: no limit."""
    path = ("cluster", "throttle")
    api.send("PUT", path, Throttle, {"bytes_per_second": rate}, wait_ms=_COMMAND_MS)


def elect_leaders(
    api: HttpApi, kind: str, partitions: Sequence[tuple[str, int]] | None
) -> list[PartitionOutcome]:
    """Elect leaders of these partitions; of all that need it if None."""
    body: dict[str, object] = {"kind": kind}
    if partitions is not None:
        body["partitions"] = [{"topic": topic, "partition": index} for topic, index in partitions]
    return api.send("POST", ("cluster", "elections"), PartitionOutcomes, body, wait_ms=_COMMAND_MS).partitions
