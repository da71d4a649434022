"""CreateTopics, DeleteTopics and CreatePartitions."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from alpacamq.api.kafka.brokers import learn_topics
from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.api.kafka.operations import may_create, not_allowed
from alpacamq.cluster.placement import default_replication_factor
from alpacamq.cluster.topics import BY_DEFAULT
from alpacamq.model.errors import (
    AlpacaError,
    InvalidReplicaAssignment,
    InvalidRequest,
    QuotaExceeded,
    UnknownTopicId,
)
from alpacamq.model.topics import Topic, check_topic_name
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from alpacamq.security.acls import Operation

from .configs import check_settings_count, source_of

T = TypeVar("T")
R = TypeVar("R")

# Of one request. More would delay the changes of others, which the controller makes in order.
CHANGES_AT_ONCE = 50
# The first versions whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599). Others are only throttled.
_CREATE_STRICTLY_FROM = 6
_DELETE_STRICTLY_FROM = 5
_GROW_STRICTLY_FROM = 3


async def create_topics(backend: Backend, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    named: Counter[str] = Counter()
    for topic in request.topics:
        named[topic.name] += 1
        await call.pause()
    mutations = None if request.validate_only else call.mutations
    throttle_ms = 0
    described = _Described(backend)

    async def create(topic: CreatableTopic) -> CreatableTopicResult:
        nonlocal throttle_ms
        try:
            if named[topic.name] > 1:
                raise InvalidRequest(f"the request names topic {topic.name!r} {named[topic.name]} times")
            if not may_create(backend.broker.access, call.caller, topic.name):
                raise not_allowed(Operation.CREATE, topic.name)
            if mutations is not None and call.version >= _CREATE_STRICTLY_FROM:
                mutations.check()
            created = await _create(backend, topic, dry_run=request.validate_only)
            if mutations is not None:
                throttle_ms = mutations.charge(created.partitions)
            return _created(backend, created, _replication_factor(backend, created, topic), call, described)
        except AlpacaError as error:
            if isinstance(error, QuotaExceeded):
                throttle_ms = error.retry_after_ms
            return CreatableTopicResult(
                name=topic.name, error_code=code_of(error), error_message=text_of(error)
            )

    results = await _change_each(create, request.topics, call)
    return CreateTopicsResponse(throttle_time_ms=throttle_ms, topics=results)


async def _change_each(
    change: Callable[[T], Coroutine[Any, Any, R]], wanted: Iterable[T], call: Call
) -> list[R]:
    """Make the changes of a request, some at a time, so that they share writes of the metadata log.

    Where a quota applies, the changes before are charged before it is checked.
    """
    at_once = CHANGES_AT_ONCE if call.mutations is None else 1
    left = iter(wanted)
    results: list[R] = []
    while some := list(islice(left, at_once)):
        async with asyncio.TaskGroup() as group:
            tasks = []
            for each in some:
                await call.pause()
                tasks.append(group.create_task(change(each)))
        results += [task.result() for task in tasks]
    return results


async def delete_topics(backend: Backend, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    wanted: Iterable[DeleteTopicState] = request.topics
    if not request.topics:
        wanted = (DeleteTopicState(name=name) for name in request.topic_names)
    named = (each.name for each in request.topics if each.name is not None)
    await learn_topics(backend, [*request.topic_names, *named])
    throttle_ms = 0

    async def delete(entry: DeleteTopicState) -> DeletableTopicResult:
        nonlocal throttle_ms
        name = entry.name
        try:
            if name is None:
                name = _name_of(backend, entry, call)
            backend.broker.access.check_topic(call.caller, Operation.DELETE, name)
            backend.broker.topics.image.topic(name)  # such names usually do not exist
            if call.mutations is not None and call.version >= _DELETE_STRICTLY_FROM:
                call.mutations.check()
            topic = await backend.broker.topics.delete(name)
            if call.mutations is not None:
                throttle_ms = call.mutations.charge(topic.partitions)
            return DeletableTopicResult(name=name, topic_id=topic.id)
        except AlpacaError as error:
            if isinstance(error, QuotaExceeded):
                throttle_ms = error.retry_after_ms
            return DeletableTopicResult(
                name=name,
                topic_id=entry.topic_id,
                error_code=code_of(error),
                error_message=text_of(error),
            )

    results = await _change_each(delete, wanted, call)
    return DeleteTopicsResponse(throttle_time_ms=throttle_ms, responses=results)


async def create_partitions(
    backend: Backend, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse:
    mutations = None if request.validate_only else call.mutations
    throttle_ms = 0
    results = []
    await learn_topics(backend, (entry.name for entry in request.topics))
    for entry in request.topics:
        await call.pause()
        try:
            backend.broker.access.check_topic(call.caller, Operation.ALTER, entry.name)
            before = backend.broker.topics.image.topic(entry.name).partitions
            if mutations is not None and call.version >= _GROW_STRICTLY_FROM:
                mutations.check()
            await backend.broker.topics.grow(
                entry.name,
                entry.count,
                assignments=_added_replicas(backend, entry),
                dry_run=request.validate_only,
            )
            if mutations is not None:
                throttle_ms = mutations.charge(entry.count - before)
            results.append(CreatePartitionsTopicResult(name=entry.name))
        except AlpacaError as error:
            if isinstance(error, QuotaExceeded):
                throttle_ms = error.retry_after_ms
            results.append(
                CreatePartitionsTopicResult(
                    name=entry.name, error_code=code_of(error), error_message=text_of(error)
                )
            )
    return CreatePartitionsResponse(throttle_time_ms=throttle_ms, results=results)


async def _create(backend: Backend, wanted: CreatableTopic, *, dry_run: bool) -> Topic:
    partitions, replication_factor = wanted.num_partitions, wanted.replication_factor
    check_topic_name(wanted.name)
    check_settings_count(wanted.configs)
    if wanted.assignments:
        if partitions != BY_DEFAULT or replication_factor != BY_DEFAULT:
            raise InvalidRequest("an assignment excludes numbers of partitions and replicas")
        _check_count(backend, wanted.assignments)
        if sorted(a.partition_index for a in wanted.assignments) != list(range(len(wanted.assignments))):
            raise InvalidReplicaAssignment("an assignment must contain every partition from 0 on once")
    overrides = {config.name: config.value for config in wanted.configs if config.value is not None}
    return await backend.broker.topics.create(
        wanted.name,
        partitions=partitions,
        replication_factor=replication_factor,
        assignments=[
            tuple(each.broker_ids) for each in sorted(wanted.assignments, key=lambda a: a.partition_index)
        ],
        overrides=overrides,
        dry_run=dry_run,
    )


def _added_replicas(backend: Backend, entry: CreatePartitionsTopic) -> list[tuple[int, ...]]:
    """Return the replicas that a request assigns to new partitions; none if the controller places them."""
    added = entry.count - backend.broker.topics.image.topic(entry.name).partitions
    if entry.assignments is None or added <= 0:  # too few partitions are an error of their own
        return []
    _check_count(backend, entry.assignments)
    if len(entry.assignments) != added:
        raise InvalidReplicaAssignment(
            f"{added} partitions are added but {len(entry.assignments)} are assigned"
        )
    return [tuple(each.broker_ids) for each in entry.assignments]


def _check_count(backend: Backend, assigned: Sequence[object]) -> None:
    brokers = max(1, len(backend.broker.topics.image.brokers))
    most = backend.broker.settings.limits.max_partitions * brokers
    if len(assigned) > most:
        raise InvalidReplicaAssignment(
            f"{len(assigned)} partitions are assigned; the limit of this cluster is {most}"
        )


class _Described:
    """The settings of the topics that a request creates; most have the same."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._defaults = backend.broker.topics.defaults
        self._known: dict[tuple[frozenset[tuple[str, str]], int], list[CreatableTopicConfigs]] = {}

    def settings(self, topic: Topic, replication_factor: int) -> list[CreatableTopicConfigs]:
        topics = self._backend.broker.topics
        if topics.defaults is not self._defaults:
            self._known.clear()
            self._defaults = topics.defaults
        key = frozenset(topic.overrides.items()), replication_factor
        if (found := self._known.get(key)) is None:
            found = self._known[key] = [
                CreatableTopicConfigs(
                    name=name, value=value, config_source=source_of(self._backend, topic, name)
                )
                for name, value in topics.settings_of(topic, replication_factor).items()
            ]
        return found


def _created(
    backend: Backend, topic: Topic, replication_factor: int, call: Call, described: _Described
) -> CreatableTopicResult:
    if not backend.broker.access.sees_topic(call.caller, Operation.DESCRIBE_CONFIGS, topic.name):
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic.id,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.id,
        num_partitions=topic.partitions,
        replication_factor=replication_factor,
        configs=described.settings(topic, replication_factor),
    )


def _replication_factor(backend: Backend, topic: Topic, wanted: CreatableTopic) -> int:
    """Return the number of replicas of a topic; if it was only validated, what it would have."""
    image = backend.broker.topics.image
    if states := image.partitions_of(topic.id):
        return states[0].replication_factor
    if wanted.assignments:
        return len(wanted.assignments[0].broker_ids)
    return default_replication_factor(image) if wanted.replication_factor < 1 else wanted.replication_factor


def _name_of(backend: Backend, entry: DeleteTopicState, call: Call) -> str:
    """Return the name of a topic with this id. The answer is the same if the client may not know of it."""
    topic = backend.broker.topics.image.topic_by_id(entry.topic_id)
    if topic is None or not backend.broker.access.may_topic(call.caller, Operation.DESCRIBE, topic.name):
        raise UnknownTopicId(f"unknown topic id {entry.topic_id}")
    return topic.name
