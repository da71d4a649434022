"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders.

The controller decides on them; any broker forwards them to it.
"""

from collections.abc import Sequence

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import CODES, code_of, text_of
from alpacamq.broker.administration import elect, elect_all, reassign
from alpacamq.cluster.commands import (
    ElectionKind,
    NamedPartition,
    PartitionResult,
    Reassignment,
)
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.model.errors import AlpacaError, InvalidReplication, InvalidRequest
from alpacamq.model.ids import TopicName
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import reassignments as wire
from alpacamq.security.acls import Operation

_KINDS = (ElectionKind.PREFERRED, ElectionKind.UNCLEAN)


async def alter_partition_reassignments(
    backend: Backend, request: wire.AlterPartitionReassignmentsRequest, call: Call
) -> wire.AlterPartitionReassignmentsResponse:
    results: dict[tuple[str, int], wire.ReassignablePartitionResponse] = {}
    accepted: list[Reassignment] = []
    try:
        backend.broker.access.check_cluster(call.caller, Operation.ALTER)
    except AlpacaError as error:
        return wire.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_code=code_of(error),
            error_message=text_of(error),
        )
    for topic in request.topics:
        for each in topic.partitions:
            await call.pause()
            wanted = Reassignment(
                topic.name, each.partition_index, None if each.replicas is None else tuple(each.replicas)
            )
            try:
                if (topic.name, each.partition_index) in results:
                    raise InvalidRequest("the request names this partition twice")
                if not request.allow_replication_factor_change:
                    _check_keeps_factor(backend, wanted)
            except AlpacaError as error:
                results[topic.name, each.partition_index] = _reassigned(each.partition_index, error)
            else:
                results[topic.name, each.partition_index] = _reassigned(each.partition_index, None)
                accepted.append(wanted)
    try:
        replies = await reassign(backend.broker.metadata, accepted)
        for wanted, result in zip(accepted, replies, strict=True):
            if result.failure is not None:
                response = _reassigned(wanted.index, result.failure.to_error())
                results[wanted.topic, wanted.index] = response
    except AlpacaError as error:
        return wire.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_code=code_of(error),
            error_message=text_of(error),
        )
    by_topic: dict[str, list[wire.ReassignablePartitionResponse]] = {}
    for (name, _), response in results.items():
        await call.pause()
        by_topic.setdefault(name, []).append(response)
    return wire.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            wire.ReassignableTopicResponse(name=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ],
    )


def _check_keeps_factor(backend: Backend, wanted: Reassignment) -> None:
    state = _state(backend, wanted.topic, wanted.index)
    if state is None or wanted.replicas is None:
        return  # the controller has an error for an unknown partition
    if len(wanted.replicas) != len(state.original_replicas):
        raise InvalidReplication(
            f"{len(wanted.replicas)} replicas instead of {len(state.original_replicas)}, "
            "and the request forbids to change their number"
        )


def _state(backend: Backend, topic: str, index: int) -> PartitionState | None:
    image = backend.broker.topics.image
    known = image.topics.get(TopicName(topic))
    return None if known is None else image.partition(PartitionId(known.id, index))


def _reassigned(index: int, error: AlpacaError | None) -> wire.ReassignablePartitionResponse:
    if error is None:
        return wire.ReassignablePartitionResponse(partition_index=index)
    return wire.ReassignablePartitionResponse(
        partition_index=index, error_code=_code(error), error_message=text_of(error)
    )


def _code(error: AlpacaError) -> ErrorCode:
    # The controller may be of a later version and know errors that this broker does not.
    return CODES.get(type(error), ErrorCode.UNKNOWN_SERVER_ERROR)


async def list_partition_reassignments(
    backend: Backend, request: wire.ListPartitionReassignmentsRequest, call: Call
) -> wire.ListPartitionReassignmentsResponse:
    try:
        backend.broker.access.check_cluster(call.caller, Operation.DESCRIBE)
    except AlpacaError as error:
        return wire.ListPartitionReassignmentsResponse(
            error_code=code_of(error), error_message=text_of(error)
        )
    image = backend.broker.topics.image
    wanted: Sequence[PartitionId] = sorted(image.moving)
    if request.topics is not None:
        named: dict[PartitionId, None] = {}
        for topic in request.topics:
            for index in topic.partition_indexes:
                await call.pause()
                if (known := image.topics.get(TopicName(topic.name))) is not None:
                    named[PartitionId(known.id, index)] = None
        wanted = list(named)
    by_topic: dict[str, list[wire.OngoingPartitionReassignment]] = {}
    for partition in wanted:
        await call.pause()
        known = image.topic_by_id(partition.topic_id)
        state = image.partition(partition)
        if known is not None and state is not None and state.is_moving:
            by_topic.setdefault(known.name, []).append(
                wire.OngoingPartitionReassignment(
                    partition_index=partition.partition,
                    replicas=state.replicas,
                    adding_replicas=state.adding,
                    removing_replicas=state.removing,
                )
            )
    return wire.ListPartitionReassignmentsResponse(
        topics=[
            wire.OngoingTopicReassignment(name=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ]
    )


async def elect_leaders(
    backend: Backend, request: wire.ElectLeadersRequest, call: Call
) -> wire.ElectLeadersResponse:
    """Elect leaders; without a list of partitions, of all that need it."""
    try:
        backend.broker.access.check_cluster(call.caller, Operation.ALTER)
    except AlpacaError as error:
        return wire.ElectLeadersResponse(error_code=code_of(error))
    if not 0 <= request.election_type < len(_KINDS):
        return wire.ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    kind = _KINDS[request.election_type]
    results: dict[str, list[wire.PartitionResult]] = {}
    try:
        if request.topic_partitions is None:
            for result in await elect_all(backend.broker.metadata, kind):
                await call.pause()
                topic = None
                if result.topic_id is not None:
                    topic = backend.broker.topics.image.topic_by_id(result.topic_id)
                if topic is not None:  # else it has been deleted
                    results.setdefault(topic.name, []).append(_elected(result))
        else:
            named: dict[NamedPartition, None] = {}
            for entry in request.topic_partitions:
                for index in entry.partitions:
                    await call.pause()
                    named[NamedPartition(entry.topic, index)] = None
            wanted = list(named)
            replies = await elect(backend.broker.metadata, kind, wanted)
            for partition, result in zip(wanted, replies, strict=True):
                await call.pause()
                results.setdefault(partition.topic, []).append(_elected(result))
    except AlpacaError as error:
        return wire.ElectLeadersResponse(error_code=code_of(error))
    return wire.ElectLeadersResponse(
        replica_election_results=[
            wire.ReplicaElectionResult(topic=name, partition_result=partitions)
            for name, partitions in results.items()
        ]
    )


def _elected(result: PartitionResult) -> wire.PartitionResult:
    if result.failure is None:
        return wire.PartitionResult(partition_id=result.index)
    error = result.failure.to_error()
    return wire.PartitionResult(
        partition_id=result.index, error_code=_code(error), error_message=text_of(error)
    )
