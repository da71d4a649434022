"""The cluster in numbers, as the HTTP API describes it."""

from typing import Annotated

import msgspec


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node. `state` is running, draining, drained, stopping or fenced.

    Partitions that are under-replicated or below min.insync.replicas count at their leader, those without a
    leader at each replica. Lags are the largest of its replicas behind their leaders; null if not known.
    """

    node_id: int
    state: str
    addresses: dict[str, str]
    rack: str
    roles: list[str]
    version: str
    fenced: bool
    draining: bool
    broker_epoch: int
    directory_id: str
    controller: bool
    voter: bool
    leaders: int
    replicas: int
    in_sync: int
    under_replicated: int
    below_min_isr: int
    offline: int
    lag_messages: int | None
    lag_ms: int | None
    # Why the node did not answer.
    error: str | None


class VoterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A voter of the metadata log: entries it is behind, and the time since its last message."""

    node_id: int
    directory_id: str
    lag: int | None
    silent_ms: int | None


class ControllerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The controller, and the metadata log as this node has it."""

    node_id: int | None
    term: int
    commit_index: int
    applied_index: int


class PartitionTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions of all topics by state."""

    partitions: int
    under_replicated: int
    below_min_isr: int
    offline: int
    reassigning: int
    not_preferred: int


class ReassignmentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A reassignment in progress, by its slowest new replica: the share it has, and messages it is behind.

    `bytes_left` is about what all new replicas lack; `throttle` the bytes a second that its leader sends and
    new replicas fetch at most, with those of other partitions; null if there is no limit.
    """

    topic: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]
    progress: float | None
    behind: int | None
    bytes_left: int | None
    throttle: int | None


class Throttle(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes a second that each node sends and fetches for reassignments; null is no limit."""

    bytes_per_second: Annotated[int, msgspec.Meta(ge=0, lt=2**63 - 1)] | None


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The connection of this node to another: idle, connecting, connected, backoff or closed."""

    node_id: int
    address: str
    state: str
    last_error: str
    calls_in_flight: int


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as the node `node_id` sees it. Links are those of this node."""

    cluster_id: str
    node_id: int
    controller: ControllerStatus
    voters: list[VoterStatus]
    nodes: list[NodeStatus]
    partitions: PartitionTotals
    reassignments: list[ReassignmentStatus]
    # The limit of reassignments that is set for all nodes, in bytes a second.
    throttle: int | None
    links: list[LinkStatus]
    features: dict[str, int]
    warnings: list[str]


class ClusterPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition and its replicas, the preferred leader first. `states` says what is wrong."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    eligible: list[int]
    adding: list[int]
    removing: list[int]
    states: list[str]


class ClusterPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions in order, and how many there are."""

    partitions: list[ClusterPartition]
    total: int


class FeatureLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The level of the cluster, before and after raising it, and the highest that every node supports."""

    before: int
    level: int
    supported: int


class DrainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The leaders and replicas that a node still has."""

    node_id: int
    draining: bool
    leaders: int
    replicas: int


class PartitionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one partition: its replicas and leader, or why it did not change."""

    topic: str
    partition: int
    leader: int | None = None
    replicas: list[int] = []
    error: str | None = None


class PartitionOutcomes(msgspec.Struct, frozen=True, kw_only=True):
    """The results of an operation on partitions."""

    partitions: list[PartitionOutcome]
