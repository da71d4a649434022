"""Dispatches frames to handlers, and encodes their responses."""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from alpacamq.model.errors import QuotaExceeded
from alpacamq.protocol.apis import APIS, Api, ApiKey
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.framing import RequestHeader, read_request_header, response_frame
from alpacamq.protocol.notation import Array, Message, fields_of
from alpacamq.protocol.schema import decode, decode_in_slices, encode, encode_in_slices, run_to_end
from alpacamq.telemetry.metrics import RequestStats

from . import tenancy
from .call import Backend, Call
from .commits import OffsetCommits
from .connection import Answer, Connection
from .fetch import FetchRequests
from .handlers import (
    acls,
    administration,
    committed_offsets,
    configs,
    consumer_groups,
    delegation_tokens,
    groups,
    metadata,
    offsets,
    quorum,
    quotas,
    reassignments,
    share_groups,
    streams_groups,
    topics,
    transactions,
    users,
)
from .handlers import metadata as cluster
from .handlers import share_groups as share_offsets
from .inbox import NO_FRAME
from .produce import ProduceRequests
from .sasl import BEFORE_AUTHENTICATION, SaslRequests
from .share.requests import ShareRequests
from .turns import TINY_REQUEST_BYTES, Work

_ERROR_CODE = "error_code"
_THROTTLE_TIME = "throttle_time_ms"


class _Plan(NamedTuple):
    """Return whether a message type has an error code, and which of its fields hold messages that may."""

    has_code: bool
    parts: tuple[str, ...]


def error_codes(response: Message) -> Iterator[int]:
    """Yield every error code in a response, and zero as a stop for each part without one."""
    plan = _plan(type(response))
    yield getattr(response, _ERROR_CODE) if plan.has_code else 0
    for name in plan.parts:
        for part in getattr(response, name) or ():
            yield from error_codes(part)


@cache
def _plan(kind: type[Message]) -> _Plan:
    fields = fields_of(kind)
    parts = (
        field.name
        for field in fields
        if isinstance(field.type, Array)
        and isinstance(element := field.type.element, type)
        and any(_plan(element))
    )
    return _Plan(any(field.name == _ERROR_CODE for field in fields), tuple(parts))


# Only Produce carries data; decoding anything else takes many times its size in memory.
MAX_PLAIN_REQUEST_BYTES = 8 << 20
# Clients accept no larger response, and building one costs memory.
MAX_RESPONSE_BYTES = 100 << 20
# Entries freed without a stop.
FREED_AT_ONCE = 32
# What is left of a response once it was sent.
_SENT = Message()

# A handler returns a response, or a coroutine that blocks the next requests of the connection.
Handler = Callable[[Backend, Any, Call], Message | Coroutine[Any, Any, Message]]
HANDLERS: Mapping[ApiKey, Handler] = {
    ApiKey.API_VERSIONS: cluster.api_versions,
    ApiKey.METADATA: metadata.metadata,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.LIST_OFFSETS: offsets.list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_RECORDS: offsets.delete_records,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    ApiKey.DESCRIBE_ACLS: acls.describe_acls,
    ApiKey.CREATE_ACLS: acls.create_acls,
    ApiKey.DELETE_ACLS: acls.delete_acls,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: administration.get_telemetry_subscriptions,
    ApiKey.PUSH_TELEMETRY: administration.push_telemetry,
    ApiKey.ALTER_REPLICA_LOG_DIRS: administration.alter_replica_log_dirs,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.list_partition_reassignments,
    ApiKey.ELECT_LEADERS: reassignments.elect_leaders,
    ApiKey.DESCRIBE_QUORUM: quorum.describe_quorum,
    ApiKey.ADD_RAFT_VOTER: quorum.add_raft_voter,
    ApiKey.REMOVE_RAFT_VOTER: quorum.remove_raft_voter,
    ApiKey.UNREGISTER_BROKER: quorum.unregister_broker,
    ApiKey.UPDATE_FEATURES: quorum.update_features,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
    ApiKey.JOIN_GROUP: groups.join_group,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave_group,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.consumer_group_describe,
    ApiKey.SHARE_GROUP_HEARTBEAT: share_groups.share_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: share_groups.share_group_describe,
    ApiKey.STREAMS_GROUP_HEARTBEAT: streams_groups.streams_group_heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: streams_groups.streams_group_describe,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: share_offsets.describe_share_group_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: share_offsets.alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: share_offsets.delete_share_group_offsets,
    ApiKey.OFFSET_COMMIT: committed_offsets.offset_commit,
    ApiKey.OFFSET_FETCH: committed_offsets.offset_fetch,
    ApiKey.OFFSET_DELETE: committed_offsets.offset_delete,
    ApiKey.TXN_OFFSET_COMMIT: committed_offsets.txn_offset_commit,
    ApiKey.INIT_PRODUCER_ID: transactions.init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    ApiKey.END_TXN: transactions.end_txn,
    ApiKey.WRITE_TXN_MARKERS: transactions.write_txn_markers,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
    ApiKey.DESCRIBE_PRODUCERS: transactions.describe_producers,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: quotas.alter_client_quotas,
    ApiKey.CREATE_DELEGATION_TOKEN: delegation_tokens.create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: delegation_tokens.renew_delegation_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: delegation_tokens.expire_delegation_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: delegation_tokens.describe_delegation_token,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: users.describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: users.alter_user_scram_credentials,
}
# Requests that authenticate a connection.
SASL = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
# Requests of share consumers, whose sessions end with their connections.
SHARING = {ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE}
# Answered when other members have joined or synced; useless once the client has disconnected.
RENDEZVOUS = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}


class KafkaRequests:
    """Serves every request of the Kafka API."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._access = backend.broker.access
        self._produce = ProduceRequests(backend.broker)
        self._fetch = FetchRequests(backend.broker)
        self._commits = OffsetCommits(backend.broker)
        self._share = ShareRequests(backend.broker)
        self._sasl = SaslRequests(backend.broker.access)
        self._audit = backend.broker.audit
        self.opened = self._sasl.opened
        self._quotas = backend.broker.quotas
        self.end_turn = backend.broker.commit
        metrics = backend.broker.metrics
        self._stats: Mapping[int, RequestStats | None] = {
            key: None if metrics is None else metrics.listeners["kafka"].of(api.name)
            for key, api in APIS.items()
        }

    def handle(self, connection: Connection, frame: memoryview) -> None:
        """Start one request."""
        is_admitted = connection.received_at < connection.admitted_until
        if not is_admitted and self._sasl.expects_token(connection):
            connection.request_stats = self._stats[ApiKey.SASL_AUTHENTICATE]
            self._sasl.handle_token(connection, frame)
            return
        header = read_request_header(frame)
        api = APIS.get(header.api_key)
        if api is None:
            raise ProtocolError(f"unknown API key {header.api_key}")
        if not is_admitted and api.key not in BEFORE_AUTHENTICATION:
            raise ProtocolError(self._sasl.refusal(connection, api))
        if len(frame) > MAX_PLAIN_REQUEST_BYTES and api.key is not ApiKey.PRODUCE:
            raise ProtocolError(f"a {api.name} request of {len(frame)} bytes is too large")
        connection.request_stats = self._stats[api.key]
        if self._audit is not None:
            client_id = header.client_id or ""
            self._audit.enter("kafka", api.name, client_id, header.correlation_id, connection.caller)
        meter = connection.meter
        if meter is None:
            if self._quotas.is_active and is_admitted:
                self._find_limits(connection, header.client_id)
        elif not (is_admitted and meter.epoch == self._quotas.epoch and meter.client_id == header.client_id):
            self._find_limits(connection, header.client_id if is_admitted else None)
        if not api.serves(header.api_version):
            self._refuse_version(connection, api, header)
        elif api.key is ApiKey.PRODUCE:
            self._produce.handle(connection, header, frame)
        elif api.key is ApiKey.FETCH:
            self._fetch.handle(connection, header, frame)
        elif (
            api.key is ApiKey.OFFSET_COMMIT
            and len(frame) <= TINY_REQUEST_BYTES
            and self._commits.handle(connection, header, frame)
        ):
            pass
        elif api.key in SHARING:
            self._share.handle(connection, header, frame)
        elif api.key in SASL:
            self._sasl.handle(connection, api, header, frame)
        elif len(frame) > TINY_REQUEST_BYTES:  # smaller requests cannot name enough entries to take long
            frame = connection.kept(frame)
            work = connection.work(frame)
            rest = self._handle_large(connection, connection.reserve(), api, header, frame, work)
            self._later(connection, api, work.drive(rest))
        else:
            work = connection.work(frame)
            request = decode(api.request, header.api_version, frame, header.body_at)
            if (tenant := self._access.tenant_of(connection.caller)) is not None:
                request = run_to_end(tenancy.stored(tenant, request))
            response = HANDLERS[api.key](self._backend, request, _call(connection, header, work))
            if isinstance(response, Message):
                if tenant is not None:
                    response = run_to_end(tenancy.local(tenant, response))
                _answer(connection, api, header, response)
            else:
                answer = connection.reserve()
                rest = _finish(connection, answer, api, header, response, work, deque(), tenant)
                self._later(connection, api, work.drive(rest))

    def _find_limits(self, connection: Connection, client_id: str | None) -> None:
        """Set the quotas of a connection; they are kept as long as they and its client are the same."""
        connection.set_limits(self._quotas.of(connection.caller, client_id))
        if self._quotas.limits_connections and connection.received_at < connection.admitted_until:
            try:
                self._quotas.check_connection(connection, connection.caller.name)
            except QuotaExceeded as error:
                raise ProtocolError(str(error)) from None

    def _later(self, connection: Connection, api: Api, rest: Awaitable[None]) -> None:
        """Run the rest of a request as a task, while the connection is held."""
        connection.hold()
        spawn = connection.spawn_while_open if api.key in RENDEZVOUS else connection.spawn
        spawn(rest)

    async def _handle_large(
        self,
        connection: Connection,
        answer: Answer,
        api: Api,
        header: RequestHeader,
        frame: memoryview,
        work: Work,
    ) -> None:
        try:
            # If the client disconnects now, nothing remains of the request, least of all its frame.
            with connection.cancelling_on_close():
                await work.begin()
                request = await work.run(
                    decode_in_slices(api.request, header.api_version, frame, header.body_at)
                )
                if (tenant := self._access.tenant_of(connection.caller)) is not None:
                    request = await work.run(tenancy.stored(tenant, request))
            frame = NO_FRAME
            connection.free_frame()
            response = HANDLERS[api.key](self._backend, request, _call(connection, header, work))
        except BaseException:
            work.leave()
            raise
        used: deque[object] = deque((request,))
        del request
        await _finish(connection, answer, api, header, response, work, used, tenant)

    def _refuse_version(self, connection: Connection, api: Api, header: RequestHeader) -> None:
        if api.key is not ApiKey.API_VERSIONS:
            raise ProtocolError(
                f"{api.name} version {header.api_version} is not supported, "
                f"only {api.min_version} to {api.max_version}"
            )
        body = encode(cluster.unsupported_api_versions(), 0)
        connection.reserve().fill((response_frame(api, 0, header.correlation_id, body),))


def _answer(connection: Connection, api: Api, header: RequestHeader, response: Message) -> None:
    answer = connection.reserve()
    if connection.meter is not None:
        response = _throttled(connection, response, connection.charge_due())
    if answer.stats is not None:
        for code in error_codes(response):
            if code:
                answer.refused(code)
    body = encode(response, header.api_version)
    answer.fill((response_frame(api, header.api_version, header.correlation_id, body),))


def _throttled(connection: Connection, response: Message, throttle_ms: int) -> Message:
    """Throttle a connection, for the time that the response says if that is longer; return the response."""
    said_ms: int = getattr(response, _THROTTLE_TIME, 0)
    if throttle_ms > said_ms and hasattr(response, _THROTTLE_TIME):
        response = msgspec.structs.replace(response, throttle_time_ms=throttle_ms)
    connection.mute(max(throttle_ms, said_ms))
    return response


def _call(connection: Connection, header: RequestHeader, work: Work) -> Call:
    meter = connection.meter
    return Call(
        header.api_version,
        header.client_id or "",
        connection.caller,
        work.pause,
        connection.listener.name,
        None if meter is None else meter.limits.mutation,
    )


async def _finish(
    connection: Connection,
    answer: Answer,
    api: Api,
    header: RequestHeader,
    response: Message | Coroutine[Any, Any, Message],
    work: Work,
    used: deque[object],
    tenant: str | None,
) -> None:
    """Send the response of a request, then free the messages in `used`."""
    try:
        if not isinstance(response, Message):
            if api.key in RENDEZVOUS:
                work.leave()  # it waits for requests that need a slot themselves
            response = await response
        if tenant is not None:
            response = await work.run(tenancy.local(tenant, response))
        if (meter := connection.meter) is not None:
            meter.used_seconds += work.used_seconds
            response = _throttled(connection, response, meter.charge_time())
        body = await work.run(_encoded(answer, header, response))
        answer.fill((response_frame(api, header.api_version, header.correlation_id, body),))
        used.append(response)
        response, body = _SENT, b""
        await work.run(_freed(used))
    finally:
        work.leave()
    connection.proceed()


def _freed(used: deque[object]) -> Generator[None, None, None]:
    """Free messages entry by entry, with stops in between: all at once would take several slices."""
    count = 0
    while used:
        part = used.popleft()
        if isinstance(part, Message):
            for name in _arrays(type(part)):
                used.extend(getattr(part, name) or ())
        del part
        count += 1
        if not count % FREED_AT_ONCE:
            yield


@cache
def _arrays(kind: type[Message]) -> tuple[str, ...]:
    """Return the fields of a message that hold other messages."""
    return tuple(
        field.name
        for field in fields_of(kind)
        if isinstance(field.type, Array) and isinstance(field.type.element, type)
    )


def _encoded(answer: Answer, header: RequestHeader, response: Message) -> Generator[None, None, bytes]:
    """Count the errors of a response and encode it, with stops in between."""
    if answer.stats is not None:
        for code in error_codes(response):
            if code:
                answer.refused(code)
            yield
    writing = encode_in_slices(response, header.api_version)
    while True:
        try:
            size = next(writing)
        except StopIteration as end:
            body: bytes = end.value
            return body
        if size > MAX_RESPONSE_BYTES:
            raise ProtocolError(f"the response would be larger than {MAX_RESPONSE_BYTES} bytes")
        yield
