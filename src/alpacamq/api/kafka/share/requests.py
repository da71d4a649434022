"""ShareFetch and ShareAcknowledge.

Acknowledgements are processed first, alone or as part of a fetch; then records are acquired partition by
partition, and the request waits if there are too few. The requests of a session are ordered.
"""

import asyncio
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from alpacamq.api.kafka import tenancy
from alpacamq.api.kafka.brokers import BrokerNode, hinted_nodes, leader_hint
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.api.kafka.outbox import Piece
from alpacamq.api.kafka.turns import Work
from alpacamq.api.queue_rights import check_reject
from alpacamq.broker.access import Caller
from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.queue.service import Queues
from alpacamq.coordinator.share.config import DescribeGroupConfigRequest, GroupConfigReply, ShareConfig
from alpacamq.coordinator.share.messages import MemberConfigRequest
from alpacamq.model.errors import AlpacaError, InvalidGroupId, InvalidRequest, NotAcquired, UnknownMember
from alpacamq.model.ids import TopicId
from alpacamq.model.names import localized
from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.framing import RequestHeader, response_frame
from alpacamq.protocol.messages.leadership import LeaderIdAndEpoch, NodeEndpoint
from alpacamq.protocol.messages.share import (
    AcknowledgementBatch,
    ShareAcknowledgedPartition,
    ShareAcknowledgedTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareTopic,
)
from alpacamq.protocol.schema import decode_in_slices, encode_in_slices
from alpacamq.protocol.share_fetch_codec import (
    PartitionShared,
    encode_share_fetch_response,
    encode_share_fetch_response_in_slices,
)
from alpacamq.queues.messages import Action, QueueId, Settlement
from alpacamq.security.acls import Operation
from alpacamq.telemetry.tracing import ClientApi

from .fetch import SharedFetch, Taken, find_shared
from .sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    InvalidShareSessionEpoch,
    PartitionKey,
    SessionKey,
    ShareSession,
    ShareSessions,
)

if TYPE_CHECKING:
    from alpacamq.api.kafka.connection import Answer, Connection

MAX_ACKNOWLEDGED = 1_000_000
# Settled per call, so that other requests get their turn in between.
_AT_ONCE = 500
_CHECKED_AT_ONCE = 128

_REJECT = 3
RENEW = 4
ACTIONS: Mapping[int, Action] = {
    0: Action.ACK,  # a gap: there is no record at this offset
    1: Action.ACK,
    2: Action.RELEASE,
    _REJECT: Action.REJECT,
    RENEW: Action.EXTEND,
}
REASON = "rejected by a share consumer"


def check_count(topics: Iterable[ShareTopic]) -> Generator[None, None, None]:
    """Raise InvalidRequest for too many acknowledged records; with stops in between."""
    count = 0
    for topic in topics:
        for each in topic.partitions:
            yield
            for start in range(0, len(each.acknowledgement_batches), _CHECKED_AT_ONCE):
                yield
                for batch in each.acknowledgement_batches[start : start + _CHECKED_AT_ONCE]:
                    count += max(batch.last_offset - batch.first_offset + 1, 0)
    if count > MAX_ACKNOWLEDGED:
        raise InvalidRequest(f"a request must not acknowledge more than {MAX_ACKNOWLEDGED} records: {count}")


def check_batches(batches: Sequence[AcknowledgementBatch], *, may_renew: bool) -> Generator[None, None, None]:
    """Raise InvalidRequest unless batches are in order with one type per offset; with stops in between."""
    after = 0
    for number, batch in enumerate(batches):
        if not number % _CHECKED_AT_ONCE:
            yield
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if not after <= first <= last:
            raise InvalidRequest(
                f"batch of offsets {first} to {last} is out of order: expected {after} or later"
            )
        if len(types) not in (1, last - first + 1):
            raise InvalidRequest(f"batch of offsets {first} to {last} has {len(types)} acknowledgement types")
        for kind in set(types):
            if kind not in ACTIONS or (kind == RENEW and not may_renew):
                raise InvalidRequest(f"unsupported acknowledgement type {kind}")
        after = last + 1


def _rejects(batches: Iterable[AcknowledgementBatch]) -> bool:
    """Return whether records are to be dead-lettered."""
    return any(_REJECT in batch.acknowledge_types for batch in batches)


async def settle(
    queues: Queues,
    queue: QueueId,
    partition: Partition,
    batches: Sequence[AcknowledgementBatch],
    *,
    member_id: str,
    lock_ms: int,
) -> AlpacaError | None:
    """Settle the acknowledged records that the member holds; return the first error."""
    # Not its watermark: a new leader learns later what is committed.
    if batches[-1].last_offset >= partition.end_offset:
        return NotAcquired(f"{partition.identity} has no offset {batches[-1].last_offset} yet")
    wrong: list[AlpacaError] = []
    settlements = _settlements(partition.identity.partition, batches, member_id, lock_ms)
    while some := [*islice(settlements, _AT_ONCE)]:
        results = await queues.settle_acquired(queue, some, api=ClientApi.KAFKA)
        wrong += [error for error in results if error is not None][:1]
    return wrong[0] if wrong else None


def _settlements(
    index: int, batches: Sequence[AcknowledgementBatch], member_id: str, lock_ms: int
) -> Iterator[Settlement]:
    for batch in batches:
        types = batch.acknowledge_types
        for place in range(batch.last_offset - batch.first_offset + 1):
            action = ACTIONS[types[0] if len(types) == 1 else types[place]]
            yield Settlement(
                index,
                batch.first_offset + place,
                action,
                consumer=member_id,
                delay_ms=lock_ms if action is Action.EXTEND else None,
                reason=REASON if action is Action.REJECT else "",
            )


_RENEWALS_FROM = 2
NO_LEADER = -1

Verdicts = dict[PartitionKey, AlpacaError | None]


class ShareRequests:
    """Handles the requests of share consumers of all connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sessions = ShareSessions(broker.groups.release_member)

    def handle(self, connection: "Connection", header: RequestHeader, frame: memoryview) -> None:
        """Start a request; the connection is held meanwhile."""
        answer = connection.reserve()
        frame = connection.kept(frame)
        connection.hold()
        if header.api_key == ApiKey.SHARE_FETCH:
            work = connection.work_while_open(frame)
            connection.spawn_while_open(work.drive(self._fetch(connection, answer, header, frame, work)))
        else:
            # Completed even if the connection closes: acknowledged records must not be delivered again.
            work = connection.work(frame)
            connection.spawn(work.drive(self._acknowledge(connection, answer, header, frame, work)))

    async def _fetch(
        self,
        connection: "Connection",
        answer: "Answer",
        header: RequestHeader,
        frame: memoryview,
        work: Work,
    ) -> None:
        tenant = self._broker.access.tenant_of(connection.caller)
        try:
            request = await work.run(
                decode_in_slices(ShareFetchRequest, header.api_version, frame, header.body_at)
            )
            if tenant is not None:
                request = await work.run(tenancy.stored(tenant, request))
            del frame
            connection.free_frame()
            pieces = await self._fetched(connection, header, request, work)
        except ProtocolError:
            raise
        except AlpacaError as error:
            message = text_of(error) if tenant is None else localized(tenant, text_of(error))
            pieces = [
                *encode_share_fetch_response(
                    header.correlation_id, [], error_code=code_of(error), error_message=message
                )
            ]
        finally:
            work.leave()
        answer.fill(pieces)
        connection.proceed()

    async def _acknowledge(
        self,
        connection: "Connection",
        answer: "Answer",
        header: RequestHeader,
        frame: memoryview,
        work: Work,
    ) -> None:
        tenant = self._broker.access.tenant_of(connection.caller)
        try:
            with connection.cancelling_on_close():
                request = await work.run(
                    decode_in_slices(ShareAcknowledgeRequest, header.api_version, frame, header.body_at)
                )
                if tenant is not None:
                    request = await work.run(tenancy.stored(tenant, request))
            del frame
            connection.free_frame()
            try:
                response = await self._acknowledged(connection, header, request, work)
            except AlpacaError as error:
                response = ShareAcknowledgeResponse(error_code=code_of(error), error_message=text_of(error))
            if tenant is not None:
                response = await work.run(tenancy.local(tenant, response))
            body = await work.run(encode_in_slices(response, header.api_version))
        finally:
            work.leave()
        api = APIS[header.api_key]
        answer.fill((response_frame(api, header.api_version, header.correlation_id, body),))
        connection.proceed()

    async def _fetched(
        self, connection: "Connection", header: RequestHeader, request: ShareFetchRequest, work: Work
    ) -> list[Piece]:
        key = _session_key(request.group_id, request.member_id)
        self._broker.access.check_group(connection.caller, Operation.READ, key[0])
        await work.run(check_count(request.topics))
        epoch = request.share_session_epoch
        if epoch == FINAL_EPOCH:
            if request.forgotten_topics_data:
                raise InvalidRequest("the last request of a share session must not forget partitions")
            session = self._sessions.find(key)
            config = await self._config(key)
        else:
            config = await self._terms(key)
            session = self._session(connection, key, request)
        verdicts = await self._settle(connection.caller, header, key, request.topics, config, work)
        taken: list[Taken] = []
        if epoch == FINAL_EPOCH:
            await self._close(session)
        elif request.max_records > 0 and not (request.is_renew_ack or connection.fetch_wait_ms()):
            taken = await SharedFetch(self._broker, connection.caller, session, request, config, work).run()
        try:
            # The right may have been removed while the fetch waited.
            self._broker.access.check_group(connection.caller, Operation.READ, key[0])
            errors = [*verdicts.values(), *(part.error for part in taken)]
            nodes = self._nodes(errors, connection.listener.name)
            throttle_ms = _charge(connection, taken, work)
            tenant = self._broker.access.tenant_of(connection.caller)
            batch_size = max(request.batch_size, 1)
            return await work.run(
                _response(header, config, verdicts, taken, batch_size, nodes, throttle_ms, tenant)
            )
        except BaseException:
            for part in taken:
                part.covering.release()
            raise

    async def _acknowledged(
        self, connection: "Connection", header: RequestHeader, request: ShareAcknowledgeRequest, work: Work
    ) -> ShareAcknowledgeResponse:
        caller = connection.caller
        key = _session_key(request.group_id, request.member_id)
        self._broker.access.check_group(caller, Operation.READ, key[0])
        await work.run(check_count(request.topics))
        epoch = request.share_session_epoch
        if epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpoch("a share session must begin with a fetch")
        now = asyncio.get_running_loop().time()
        session = self._sessions.find(key)
        if epoch != FINAL_EPOCH:
            session = self._sessions.proceed(key, epoch, now)
        config = await self._config(key)
        verdicts = await self._settle(caller, header, key, request.topics, config, work)
        if epoch == FINAL_EPOCH:
            await self._close(session)
        return ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=config.record_lock_duration_ms,
            responses=[
                ShareAcknowledgedTopic(
                    topic_id=topic_id,
                    partitions=[
                        ShareAcknowledgedPartition(
                            partition_index=index,
                            error_code=0 if error is None else code_of(error),
                            error_message=None if error is None else text_of(error),
                            current_leader=_leader_field(error),
                        )
                        for index, error in partitions
                    ],
                )
                for topic_id, partitions in _by_topic(verdicts)
            ],
            node_endpoints=[
                NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
                for node in self._nodes(verdicts.values(), connection.listener.name)
            ],
        )

    def _nodes(self, errors: Iterable[AlpacaError | None], listener: str) -> list[BrokerNode]:
        """Return the addresses of the leaders that errors name."""
        leaders = {_leader(error)[0] for error in errors if error is not None} - {NO_LEADER}
        return hinted_nodes(self._broker.topics.image, leaders, listener) if leaders else []

    def _session(self, connection: "Connection", key: SessionKey, request: ShareFetchRequest) -> ShareSession:
        """Return the updated session of a fetch."""
        now = asyncio.get_running_loop().time()
        wanted = [
            (topic.topic_id, each.partition_index) for topic in request.topics for each in topic.partitions
        ]
        if request.share_session_epoch != INITIAL_EPOCH:
            forgotten = [
                (topic.topic_id, index)
                for topic in request.forgotten_topics_data
                for index in topic.partitions
            ]
            return self._sessions.proceed(key, request.share_session_epoch, now, wanted, forgotten)
        if any(each.acknowledgement_batches for topic in request.topics for each in topic.partitions):
            raise InvalidRequest("the first request of a share session must not acknowledge records")

        def hung_up() -> None:
            self._sessions.drop(session)

        session = self._sessions.open(key, wanted, now, lambda _: connection.forget_on_close(hung_up))
        connection.on_close(hung_up)
        return session

    async def _terms(self, key: SessionKey) -> ShareConfig:
        """Return the settings of the group for a member; end the session of a former member."""
        asked = MemberConfigRequest(group=key[0], member_id=key[1])
        try:
            terms: ShareConfig = await self._broker.groups.ask(asked)
        except UnknownMember:
            self._sessions.drop_of(key)
            raise
        return terms

    async def _config(self, key: SessionKey) -> ShareConfig:
        """Return the settings of the group for a client that may have left and only settles its records."""
        asked = DescribeGroupConfigRequest(group=key[0])
        reply: GroupConfigReply = await self._broker.groups.ask(asked)
        return reply.config

    async def _settle(
        self,
        caller: Caller,
        header: RequestHeader,
        member: SessionKey,
        topics: Sequence[ShareTopic],
        config: ShareConfig,
        work: Work,
    ) -> Verdicts:
        """Settle acknowledged records; return the result of each partition."""
        verdicts: Verdicts = {}
        for topic in topics:
            for each in topic.partitions:
                await work.pause()
                if not each.acknowledgement_batches:
                    continue
                error: AlpacaError | None
                try:
                    may_renew = header.api_version >= _RENEWALS_FROM
                    await work.run(check_batches(each.acknowledgement_batches, may_renew=may_renew))
                    partition = find_shared(self._broker, caller, topic.topic_id, each.partition_index)
                    queue = QueueId(member[0], partition.identity.topic)
                    if self._broker.access.limits(caller) and _rejects(each.acknowledgement_batches):
                        await check_reject(self._broker, caller, queue)
                    error = await settle(
                        self._broker.queues,
                        queue,
                        partition,
                        each.acknowledgement_batches,
                        member_id=member[1],
                        lock_ms=config.record_lock_duration_ms,
                    )
                except AlpacaError as refused:
                    error = refused
                key = topic.topic_id, each.partition_index
                verdicts[key] = verdicts.get(key) or error
        return verdicts

    async def _close(self, session: ShareSession) -> None:
        departure = self._sessions.close(session)
        for topic, partitions in departure.partitions.items():
            queue = QueueId(departure.group, topic)
            await self._broker.queues.release_consumer(queue, departure.member_id, partitions)


def _charge(connection: "Connection", taken: Sequence[Taken], work: Work) -> int:
    """Count bytes and messages of a response, and throttle the connection; return for how long."""
    meter = connection.meter
    if meter is None:
        return 0
    meter.used_seconds += work.used_seconds
    throttle_ms = meter.charge_time()
    if (fetch_limit := meter.limits.fetch) is not None:
        size = sum(part.covering.length for part in taken)
        messages = sum(len(part.acquired) for part in taken)
        throttle_ms = max(throttle_ms, fetch_limit.charge(size, messages))
    connection.mute(throttle_ms)
    return throttle_ms


def _session_key(group_id: str | None, member_id: str | None) -> SessionKey:
    if not group_id:
        raise InvalidGroupId("group id must not be empty")
    if not member_id:
        raise InvalidRequest("member id must not be empty")
    return group_id, member_id


def _by_topic(verdicts: Verdicts) -> Iterator[tuple[TopicId, list[tuple[int, AlpacaError | None]]]]:
    topics: dict[TopicId, list[tuple[int, AlpacaError | None]]] = {}
    for (topic_id, index), error in verdicts.items():
        topics.setdefault(topic_id, []).append((index, error))
    yield from topics.items()


def _leader_field(error: AlpacaError | None) -> LeaderIdAndEpoch:
    leader_id, leader_epoch = _leader(error)
    return LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)


def _leader(error: AlpacaError | None) -> tuple[int, int]:
    """Return the id and the epoch of the leader that an error names; of none for any other."""
    hint = None if error is None else leader_hint(error)
    return (NO_LEADER, NO_LEADER) if hint is None else hint


def _localized(tenant: str, shared: PartitionShared) -> PartitionShared:
    """Return the response for a partition with error messages for a tenant's client."""
    messages = (shared.error_message, shared.acknowledge_error_message)
    error, of_acknowledgement = (None if each is None else localized(tenant, each) for each in messages)
    return shared._replace(error_message=error, acknowledge_error_message=of_acknowledgement)


def _response(
    header: RequestHeader,
    config: ShareConfig,
    verdicts: Verdicts,
    taken: Sequence[Taken],
    batch_size: int,
    nodes: Sequence[BrokerNode],
    throttle_ms: int,
    tenant: str | None,
) -> Generator[None, None, list[Piece]]:
    """Encode the response: bytes, records, bytes, records, …, bytes; with stops in between."""
    by_key = {part.key: part for part in taken}
    topics: dict[TopicId, list[tuple[PartitionShared, Taken | None]]] = {}
    for key in {**verdicts, **by_key}:
        yield
        part, error = by_key.get(key), verdicts.get(key)
        shared = PartitionShared(key[1]) if part is None else part.shared(batch_size)
        if error is not None:
            shared = shared._replace(
                acknowledge_error_code=code_of(error), acknowledge_error_message=text_of(error)
            )
        if tenant is not None:
            shared = _localized(tenant, shared)
        leader = _leader(error if part is None or part.error is None else part.error)
        if leader[0] != NO_LEADER:
            shared = shared._replace(current_leader=leader)
        topics.setdefault(key[0], []).append((shared, part))
    frame = yield from encode_share_fetch_response_in_slices(
        header.correlation_id,
        [(topic_id.bytes, [shared for shared, _ in entries]) for topic_id, entries in topics.items()],
        lock_timeout_ms=config.record_lock_duration_ms,
        nodes=nodes,
        throttle_ms=throttle_ms,
    )
    pieces: list[Piece] = [frame[0]]
    between = iter(frame[1:])
    for entries in topics.values():
        for shared, part in entries:
            if part is not None and shared.records_bytes:
                pieces += part.covering.slices
                pieces.append(next(between))
    return pieces
