"""A cluster as a client sees it: brokers, partition leaders and coordinators.

Owns the connections, one to each broker in use.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from alpacamq.client.connect import Tls
from alpacamq.client.errors import NotFound, Refused, Unreachable, check, only
from alpacamq.client.options import Coordinates as Coordinates
from alpacamq.model.address import Address
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from alpacamq.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from alpacamq.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

from .connection import Connection, Login

P = ParamSpec("P")
T = TypeVar("T")

# Time to wait for an election or a coordinator that is loading its state.
_RETRY_S = 10.0
_PAUSE_S = 0.1
_MAX_COORDINATORS = 10_000

# Of groups and the like, so that one request takes a broker milliseconds.
NAMES_PER_REQUEST = 500


def batched(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yield the names in order, `size` at a time."""
    for start in range(0, len(names), size):
        yield names[start : start + size]


def retry_transient(call: Callable[P, T]) -> Callable[P, T]:
    """Retry a call for a while if it fails with a transient error, and forget who led or coordinated."""

    @wraps(call)
    def retrying(*arguments: P.args, **named: P.kwargs) -> T:
        deadline = time.monotonic() + _RETRY_S
        while True:
            try:
                return call(*arguments, **named)
            except Refused as refused:
                if not refused.retriable or time.monotonic() > deadline:
                    raise
            for argument in arguments:
                if isinstance(argument, Cluster):
                    argument.forget()
            time.sleep(_PAUSE_S)

    return retrying


class Cluster:
    """Routes requests to the right broker; connects on first use."""

    def __init__(
        self, bootstrap: Address, *others: Address, login: Login | None = None, tls: Tls | None = None
    ) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self._tls = tls
        self._others = others
        self._connections: dict[Address, Connection] = {}
        # The last description of topics, for the first question about leaders that follows it. Only for the
        # first: it may be out of date, and then the question is asked again.
        self._listed: MetadataResponse | None = None
        # Known coordinators. One that is none any more refuses a request, and the retry looks for it again.
        self._coordinators: dict[tuple[Coordinates, str], Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self.forget()

    def close_ended(self) -> None:
        """Close the connections that a broker has closed while they were idle."""
        for connection in self._connections.values():
            if connection.is_open and connection.has_ended():
                connection.close()

    def forget(self) -> None:
        """Forget leaders and coordinators, because they have changed."""
        self._listed = None
        self._coordinators.clear()

    def any_broker(self) -> Connection:
        """Return a connection to the first bootstrap broker that answers."""
        for address in (self._bootstrap, *self._others)[:-1]:
            with suppress(Unreachable):
                return self._to(address)
        return self._to((self._bootstrap, *self._others)[-1])

    def controller(self) -> Connection:
        """Return a connection to the controller."""
        metadata = self.metadata(())
        return self._broker(metadata, metadata.controller_id)

    def all_brokers(self) -> list[Connection]:
        """Return connections to all brokers."""
        metadata = self.metadata(())
        return [self._broker(metadata, broker.node_id) for broker in metadata.brokers]

    @retry_transient
    def coordinator(self, of: Coordinates, name: str) -> Connection:
        """Return a connection to the coordinator of a group or a transactional id."""
        [(coordinator, _)] = self.by_coordinator(of, [name])
        return coordinator

    def by_coordinator(self, of: Coordinates, names: Sequence[str]) -> list[tuple[Connection, list[str]]]:
        """Group the names of groups or transactional ids by the connection to their coordinator."""
        if len(self._coordinators) > _MAX_COORDINATORS:
            self._coordinators.clear()
        coordinated: dict[Connection, list[str]] = defaultdict(list)
        unknown = []
        for name in names:
            known = self._coordinators.get((of, name))
            if known is not None and known.is_open:
                coordinated[known].append(name)
            else:
                unknown.append(name)
        for some in batched(unknown, NAMES_PER_REQUEST):
            answer = self.any_broker().call(
                FindCoordinatorRequest(key_type=of, coordinator_keys=some), FindCoordinatorResponse
            )
            found = {each.key: each for each in answer.coordinators}
            for name in some:
                about = f"finding the coordinator of {name!r}"
                each = only(about, [found[name]] if name in found else [])
                check(about, each.error_code, each.error_message)
                coordinator = self._advertised(Address(each.host, each.port), each.node_id)
                self._coordinators[of, name] = coordinator
                coordinated[coordinator].append(name)
        return list(coordinated.items())

    def metadata(self, names: Sequence[str] | None, *, may_create: bool = False) -> MetadataResponse:
        """Request brokers and topics by name; None for all topics.

        Looking does not create what is looked for, unless that `may_create` it where the broker does so.
        """
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=may_create)
        answer = self.any_broker().call(request, MetadataResponse)
        check("reading metadata", answer.error_code)
        self._listed = answer
        return answer

    @retry_transient
    def topics(
        self, names: Sequence[str] | None = None, *, may_create: bool = False
    ) -> list[MetadataResponseTopic]:
        """Return topics by name; NotFound if one of `names` does not exist."""
        answer = self.metadata(names, may_create=may_create)
        for topic in answer.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                known = [other.name or "" for other in self.metadata(None).topics]
                raise NotFound("topic", topic.name or "", known)
            check(f"topic {topic.name!r}", topic.error_code)
        return sorted(answer.topics, key=lambda topic: topic.name or "")

    def by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> list[tuple[Connection, list[TopicPartition]]]:
        """Group partitions by the connection to their leader."""
        wanted = sorted(set(partitions))
        metadata, self._listed = self._listed, None
        leaders = {} if metadata is None else _leaders(metadata)
        if metadata is None or any(leaders.get(partition, -1) < 0 for partition in wanted):
            metadata, self._listed = self.metadata(sorted({partition.topic for partition in wanted})), None
            leaders = _leaders(metadata)
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in wanted:
            if partition not in leaders:
                raise NotFound("partition", str(partition))
            if leaders[partition] < 0:
                raise Refused(f"partition {partition}", ErrorCode.LEADER_NOT_AVAILABLE)
            led[leaders[partition]].append(partition)
        return [(self._broker(metadata, leader), theirs) for leader, theirs in led.items()]

    def _broker(self, metadata: MetadataResponse, node_id: int) -> Connection:
        for broker in metadata.brokers:
            if broker.node_id == node_id:
                return self._advertised(Address(broker.host, broker.port), node_id)
        return self.any_broker()

    def _advertised(self, address: Address, node_id: int) -> Connection:
        try:
            return self._to(address)
        except Unreachable as error:
            if address == self._bootstrap:
                raise
            raise Unreachable(
                f"{self._bootstrap} advertises broker {node_id} at {address}, which does not answer; "
                "set kafka.advertised in that broker's configuration to a reachable address"
            ) from error

    def _to(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = self._connections[address] = Connection(address, login=self._login, tls=self._tls)
        return connection


def _leaders(metadata: MetadataResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(TopicName(topic.name or ""), partition.partition_index): partition.leader_id
        for topic in metadata.topics
        for partition in topic.partitions
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A broker and its address."""

    id: int
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """Id, controller and brokers of a cluster."""

    id: str
    controller: int
    brokers: tuple[BrokerNode, ...]


def describe_cluster(cluster: Cluster) -> ClusterDescription:
    """Describe the cluster of the bootstrap broker."""
    answer = cluster.any_broker().call(DescribeClusterRequest(), DescribeClusterResponse)
    check("describing the cluster", answer.error_code, answer.error_message)
    brokers = [
        BrokerNode(id=broker.broker_id, address=Address(broker.host, broker.port), rack=broker.rack)
        for broker in answer.brokers
    ]
    return ClusterDescription(
        id=answer.cluster_id,
        controller=answer.controller_id,
        brokers=tuple(sorted(brokers, key=lambda broker: broker.id)),
    )
