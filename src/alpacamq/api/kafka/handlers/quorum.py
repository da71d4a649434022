"""DescribeQuorum, AddRaftVoter, RemoveRaftVoter, UnregisterBroker and UpdateFeatures.

The controller decides on them; any broker forwards them to it.
"""

from collections.abc import Iterable, Mapping

from alpacamq.api.kafka.brokers import live_node
from alpacamq.api.kafka.call import KAFKA_LISTENER, Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.cluster.commands import (
    AddVoter,
    DescribeQuorum,
    QuorumStatus,
    RemoveVoter,
    ReplicaProgress,
    UnregisterBroker,
    UpdateFeatures,
)
from alpacamq.model.errors import AlpacaError, FeatureUpdateFailed, InconsistentClusterId, InvalidRequest
from alpacamq.model.ids import BrokerId
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import quorum as wire
from alpacamq.protocol.notation import ZERO_UUID
from alpacamq.security.acls import Operation

from .metadata import FEATURES

METADATA_TOPIC = "__cluster_metadata"
_UPGRADE = 1
_ONE_RESULT_FROM = 2


async def describe_quorum(
    backend: Backend, request: wire.DescribeQuorumRequest, call: Call
) -> wire.DescribeQuorumResponse:
    try:
        backend.broker.access.check_cluster(call.caller, Operation.DESCRIBE)
        status = await backend.broker.metadata.ask(DescribeQuorum())
    except AlpacaError as error:
        return wire.DescribeQuorumResponse(error_code=code_of(error), error_message=text_of(error))
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            await call.pause()
            partitions.append(_partition(topic.topic_name, partition.partition_index, status))
        topics.append(wire.DescribedQuorumTopic(topic_name=topic.topic_name, partitions=partitions))
    return wire.DescribeQuorumResponse(
        topics=topics, nodes=[_node(backend, voter.node_id, call.listener) for voter in status.voters]
    )


def _partition(topic: str, index: int, status: QuorumStatus) -> wire.DescribedQuorumPartition:
    if topic != METADATA_TOPIC or index != 0:
        return wire.DescribedQuorumPartition(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"only partition 0 of {METADATA_TOPIC} has a quorum",
        )
    return wire.DescribedQuorumPartition(
        partition_index=index,
        leader_id=status.leader,
        leader_epoch=status.term,
        high_watermark=status.commit_index + 1,
        current_voters=_replicas(status.voters, status),
        observers=_replicas(status.observers, status),
    )


def _replicas(nodes: Iterable[ReplicaProgress], status: QuorumStatus) -> list[wire.ReplicaState]:
    return [
        wire.ReplicaState(
            replica_id=node.node_id,
            replica_directory_id=node.directory_id,
            # An index is the offset of an entry; Kafka counts to the one behind it.
            log_end_offset=node.end_index + 1,
            last_fetch_timestamp=node.last_contact_ms,
            last_caught_up_timestamp=node.last_contact_ms if node.end_index >= status.commit_index else -1,
        )
        for node in nodes
    ]


def _node(backend: Backend, node_id: int, listener: str) -> wire.QuorumNode:
    listeners = []
    if (node := live_node(backend, node_id, listener)) is not None:
        # Kafka's own client fails on names in lower case.
        listeners = [wire.Listener(name=KAFKA_LISTENER.upper(), host=node.host, port=node.port)]
    return wire.QuorumNode(node_id=node_id, listeners=listeners)


async def add_raft_voter(
    backend: Backend, request: wire.AddRaftVoterRequest, call: Call
) -> wire.AddRaftVoterResponse:
    """Add a voter. Its listeners are not needed: a node connects to the others by itself."""
    try:
        backend.broker.access.check_cluster(call.caller, Operation.ALTER)
        _check_cluster(backend, request.cluster_id)
        if request.voter_id < 0 or request.voter_directory_id == ZERO_UUID:
            raise InvalidRequest("a voter needs an id and a directory id")
        if any(voter.id == request.voter_id for voter in backend.broker.metadata.quorum.voters):
            return wire.AddRaftVoterResponse(
                error_code=ErrorCode.DUPLICATE_VOTER,
                error_message=f"node {request.voter_id} is a voter already",
            )
        voter = AddVoter(node_id=BrokerId(request.voter_id), directory_id=request.voter_directory_id)
        await backend.broker.metadata.ask(voter)
    except AlpacaError as error:
        return wire.AddRaftVoterResponse(error_code=code_of(error), error_message=text_of(error))
    return wire.AddRaftVoterResponse()


async def remove_raft_voter(
    backend: Backend, request: wire.RemoveRaftVoterRequest, call: Call
) -> wire.RemoveRaftVoterResponse:
    try:
        backend.broker.access.check_cluster(call.caller, Operation.ALTER)
        _check_cluster(backend, request.cluster_id)
        wanted = (request.voter_id, request.voter_directory_id)
        if wanted not in [(voter.id, voter.directory) for voter in backend.broker.metadata.quorum.voters]:
            return wire.RemoveRaftVoterResponse(
                error_code=ErrorCode.VOTER_NOT_FOUND,
                error_message=f"no voter has id {request.voter_id} and this directory",
            )
        voter = RemoveVoter(node_id=BrokerId(request.voter_id), directory_id=request.voter_directory_id)
        await backend.broker.metadata.ask(voter)
    except AlpacaError as error:
        return wire.RemoveRaftVoterResponse(error_code=code_of(error), error_message=text_of(error))
    return wire.RemoveRaftVoterResponse()


def _check_cluster(backend: Backend, cluster_id: str | None) -> None:
    if cluster_id is not None and cluster_id != backend.broker.cluster_id:
        raise InconsistentClusterId(f"this is cluster {backend.broker.cluster_id!r}, not {cluster_id!r}")


async def unregister_broker(
    backend: Backend, request: wire.UnregisterBrokerRequest, call: Call
) -> wire.UnregisterBrokerResponse:
    try:
        backend.broker.access.check_cluster(call.caller, Operation.ALTER)
        await backend.broker.metadata.ask(UnregisterBroker(broker_id=BrokerId(request.broker_id)))
    except AlpacaError as error:
        return wire.UnregisterBrokerResponse(error_code=code_of(error), error_message=text_of(error))
    return wire.UnregisterBrokerResponse()


async def update_features(
    backend: Backend, request: wire.UpdateFeaturesRequest, call: Call
) -> wire.UpdateFeaturesResponse:
    """Change all of these features or none."""
    levels: dict[str, int] = {}
    try:
        backend.broker.access.check_cluster(call.caller, Operation.ALTER)
        for update in request.feature_updates:
            await call.pause()
            if not update.feature or update.feature in levels:
                raise InvalidRequest(f"feature {update.feature!r} has no name or is named twice")
            if update.allow_downgrade or update.upgrade_type != _UPGRADE:
                raise FeatureUpdateFailed(f"the level of {update.feature} can only be raised")
            levels[update.feature] = update.max_version_level
        await _update(backend, levels, dry_run=request.validate_only)
    except AlpacaError as error:
        code, text = code_of(error), text_of(error)
        if call.version >= _ONE_RESULT_FROM:
            return wire.UpdateFeaturesResponse(error_code=code, error_message=text)
        return wire.UpdateFeaturesResponse(
            results=[
                wire.UpdatableFeatureResult(feature=update.feature, error_code=code, error_message=text)
                for update in request.feature_updates
            ]
        )
    return wire.UpdateFeaturesResponse(results=[wire.UpdatableFeatureResult(feature=name) for name in levels])


async def _update(backend: Backend, levels: Mapping[str, int], *, dry_run: bool) -> None:
    """Raise levels. Kafka's own features have the one level at which this version serves them."""
    own = {}
    for name, level in levels.items():
        if name not in FEATURES:
            own[name] = level
        elif level != FEATURES[name]:
            raise FeatureUpdateFailed(f"{name} is at level {FEATURES[name]}; there is no level {level}")
    if own:
        await backend.broker.metadata.ask(UpdateFeatures(levels=own, dry_run=dry_run))
