"""ApiVersions, DescribeCluster, DescribeLogDirs, Metadata and DescribeTopicPartitions."""

import os
from collections.abc import Callable, Coroutine, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

from alpacamq.api.kafka.brokers import (
    NO_LEADER,
    PartitionView,
    all_nodes,
    controller_node,
    learn_topics,
    live_node,
    live_nodes,
    own_node,
    partition_view,
)
from alpacamq.api.kafka.call import KAFKA_LISTENER, Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.api.kafka.operations import cluster_operations, may_create, topic_operations
from alpacamq.cluster.image import FEATURES as OWN_FEATURES
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicName
from alpacamq.model.topics import Topic, check_topic_name
from alpacamq.protocol.apis import APIS
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from alpacamq.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from alpacamq.protocol.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from alpacamq.security.acls import Operation

# How long a client waits that names a topic this node has not heard of, while the controller does not answer.
LEARN_SECONDS = 0.25
# Earlier versions have no null: an empty list stands for all topics.
_NULL_NAMES_ALL_FROM = 1
_MAX_DESCRIBED_PARTITIONS = 2000
# Topics and partitions described without a stop.
_AT_ONCE = 200
_SORTED_AT_ONCE = 1000


def metadata(
    backend: Backend, request: MetadataRequest, call: Call
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    image = backend.broker.topics.image
    if call.version < _NULL_NAMES_ALL_FROM and not request.topics:
        request = msgspec.structs.replace(request, topics=None)
    if request.topics is None:
        if len(image.topics) + image.partition_count > _AT_ONCE:
            return _in_slices(backend, request, call)
        live = _live_ids(backend)
        described = [
            _described(backend, request, topic, live, call)
            for topic in image.topics.values()
            if _is_visible(backend, call, topic.name)
        ]
        return _response(backend, request, described, call)
    if len(request.topics) > _AT_ONCE:
        return _in_slices(backend, request, call)
    # Without duplicates, as in Kafka.
    entries = list({(entry.name, entry.topic_id): entry for entry in request.topics}.values())
    found = [_find(backend, entry, call) for entry in entries]
    if sum(topic.partitions for topic in found if topic is not None) > _AT_ONCE or (
        None in found and (_creates(backend, request) or backend.broker.metadata.may_be_behind)
    ):
        return _in_slices(backend, request, call)
    live = _live_ids(backend)
    return _response(
        backend,
        request,
        [
            _unknown(backend, request, entry, call)
            if topic is None
            else _described(backend, request, topic, live, call)
            for entry, topic in zip(entries, found, strict=True)
        ],
        call,
    )


async def describe_topic_partitions(
    backend: Backend, request: DescribeTopicPartitionsRequest, call: Call
) -> DescribeTopicPartitionsResponse:
    """Return a page of partitions by name and index, so that responses do not grow with the cluster."""
    await learn_topics(backend, (topic.name for topic in request.topics), LEARN_SECONDS)
    image = backend.broker.topics.image
    live = _live_ids(backend)
    after = "" if request.cursor is None else request.cursor.topic_name
    wanted: set[str] = set()
    for name in [topic.name for topic in request.topics] or list(image.topics):
        # Topics that the client may not know of are left out, unless it names them.
        if name >= after and (request.topics or _is_visible(backend, call, name)):
            wanted.add(name)
        await call.pause()
    room = min(max(request.response_partition_limit, 1), _MAX_DESCRIBED_PARTITIONS)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in await _sorted(wanted, call):
        await call.pause()
        if room <= 0:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        is_visible = backend.broker.access.may_topic(call.caller, Operation.DESCRIBE, name)
        topic = image.topics.get(TopicName(name)) if is_visible else None
        if topic is None:
            code = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_visible else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
            topics.append(DescribeTopicPartitionsResponseTopic(error_code=code, name=name))
            room -= 1
            continue
        first = 0
        if request.cursor is not None and name == after:
            first = request.cursor.partition_index
        shown = _shown(backend, topic)
        views = _views(backend, topic, live)
        partitions = shown[first : first + room]
        topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.id,
                is_internal=topic.is_internal,
                partitions=[_paged(index, views(index)) for index in partitions],
                topic_authorized_operations=topic_operations(backend, call, name),
            )
        )
        room -= len(partitions)
        if first + len(partitions) < len(shown):
            cursor = Cursor(topic_name=name, partition_index=first + len(partitions))
            return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
    return DescribeTopicPartitionsResponse(topics=topics)


async def _sorted(names: Iterable[str], call: Call) -> Iterator[str]:
    """Return the names in order, sorted in slices."""
    runs: list[list[str]] = []
    rest = iter(names)
    while run := list(islice(rest, _SORTED_AT_ONCE)):
        run.sort()
        runs.append(run)
        await call.pause()
    return merge(*runs)


async def _in_slices(backend: Backend, request: MetadataRequest, call: Call) -> MetadataResponse:
    """Describe topics, and create missing ones if the client allows it.

    A topic that cannot be created gets the reason as its error.
    """
    if request.topics is None:
        entries = [MetadataRequestTopic(name=name) for name in list(backend.broker.topics.image.topics)]
    else:
        entries = list(request.topics)
        named = (entry.name for entry in entries if entry.name is not None)
        await learn_topics(backend, named, LEARN_SECONDS)
    topics = []
    live = _live_ids(backend)
    seen: set[tuple[str | None, UUID]] = set()
    for entry in entries:
        await call.pause()
        if (entry.name, entry.topic_id) in seen:
            continue
        seen.add((entry.name, entry.topic_id))
        topic = _find(backend, entry, call)
        refusal = None
        if (
            topic is None
            and entry.name is not None
            and _creates(backend, request)
            and _is_visible(backend, call, entry.name)
        ):
            if may_create(backend.broker.access, call.caller, entry.name):
                topic, refusal = await _created(backend, entry.name, call)
            else:
                refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic is not None:
            topics.append(await _described_in_slices(backend, request, topic, live, call))
        elif request.topics is not None:
            topics.append(_unknown(backend, request, entry, call, refusal))
    return _response(backend, request, topics, call)


def _is_visible(backend: Backend, call: Call, name: str) -> bool:
    """Return whether the client may know whether a topic of this name exists."""
    return backend.broker.access.sees_topic(call.caller, Operation.DESCRIBE, name)


def _creates(backend: Backend, request: MetadataRequest) -> bool:
    return (
        request.topics is not None
        and request.allow_auto_topic_creation
        and backend.broker.settings.auto_create_topics
    )


async def _created(backend: Backend, name: str, call: Call) -> tuple[Topic | None, ErrorCode | None]:
    """Create a topic unless another client has; return it, or the error."""
    mutations = call.mutations
    try:
        check_topic_name(name)  # which invalid names fail
        if mutations is not None and mutations.wait_ms():
            return None, ErrorCode.LEADER_NOT_AVAILABLE  # after which clients ask again
        topic = await backend.broker.topics.get_or_create(name)
        if mutations is not None:
            mutations.charge(topic.partitions)
        return topic, None
    except AlpacaError as error:
        return None, code_of(error)


def _find(backend: Backend, entry: MetadataRequestTopic, call: Call) -> Topic | None:
    """Return a topic; None if there is none, or the client may not know of it."""
    image = backend.broker.topics.image
    if entry.name is None:
        topic = image.topic_by_id(entry.topic_id)
    else:
        topic = image.topics.get(TopicName(entry.name))
    return None if topic is None or not _is_visible(backend, call, topic.name) else topic


def _unknown(
    backend: Backend,
    request: MetadataRequest,
    entry: MetadataRequestTopic,
    call: Call,
    refusal: ErrorCode | None = None,
) -> MetadataResponseTopic:
    asked = request.include_topic_authorized_operations
    if entry.name is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    elif backend.broker.access.may_topic(call.caller, Operation.DESCRIBE, entry.name):
        code = refusal or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        asked = False
    return MetadataResponseTopic(
        error_code=code,
        name=entry.name or "",  # versions before 12 cannot encode a missing name
        topic_id=entry.topic_id,
        topic_authorized_operations=topic_operations(backend, call, entry.name or "", asked=asked),
    )


def _response(
    backend: Backend, request: MetadataRequest, topics: list[MetadataResponseTopic], call: Call
) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in live_nodes(backend, call.listener)
        ],
        cluster_id=backend.broker.cluster_id,
        controller_id=controller_node(backend),
        topics=topics,
        cluster_authorized_operations=cluster_operations(
            backend, call, asked=request.include_cluster_authorized_operations
        ),
    )


def _described(
    backend: Backend, request: MetadataRequest, topic: Topic, live: frozenset[int], call: Call
) -> MetadataResponseTopic:
    views = _views(backend, topic, live)
    partitions = [_partition(index, views(index)) for index in _shown(backend, topic)]
    return _topic(backend, request, topic, partitions, call)


async def _described_in_slices(
    backend: Backend, request: MetadataRequest, topic: Topic, live: frozenset[int], call: Call
) -> MetadataResponseTopic:
    views = _views(backend, topic, live)
    partitions = []
    for index in _shown(backend, topic):
        partitions.append(_partition(index, views(index)))
        await call.pause()
    return _topic(backend, request, topic, partitions, call)


def _live_ids(backend: Backend) -> frozenset[int]:
    return frozenset(node.id for node in live_nodes(backend, KAFKA_LISTENER))


def _views(backend: Backend, topic: Topic, live: frozenset[int]) -> Callable[[int], PartitionView]:
    """Return a function that describes the partitions of a topic by index."""
    states = backend.broker.topics.image.partitions_of(topic.id)
    led = backend.broker.topics.ready_partitions_of(topic.name)

    def view(index: int) -> PartitionView:
        state = states[index] if index < len(states) else None
        return partition_view(state, own_id=backend.node_id, is_led_here=index in led, live=live)

    return view


def _shown(backend: Backend, topic: Topic) -> range:
    """Return the partitions of a topic, none during its creation. Those that are opened have no leader.

    A topic that temporarily has fewer partitions, or none, makes groups of older clients rebalance.
    """
    topics = backend.broker.topics
    states = topics.image.partitions_of(topic.id)
    is_mine = any(state.leader == backend.node_id for state in states)
    is_there = topics.is_recovering or (
        bool(backend.broker.replicas.of_topic(topic.id)) if is_mine else len(states) >= topic.partitions
    )
    return range(topic.partitions if is_there else 0)


def _topic(
    backend: Backend,
    request: MetadataRequest,
    topic: Topic,
    partitions: list[MetadataResponsePartition],
    call: Call,
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        # During the creation of its partitions, clients retry.
        error_code=ErrorCode.NONE if partitions else ErrorCode.LEADER_NOT_AVAILABLE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=topic_operations(
            backend, call, topic.name, asked=request.include_topic_authorized_operations
        ),
    )


def _partition(index: int, view: PartitionView) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if view.leader == NO_LEADER else ErrorCode.NONE,
        partition_index=index,
        leader_id=view.leader,
        leader_epoch=view.leader_epoch,
        replica_nodes=view.replicas,
        isr_nodes=view.isr,
        offline_replicas=view.offline,
    )


def _paged(index: int, view: PartitionView) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if view.leader == NO_LEADER else ErrorCode.NONE,
        partition_index=index,
        leader_id=view.leader,
        leader_epoch=view.leader_epoch,
        replica_nodes=view.replicas,
        isr_nodes=view.isr,
        # Not null, although the schema allows it: Kafka's own client fails on it.
        eligible_leader_replicas=list(view.eligible),
        last_known_elr=list(view.last_known),
        offline_replicas=view.offline,
    )


_BROKERS = 1
_CONTROLLERS = 2
_SERVED = [
    ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
    for _, api in sorted(APIS.items())
]
# Clients use these to decide on the consumer protocol of KIP-848, the share groups of KIP-932, the streams
# groups of KIP-1071 and the transactions of KIP-890.
FEATURES = {"group.version": 1, "share.version": 1, "streams.version": 1, "transaction.version": 2}
_SUPPORTED = [
    SupportedFeatureKey(name=name, min_version=0, max_version=level) for name, level in FEATURES.items()
]
_FINALIZED = [
    FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
    for name, level in FEATURES.items()
]
_OWN_SUPPORTED = [
    SupportedFeatureKey(name=name, min_version=levels.min_level, max_version=levels.max_level)
    for name, levels in OWN_FEATURES.items()
]
# Clients of an earlier version reject a feature whose lowest level is 0 (KAFKA-17011).
_LEVEL_0_FROM = 4


def api_versions(backend: Backend, _request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    metadata = backend.broker.metadata
    finalized = [
        FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, level in metadata.image.features.items()
    ]
    return ApiVersionsResponse(
        api_keys=_SERVED,
        supported_features=_OWN_SUPPORTED + (_SUPPORTED if call.version >= _LEVEL_0_FROM else []),
        finalized_features_epoch=metadata.applied_index,
        finalized_features=_FINALIZED + finalized,
    )


def unsupported_api_versions() -> ApiVersionsResponse:
    """Return the response, in version 0, to a request of an unsupported version."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_SERVED)


def describe_cluster(
    backend: Backend, request: DescribeClusterRequest, call: Call
) -> DescribeClusterResponse:
    if request.endpoint_type == _BROKERS:
        found = all_nodes if request.include_fenced_brokers else live_nodes
        nodes = found(backend, call.listener)
    elif request.endpoint_type == _CONTROLLERS:
        try:
            backend.broker.access.check_cluster(call.caller, Operation.ALTER)
        except AlpacaError as error:
            return DescribeClusterResponse(
                endpoint_type=_CONTROLLERS, error_code=code_of(error), error_message=text_of(error)
            )
        # Requests for the controller are taken by every broker; these can become the controller themselves.
        quorum = backend.broker.metadata.quorum
        voters = [live_node(backend, voter.id, call.listener) for voter in quorum.voters]
        nodes = [node for node in voters if node is not None] or [own_node(backend, call.listener)]
    else:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"unsupported endpoint type {request.endpoint_type}: must be 1 (brokers) or "
            "2 (controllers)",
        )
    return DescribeClusterResponse(
        endpoint_type=request.endpoint_type,
        cluster_id=backend.broker.cluster_id,
        controller_id=controller_node(backend),
        brokers=[
            DescribeClusterBroker(
                broker_id=node.id, host=node.host, port=node.port, rack=node.rack, is_fenced=node.is_fenced
            )
            for node in nodes
        ],
        cluster_authorized_operations=cluster_operations(
            backend, call, asked=request.include_cluster_authorized_operations
        ),
    )


async def describe_log_dirs(
    backend: Backend, request: DescribeLogDirsRequest, call: Call
) -> DescribeLogDirsResponse:
    broker = backend.broker
    try:
        broker.access.check_cluster(call.caller, Operation.DESCRIBE)
    except AlpacaError as error:
        return DescribeLogDirsResponse(error_code=code_of(error))
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        wanted = [(name, range(topic.partitions)) for name, topic in broker.topics.image.topics.items()]
    else:
        named = await call.each_once(request.topics, lambda topic: topic.topic)
        wanted = ((topic.topic, topic.partitions) for topic in named)
    topics = []
    for name, indexes in wanted:
        partitions = []
        topic = broker.topics.image.topics.get(TopicName(name))
        replicas = {} if topic is None else broker.replicas.of_topic(topic.id)
        for index in indexes:
            await call.pause()
            if (partition := replicas.get(index)) is not None:
                size_bytes = partition.size_bytes
                partitions.append(DescribeLogDirsPartition(partition_index=index, partition_size=size_bytes))
        await call.pause()
        if partitions:
            topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
    directory = broker.settings.data_directory
    room = os.statvfs(directory)
    result = DescribeLogDirsResult(
        log_dir=str(directory.absolute()),
        topics=topics,
        total_bytes=room.f_blocks * room.f_frsize,
        usable_bytes=room.f_bavail * room.f_frsize,
    )
    return DescribeLogDirsResponse(results=[result])
