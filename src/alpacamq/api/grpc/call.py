"""What a service gets: the backend that all calls share, and the call with its client and its messages.

Services are subclasses of the generated `*Base` classes. Their methods take a `Call` where grpclib's server
would give them its `Stream`: `recv_message`, `send_message` and iteration are the same. An AlpacaError that a
method raises ends the call with its code and details (`errors.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, cast

from google.protobuf.message import DecodeError

from alpacamq.api.http import throttling
from alpacamq.api.http.messages import Request
from alpacamq.api.rest.app import RestApi
from alpacamq.broker.access import Caller
from alpacamq.broker.broker import Broker
from alpacamq.broker.quotas import ClientLimits, Limit, TrafficLimit
from alpacamq.model import names
from alpacamq.model.address import Address
from alpacamq.model.errors import AuthenticationFailed
from alpacamq.security.acls import Operation
from alpacamq.security.quotas import QuotaKey

from .errors import Malformed

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")

TRACEPARENT = "traceparent"


class Backend:
    """The broker, the HTTP API for calls that it serves too, and the addresses of all APIs by name."""

    __slots__ = ("addresses", "broker", "rest", "stopping")

    def __init__(self, broker: Broker, rest: RestApi, addresses: Mapping[str, Address]) -> None:
        self.broker = broker
        # Serves requests of transcoded methods.
        self.rest = rest
        self.addresses = addresses
        # Set when the broker stops: streams that could stay open end now.
        self.stopping = asyncio.Event()


class Exchange(Protocol):
    """The messages of one call on its connection."""

    async def receive(self) -> bytes | None:
        """Return the next message; None once the client has ended its side."""
        ...

    def receive_nowait(self) -> bytes | None:
        """Return a message that has arrived; None if there is none."""
        ...

    async def send(self, message: bytes) -> None:
        """Send a message; returns when no more than a limit is unsent."""
        ...


class Call(Generic[Q, R]):
    """One call of a method."""

    __slots__ = (
        "_decode",
        "_exchange",
        "backend",
        "caller",
        "deadline",
        "listener",
        "method",
        "request",
        "tenant",
    )

    def __init__(
        self,
        backend: Backend,
        exchange: Exchange,
        method: str,
        request: Request,
        caller: Caller,
        request_type: Any,
        deadline: float | None = None,
        listener: str = "grpc",
    ) -> None:
        self.backend = backend
        self._exchange = exchange
        # As `alpacamq.v1.Queue/Work`.
        self.method = method
        # For what is shared with HTTP: metadata as headers, the address of the client, its certificate.
        self.request = request
        self.caller = caller
        # The tenant of the client; None if it has none.
        self.tenant = backend.broker.access.tenant_of(caller)
        self._decode: Callable[[bytes], Q] = request_type.FromString
        # When the client stops waiting, as a time of the event loop; None if it does not.
        self.deadline = deadline
        # The name of the listener that the client has connected to.
        self.listener = listener

    # Messages.

    async def recv_message(self) -> Q | None:
        """Return the next request; None if the client sends no more.

        Waits while the client has used more time than it may.
        """
        await self._wait_for_time()
        data = await self._exchange.receive()
        return None if data is None else self._decoded(data)

    def recv_nowait(self) -> Q | None:
        """Return a request that has arrived; None if there is none."""
        data = self._exchange.receive_nowait()
        return None if data is None else self._decoded(data)

    def _decoded(self, data: bytes) -> Q:
        try:
            return self._decode(data)
        except DecodeError as error:
            raise Malformed(f"the message is not a request of {self.method}: {error}") from None

    async def only_message(self) -> Q:
        """Return the request of a unary method."""
        message = await self.recv_message()
        if message is None:
            raise Malformed(f"{self.method} takes one message, and there was none")
        return message

    def __aiter__(self) -> "Call[Q, R]":
        return self

    async def __anext__(self) -> Q:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def send_message(self, message: R) -> None:
        """Send a response. Waits while the client is slow to read."""
        await self._exchange.send(cast("Any", message).SerializeToString())

    async def send_bytes(self, message: bytes) -> None:
        """Send a response that is serialized already."""
        await self._exchange.send(message)

    # The client.

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the call by lower-case name."""
        return self.request.headers

    @property
    def peer(self) -> str:
        """IP:PORT of the client."""
        return self.request.peer

    @property
    def traceparent(self) -> str:
        """The trace that the client continues (W3C); empty without one."""
        return self.request.headers.get(TRACEPARENT, "")

    def stored_topic(self, name: str) -> str:
        """Return the stored name of a topic that the client names."""
        return name if self.tenant is None or not name else names.topic_of(self.tenant, name)

    def stored_id(self, name: str) -> str:
        """Return the stored name of a group or transactional id that the client names."""
        return name if self.tenant is None or not name else names.id_of(self.tenant, name)

    def local_topic(self, name: str) -> str:
        """Return a topic as the client names it."""
        return name if self.tenant is None else name.removeprefix(names.topic_of(self.tenant, ""))

    def local_id(self, name: str) -> str:
        """Return a group or transactional id as the client names it."""
        return name if self.tenant is None else name.removeprefix(names.id_of(self.tenant, ""))

    async def learn_topic(self, topic: str) -> None:
        """Catch up with the cluster if a topic (stored name) is unknown: another node may have created it."""
        await self.backend.broker.topics.learn([topic])

    # Rights and quotas.

    def check_topic(self, operation: Operation, topic: str) -> None:
        """Raise TopicNotAuthorized unless the client may do something to a topic (stored name)."""
        self.backend.broker.access.check_topic(self.caller, operation, topic)

    def check_group(self, operation: Operation, group: str) -> None:
        """Raise GroupNotAuthorized unless the client may do something to a group (stored name)."""
        self.backend.broker.access.check_group(self.caller, operation, group)

    async def while_allowed(self, work: Awaitable[T], check: Callable[[], None]) -> T:
        """Return the result of work that may take long, as that of a stream.

        The work is cancelled when `check`, called after every change of rights, raises an error, when the
        client's key is deleted, and when its credential or key expires.
        """
        access = self.backend.broker.access
        remaining_ms = self.caller.remaining_ms
        key = self.caller.key
        if key is not None and key.expires_ms is not None:
            remaining_ms = key.expires_ms - self.backend.broker.time.now_ms()
        if remaining_ms is None:
            return await access.while_allowed(work, self.caller, check)
        try:
            async with asyncio.timeout(max(remaining_ms, 0) / 1000) as valid:
                return await access.while_allowed(work, self.caller, check)
        except TimeoutError:
            if not valid.expired():
                raise
            raise AuthenticationFailed("the credential of the client has expired") from None

    def check_quota(self, key: QuotaKey | None = None) -> None:
        """Raise QuotaExceeded if the client has to wait: because of its time, or of what `key` limits."""
        limits = self.backend.broker.quotas.of_user(self.caller)
        if limits is None:
            return
        limit = limits.request if key is None else self._traffic(limits, key)
        if limit is not None:
            limit.check()

    @staticmethod
    def _traffic(limits: ClientLimits, key: QuotaKey) -> TrafficLimit | None:
        return limits.produce if key is QuotaKey.PRODUCE else limits.fetch

    def charge(self, key: QuotaKey, size_bytes: int, messages: int) -> int:
        """Count what was written (PRODUCE) or read (FETCH); return for how many ms the client has to wait."""
        limits = self.backend.broker.quotas.of_user(self.caller)
        limit = None if limits is None else self._traffic(limits, key)
        return 0 if limit is None else limit.charge(size_bytes, messages)

    async def pay(self, key: QuotaKey, size_bytes: int, messages: int) -> None:
        """Count what a stream has written or read, and wait while that, or its time, is too much."""
        if throttle_ms := self.charge(key, size_bytes, messages):
            await asyncio.sleep(throttle_ms / 1000)
        await self._wait_for_time()

    async def _wait_for_time(self) -> None:
        """Wait while the client has used more time than it may."""
        if (limit := self._time_limit) is not None and (wait_ms := limit.wait_ms()):
            await asyncio.sleep(wait_ms / 1000)

    @property
    def _time_limit(self) -> Limit | None:
        limits = self.backend.broker.quotas.of_user(self.caller)
        return None if limits is None else limits.request

    async def timed(self, work: Awaitable[T]) -> T:
        """Await the work of one task of the call, and charge the client for the time that it uses.

        A stream may stay open for days: its time is charged whenever it adds up to something.
        """
        used = 0.0

        def use(seconds: float) -> None:
            nonlocal used
            used += seconds
            if (limit := self._time_limit) is None:
                used = 0.0
            elif used >= limit.grain:
                limit.charge(used)
                used = 0.0

        try:
            return await throttling.measuring(work, use)
        finally:
            if used and (limit := self._time_limit) is not None:
                limit.charge(used)
