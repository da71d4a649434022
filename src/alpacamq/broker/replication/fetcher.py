"""Fetches from one leader: a connection, and the positions of partitions followed there.

The session is incremental: a request names the partitions whose position changed, and the leader answers
each position once. While nothing is to be reported, one request waits at the leader; a new one ends its wait,
so that a flushed position is never held up.

Positions of replicas that are throttled are held back until there is room for what they fetch.
"""

import asyncio
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from alpacamq.broker.peers.handshake import Peer
from alpacamq.cluster.brokers import NO_EPOCH
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import BrokerId
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.fetch_codec import PartitionWanted
from alpacamq.protocol.replica_fetch_codec import (
    PartitionKey,
    ReplicaFetch,
    ReplicaFetched,
    decode_replica_fetched,
    encode_replica_fetch,
    read_correlation_id,
)
from alpacamq.replication.follower import FetchPosition
from alpacamq.replication.throttle import Throttle
from alpacamq.telemetry.logs import get_logger

from .following import Following

log = get_logger(__name__)

P = TypeVar("P", bound=asyncio.BaseProtocol)

MAX_WAIT_MS: Final = 500
# A response may exceed the limit by one batch.
_MAX_FRAME_BYTES: Final = 1 << 30
# Positions in one request; the others follow in the next.
MAX_POSITIONS: Final = 100
# One request waits at the leader, another one ends its wait.
_MAX_IN_FLIGHT: Final = 2
# A request without positions waits this long for one: records were just received and are being flushed.
_COALESCE_SECONDS: Final = 0.001
# The leader answers after MAX_WAIT_MS at the latest.
RESPONSE_SECONDS: Final = 10.0
FIRST_BACKOFF_SECONDS: Final = 0.05
MAX_BACKOFF_SECONDS: Final = 1.0
# A connection that ended sooner counts as a failed attempt.
STABLE_SECONDS: Final = 1.0
_BUFFER_BYTES: Final = 256 << 10
_SIZE = Struct(">i")


class FetchPeers(Protocol):
    """Opens connections for fetches: `Peers`."""

    async def open_fetch(self, node_id: BrokerId, follow: Callable[[Peer], P]) -> P: ...


class FetchConnection(asyncio.BufferedProtocol):
    """The follower's side of a connection: requests out, response frames in.

    A frame is valid only while it is handled: its buffer is used again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, received: Callable[[memoryview], None]) -> None:
        self._loop = loop
        self._received = received
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0
        self._transport: asyncio.Transport | None = None
        # When requests without a response were sent, oldest first.
        self._sent_at: list[float] = []
        self.closed: asyncio.Future[str] = loop.create_future()

    @property
    def in_flight(self) -> int:
        return len(self._sent_at)

    @property
    def is_closed(self) -> bool:
        return self.closed.done()

    def send(self, frame: bytes) -> None:
        assert self._transport is not None
        self._sent_at.append(self._loop.time())
        self._transport.write(frame)

    def waits_since(self) -> float | None:
        """Return when the oldest request without a response was sent, by the loop's clock."""
        return self._sent_at[0] if self._sent_at else None

    def close(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
            if self._transport is not None:
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(str(exc) if exc else "closed by the leader")

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        try:
            needed = self._handle_frames()
        except ProtocolError as error:
            log.error("fetch_response_invalid", reason=str(error))
            self.close(str(error))
            return
        except Exception:
            log.exception("fetch_connection_crashed")
            self.close("internal error")
            return
        rest = self._buffer[self._start : self._end]
        if needed > len(self._buffer):
            larger = memoryview(bytearray(needed))
            larger[: len(rest)] = rest
            self._buffer = larger
        elif self._start:
            self._buffer[: len(rest)] = bytes(rest)
        self._start, self._end = 0, len(rest)

    def _handle_frames(self) -> int:
        """Handle complete frames; return the size of the incomplete one behind them, as far as known."""
        while not self.is_closed:
            available = self._end - self._start
            if available < _SIZE.size:
                return _SIZE.size
            size: int = _SIZE.unpack_from(self._buffer, self._start)[0]
            if not 0 < size <= _MAX_FRAME_BYTES:
                raise ProtocolError(f"a fetch response of {size} bytes")
            if available < _SIZE.size + size:
                return _SIZE.size + size
            begin = self._start + _SIZE.size
            self._start = begin + size
            if not self._sent_at:
                raise ProtocolError("a fetch response without a request")
            del self._sent_at[0]
            self._received(self._buffer[begin : begin + size])
        return 0


class Pace(NamedTuple):
    """How much one response brings. Partitions in sync must not wait for one that is far behind."""

    is_bulk: bool
    max_partition_bytes: int
    max_response_bytes: int


LIVE: Final = Pace(is_bulk=False, max_partition_bytes=1 << 20, max_response_bytes=4 << 20)
BULK: Final = Pace(is_bulk=True, max_partition_bytes=4 << 20, max_response_bytes=4 << 20)
# A partition is far behind after this many full responses in a row.
FULL_RESPONSES: Final = 16


class Fetcher:
    """Follows partitions that one broker leads. `run` keeps the connection."""

    def __init__(
        self,
        leader_id: BrokerId,
        pace: Pace,
        peers: FetchPeers,
        *,
        node_id: BrokerId,
        broker_epoch: Callable[[], int],
        now_ms: Callable[[], int],
        throttle: Throttle,
        pace_changed: Callable[[Following], None],
    ) -> None:
        """`broker_epoch` returns that of this broker's registration.

        `throttle` limits what all fetchers of this broker fetch for replicas that are throttled.
        `pace_changed` is called with a partition that belongs to the fetcher of the other pace.
        """
        self.leader_id = leader_id
        self.pace = pace
        self._pace_changed = pace_changed
        self._peers = peers
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._now_ms = now_ms
        self._throttle = throttle
        self._followed: dict[PartitionKey, Following] = {}
        # Positions to report, and partitions that the leader need not remember.
        self._unsent: dict[PartitionKey, FetchPosition] = {}
        # Positions that wait for room, in order.
        self._held: dict[PartitionKey, FetchPosition] = {}
        self._release_timer: asyncio.TimerHandle | None = None
        self._forgotten: dict[PartitionKey, None] = {}
        # Partitions whose position the leader has not answered.
        self._open: dict[PartitionKey, None] = {}
        self._connection: FetchConnection | None = None
        self._session_epoch = NO_EPOCH
        self._correlation_id = 0
        self._is_send_due = False
        self._waiting_timer: asyncio.TimerHandle | None = None
        self._logged = ""
        self.last_error = ""
        self.received_bytes = 0
        self.requests = 0

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is followed here."""
        return not self._followed

    @property
    def partitions(self) -> int:
        return len(self._followed)

    def add(self, following: Following, *, is_new_leader: bool) -> None:
        """Follow a partition here; also if it is followed already and its leader's epoch has changed."""
        key = following.key
        self._followed[key] = following
        self._unsent.pop(key, None)
        self._held.pop(key, None)
        self._open.pop(key, None)
        following.fetcher = self
        if is_new_leader:
            following.position = None
        elif following.position is not None:
            # Another fetcher of the same leader was asked for it, and has not sent it or has no answer.
            self._send_position(following, following.position)
        following.drive()

    def remove(self, following: Following) -> None:
        """Stop fetching a partition."""
        key = following.key
        if self._followed.get(key) is following:
            del self._followed[key]
            self._unsent.pop(key, None)
            self._held.pop(key, None)
            self._open.pop(key, None)
            if self._connection is not None:
                self._forgotten[key] = None
                self._send_soon()

    def fetch(self, following: Following, position: FetchPosition) -> None:
        key = following.key
        former = following.position
        following.position = position
        if former is not None and key in self._open and is_same_place(former, position):
            return  # the leader has it, and has not answered it
        self._send_position(following, position)

    def _send_position(self, following: Following, position: FetchPosition) -> None:
        """Send a position with the next request, or once there is room for what it fetches."""
        key = following.key
        if self._is_throttled(following) and (self._held or not self._throttle.room(self._now_ms())):
            self._unsent.pop(key, None)
            self._held[key] = position
            self._release_later()
            return
        self._held.pop(key, None)
        self._unsent[key] = position
        self._send_soon()

    def _is_throttled(self, following: Following) -> bool:
        return self._throttle.rate is not None and following.is_throttled

    def _release_later(self) -> None:
        if self._release_timer is None:
            wait_ms = self._throttle.wait_ms(self._now_ms())
            self._release_timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._release)

    def _release(self) -> None:
        """Send a position that was held back, and others that are not throttled any more."""
        self._release_timer = None
        room = self._throttle.rate is None or self._throttle.room(self._now_ms()) > 0
        for key, position in list(self._held.items()):
            if (is_throttled := self._is_throttled(self._followed[key])) and not room:
                continue
            room = room and not is_throttled  # what it brings is not known yet
            del self._held[key]
            self._unsent[key] = position
        if self._unsent:
            self._send_soon()
        if self._held:
            self._release_later()

    def retry_at(self, following: Following, deadline_ms: int) -> None:
        delay_ms = max(deadline_ms - self._now_ms(), 0) + 1
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._retry, following)

    def _retry(self, following: Following) -> None:
        if following.fetcher is self:
            following.drive()

    # The connection.

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while True:
                if failures:
                    delay = FIRST_BACKOFF_SECONDS * 2 ** min(failures - 1, 10)
                    await asyncio.sleep(min(delay, MAX_BACKOFF_SECONDS))
                if self._broker_epoch() == NO_EPOCH:
                    failures += 1  # the leader would not count this broker
                    continue
                try:
                    connection = await self._peers.open_fetch(
                        self.leader_id, lambda _peer: FetchConnection(loop, self._received)
                    )
                except AlpacaError as error:
                    failures += 1
                    self._report(str(error))
                    continue
                connected_at = loop.time()
                self._connected(connection)
                self._lost(await self._until_closed(connection))
                failures = 0 if loop.time() - connected_at >= STABLE_SECONDS else failures + 1
        finally:
            if self._release_timer is not None:
                self._release_timer.cancel()
            if self._connection is not None:
                self._connection.close("no partition is followed there any more")
                self._connection = None

    async def _until_closed(self, connection: FetchConnection) -> str:
        loop = asyncio.get_running_loop()
        while not connection.is_closed:
            await asyncio.wait({connection.closed}, timeout=RESPONSE_SECONDS / 4)
            since = connection.waits_since()
            if since is not None and loop.time() - since > RESPONSE_SECONDS:
                connection.close("no response in time")
        return connection.closed.result()

    def _connected(self, connection: FetchConnection) -> None:
        log.info("fetch_connected", leader=self.leader_id)
        self.last_error = self._logged = ""
        self._connection = connection
        self._session_epoch = self._broker_epoch()
        self._forgotten.clear()
        self._send_soon()

    def _lost(self, reason: str) -> None:
        self._connection = None
        self._report(reason)
        self._open.clear()
        for following in list(self._followed.values()):
            if following.key not in self._unsent and following.key not in self._held:
                following.unreachable()

    def _report(self, reason: str) -> None:
        self.last_error = reason
        if reason != self._logged:  # once, not for every attempt
            self._logged = reason
            log.warning("fetch_failed", leader=self.leader_id, reason=reason)

    # Requests and responses.

    def _send_soon(self) -> None:
        if not self._is_send_due and self._connection is not None:
            self._is_send_due = True
            asyncio.get_running_loop().call_soon(self._send)

    def _wait_soon(self) -> None:
        """Let the leader hold a request, for partitions whose position it has."""
        if self._waiting_timer is None:
            self._waiting_timer = asyncio.get_running_loop().call_later(_COALESCE_SECONDS, self._send)

    def _send(self) -> None:
        self._is_send_due = False
        if self._waiting_timer is not None:
            self._waiting_timer.cancel()
            self._waiting_timer = None
        connection = self._connection
        if connection is None or connection.is_closed or connection.in_flight >= _MAX_IN_FLIGHT:
            return
        if self._broker_epoch() != self._session_epoch:
            # Positions count for the registration with which they were sent.
            connection.close("this broker was registered again")
            return
        has_news = bool(self._unsent or self._forgotten)
        # Without an open position the leader has nothing to answer with.
        if not has_news and (connection.in_flight or not self._open):
            return
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        topics: dict[bytes, list[PartitionWanted]] = {}
        for key, position in _take(self._unsent, MAX_POSITIONS):
            following = self._followed[key]
            following.sent_in = self._correlation_id
            self._open[key] = None
            topics.setdefault(key[0], []).append(
                PartitionWanted(
                    key[1],
                    position.leader_epoch,
                    position.offset,
                    position.last_epoch,
                    following.partition.start_offset,
                    self._max_bytes(following),
                )
            )
        forgotten: dict[bytes, list[int]] = {}
        for (topic_id, index), _ in _take(self._forgotten, MAX_POSITIONS):
            if (topic_id, index) not in self._open:
                forgotten.setdefault(topic_id, []).append(index)
        self.requests += 1
        connection.send(
            encode_replica_fetch(
                ReplicaFetch(
                    self._correlation_id,
                    MAX_WAIT_MS,
                    self.pace.max_response_bytes,
                    topics,
                    forgotten,
                    self._node_id,
                    self._session_epoch,
                )
            )
        )
        if self._unsent or self._forgotten:
            self._send_soon()

    def _max_bytes(self, following: Following) -> int:
        limit = self.pace.max_partition_bytes
        if self._is_throttled(following):
            # Less than a batch brings one batch.
            limit = min(limit, max(self._throttle.room(self._now_ms()), 1))
        return limit

    def _received(self, frame: memoryview) -> None:
        self.received_bytes += len(frame)
        correlation_id = read_correlation_id(frame)
        for answer in decode_replica_fetched(frame):
            self._answered(correlation_id, answer)
        if self._unsent or self._forgotten:
            self._send_soon()
        elif self._open:
            self._wait_soon()

    def _answered(self, correlation_id: int, answer: ReplicaFetched) -> None:
        key = answer.topic_id, answer.fetched.partition
        following = self._followed.get(key)
        if following is None or key not in self._open or not is_current(correlation_id, following.sent_in):
            return
        if answer.records or answer.fetched.error_code or answer.fetched.diverging_epoch is not None:
            del self._open[key]
        if answer.records:
            following.note_size(len(answer.records), self.pace.max_partition_bytes)
            if self._is_throttled(following):
                self._throttle.copied(len(answer.records))
        following.answered(answer.fetched, answer.records)
        if following.fetcher is self and is_bulk(following, self._throttle) != self.pace.is_bulk:
            self._pace_changed(following)


def is_bulk(following: Following, throttle: Throttle) -> bool:
    """Return whether a partition gets a connection of its own: it has much to fetch, or waits."""
    return following.full_responses >= FULL_RESPONSES or (
        throttle.rate is not None and following.is_throttled
    )


def is_same_place(one: FetchPosition, other: FetchPosition) -> bool:
    """Return whether two positions differ in their request only."""
    return (
        one.offset == other.offset
        and one.leader_epoch == other.leader_epoch
        and one.last_epoch == other.last_epoch
    )


def is_current(correlation_id: int, sent_in: int) -> bool:
    """Return whether a response can answer a position: not one to a request before the position was sent."""
    return (correlation_id - sent_in) & 0x7FFF_FFFF < 1 << 30


_V = TypeVar("_V")


def _take(waiting: dict[PartitionKey, _V], count: int) -> Iterator[tuple[PartitionKey, _V]]:
    """Remove and return the first entries."""
    for key in [key for key, _ in zip(waiting, range(count), strict=False)]:
        yield key, waiting.pop(key)
