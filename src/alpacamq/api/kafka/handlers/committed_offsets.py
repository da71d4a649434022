"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

Requests identify topics by name or, in the latest versions, by id; the coordinator uses both.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import NamedTuple, TypeVar

import msgspec

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.commits import code_of_commit, codes_of
from alpacamq.api.kafka.errors import code_of
from alpacamq.broker.tracing.commits import record_commits
from alpacamq.broker.tracing.partition import Origin
from alpacamq.coordinator.messages import (
    CommitRequest,
    DeleteOffsetsRequest,
    FetchedOffset,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    OffsetToCommit,
    PartitionResults,
    TxnCommitRequest,
)
from alpacamq.coordinator.transactions.transaction import (
    AddPartitions,
    ProducerIdentity,
    VerifyPartitions,
)
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    InvalidGroupId,
    InvalidTransactionState,
    NotCoordinator,
    PeerFailed,
    PeerUnavailable,
    ProducerFenced,
    RequestTimedOut,
    StaleMemberEpoch,
    TransactionAbortable,
    UnknownBroker,
)
from alpacamq.model.ids import NO_TOPIC_ID, TopicId, TopicName, TopicPartition
from alpacamq.model.topics import Topic
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import committed_offsets as wire
from alpacamq.protocol.messages import transactions as transaction_wire
from alpacamq.security.acls import Operation
from alpacamq.telemetry import tracing

T = TypeVar("T")
ToCommit = wire.OffsetCommitRequestPartition | transaction_wire.TxnOffsetCommitRequestPartition

_TOPIC_IDS_FROM = 10
_GROUPS_FROM = 8
_ERROR_OF_GROUP_FROM = 2
_ABORTABLE_FROM = 4
_JOINS_TRANSACTION_FROM = 5
# The coordinator is blocked while it adds offsets: this many take a few milliseconds.
_AT_ONCE = 1000


class Wanted(NamedTuple):
    """An offset to commit, and the position of its result."""

    offset: OffsetToCommit
    results: list[ErrorCode]
    place: int


class Named(NamedTuple):
    """A topic of which offsets are fetched; without a name, its error."""

    topic: wire.OffsetFetchRequestTopics
    name: str | None
    refusal: ErrorCode = ErrorCode.NONE


async def offset_commit(
    backend: Backend, request: wire.OffsetCommitRequest, call: Call
) -> wire.OffsetCommitResponse:
    async def commit(offsets: tuple[OffsetToCommit, ...]) -> Iterable[ErrorCode]:
        asked = CommitRequest(
            group=request.group_id,
            offsets=offsets,
            generation=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
        )
        try:
            results: PartitionResults = await backend.broker.groups.ask_here(asked)
        except AlpacaError as error:
            return repeat(code_of_commit(error, call.version))
        origin = Origin(tracing.ClientApi.KAFKA, call.client_id, asked.group)
        record_commits(backend.broker.topics, asked.offsets, results, origin)
        return codes_of(results)

    try:
        backend.broker.access.check_group(call.caller, Operation.READ, request.group_id)
        named = (
            (_name_of(backend, topic, call), topic.topic_id, topic.partitions) for topic in request.topics
        )
        codes = await _commit_in_batches(backend, named, call, commit)
    except AlpacaError as error:
        codes = [[code_of(error)] * len(topic.partitions) for topic in request.topics]
    topics = []
    for topic, results in zip(request.topics, codes, strict=True):
        await call.pause()
        partitions = await _results(wire.OffsetCommitResponsePartition, topic.partitions, results, call)
        topics.append(
            wire.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
        )
    return wire.OffsetCommitResponse(topics=topics)


async def txn_offset_commit(
    backend: Backend, request: transaction_wire.TxnOffsetCommitRequest, call: Call
) -> transaction_wire.TxnOffsetCommitResponse:
    async def commit(offsets: tuple[OffsetToCommit, ...]) -> Iterable[ErrorCode]:
        try:
            asked = TxnCommitRequest(
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                group=request.group_id,
                offsets=offsets,
                generation=request.generation_id,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                number=await _check_transaction(backend, request, call),
            )
            return codes_of(await backend.broker.groups.ask_here(asked))
        except ProducerFenced:
            # The error code of a partition, as clients expect here.
            return repeat(ErrorCode.INVALID_PRODUCER_EPOCH)
        except StaleMemberEpoch:
            # Producers identify members of a group by generation only.
            return repeat(ErrorCode.ILLEGAL_GENERATION)
        except AlpacaError as error:
            return repeat(code_of(error))

    access = backend.broker.access
    try:
        access.check_transactional_id(call.caller, Operation.WRITE, request.transactional_id)
        access.check_group(call.caller, Operation.READ, request.group_id)
        named = ((topic.name, NO_TOPIC_ID, topic.partitions) for topic in request.topics)
        codes = await _commit_in_batches(backend, named, call, commit)
    except AlpacaError as error:
        codes = [[code_of(error)] * len(topic.partitions) for topic in request.topics]
    topics = []
    for topic, results in zip(request.topics, codes, strict=True):
        await call.pause()
        partitions = await _results(
            transaction_wire.TxnOffsetCommitResponsePartition, topic.partitions, results, call
        )
        topics.append(transaction_wire.TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    return transaction_wire.TxnOffsetCommitResponse(topics=topics)


async def offset_fetch(
    backend: Backend, request: wire.OffsetFetchRequest, call: Call
) -> wire.OffsetFetchResponse:
    stable = request.require_stable
    if call.version >= _GROUPS_FROM:
        groups = []
        for each in await call.each_once(request.groups, lambda group: group.group_id):
            groups.append(await _fetched(backend, each, call, require_stable=stable))
            await call.pause()
        return wire.OffsetFetchResponse(groups=groups)
    topics = None
    if request.topics is not None:
        topics = []
        for topic in request.topics:
            await call.pause()
            topics.append(
                wire.OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            )
    group = wire.OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    fetched = await _fetched(backend, group, call, require_stable=stable)
    answered = []
    for each_topic in fetched.topics:
        await call.pause()
        answered.append(wire.OffsetFetchResponseTopic(name=each_topic.name, partitions=each_topic.partitions))
    return wire.OffsetFetchResponse(error_code=fetched.error_code, topics=answered)


async def offset_delete(
    backend: Backend, request: wire.OffsetDeleteRequest, call: Call
) -> wire.OffsetDeleteResponse:
    codes: dict[TopicPartition, ErrorCode] = {}
    wanted: list[TopicPartition] = []
    try:
        backend.broker.access.check_group(call.caller, Operation.DELETE, request.group_id)
    except AlpacaError as error:
        return wire.OffsetDeleteResponse(error_code=code_of(error))
    for topic in request.topics:
        await call.pause()
        forbidden = _forbidden(backend, Operation.READ, topic.name, call)
        for each in topic.partitions:
            await call.pause()
            partition = TopicPartition(TopicName(topic.name), each.partition_index)
            if partition not in codes:
                refusal = forbidden or _refusal(backend, topic.name, each.partition_index)
                codes[partition] = refusal
                if not refusal:
                    wanted.append(partition)
    try:
        if not request.group_id:
            raise InvalidGroupId("group id must not be empty")
        for some in _batches(wanted):
            asked = DeleteOffsetsRequest(group=request.group_id, partitions=tuple(some))
            results: PartitionResults = await backend.broker.groups.ask_here(asked)
            codes.update(zip(some, codes_of(results), strict=True))
            await call.pause()
    except AlpacaError as error:
        return wire.OffsetDeleteResponse(error_code=code_of(error))
    topics = []
    for topic in request.topics:
        await call.pause()
        partitions = []
        for each in topic.partitions:
            await call.pause()
            partitions.append(
                wire.OffsetDeleteResponsePartition(
                    partition_index=each.partition_index,
                    error_code=codes[TopicPartition(TopicName(topic.name), each.partition_index)],
                )
            )
        topics.append(wire.OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return wire.OffsetDeleteResponse(topics=topics)


async def _commit_in_batches(
    backend: Backend,
    named: Iterable[tuple[str | None, TopicId, Sequence[ToCommit]]],
    call: Call,
    commit: Callable[[tuple[OffsetToCommit, ...]], Awaitable[Iterable[ErrorCode]]],
) -> list[list[ErrorCode]]:
    """Commit the offsets of existing partitions in batches; return the results by topic."""
    codes: list[list[ErrorCode]] = []
    wanted: list[Wanted] = []
    for name, topic_id, partitions in named:
        await call.pause()
        results: list[ErrorCode] = []
        codes.append(results)
        forbidden = _forbidden(backend, Operation.READ, name, call, by_id=topic_id != NO_TOPIC_ID)
        for each in partitions:
            await call.pause()
            refusal = forbidden or _refusal(backend, name, each.partition_index)
            if name is not None and not refusal:
                wanted.append(Wanted(_to_commit(name, topic_id, each), results, len(results)))
            results.append(refusal)
    # Also with nothing left to commit: the group may refuse the member.
    for some in _batches(wanted):
        committed = await commit(tuple(each.offset for each in some))
        for (_, of_topic, place), code in zip(some, committed, strict=False):
            of_topic[place] = code
        await call.pause()
    return codes


async def _results(
    kind: Callable[..., T], partitions: Sequence[ToCommit], codes: Sequence[ErrorCode], call: Call
) -> list[T]:
    """Return the results of the partitions of a topic for the response."""
    results = []
    for each, code in zip(partitions, codes, strict=True):
        await call.pause()
        results.append(kind(partition_index=each.partition_index, error_code=code))
    return results


async def _check_transaction(
    backend: Backend, request: transaction_wire.TxnOffsetCommitRequest, call: Call
) -> int:
    """Add the group's offsets to the producer's transaction; current clients leave that to the broker.

    Returns the number of the transaction.
    """
    try:
        return await _confirmed(backend, request, call)
    except (NotCoordinator, PeerFailed, PeerUnavailable, RequestTimedOut, UnknownBroker) as error:
        # The coordinator of the transaction is another than that of the group, which the client has found.
        raise CoordinatorLoading(f"the transaction could not be confirmed: {error}") from error


async def _confirmed(backend: Backend, request: transaction_wire.TxnOffsetCommitRequest, call: Call) -> int:
    transactions = backend.broker.transactions
    transactional_id = request.transactional_id
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    partitions = (await backend.broker.groups.offsets_partition(request.group_id),)
    if call.version >= _JOINS_TRANSACTION_FROM:
        added = await transactions.ask(
            AddPartitions(transactional_id=transactional_id, producer=producer, partitions=partitions)
        )
        return added.number
    verified = await transactions.ask(
        VerifyPartitions(transactional_id=transactional_id, producer=producer, partitions=partitions)
    )
    if verified.absent:
        reason = f"the offsets of group {request.group_id!r} are not part of the transaction"
        known = call.version >= _ABORTABLE_FROM
        raise TransactionAbortable(reason) if known else InvalidTransactionState(reason)
    return verified.number


async def _fetched(
    backend: Backend, group: wire.OffsetFetchRequestGroup, call: Call, *, require_stable: bool
) -> wire.OffsetFetchResponseGroup:
    named: list[Named] | None = None
    ids: dict[str, TopicId] = {}
    if group.topics is not None:
        named = []
        for topic in group.topics:
            await call.pause()
            name = _name_of(backend, topic, call)
            by_id = call.version >= _TOPIC_IDS_FROM
            if name is None:
                named.append(Named(topic, None, ErrorCode.UNKNOWN_TOPIC_ID))
            elif forbidden := _forbidden(backend, Operation.DESCRIBE, name, call, by_id=by_id):
                named.append(Named(topic, None, forbidden))
            else:
                named.append(Named(topic, name))
                if by_id:
                    ids[name] = topic.topic_id
    asked = FetchOffsetsRequest(
        group=group.group_id,
        partitions=None,
        topic_ids=ids,
        member_id=group.member_id or "",
        member_epoch=group.member_epoch,
        require_stable=require_stable,
    )
    try:
        backend.broker.access.check_group(call.caller, Operation.DESCRIBE, group.group_id)
        if named is None:
            reply: FetchOffsetsReply = await backend.broker.groups.ask_here(asked)
            topics = await _all_fetched(backend, reply, call)
        else:
            topics = await _named_fetched(backend, asked, named, call)
    except AlpacaError as error:
        code = code_of(error)
        failed = (
            [] if call.version >= _ERROR_OF_GROUP_FROM else [_all(each.topic, code) for each in named or ()]
        )
        return wire.OffsetFetchResponseGroup(group_id=group.group_id, topics=failed, error_code=code)
    return wire.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


async def _named_fetched(
    backend: Backend,
    asked: FetchOffsetsRequest,
    named: Sequence[Named],
    call: Call,
) -> list[wire.OffsetFetchResponseTopics]:
    offsets: list[wire.OffsetFetchResponsePartition] = []
    for some in _batches(_known_partitions(named)):
        reply: FetchOffsetsReply = await backend.broker.groups.ask_here(
            msgspec.structs.replace(asked, partitions=tuple(some))
        )
        for each in reply.offsets:
            offsets.append(_offset(each))
            await call.pause()
    topics = []
    at = 0
    for topic, name, refusal in named:
        await call.pause()
        if name is None:
            topics.append(_all(topic, refusal))
            continue
        stop = at + len(topic.partition_indexes)
        topics.append(
            wire.OffsetFetchResponseTopics(
                name=topic.name, topic_id=topic.topic_id, partitions=offsets[at:stop]
            )
        )
        at = stop
    return topics


def _known_partitions(named: Sequence[Named]) -> Iterator[TopicPartition]:
    for topic, name, _ in named:
        if name is not None:
            for index in topic.partition_indexes:
                yield TopicPartition(TopicName(name), index)


async def _all_fetched(
    backend: Backend, reply: FetchOffsetsReply, call: Call
) -> list[wire.OffsetFetchResponseTopics]:
    by_topic: dict[str, list[wire.OffsetFetchResponsePartition]] = {}
    for each in reply.offsets:
        await call.pause()
        if not backend.broker.access.sees_topic(call.caller, Operation.DESCRIBE, each.topic):
            continue
        by_topic.setdefault(each.topic, []).append(_offset(each))
    if call.version < _TOPIC_IDS_FROM:
        return [
            wire.OffsetFetchResponseTopics(name=name, partitions=offsets)
            for name, offsets in by_topic.items()
        ]
    # A topic without an id is being deleted and cannot be named.
    topics: Mapping[TopicName, Topic] = backend.broker.topics.image.topics
    return [
        wire.OffsetFetchResponseTopics(topic_id=topic.id, partitions=offsets)
        for name, offsets in by_topic.items()
        if (topic := topics.get(TopicName(name))) is not None
    ]


def _offset(fetched: FetchedOffset) -> wire.OffsetFetchResponsePartition:
    return wire.OffsetFetchResponsePartition(
        partition_index=fetched.partition,
        committed_offset=fetched.offset,
        committed_leader_epoch=fetched.leader_epoch,
        metadata=fetched.metadata,
        error_code=ErrorCode.NONE if fetched.error is None else code_of(fetched.error),
    )


def _all(topic: wire.OffsetFetchRequestTopics, code: ErrorCode) -> wire.OffsetFetchResponseTopics:
    """Return the same error for each partition of a topic."""
    return wire.OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            wire.OffsetFetchResponsePartition(partition_index=index, error_code=code)
            for index in topic.partition_indexes
        ],
    )


def _name_of(
    backend: Backend, topic: wire.OffsetCommitRequestTopic | wire.OffsetFetchRequestTopics, call: Call
) -> str | None:
    """Return the name of a requested topic, None if its id is unknown."""
    if call.version < _TOPIC_IDS_FROM:
        return topic.name
    found = backend.broker.topics.image.topic_by_id(topic.topic_id)
    return None if found is None else found.name


def _forbidden(
    backend: Backend, operation: Operation, name: str | None, call: Call, *, by_id: bool = False
) -> ErrorCode:
    """Return the error of a topic to which the client has no right, NONE if it has.

    If it was named by its id, that it exists is said only to clients that may know.
    """
    access = backend.broker.access
    if name is None or access.may_topic(call.caller, operation, name):
        return ErrorCode.NONE
    if by_id and not access.sees_topic(call.caller, Operation.DESCRIBE, name):
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _refusal(backend: Backend, name: str | None, index: int) -> ErrorCode:
    """Return the error of a requested partition, NONE if it exists."""
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    topics = backend.broker.topics
    # A partition that is being recovered exists.
    if not topics.exists(name.encode(), index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _to_commit(name: str, topic_id: TopicId, wanted: ToCommit) -> OffsetToCommit:
    return OffsetToCommit(
        topic=name,
        partition=wanted.partition_index,
        offset=wanted.committed_offset,
        leader_epoch=wanted.committed_leader_epoch,
        metadata=wanted.committed_metadata or "",
        topic_id=topic_id,
    )


def _batches(wanted: Iterable[T]) -> Iterator[Sequence[T]]:
    """Split entries into batches for the coordinator; one empty batch if there are none."""
    rest = iter(wanted)
    yield list(islice(rest, _AT_ONCE))
    while batch := list(islice(rest, _AT_ONCE)):
        yield batch
