"""Connections to the gRPC API of a cluster's nodes, and the addresses of the other APIs, which it names.

Streams share connections, at most `STREAMS_PER_CONNECTION` each: grpclib waits without an end once a server
allows no more. A node that does not answer is left for the next one of the list.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.rpc.error_details_pb2 import ErrorInfo
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol

from alpacamq.client.errors import ClientError, LoginRefused, Refused, Unreachable, refusal
from alpacamq.client.url import Target, authorization
from alpacamq.model.address import Address
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.v1.cluster_grpc import ClusterStub
from alpacamq.v1.cluster_pb2 import EndpointsRequest, EndpointsResponse

from .cluster import Backoff

T = TypeVar("T")

STREAMS_PER_CONNECTION: Final = 50
CONNECT_S: Final = 4.0
# A connection on which a ping is not answered is closed after KEEPALIVE_S + PING_S.
KEEPALIVE_S: Final = 10.0
PING_S: Final = 5.0
MAX_BACKOFF_S: Final = 2.0
# Of a response; the broker's bound for requests.
_WINDOW_BYTES: Final = 4 << 20

# What grpclib raises when a connection or stream fails, besides GRPCError.
FAILURES: Final = (GRPCError, StreamTerminatedError, ProtocolError, OSError, AssertionError)
_PASSING: Final = frozenset(
    {
        Status.UNAVAILABLE,
        Status.ABORTED,
        Status.DEADLINE_EXCEEDED,
        Status.RESOURCE_EXHAUSTED,
        Status.CANCELLED,
    }
)


class GrpcRefused(Refused):
    """The broker answered with a gRPC status; `code` is Kafka's error if the broker named one."""

    def __init__(self, about: str, error: GRPCError) -> None:
        super().__init__(about, _kafka_code(error.details), error.message)
        self.status = error.status

    @property
    def retriable(self) -> bool:
        """Whether the request can be retried."""
        return self.status in _PASSING or super().retriable


def _kafka_code(details: Sequence[Any] | None) -> int:
    """Return the Kafka error that a status names in its details."""
    for each in details or ():
        if isinstance(each, ErrorInfo) and each.reason in ErrorCode.__members__:
            return ErrorCode[each.reason]
    return ErrorCode.UNKNOWN_SERVER_ERROR


def failure_of(error: BaseException, about: str) -> ClientError:
    """Return the error of this client for one of grpclib."""
    if isinstance(error, GRPCError):
        if error.status is Status.UNAVAILABLE and not error.details:
            return Unreachable(f"{about}: {error.message or 'the broker is not available'}")
        if error.status is Status.UNAUTHENTICATED:
            return LoginRefused(about, ErrorCode.SASL_AUTHENTICATION_FAILED, error.message)
        named = refusal(about, _kafka_code(error.details), error.message)
        return GrpcRefused(about, error) if type(named) is Refused else named
    return Unreachable(f"{about}: the connection failed: {error or type(error).__name__}")


def is_transient(error: BaseException) -> bool:
    """Return whether to connect again after an error of grpclib."""
    if isinstance(error, GRPCError):
        return isinstance(failure_of(error, ""), Unreachable) or GrpcRefused("", error).retriable
    return True


class Connection(Channel):  # type: ignore[misc] # grpclib is not checked
    """A connection to one node."""

    def __init__(self, address: Address, target: Target) -> None:
        super().__init__(
            address.host,
            address.port,
            ssl=None if target.tls is None else target.tls.context("h2"),
            config=Configuration(
                _keepalive_time=KEEPALIVE_S,
                _keepalive_timeout=PING_S,
                _http2_max_pings_without_data=0,
                _http2_min_sent_ping_interval_without_data=KEEPALIVE_S / 2,
                http2_connection_window_size=_WINDOW_BYTES,
                http2_stream_window_size=_WINDOW_BYTES,
            ),
        )
        self.address = address
        self.streams = 0
        self._transport: asyncio.Transport | None = None

    async def _create_connection(self) -> H2Protocol:
        try:
            async with asyncio.timeout(CONNECT_S):
                protocol = await super()._create_connection()
        except TimeoutError:
            raise ConnectionError(f"{self.address} does not answer") from None
        self._transport = protocol.connection._transport
        return protocol

    @property
    def is_lost(self) -> bool:
        """Whether it was connected and is closed."""
        return self._protocol is not None and not self._connected

    def close(self) -> None:
        """Close the connection without waiting for what was not sent: a broker may not read it any more."""
        super().close()
        if self._transport is not None:
            self._transport.abort()


class Nodes:
    """The connections to a cluster, and the node that is in use."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._addresses = list(target.addresses)
        random.shuffle(self._addresses)
        self._connections: list[Connection] = []
        self._is_closed = False

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """The metadata of calls: who calls."""
        header = authorization(self._target.credentials)
        return [] if header is None else [("authorization", header)]

    @property
    def addresses(self) -> Sequence[Address]:
        """The nodes, the preferred one first."""
        return self._addresses

    def learn(self, addresses: Sequence[Address]) -> None:
        """Use these nodes from now on; those of the URL stay, behind them."""
        known = [each for each in self._addresses if each in addresses]
        known += [each for each in addresses if each not in known]
        self._addresses = known + [each for each in self._target.addresses if each not in known]

    def avoid(self, address: Address) -> None:
        """Try other nodes before this one."""
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection for one stream, to the preferred node; an error of it prefers another node."""
        connection = self._lend(self._addresses[0])
        connection.streams += 1
        try:
            yield connection
        except FAILURES as error:
            if not isinstance(error, GRPCError) or is_transient(error):
                self.avoid(connection.address)
            raise
        finally:
            connection.streams -= 1
            if connection.is_lost and connection in self._connections:
                self._connections.remove(connection)
                connection.close()

    def _lend(self, address: Address) -> Connection:
        if self._is_closed:
            raise ConnectionError("the client is closed")
        for each in self._connections:
            if each.address == address and each.streams < STREAMS_PER_CONNECTION and not each.is_lost:
                return each
        connection = Connection(address, self._target)
        self._connections.append(connection)
        return connection

    async def call(
        self,
        method: Callable[[Connection], "UnaryUnaryMethod[Any, T]"],
        request: Any,
        *,
        about: str,
        deadline_s: float,
        is_repeatable: bool = True,
    ) -> T:
        """Call a method on the nodes in turn until one answers. Raises Unreachable or Refused.

        One that is not repeatable is sent again only if it certainly was not received.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        backoff = Backoff(cap_s=MAX_BACKOFF_S)
        attempt = 0
        while True:
            left_s = deadline - loop.time()
            is_sent = False
            try:
                async with self.connection() as connection:
                    await connection.__connect__()
                    is_sent = True
                    response: T = await method(connection)(request, timeout=left_s, metadata=self.metadata)
                    return response
            except (*FAILURES, TimeoutError) as error:
                attempt += 1
                pause_s = backoff.next_s() if attempt % len(self._addresses) == 0 else 0
                may_repeat = is_repeatable or not is_sent
                if not may_repeat or not is_transient(error) or loop.time() + pause_s >= deadline:
                    raise failure_of(error, about) from error
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for each in self._connections:
            each.close()
        self._connections.clear()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The addresses of the nodes that serve each API."""

    grpc: tuple[Address, ...]
    kafka: tuple[Address, ...]
    http: tuple[Address, ...]


async def discover(nodes: Nodes, deadline_s: float) -> Endpoints:
    """Ask a node for the addresses of all. Raises Unreachable or Refused."""
    about = f"cluster at {', '.join(map(str, nodes.addresses))}"
    response: EndpointsResponse = await nodes.call(
        lambda connection: ClusterStub(connection).Endpoints,
        EndpointsRequest(),
        about=about,
        deadline_s=deadline_s,
    )
    found = Endpoints(
        grpc=_parsed(each.grpc for each in response.nodes),
        kafka=_parsed(each.kafka for each in response.nodes),
        http=_parsed(each.http for each in response.nodes),
    )
    if not found.kafka:
        raise Unreachable(f"{about}: no node serves the Kafka API, which the client needs for topics")
    return found


def _parsed(addresses: Iterable[str]) -> tuple[Address, ...]:
    return tuple(Address.parse(each) for each in addresses if each)
