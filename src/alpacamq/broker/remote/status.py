"""Status of the cluster: the image, and what each node reports of itself.

Any node answers. How far followers are behind is known to the leaders only, so all running nodes are asked;
one that does not answer in time is named, and the rest is shown without it.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from alpacamq.broker.metadata.metadata import Metadata
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.link import Peers
from alpacamq.broker.replication.service import Replication
from alpacamq.broker.slices import in_slices
from alpacamq.cluster.commands import DescribeQuorum, QuorumStatus, ReplicaProgress
from alpacamq.cluster.image import ClusterImage, Delta
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.cluster.summary import Summary, warnings
from alpacamq.cluster.topics import configured_min_isr
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import BrokerId, TopicId
from alpacamq.model.state_machine import Request
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

# How long a node, and the controller, may take to report.
REPORT_SECONDS = 2.0
# Reassignments whose progress a node reports.
MAX_MOVES = 1000


class FollowerLag(msgspec.Struct, frozen=True, array_like=True):
    """How far the replicas on one broker are behind the leaders on another. Lags are the largest."""

    node_id: BrokerId
    partitions: int
    out_of_sync: int
    lag_messages: int
    lag_ms: int


class MoveProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far a replica is that a reassignment adds, as the leader sees it: offsets, and bytes left."""

    topic_id: TopicId
    index: int
    node_id: BrokerId
    start_offset: int
    end_offset: int
    leader_end_offset: int
    # About; None if the node has an earlier version.
    bytes_left: int | None = None


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself."""

    node_id: BrokerId
    applied_index: int
    followers: tuple[FollowerLag, ...] = ()
    moves: tuple[MoveProgress, ...] = ()


class DescribeNode(Request[NodeReport], frozen=True, kw_only=True, tag="describe-node"):
    """Ask a node for its report."""


VALUES: tuple[type[msgspec.Struct], ...] = (DescribeNode,)


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about a cluster at one time."""

    image: ClusterImage
    summary: Summary
    # What an operator should change although everything works.
    warnings: list[str]
    quorum: QuorumStatus | None
    reports: Mapping[int, NodeReport]
    # Why nodes did not report.
    failures: Mapping[int, str]

    def lag_of(self, node_id: int) -> FollowerLag:
        """Return how far the replicas on a node are behind all leaders that reported."""
        return total_lag(
            BrokerId(node_id),
            (each for report in self.reports.values() for each in report.followers),
        )

    def moves(self) -> Mapping[PartitionId, Sequence[MoveProgress]]:
        """Return the progress of reassignments by partition."""
        found: dict[PartitionId, list[MoveProgress]] = {}
        for report in self.reports.values():
            for move in report.moves:
                found.setdefault(PartitionId(move.topic_id, move.index), []).append(move)
        return found


class ClusterStatus:
    """Describes the cluster, and this node to others."""

    def __init__(
        self,
        metadata: Metadata,
        replication: Replication,
        peers: Peers | None,
        node_id: BrokerId,
        replication_factor: int,
    ) -> None:
        """`peers` is None for a node without others; `replication_factor` is the configured one."""
        self._metadata = metadata
        self._replication = replication
        self._peers = peers
        self._node_id = node_id
        self._replication_factor = replication_factor
        self._warned: list[str] = []
        metadata.subscribe(self._image_changed)

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {DescribeNode: self._on_describe}

    async def describe(self) -> ClusterReport:
        """Ask all nodes, and count the partitions."""
        image = self._metadata.image
        nodes = [broker.id for broker in image.brokers.values() if broker.is_running]
        quorum, found = await asyncio.gather(self._quorum(), asyncio.gather(*map(self._report_of, nodes)))
        failures = zip(nodes, found, strict=True)
        return ClusterReport(
            image=self._metadata.image,
            summary=await count_partitions(self._metadata.image),
            warnings=warnings(self._metadata.image, self._replication_factor),
            quorum=quorum,
            reports={int(each.node_id): each for each in found if isinstance(each, NodeReport)},
            failures={int(node_id): str(each) for node_id, each in failures if isinstance(each, AlpacaError)},
        )

    def _image_changed(self, delta: Delta) -> None:
        """As controller, log what an operator should change."""
        if delta.brokers and self._metadata.is_controller:
            found = warnings(self._metadata.image, self._replication_factor)
            for text in found:
                if text not in self._warned:
                    log.warning("cluster_warning", reason=text)
            self._warned = found

    async def report(self) -> NodeReport:
        """Describe this node."""
        led = list(self._replication.led_partitions)
        return NodeReport(
            node_id=self._node_id,
            applied_index=self._metadata.applied_index,
            followers=tuple(await follower_lags(led)),
            moves=tuple(self._moves(led)),
        )

    def _moves(self, led: Iterable[Partition]) -> list[MoveProgress]:
        image = self._metadata.image
        found: list[MoveProgress] = []
        if not image.moving:
            return found
        for partition in led:
            place = PartitionId(partition.topic_id, partition.identity.partition)
            if place not in image.moving or (state := image.partition(place)) is None:
                continue
            found += [
                MoveProgress(
                    place.topic_id,
                    place.partition,
                    follower.broker_id,
                    partition.start_offset,
                    max(follower.end_offset, partition.start_offset),
                    partition.end_offset,
                    partition.bytes_after(follower.end_offset),
                )
                for follower in partition.followers()
                if follower.broker_id in state.adding
            ]
            if len(found) >= MAX_MOVES:
                break
        return found[:MAX_MOVES]

    async def _on_describe(self, _request: DescribeNode, _peer: Peer) -> NodeReport:
        return await self.report()

    async def _report_of(self, node_id: BrokerId) -> NodeReport | AlpacaError:
        try:
            if self._peers is None or node_id == self._node_id:
                return await self.report()
            timeout_ms = int(REPORT_SECONDS * 1000)
            report: NodeReport = await self._peers.call(node_id, DescribeNode(), timeout_ms)
            return report
        except AlpacaError as error:
            return error

    async def _quorum(self) -> QuorumStatus | None:
        """Return the metadata log as the controller sees it; None if there is no controller."""
        try:
            return await self._metadata.ask(DescribeQuorum(), REPORT_SECONDS)
        except AlpacaError:
            return None

    def voters(self, quorum: QuorumStatus | None) -> Sequence[ReplicaProgress]:
        """Return the voters; without a controller, those that this node knows."""
        if quorum is not None:
            return quorum.voters
        return [
            ReplicaProgress(node_id=voter.id, directory_id=voter.directory, end_index=-1)
            for voter in self._metadata.quorum.voters
        ]


async def count_partitions(image: ClusterImage, on: BrokerId | None = None) -> Summary:
    """Count all partitions, or those with a replica on one broker, in slices. The image may change."""
    places: Iterable[PartitionId]
    if on is None:
        topics = list(image.topics.values())
        places = (PartitionId(topic.id, index) for topic in topics for index in range(topic.partitions))
    else:
        places = list(image.replicas_on(on))
    summary = Summary()
    configured: dict[TopicId, int | None] = {}
    async for some in in_slices(places):
        for place in some:
            topic, state = image.topic_by_id(place.topic_id), image.partition(place)
            if topic is None or state is None:
                continue  # deleted meanwhile
            if topic.id not in configured:
                configured[topic.id] = configured_min_isr(image, topic)
            summary.add([state], configured[topic.id])
    return summary


async def follower_lags(led: Iterable[Partition]) -> list[FollowerLag]:
    """Return how far each other broker is behind with these partitions."""
    found: dict[BrokerId, list[FollowerLag]] = {}
    async for some in in_slices(led):
        for partition in some:
            for follower in partition.followers():
                lag = partition.end_offset - max(follower.end_offset, partition.start_offset)
                each = FollowerLag(
                    follower.broker_id, 1, int(not follower.is_in_sync), max(lag, 0), follower.lag_ms
                )
                found.setdefault(follower.broker_id, []).append(each)
        found = {node_id: [total_lag(node_id, lags)] for node_id, lags in found.items()}
    return [found[node_id][0] for node_id in sorted(found)]


def total_lag(node_id: BrokerId, lags: Iterable[FollowerLag]) -> FollowerLag:
    """Add up the lags of one broker."""
    partitions = out_of_sync = lag_messages = lag_ms = 0
    for each in lags:
        if each.node_id == node_id:
            partitions += each.partitions
            out_of_sync += each.out_of_sync
            lag_messages = max(lag_messages, each.lag_messages)
            lag_ms = max(lag_ms, each.lag_ms)
    return FollowerLag(node_id, partitions, out_of_sync, lag_messages, lag_ms)
