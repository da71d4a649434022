"""The cluster: its status, draining and removing nodes, reassignments and elections."""

from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.api.rest.parameters import PartitionIndex, TopicText
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker import administration
from alpacamq.broker.broker import Broker
from alpacamq.broker.remote.status import ClusterReport, MoveProgress
from alpacamq.broker.slices import in_slices
from alpacamq.cluster.broker_config import (
    ALL_BROKERS,
    FOLLOWER_RATE,
    LEADER_RATE,
    throttled_rate,
    usable,
)
from alpacamq.cluster.brokers import BrokerRegistration
from alpacamq.cluster.commands import (
    DrainBroker,
    ElectionKind,
    NamedPartition,
    PartitionResult,
    QuorumStatus,
    Reassignment,
    UpdateFeatures,
)
from alpacamq.cluster.image import VERSION_FEATURE, ClusterImage
from alpacamq.cluster.partition_state import PartitionState
from alpacamq.cluster.summary import is_below_min_isr, is_missing_replicas
from alpacamq.cluster.topics import configured_min_isr
from alpacamq.model.errors import (
    FeatureUpdateFailed,
    InvalidReplication,
    InvalidRequest,
    NotController,
    RequestTimedOut,
    UnknownBroker,
    UnknownTopic,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.topics import INT32_MAX, Topic
from alpacamq.wire import cluster as wire

# Reassignments that the status lists; the totals count all.
MAX_LISTED = 1000
MAX_CHANGED = 10_000

NodeId = Annotated[int, Meta(ge=0, le=INT32_MAX)]


class PartitionCondition(StrEnum):
    """A problem of a partition."""

    UNDER_REPLICATED = "under-replicated"
    BELOW_MIN_ISR = "below-min-isr"
    OFFLINE = "offline"
    REASSIGNING = "reassigning"
    NOT_PREFERRED = "not-preferred"


class PartitionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which partitions to list."""

    state: Annotated[PartitionCondition | None, Meta(description="only those in this state")] = None
    topic: Annotated[str, Meta(description="only those of this topic")] = ""
    node: Annotated[NodeId | None, Meta(description="only those with a replica on this node")] = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class OfNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node."""

    node: NodeId


class RemoveQuery(OfNode, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to remove a node."""

    force: Annotated[
        bool, Meta(description="remove it even if it has replicas, provided that other replicas are complete")
    ] = False


class Upgrade(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to raise the level of the cluster."""

    dry_run: bool = False


class DrainOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to drain a node."""

    leaders_only: Annotated[bool, Meta(description="move leaders, keep replicas")] = False


class WantedReplicas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new replicas of a partition, the preferred leader first; null cancels its reassignment."""

    topic: TopicText
    partition: PartitionIndex
    replicas: Annotated[list[NodeId], Meta(max_length=100)] | None


class Reassignments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reassignments to begin or to cancel."""

    partitions: Annotated[list[WantedReplicas], Meta(min_length=1, max_length=MAX_CHANGED)]


class ElectedPartition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A partition to elect a leader of."""

    topic: TopicText
    partition: PartitionIndex


class Election(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Partitions to elect leaders of; without any, all that need it."""

    kind: ElectionKind = ElectionKind.PREFERRED
    partitions: Annotated[list[ElectedPartition], Meta(min_length=1, max_length=MAX_CHANGED)] | None = None


async def status(call: Call[Nothing, Nothing]) -> wire.ClusterStatus:
    broker = call.backend.broker
    found = await broker.cluster_status.describe()
    metadata, summary = broker.metadata, found.summary
    quorum = metadata.quorum
    voters = broker.cluster_status.voters(found.quorum)
    voter_ids = {voter.node_id for voter in voters}
    controller = metadata.controller_id if found.quorum is None else found.quorum.leader
    return wire.ClusterStatus(
        cluster_id=broker.cluster_id,
        node_id=broker.settings.node_id,
        controller=wire.ControllerStatus(
            node_id=controller,
            term=quorum.term,
            commit_index=quorum.commit_index,
            applied_index=metadata.applied_index,
        ),
        voters=[
            wire.VoterStatus(
                node_id=voter.node_id,
                directory_id=str(voter.directory_id),
                lag=_voter_lag(found.quorum, voter.end_index),
                silent_ms=None
                if voter.last_contact_ms < 0
                else max(broker.clock.now_ms() - voter.last_contact_ms, 0),
            )
            for voter in sorted(voters, key=lambda each: each.node_id)
        ],
        nodes=[
            _node(found, found.image.brokers[node_id], controller, voter_ids)
            for node_id in sorted(found.image.brokers)
        ],
        partitions=wire.PartitionTotals(
            partitions=summary.partitions,
            under_replicated=summary.under_replicated,
            below_min_isr=summary.below_min_isr,
            offline=summary.offline,
            reassigning=summary.moving,
            not_preferred=summary.not_preferred,
        ),
        reassignments=_reassignments(found),
        throttle=_throttle_of_all(found.image),
        links=_links(broker),
        features=dict(found.image.features),
        warnings=found.warnings,
    )


def _voter_lag(quorum: QuorumStatus | None, end_index: int) -> int | None:
    return None if quorum is None else max(quorum.commit_index - end_index, 0)


def _node(
    found: ClusterReport, broker: BrokerRegistration, controller: int | None, voters: set[BrokerId]
) -> wire.NodeStatus:
    counts = found.summary.by_broker[broker.id]
    lag = found.lag_of(broker.id) if found.reports else None
    return wire.NodeStatus(
        node_id=broker.id,
        state=_state(broker, counts.replicas),
        addresses={each.listener: f"{each.host}:{each.port}" for each in broker.endpoints},
        rack=broker.rack,
        roles=list(broker.roles),
        version=broker.software_version,
        fenced=broker.is_fenced,
        draining=broker.is_draining,
        broker_epoch=broker.epoch,
        directory_id=str(broker.directory_id),
        controller=broker.id == controller,
        voter=broker.id in voters,
        leaders=counts.leaders,
        replicas=counts.replicas,
        in_sync=counts.in_sync,
        under_replicated=counts.under_replicated,
        below_min_isr=counts.below_min_isr,
        offline=counts.offline,
        lag_messages=None if lag is None else lag.lag_messages,
        lag_ms=None if lag is None else lag.lag_ms,
        error=found.failures.get(broker.id),
    )


def _state(broker: BrokerRegistration, replicas: int) -> str:
    if broker.is_leaving and not replicas:
        return "drained"
    if broker.is_fenced:
        return "fenced"
    if broker.is_shutting_down:
        return "stopping"
    return "draining" if broker.is_draining else "running"


def _reassignments(found: ClusterReport) -> list[wire.ReassignmentStatus]:
    image, moves = found.image, found.moves()
    listed = []
    for place in sorted(image.moving)[:MAX_LISTED]:
        topic, state = image.topic_by_id(place.topic_id), image.partition(place)
        if topic is None or state is None:
            continue
        moved = moves.get(place, ())
        progress, behind = _progress(state, moved)
        left = [each.bytes_left for each in moved if each.bytes_left is not None]
        listed.append(
            wire.ReassignmentStatus(
                topic=topic.name,
                partition=place.partition,
                replicas=list(state.target_replicas),
                adding=list(state.adding),
                removing=list(state.removing),
                progress=progress,
                behind=behind,
                bytes_left=sum(left) if left or not state.adding else None,
                throttle=_throttle(image, state),
            )
        )
    return sorted(listed, key=lambda each: (each.topic, each.partition))


def _throttle(image: ClusterImage, state: PartitionState) -> int | None:
    """Return the lowest limit of the leader and the replicas that are being added."""
    rates = [throttled_rate(image, node, FOLLOWER_RATE) for node in state.adding]
    if state.leader is not None and state.adding:
        rates.append(throttled_rate(image, state.leader, LEADER_RATE))
    return min((rate for rate in rates if rate is not None), default=None)


def _throttle_of_all(image: ClusterImage) -> int | None:
    overrides = usable(image.broker_overrides(ALL_BROKERS))
    return min(
        (int(overrides[name]) for name in (LEADER_RATE, FOLLOWER_RATE) if name in overrides), default=None
    )


def _progress(state: PartitionState, moves: Sequence[MoveProgress]) -> tuple[float | None, int | None]:
    """Return the share and the messages behind of the slowest replica that is being added."""
    if not moves:
        return (1.0, 0) if not state.adding else (None, None)
    shares = []
    for move in moves:
        total = move.leader_end_offset - move.start_offset
        shares.append(1.0 if total <= 0 else (move.end_offset - move.start_offset) / total)
    behind = max(move.leader_end_offset - move.end_offset for move in moves)
    return round(max(min(shares), 0.0), 4), max(behind, 0)


def _links(broker: Broker) -> list[wire.LinkStatus]:
    if broker.member is None:
        return []
    return [
        wire.LinkStatus(
            node_id=link.node_id,
            address=str(link.address),
            state=link.state.value,
            last_error=link.last_error,
            calls_in_flight=link.calls_in_flight,
        )
        for link in broker.member.peers.statuses()
    ]


async def list_partitions(call: Call[PartitionsQuery, Nothing]) -> wire.ClusterPartitions:
    query = call.parameters
    listed: list[wire.ClusterPartition] = []
    total = 0
    async for topic, index, state, conditions in _partitions(call.backend.broker.metadata.image, query):
        if query.state is not None and query.state not in conditions:
            continue
        if query.node is not None and query.node not in state.replicas:
            continue
        total += 1
        if len(listed) < query.limit:
            listed.append(
                wire.ClusterPartition(
                    topic=topic.name,
                    partition=index,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    replicas=list(state.replicas),
                    in_sync=list(state.isr),
                    eligible=list(state.elr),
                    adding=list(state.adding),
                    removing=list(state.removing),
                    states=[str(each) for each in conditions],
                )
            )
    return wire.ClusterPartitions(partitions=listed, total=total)


async def _partitions(
    image: ClusterImage, query: PartitionsQuery
) -> AsyncIterator[tuple[Topic, int, PartitionState, list[PartitionCondition]]]:
    names = [image.topic(query.topic).name] if query.topic else sorted(image.topics)
    for name in names:
        if (topic := image.topics.get(name)) is None:
            continue  # deleted meanwhile
        configured = configured_min_isr(image, topic)
        async for some in in_slices(list(enumerate(image.partitions_of(topic.id)))):
            for index, state in some:
                if state.replicas:
                    yield topic, index, state, _conditions(state, configured)


def _conditions(state: PartitionState, configured: int | None) -> list[PartitionCondition]:
    found = {
        PartitionCondition.OFFLINE: state.leader is None,
        PartitionCondition.BELOW_MIN_ISR: is_below_min_isr(state, configured),
        PartitionCondition.UNDER_REPLICATED: is_missing_replicas(state),
        PartitionCondition.REASSIGNING: state.is_moving,
        PartitionCondition.NOT_PREFERRED: state.leader is not None and not state.is_led_by_preferred,
    }
    return [condition for condition, holds in found.items() if holds]


async def drain(call: Call[OfNode, DrainOptions]) -> wire.DrainStatus:
    return await _drain(call.backend.broker, call.parameters.node, keeps_replicas=call.body.leaders_only)


async def stop_draining(call: Call[OfNode, Nothing]) -> wire.DrainStatus:
    return await _drain(call.backend.broker, call.parameters.node, is_draining=False)


async def _drain(
    broker: Broker, node: int, *, is_draining: bool = True, keeps_replicas: bool = False
) -> wire.DrainStatus:
    command = DrainBroker(broker_id=BrokerId(node), is_draining=is_draining, keeps_replicas=keeps_replicas)
    reply = await broker.metadata.ask(command)
    return wire.DrainStatus(
        node_id=node, draining=is_draining, leaders=reply.leaders, replicas=reply.replicas
    )


async def upgrade(call: Call[Nothing, Upgrade]) -> wire.FeatureLevel:
    """Raise the level of the cluster to the highest that every node supports."""
    metadata = call.backend.broker.metadata
    before = metadata.image.features.get(VERSION_FEATURE, 0)
    ranges = [each.features.get(VERSION_FEATURE) for each in metadata.image.brokers.values()]
    supported = min((each.max_level for each in ranges if each is not None), default=before)
    level = max(before, supported)
    if level > before:
        await metadata.ask(UpdateFeatures(levels={VERSION_FEATURE: level}, dry_run=call.body.dry_run))
    return wire.FeatureLevel(before=before, level=level, supported=supported)


async def remove_node(call: Call[RemoveQuery, Nothing]) -> None:
    query = call.parameters
    metadata = call.backend.broker.metadata
    await administration.remove_node(metadata, BrokerId(query.node), is_forced=query.force)


async def reassign(call: Call[Nothing, Reassignments]) -> wire.PartitionOutcomes:
    wanted = [
        Reassignment(each.topic, each.partition, None if each.replicas is None else tuple(each.replicas))
        for each in call.body.partitions
    ]
    results = await administration.reassign(call.backend.broker.metadata, wanted)
    named = [NamedPartition(each.topic, each.index) for each in wanted]
    return _outcomes(named, results)


async def throttle(call: Call[Nothing, wire.Throttle]) -> wire.Throttle:
    await administration.throttle(call.backend.broker.metadata, call.body.bytes_per_second)
    return call.body


async def elect(call: Call[Nothing, Election]) -> wire.PartitionOutcomes:
    metadata, kind = call.backend.broker.metadata, call.body.kind
    if call.body.partitions is not None:
        named = [NamedPartition(each.topic, each.partition) for each in call.body.partitions]
        return _outcomes(named, await administration.elect(metadata, kind, named))
    results = await administration.elect_all(metadata, kind)
    return _outcomes([_name(metadata.image, each) for each in results], results)


def _name(image: ClusterImage, result: PartitionResult) -> NamedPartition:
    topic = None if result.topic_id is None else image.topic_by_id(result.topic_id)
    return NamedPartition("" if topic is None else topic.name, result.index)


def _outcomes(named: Sequence[NamedPartition], results: Sequence[PartitionResult]) -> wire.PartitionOutcomes:
    return wire.PartitionOutcomes(
        partitions=[
            wire.PartitionOutcome(
                topic=each.topic,
                partition=each.index,
                leader=None if result.state is None else result.state.leader,
                replicas=[] if result.state is None else list(result.state.target_replicas),
                error=None if result.failure is None else result.failure.reason,
            )
            for each, result in zip(named, results, strict=True)
        ]
    )


_COMMAND_ERRORS = (NotController, RequestTimedOut)

ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/cluster/status",
        summary="Show nodes, controller, voters, partitions by state, reassignments and links",
        handler=status,
        parameters=Nothing,
        body=Nothing,
        answers=(wire.ClusterStatus,),
    ),
    Route(
        method="GET",
        path="/cluster/partitions",
        summary="List partitions with leader, replicas and in-sync replicas",
        handler=list_partitions,
        parameters=PartitionsQuery,
        body=Nothing,
        answers=(wire.ClusterPartitions,),
        errors=(UnknownTopic,),
    ),
    Route(
        method="POST",
        path="/cluster/nodes/{node}/drain",
        summary="Move leaders and replicas off a node; repeat it to see what is left",
        handler=drain,
        parameters=OfNode,
        body=DrainOptions,
        answers=(wire.DrainStatus,),
        errors=(UnknownBroker, InvalidReplication, *_COMMAND_ERRORS),
    ),
    Route(
        method="DELETE",
        path="/cluster/nodes/{node}/drain",
        summary="Stop draining a node, and cancel what is in progress",
        handler=stop_draining,
        parameters=OfNode,
        body=Nothing,
        answers=(wire.DrainStatus,),
        errors=(UnknownBroker, *_COMMAND_ERRORS),
    ),
    Route(
        method="DELETE",
        path="/cluster/nodes/{node}",
        summary="Remove a drained and stopped node from the cluster, and its vote",
        handler=remove_node,
        parameters=RemoveQuery,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
        errors=(UnknownBroker, InvalidRequest, *_COMMAND_ERRORS),
    ),
    Route(
        method="POST",
        path="/cluster/reassignments",
        summary="Begin or cancel reassignments of partitions",
        handler=reassign,
        parameters=Nothing,
        body=Reassignments,
        answers=(wire.PartitionOutcomes,),
        errors=_COMMAND_ERRORS,
    ),
    Route(
        method="PUT",
        path="/cluster/throttle",
        summary="Limit the bytes a second that each node sends and fetches for reassignments",
        handler=throttle,
        parameters=Nothing,
        body=wire.Throttle,
        answers=(wire.Throttle,),
        errors=_COMMAND_ERRORS,
    ),
    Route(
        method="POST",
        path="/cluster/upgrade",
        summary="Raise the feature level of the cluster to the highest that every node supports",
        handler=upgrade,
        parameters=Nothing,
        body=Upgrade,
        answers=(wire.FeatureLevel,),
        errors=(*_COMMAND_ERRORS, FeatureUpdateFailed),
    ),
    Route(
        method="POST",
        path="/cluster/elections",
        summary="Elect preferred leaders, or leaders of partitions without one",
        handler=elect,
        parameters=Nothing,
        body=Election,
        answers=(wire.PartitionOutcomes,),
        errors=_COMMAND_ERRORS,
    ),
)
