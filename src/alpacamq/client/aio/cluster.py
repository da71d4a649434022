"""A cluster as an asyncio client sees it: brokers, topics, leaders and coordinators.

Owns the connections: one to each broker for short requests, one for each producer and reader, because a
broker answers the requests of a connection one after another and a fetch waits.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from alpacamq.client.connect import Tls
from alpacamq.client.errors import (
    ClientError,
    Closed,
    ErrorCode,
    NotFound,
    Refused,
    Unreachable,
    only,
    refusal,
)
from alpacamq.client.framing import CLIENT_ID
from alpacamq.client.login import Credentials
from alpacamq.client.options import Coordinates as Coordinates
from alpacamq.client.options import Isolation as Isolation
from alpacamq.model.address import Address
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from alpacamq.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from alpacamq.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from alpacamq.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from alpacamq.protocol.notation import Message

from .connection import Connection, connect

R = TypeVar("R", bound=Message)
T = TypeVar("T")

REQUEST_S = 30.0
_METADATA_AGE_S = 60.0
_CREATION_S = 3.0
_EARLIEST, _LATEST = -2, -1
_NONE = -1
_TOPIC_RESOURCE = 2
# Of a request for short answers, to the broker that is tried first.
_SHARED = "shared"

# Another broker has the partition, or this one does not know yet that it has it.
STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
MOVED_COORDINATOR = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic in the metadata: its id, and the leader of each partition (-1 if there is none)."""

    name: str
    id: UUID
    leaders: tuple[int, ...]


class Backoff:
    """Exponential backoff with full jitter."""

    def __init__(self, base_s: float = 0.05, cap_s: float = 1.0) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_s(self) -> float:
        """Return how long to wait after one more failure."""
        most = min(self._cap_s, self._base_s * 2.0**self._failures)
        self._failures = min(self._failures + 1, 30)
        return random.uniform(0, most)  # noqa: S311 - spreads clients, keeps no secret

    async def wait(self) -> None:
        await asyncio.sleep(self.next_s())


@dataclass(slots=True, eq=False)
class _Endpoint:
    """An address, and the connections to it by their users."""

    address: Address
    connections: dict[object, Connection] = field(default_factory=dict)
    connecting: "dict[object, asyncio.Task[Connection]]" = field(default_factory=dict)
    backoff: Backoff = field(default_factory=Backoff)
    not_before: float = 0.0


class Cluster:
    """Routes requests to brokers; connects on first use, and again after a connection is lost."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        client_id: str = CLIENT_ID,
        request_s: float = REQUEST_S,
    ) -> None:
        if not bootstrap:
            raise ValueError("no address is given")
        self._bootstrap = tuple(bootstrap)
        self._tls = tls
        self._credentials = credentials
        self._client_id = client_id
        self.request_s = request_s
        self._endpoints: dict[Address, _Endpoint] = {}
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, Topic] = {}
        self._requested_at: dict[str, float] = {}
        self._coordinators: dict[tuple[Coordinates, str], int] = {}
        # The next request for metadata, which callers share, and the topics that it is about.
        self._refresh: asyncio.Task[None] | None = None
        self._wanted: set[str] = set()
        self._may_create = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; calls in flight end with Closed."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._close(list(self._endpoints.values()))
        self._endpoints.clear()

    async def _close(self, endpoints: Iterable[_Endpoint], user: object | None = None) -> None:
        for endpoint in endpoints:
            for name in [user] if user is not None else list(endpoint.connections):
                if (connection := endpoint.connections.pop(name, None)) is not None:
                    await connection.close()

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task that ends with the cluster at the latest."""
        if self._is_closed:
            work.close()
            raise Closed("the client is closed")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # callers have it, unless all were cancelled

    # Connections.

    async def release(self, user: object) -> None:
        """Close the connections of one user."""
        endpoints = list(self._endpoints.values())
        for endpoint in endpoints:
            if (task := endpoint.connecting.get(user)) is not None:
                task.cancel()
                await asyncio.wait([task])
        await self._close(endpoints, user)

    async def connection(self, node_id: int, user: object = _SHARED) -> Connection:
        """Return an open connection to a broker. Raises Unreachable, LoginRefused."""
        if (address := self._brokers.get(node_id)) is None:
            raise Unreachable(f"the address of broker {node_id} is not known")
        try:
            return await self._to(address, user)
        except Unreachable as error:
            if address in self._bootstrap or not error.retriable:
                raise
            raise Unreachable(
                f"{self._bootstrap[0]} advertises broker {node_id} at {address}, which does not answer; "
                "set kafka.advertised in that broker's configuration to a reachable address"
            ) from error

    def open_connection(self, node_id: int, user: object) -> Connection | None:
        """Return the connection of a user to a broker, if it can be used as it is."""
        if (address := self._brokers.get(node_id)) is None or address not in self._endpoints:
            return None
        found = self._endpoints[address].connections.get(user)
        return found if found is not None and found.is_open and not found.is_expiring else None

    async def _to(self, address: Address, user: object) -> Connection:
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            endpoint = self._endpoints[address] = _Endpoint(address)
        found = endpoint.connections.get(user)
        if found is not None and found.is_open and not found.is_expiring:
            return found
        task = endpoint.connecting.get(user)
        if task is None:
            task = endpoint.connecting[user] = self.spawn(self._connect(endpoint, user))
        return await _shared(task)

    async def _connect(self, endpoint: _Endpoint, user: object) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            old = endpoint.connections.get(user)
            if old is not None:
                # What was sent before must not be overtaken by what follows.
                await old.drained()
                await old.close()
                endpoint.connections.pop(user, None)
            if (left_s := endpoint.not_before - loop.time()) > 0:
                await asyncio.sleep(left_s)
            try:
                connection = await connect(
                    endpoint.address, tls=self._tls, credentials=self._credentials, client_id=self._client_id
                )
            except Unreachable:
                endpoint.not_before = loop.time() + endpoint.backoff.next_s()
                raise
            endpoint.backoff.reset()
            endpoint.connections[user] = connection
            return connection
        finally:
            endpoint.connecting.pop(user, None)

    async def any_connection(self) -> Connection:
        """Return a connection to any broker, preferably an open one."""
        known = list(dict.fromkeys((*self._brokers.values(), *self._bootstrap)))
        for address in known:
            endpoint = self._endpoints.get(address)
            found = None if endpoint is None else endpoint.connections.get(_SHARED)
            if found is not None and found.is_open and not found.is_expiring:
                return found
        random.shuffle(known)
        failure: Unreachable | None = None
        for address in known:
            try:
                return await self._to(address, _SHARED)
            except Unreachable as error:
                failure = error
        assert failure is not None
        raise failure

    # Requests.

    async def call(
        self,
        node_id: int,
        request: Message,
        answer: type[R],
        *,
        user: object = _SHARED,
        timeout_s: float = 0.0,
    ) -> R:
        """Send a request to a broker. Raises Unreachable."""
        connection = await self.connection(node_id, user)
        return await connection.call(request, answer, timeout_s=timeout_s or self.request_s)

    async def call_any(self, request: Message, answer: type[R]) -> R:
        """Send a request to any broker."""
        return await (await self.any_connection()).call(request, answer, timeout_s=self.request_s)

    async def call_coordinator(self, of: Coordinates, name: str, request: Message, answer: type[R]) -> R:
        """Send a request to the coordinator of a group or transactional id, once."""
        try:
            return await self.call(await self.coordinator(of, name), request, answer)
        except Unreachable:
            self.forget_coordinator(of, name)
            raise

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], *, also: Container[ErrorCode] = frozenset()
    ) -> T:
        """Repeat a call that fails with a retriable error or one of `also`, with backoff, for `request_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.request_s
        backoff = Backoff()
        while True:
            try:
                return await attempt()
            except ClientError as error:
                if not error.retriable and not (isinstance(error, Refused) and error.code in also):
                    raise
                wait_s = backoff.next_s()
                if loop.time() + wait_s > deadline:
                    raise
                await asyncio.sleep(wait_s)

    async def coordinator(self, of: Coordinates, name: str) -> int:
        """Return the broker that coordinates a group or a transactional id."""
        if (known := self._coordinators.get((of, name))) is not None:
            return known
        request = FindCoordinatorRequest(key_type=of, coordinator_keys=[name])
        about = f"finding the coordinator of {name!r}"
        found = only(about, (await self.call_any(request, FindCoordinatorResponse)).coordinators)
        if found.error_code:
            raise refusal(about, found.error_code, found.error_message)
        self._brokers[found.node_id] = Address(found.host, found.port)
        self._coordinators[of, name] = found.node_id
        return found.node_id

    def forget_coordinator(self, of: Coordinates, name: str) -> None:
        """Look the coordinator up again before the next request: it has moved, or does not answer."""
        self._coordinators.pop((of, name), None)

    def check_coordinated(
        self, of: Coordinates, name: str, about: str, code: int, message: str | None = None
    ) -> None:
        """Raise the error of a coordinator's response, and forget one that has moved."""
        if code in MOVED_COORDINATOR:
            self.forget_coordinator(of, name)
        if code:
            raise refusal(about, code, message)

    # Metadata.

    def known_topic(self, name: str) -> Topic | None:
        """Return a topic of the cached metadata."""
        return self._topics.get(name)

    def leader_of(self, partition: TopicPartition) -> int:
        """Return the leader of a partition by the cached metadata; -1 if it is not known."""
        topic = self._topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.leaders):
            return -1
        return topic.leaders[partition.partition]

    def is_stale(self, name: str) -> bool:
        """Return whether the metadata of a topic is so old that there may be more partitions."""
        age_s = asyncio.get_running_loop().time() - self._requested_at.get(name, -_METADATA_AGE_S)
        return age_s >= _METADATA_AGE_S

    async def topic(self, name: str, *, may_create: bool = True) -> Topic:
        """Return a topic of the cached metadata, which is requested if need be. Raises NotFound."""
        loop = asyncio.get_running_loop()
        created_by = loop.time() + (_CREATION_S if may_create else 0.0)

        async def attempt() -> Topic:
            if (found := self._topics.get(name)) is None:
                await self.refresh([name], may_create=may_create)
                found = self._topics.get(name)
            if found is None:
                if loop.time() < created_by:
                    # Apache Kafka says so while it creates a topic that the request asks for.
                    raise refusal(f"topic {name!r}", ErrorCode.LEADER_NOT_AVAILABLE, topic=name)
                raise NotFound("topic", name, await self.topic_names())
            return found

        return await self.retry(attempt)

    async def topic_of_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic of an id; None if it was deleted."""
        for topic in self._topics.values():
            if topic.id == topic_id:
                return topic
        request = MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=topic_id)], allow_auto_topic_creation=False
        )
        self._learn(await self.call_any(request, MetadataResponse))
        return next((topic for topic in self._topics.values() if topic.id == topic_id), None)

    async def topic_names(self) -> list[str]:
        """Return the names of all topics that this client may see."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = await self.call_any(request, MetadataResponse)
        return sorted(topic.name for topic in answer.topics if topic.name and not topic.error_code)

    async def refresh(self, names: Iterable[str], *, may_create: bool = False) -> None:
        """Request the metadata of topics; calls at the same time share one request."""
        self._wanted.update(names)
        self._may_create |= may_create
        if self._refresh is None:
            self._refresh = self.spawn(self._request_metadata())
        await _shared(self._refresh)

    async def _request_metadata(self) -> None:
        await asyncio.sleep(0)
        # Who comes from now on needs another request.
        wanted, self._wanted, self._refresh = self._wanted, set(), None
        may_create, self._may_create = self._may_create, False
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in sorted(wanted)],
            allow_auto_topic_creation=may_create,
        )
        self._learn(await self.call_any(request, MetadataResponse))

    def _learn(self, answer: MetadataResponse) -> None:
        if answer.error_code:
            raise refusal("reading metadata", answer.error_code)
        self._brokers.update({each.node_id: Address(each.host, each.port) for each in answer.brokers})
        now = asyncio.get_running_loop().time()
        failure: Refused | None = None
        for topic in answer.topics:
            if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                self._topics.pop(topic.name or "", None)
            elif topic.error_code:
                about = f"topic {topic.name!r}"
                failure = refusal(about, topic.error_code, topic=topic.name)
            else:
                name = topic.name or ""
                self._topics[name] = Topic(name=name, id=topic.topic_id, leaders=_leaders(topic))
                self._requested_at[name] = now
        if failure is not None:
            raise failure

    # Offsets and settings.

    async def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record at or after a time by partition, or None."""
        found = await self._list_offsets(list(partitions), max(0, timestamp_ms), Isolation.UNCOMMITTED)
        return {partition: None if offset == _NONE else offset for partition, offset in found.items()}

    async def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first record by partition."""
        return await self._list_offsets(list(partitions), _EARLIEST, Isolation.UNCOMMITTED)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation: Isolation = Isolation.COMMITTED
    ) -> dict[TopicPartition, int]:
        """Return the end of each partition; for committed records that of transactions that have ended."""
        return await self._list_offsets(list(partitions), _LATEST, isolation)

    async def _list_offsets(
        self, partitions: list[TopicPartition], at: int, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}

        async def attempt() -> None:
            missing = sorted(set(partitions) - found.keys())
            for leader, theirs in (await self.by_leader(missing)).items():
                request = ListOffsetsRequest(
                    isolation_level=isolation,
                    topics=[
                        ListOffsetsTopic(
                            name=name,
                            partitions=[
                                ListOffsetsPartition(partition_index=each.partition, timestamp=at)
                                for each in those
                            ],
                        )
                        for name, those in groupby(theirs, attrgetter("topic"))
                    ],
                )
                try:
                    answer = await self.call(leader, request, ListOffsetsResponse)
                except Unreachable:
                    self.forget(theirs)
                    raise
                for topic in answer.topics:
                    for result in topic.partitions:
                        partition = TopicPartition(TopicName(topic.name), result.partition_index)
                        self.check_partition("reading the offsets of", partition, result.error_code)
                        found[partition] = result.offset
            if lacking := set(partitions) - found.keys():
                raise ProtocolError(
                    f"the response lacks the offsets of {', '.join(map(str, sorted(lacking)))}"
                )

        await self.retry(attempt)
        return found

    def check_partition(
        self, doing: str, partition: TopicPartition, code: int, message: str | None = None
    ) -> None:
        """Raise the error of a partition in a response; metadata that is out of date is requested again."""
        if code in STALE_METADATA:
            self.forget([partition])
        if code:
            raise refusal(
                f"{doing} {partition}", code, message, topic=partition.topic, partition=partition.partition
            )

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Request the metadata of partitions again before it is used: their leader has changed or is gone."""
        for partition in partitions:
            self._topics.pop(partition.topic, None)

    async def by_leader(self, partitions: Sequence[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Group partitions, which are sorted, by their leader. Raises NotFound, Refused."""
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        missing = [name for name in {each.topic for each in partitions} if name not in self._topics]
        if missing:
            await self.refresh(missing)
        for partition in partitions:
            topic = self._topics.get(partition.topic)
            if topic is None or partition.partition >= len(topic.leaders):
                raise NotFound("partition", str(partition))
            leader = topic.leaders[partition.partition]
            if leader < 0:
                self.check_partition("finding the leader of", partition, ErrorCode.LEADER_NOT_AVAILABLE)
            led[leader].append(partition)
        return led

    async def topic_settings(self, name: str) -> Mapping[str, str | None]:
        """Return the settings of a topic by name."""
        request = DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=name)]
        )

        async def attempt() -> Mapping[str, str | None]:
            answer = await self.call_any(request, DescribeConfigsResponse)
            about = f"reading the settings of {name!r}"
            result = only(about, answer.results)
            if result.error_code:
                raise refusal(about, result.error_code, result.error_message, topic=name)
            return {each.name: each.value for each in result.configs}

        return await self.retry(attempt)


def _leaders(topic: MetadataResponseTopic) -> tuple[int, ...]:
    leaders = {each.partition_index: each.leader_id for each in topic.partitions}
    return tuple(leaders.get(index, -1) for index in range(max(leaders, default=-1) + 1))


async def _shared(task: "asyncio.Task[T]") -> T:
    """Return the result of a task that others wait for too; it goes on if this caller is cancelled."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise Closed("the client is closed") from None
        raise
