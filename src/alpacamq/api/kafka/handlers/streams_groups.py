"""StreamsGroupHeartbeat and StreamsGroupDescribe (KIP-1071)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.api.kafka.operations import (
    check_described,
    check_group_topics,
    group_operations,
    may_create,
    not_allowed,
)
from alpacamq.coordinator.groups import DescribeRequest
from alpacamq.coordinator.streams.messages import (
    Endpoint,
    InternalTopic,
    StreamsGroupDescription,
    StreamsHeartbeatReply,
    StreamsHeartbeatRequest,
    StreamsMemberDescription,
    Subtopology,
    TaskIds,
    Tasks,
    Topology,
)
from alpacamq.model.errors import AlpacaError, GroupIdNotFound, InvalidRequest, StreamsInvalidTopology
from alpacamq.model.ids import TopicName
from alpacamq.protocol.messages import streams as wire
from alpacamq.security.acls import Operation

# Entries of a list in a request, and of all lists of a topology.
_MAX_ENTRIES = 10_000
_MAX_OWNED_TASKS = 20_000


async def streams_group_heartbeat(
    backend: Backend, request: wire.StreamsGroupHeartbeatRequest, call: Call
) -> wire.StreamsGroupHeartbeatResponse:
    try:
        backend.broker.access.check_group(call.caller, Operation.READ, request.group_id)
        asked = _asked(request, call)
        if asked.topology is not None:
            await _check_topology(backend, asked.topology, call)
        reply = await backend.broker.groups.ask_here(asked)
    except AlpacaError as error:
        return wire.StreamsGroupHeartbeatResponse(error_code=code_of(error), error_message=text_of(error))
    return _response(reply)


async def streams_group_describe(
    backend: Backend, request: wire.StreamsGroupDescribeRequest, call: Call
) -> wire.StreamsGroupDescribeResponse:
    groups = []
    for group in await call.each_once(request.group_ids, str):
        groups.append(await _described(backend, request, group, call))
        await call.pause()
    return wire.StreamsGroupDescribeResponse(groups=groups)


async def _check_topology(backend: Backend, topology: Topology, call: Call) -> None:
    """Raise TopicNotAuthorized for topics that the client may not know of, or may not have created."""
    await check_described(backend, call, _topics_of(topology))
    access, known = backend.broker.access, backend.broker.topics.image.topics
    for each in topology.subtopologies:
        for topic in each.internal_topics:
            await call.pause()
            if TopicName(topic.name) not in known and not may_create(access, call.caller, topic.name):
                raise not_allowed(Operation.CREATE, topic.name)


def _topics_of(topology: Topology) -> set[str]:
    topics: set[str] = set()
    for each in topology.subtopologies:
        topics.update(each.source_topics, each.repartition_sink_topics)
        topics.update(topic.name for topic in each.internal_topics)
    return topics


def _asked(request: wire.StreamsGroupHeartbeatRequest, call: Call) -> StreamsHeartbeatRequest:
    tags = request.client_tags
    _check_entries(tags or ())
    endpoint = request.user_endpoint
    return StreamsHeartbeatRequest(
        group=request.group_id,
        member_epoch=request.member_epoch,
        member_id=request.member_id,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topology=None if request.topology is None else _topology(request.topology),
        owned=_owned(request),
        process_id=request.process_id,
        endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        client_tags=None if tags is None else tuple(sorted((tag.key, tag.value) for tag in tags)),
        endpoint_epoch=request.endpoint_information_epoch,
        shutdown_application=request.shutdown_application,
        client_id=call.client_id,
        client_host=call.caller.host,
    )


def _owned(request: wire.StreamsGroupHeartbeatRequest) -> Tasks | None:
    """Return the tasks that a member owns, None if it does not say. There are no warm-up tasks to own."""
    lists = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if all(each is None for each in lists):
        return None
    if request.active_tasks is None or request.standby_tasks is None:
        raise InvalidRequest("a member that reports its tasks must report those of every role")
    entries = [*request.active_tasks, *request.standby_tasks, *(request.warmup_tasks or ())]
    _check_entries(entries)
    if sum(len(each.partitions) for each in entries) > _MAX_OWNED_TASKS:
        raise InvalidRequest(f"a member must not own more than {_MAX_OWNED_TASKS} tasks")
    if request.member_epoch == 0 and request.warmup_tasks:
        raise InvalidRequest("a join requires empty lists of owned tasks")
    return Tasks(_task_ids(request.active_tasks), _task_ids(request.standby_tasks))


def _task_ids(listed: Iterable[wire.TaskIds]) -> TaskIds:
    return {each.subtopology_id: frozenset(each.partitions) for each in listed if each.partitions}


def _topology(sent: wire.HeartbeatTopology) -> Topology:
    _check_size(sent)
    return Topology(
        epoch=sent.epoch,
        subtopologies=tuple(sorted(map(_subtopology, sent.subtopologies), key=lambda each: each.id)),
    )


def _subtopology(sent: wire.HeartbeatSubtopology) -> Subtopology:
    """Return a subtopology with sorted topics: clients send them in any order."""
    repartition = [topic.name for topic in sent.repartition_source_topics]
    return Subtopology(
        id=sent.subtopology_id,
        source_topics=tuple(sorted(set(sent.source_topics))),
        source_topic_regex=tuple(sorted(sent.source_topic_regex)),
        changelog_topics=_internal_topics(sent.state_changelog_topics),
        repartition_sink_topics=tuple(sorted(set(sent.repartition_sink_topics))),
        repartition_source_topics=_internal_topics(sent.repartition_source_topics),
        copartition_groups=tuple(
            sorted(_copartitioned(sent, repartition, group) for group in sent.copartition_groups)
        ),
    )


def _copartitioned(
    sent: wire.HeartbeatSubtopology, repartition: Sequence[str], group: wire.CopartitionGroup
) -> tuple[str, ...]:
    """Return the names of the topics of a group, which it gives by their places in the lists."""
    names = set()
    for places, topics in (
        (group.source_topics, sent.source_topics),
        (group.repartition_source_topics, repartition),
    ):
        for place in places:
            if not 0 <= place < len(topics):
                raise StreamsInvalidTopology(
                    f"subtopology {sent.subtopology_id!r} has a copartition group with topic {place} of "
                    f"{len(topics)}"
                )
            names.add(topics[place])
    return tuple(sorted(names))


def _internal_topics(sent: Sequence[wire.TopicInfo]) -> tuple[InternalTopic, ...]:
    topics = {}
    for topic in sent:
        topics[topic.name] = InternalTopic(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=tuple(sorted((each.key, each.value) for each in topic.topic_configs)),
        )
    return tuple(topics[name] for name in sorted(topics))


def _check_size(sent: wire.HeartbeatTopology) -> None:
    """Raise StreamsInvalidTopology if a topology has too many entries, before they are converted."""
    entries = 0
    for lists in _lists(sent):
        entries += len(lists)
        if entries > _MAX_ENTRIES:
            raise StreamsInvalidTopology(f"topology too large: the limit is {_MAX_ENTRIES} entries")


def _lists(sent: wire.HeartbeatTopology) -> Iterator[Sequence[object]]:
    yield sent.subtopologies
    for each in sent.subtopologies:
        yield each.source_topics
        yield each.source_topic_regex
        yield each.repartition_sink_topics
        for topics in (each.state_changelog_topics, each.repartition_source_topics):
            yield topics
            for topic in topics:
                yield topic.topic_configs
        yield each.copartition_groups
        for group in each.copartition_groups:
            yield group.source_topics
            yield group.repartition_source_topics


def _check_entries(listed: Sequence[object]) -> None:
    if len(listed) > _MAX_ENTRIES:
        raise InvalidRequest(f"a list must not have more than {_MAX_ENTRIES} entries")


def _response(reply: StreamsHeartbeatReply) -> wire.StreamsGroupHeartbeatResponse:
    tasks, endpoints = reply.tasks, reply.endpoints
    return wire.StreamsGroupHeartbeatResponse(
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        acceptable_recovery_lag=reply.acceptable_recovery_lag,
        task_offset_interval_ms=reply.task_offset_interval_ms,
        # Always: clients keep the former statuses if there is no list.
        status=[
            wire.GroupStatus(status_code=each.code, status_detail=each.detail) for each in reply.statuses
        ],
        active_tasks=None if tasks is None else _listed(tasks.active),
        standby_tasks=None if tasks is None else _listed(tasks.standby),
        warmup_tasks=None if tasks is None else [],
        endpoint_information_epoch=reply.endpoint_epoch,
        partitions_by_user_endpoint=None
        if endpoints is None
        else [
            wire.EndpointToPartitions(
                user_endpoint=wire.Endpoint(host=each.endpoint.host, port=each.endpoint.port),
                active_partitions=_partitions(each.active),
                standby_partitions=_partitions(each.standby),
            )
            for each in endpoints
        ],
    )


def _listed(tasks: TaskIds) -> list[wire.TaskIds]:
    return [
        wire.TaskIds(subtopology_id=subtopology, partitions=sorted(indexes))
        for subtopology, indexes in sorted(tasks.items())
    ]


def _partitions(by_topic: Mapping[str, tuple[int, ...]]) -> list[wire.EndpointTopicPartitions]:
    return [
        wire.EndpointTopicPartitions(topic=name, partitions=list(indexes))
        for name, indexes in by_topic.items()
    ]


async def _described(
    backend: Backend, request: wire.StreamsGroupDescribeRequest, group: str, call: Call
) -> wire.DescribedStreamsGroup:
    try:
        backend.broker.access.check_group(call.caller, Operation.DESCRIBE, group)
        found = await backend.broker.groups.ask_here(DescribeRequest(group=group))
        if not isinstance(found, StreamsGroupDescription):
            raise GroupIdNotFound(f"group {group!r} is not a streams group")
        if found.topology is not None:
            await check_group_topics(backend, call, _topics_of(found.topology))
    except AlpacaError as error:
        return wire.DescribedStreamsGroup(
            group_id=group, error_code=code_of(error), error_message=text_of(error)
        )
    return wire.DescribedStreamsGroup(
        group_id=group,
        group_state=found.state,
        group_epoch=found.epoch,
        assignment_epoch=found.assignment_epoch,
        topology=None if found.topology is None else _described_topology(found.topology),
        members=[_member(member) for member in found.members],
        authorized_operations=group_operations(
            backend, call, group, asked=request.include_authorized_operations
        ),
    )


def _described_topology(topology: Topology) -> wire.DescribedTopology:
    return wire.DescribedTopology(
        epoch=topology.epoch,
        subtopologies=[
            wire.DescribedSubtopology(
                subtopology_id=each.id,
                source_topics=list(each.source_topics),
                repartition_sink_topics=list(each.repartition_sink_topics),
                state_changelog_topics=[_topic_info(topic) for topic in each.changelog_topics],
                repartition_source_topics=[_topic_info(topic) for topic in each.repartition_source_topics],
            )
            for each in topology.subtopologies
        ],
    )


def _topic_info(topic: InternalTopic) -> wire.TopicInfo:
    return wire.TopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[wire.KeyValue(key=name, value=value) for name, value in topic.configs],
    )


def _member(member: StreamsMemberDescription) -> wire.DescribedStreamsMember:
    endpoint = member.endpoint
    return wire.DescribedStreamsMember(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else wire.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[wire.KeyValue(key=name, value=value) for name, value in member.client_tags],
        assignment=_described_tasks(member.assignment),
        target_assignment=_described_tasks(member.target_assignment),
    )


def _described_tasks(tasks: Tasks) -> wire.DescribedTasks:
    return wire.DescribedTasks(active_tasks=_listed(tasks.active), standby_tasks=_listed(tasks.standby))
