"""Fetches of followers: the leader's side of replication, on connections of the cluster listener.

A connection is one session. A request names the partitions whose position changed, and each position is
answered once: with records, with the point where the logs diverge, or with an error. Partitions tell the
session what changed, so that those at rest cost nothing. A request waits until there is an answer; the next
request ends its wait. New watermarks travel with other answers, or when a wait ends.

A position of a replica that is throttled is answered once there is room for its records.

Records go from file to socket. What was written before the last start is verified first, and damaged bytes
are never sent.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Protocol

import msgspec

from alpacamq.api.kafka.connection import Answer, Connection, Shared
from alpacamq.api.kafka.errors import code_of
from alpacamq.api.kafka.fetch import woven
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.readable import Readable
from alpacamq.model.errors import AlpacaError, OffsetOutOfRange, StorageFailed
from alpacamq.model.ids import BrokerId
from alpacamq.protocol.apis import ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.fetch_codec import (
    FetchCall,
    PartitionFetched,
    PartitionWanted,
    decode_fetch,
    encode_fetch_response,
)
from alpacamq.protocol.framing import read_request_header
from alpacamq.protocol.replica_fetch_codec import VERSION, PartitionKey
from alpacamq.replication.throttle import Throttle
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import ReplicationStats

log = get_logger(__name__)

# A slice keeps its file open until it is sent.
MAX_SLICES: Final = 128
VERIFY_ATTEMPTS: Final = 3
# A follower has one connection, and maybe former ones that this side still holds.
MAX_SESSIONS_PER_NODE: Final = 8
_SCRATCH_BYTES: Final = 64 << 10


class _Limits(msgspec.Struct, frozen=True):
    """Limits of fetch connections. Dead nodes are noticed by the transport."""

    max_connections: int = 4096
    idle_timeout_ms: int = 600_000
    frame_timeout_ms: int = 30_000
    max_request_bytes: int = 1 << 20
    connection_in_flight_bytes: int = 64 << 20
    connection_in_flight_requests: int = 512
    in_flight_bytes: int = 64 << 20


class LedPartitions(Protocol):
    """The partitions that this broker leads: `Topics`."""

    def find_replicated(self, key: bytes, index: int, /) -> Partition | None: ...
    def absence(self, key: bytes, index: int) -> AlpacaError: ...


class _Followed:
    """One partition of a session, and the position that the follower has reported."""

    __slots__ = (
        "attempts",
        "diverging",
        "error",
        "is_answered",
        "is_postponed",
        "is_verifying",
        "key",
        "partition",
        "told",
        "wanted",
    )

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.partition: Partition | None = None
        self.wanted = PartitionWanted(key[1], -1, 0, -1, -1, 0)
        self.is_answered = False
        self.is_verifying = False
        # Whether it waits for room in the throttle.
        self.is_postponed = False
        # Answers that are known before anything is read.
        self.error: AlpacaError | None = None
        self.diverging: tuple[int, int] | None = None
        # Attempts to verify the bytes at this position.
        self.attempts = 0
        # High watermark and log start that the follower knows.
        self.told = (-1, -1)


class Session:
    """The fetches of one connection."""

    def __init__(self, fetches: "ReplicaFetches", connection: Connection, peer: Peer) -> None:
        self._fetches = fetches
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.node_id: BrokerId = peer.node_id
        self._followed: dict[PartitionKey, _Followed] = {}
        self._by_partition: dict[Partition, _Followed] = {}
        # Positions that may have an answer now, in order; and those whose watermark or start has moved.
        self._due: dict[_Followed, None] = {}
        self._stale: dict[_Followed, None] = {}
        # Positions that wait for room in the throttle, in order.
        self._postponed: dict[_Followed, None] = {}
        self._resume_timer: asyncio.TimerHandle | None = None
        # The request that waits.
        self._parked: tuple[Answer, int, FetchCall] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_serving_due = False
        connection.on_close(self.close)

    def close(self) -> None:
        """Forget everything, because the connection has ended."""
        for partition in self._by_partition:
            partition.detach(self)
        self._by_partition.clear()
        self._followed.clear()
        self._due.clear()
        self._stale.clear()
        self._postponed.clear()
        self._parked = None
        for timer in (self._timer, self._resume_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._resume_timer = None
        self._fetches.left(self)

    # Requests.

    def received(self, frame: memoryview) -> None:
        """Handle a request. Raises ProtocolError."""
        header = read_request_header(frame)
        if (header.api_key, header.api_version) != (ApiKey.FETCH, VERSION):
            raise ProtocolError(f"request {header.api_key} v{header.api_version} on a connection for fetches")
        call = decode_fetch(VERSION, frame, header.body_at)
        if call.replica_id != self.node_id:
            raise ProtocolError(f"broker {self.node_id} fetches as broker {call.replica_id}")
        # First: an answer to this request's positions must not be in the response to an earlier one.
        self._end_wait()
        for topic, indexes in call.forgotten:
            for index in indexes:
                self._forget((topic, index))
        for topic, partitions in call.topics:
            for wanted in partitions:
                self._take((topic, wanted.partition), wanted, call.replica_epoch)
        self._parked = self._connection.reserve(), header.correlation_id, call
        if not self._serve():
            self._timer = self._loop.call_later(call.max_wait_ms / 1000, self._time_is_up)

    def _take(self, key: PartitionKey, wanted: PartitionWanted, broker_epoch: int) -> None:
        """Note a position."""
        followed = self._followed.get(key)
        if followed is None:
            followed = self._followed[key] = _Followed(key)
        followed.wanted = wanted
        followed.is_answered = False
        followed.error = followed.diverging = None
        followed.attempts = 0
        self._postponed.pop(followed, None)
        followed.is_postponed = False
        try:
            partition = self._attach(followed)
            followed.diverging = partition.fetched_by(
                self.node_id,
                broker_epoch,
                wanted.current_leader_epoch,
                wanted.last_fetched_epoch,
                wanted.fetch_offset,
            )
        except AlpacaError as error:
            followed.error = error.with_traceback(None)
            self._due[followed] = None
            return
        if followed.diverging is not None or partition.end_offset > wanted.fetch_offset:
            self._due[followed] = None
        elif followed.told != (partition.high_watermark, partition.start_offset):
            self._stale[followed] = None

    def _attach(self, followed: _Followed) -> Partition:
        partition = self._fetches.topics.find_replicated(*followed.key)
        former = followed.partition
        if partition is not former:
            if former is not None:
                former.detach(self)
                del self._by_partition[former]
            followed.partition = partition
            if partition is not None:
                partition.attach(self)
                self._by_partition[partition] = followed
                followed.told = (-1, -1)
        if partition is None:
            raise self._fetches.topics.absence(*followed.key)
        return partition

    def _forget(self, key: PartitionKey) -> None:
        followed = self._followed.pop(key, None)
        if followed is not None:
            self._due.pop(followed, None)
            self._stale.pop(followed, None)
            self._postponed.pop(followed, None)
            if followed.partition is not None:
                followed.partition.detach(self)
                del self._by_partition[followed.partition]

    # What partitions tell.

    def log_changed(self, partition: Partition) -> None:
        followed = self._by_partition.get(partition)
        if followed is None or followed.is_answered or (followed.is_postponed and partition.is_leading):
            return
        self._due[followed] = None
        self._serve_soon()

    def watermark_changed(self, partition: Partition) -> None:
        if (followed := self._by_partition.get(partition)) is not None:
            self._stale[followed] = None

    # Responses.

    def _serve_soon(self) -> None:
        # Not at once: more is appended in the same turn.
        if not self._is_serving_due and self._parked is not None:
            self._is_serving_due = True
            self._loop.call_soon(self._serve_due)

    def _serve_due(self) -> None:
        self._is_serving_due = False
        if self._parked is not None:
            self._parked[0].begin_now()
            self._serve()

    def _serve(self) -> bool:
        """Answer the waiting request if there is anything to answer with."""
        if not self._due or not (found := self._gather()):
            return False
        self._respond(found)
        return True

    def _time_is_up(self) -> None:
        self._timer = None
        self._end_wait()

    def _end_wait(self) -> None:
        if self._parked is not None:
            self._respond(self._gather() if self._due else [])

    def _gather(self) -> list[tuple[_Followed, PartitionFetched, Readable | None]]:
        """Answer due positions in order, as far as the response has room."""
        assert self._parked is not None
        room = self._parked[2].max_bytes
        slices = 0
        found: list[tuple[_Followed, PartitionFetched, Readable | None]] = []
        for followed in list(self._due):
            if slices and (room <= 0 or slices >= MAX_SLICES):
                break  # the rest is first next time
            if followed.is_answered or followed.is_verifying:
                del self._due[followed]
                continue
            try:
                fetched, records = self._read(followed, room, first=slices == 0)
            except AlpacaError as error:
                fetched, records = _failure(followed, error), None
            if fetched is None:
                is_waiting = followed.is_verifying or followed.is_postponed
                if slices and not is_waiting and self._has_more(followed):
                    break  # its next batch does not fit
                del self._due[followed]
                continue
            del self._due[followed]
            followed.is_answered = True
            if records is not None:
                slices += 1
                room -= records.length
            found.append((followed, fetched, records))
        return found

    def _read(
        self, followed: _Followed, room: int, *, first: bool
    ) -> tuple[PartitionFetched | None, Readable | None]:
        """Return the answer to a position and its records; None if there is no answer yet."""
        if followed.error is not None:
            raise followed.error
        partition, wanted = followed.partition, followed.wanted
        assert partition is not None
        partition.check_replica_epoch(wanted.current_leader_epoch)
        if followed.diverging is not None:
            return _state(followed, partition, diverging=followed.diverging), None
        end_offset = partition.end_offset
        if end_offset <= wanted.fetch_offset:
            return None, None
        max_bytes = min(room, wanted.max_bytes)
        throttle, now_ms = self._fetches.throttle, self._fetches.now_ms()
        is_throttled = throttle.rate is not None and partition.is_throttled(self.node_id)
        if is_throttled:
            max_bytes = min(max_bytes, throttle.room(now_ms))
            if not max_bytes:
                self._postpone(followed, throttle.wait_ms(now_ms))
                return None, None
        records = partition.read(wanted.fetch_offset, max_bytes, end_offset, at_least_one=first)
        if records is None:
            return None, None
        if not records.verified:
            followed.is_verifying = True
            self._connection.spawn(self._verify(followed, wanted, partition, records))
            return None, None
        if is_throttled:
            throttle.copied(records.length)
        return _state(followed, partition, records_bytes=records.length), records

    def _postpone(self, followed: _Followed, wait_ms: int) -> None:
        followed.is_postponed = True
        self._postponed[followed] = None
        if self._resume_timer is None:
            self._resume_timer = self._loop.call_later(wait_ms / 1000, self._resume)

    def _resume(self) -> None:
        """Try again to answer positions that were postponed."""
        self._resume_timer = None
        for followed in self._postponed:
            followed.is_postponed = False
            self._due[followed] = None
        self._postponed.clear()
        self._serve_soon()

    def _has_more(self, followed: _Followed) -> bool:
        partition = followed.partition
        return partition is not None and partition.end_offset > followed.wanted.fetch_offset

    async def _verify(
        self, followed: _Followed, wanted: PartitionWanted, partition: Partition, records: Readable
    ) -> None:
        """Verify bytes of a position, then answer it."""
        failure: AlpacaError | None = None
        try:
            await self._loop.run_in_executor(self._fetches.executor, partition.verify, records)
        except AlpacaError as error:
            log.error("stored_bytes_not_verified", partition=str(partition.identity), reason=str(error))
            failure = error.with_traceback(None)
        finally:
            records.release()
            followed.is_verifying = False
        followed.attempts += 1
        if followed.wanted is wanted:
            if failure is None and followed.attempts >= VERIFY_ATTEMPTS:
                failure = StorageFailed(f"{partition.identity} changes while it is verified")
            followed.error = failure
        if self._followed.get(followed.key) is followed and not followed.is_answered:
            self._due[followed] = None
            self._serve_soon()

    def _respond(self, found: list[tuple[_Followed, PartitionFetched, Readable | None]]) -> None:
        """Answer the waiting request, and tell new watermarks along with it."""
        assert self._parked is not None
        answer, correlation_id, _ = self._parked
        self._parked = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        topics: list[tuple[bytes, list[PartitionFetched]]] = []
        slices: list[Readable] = []
        for followed, fetched, records in found:
            self._stale.pop(followed, None)
            _add(topics, followed.key[0], fetched)
            if records is not None:
                slices.append(records)
                self._fetches.stats.sent_bytes += records.length
        if self._stale:
            self._tell_watermarks(topics)
        answer.fill(woven(encode_fetch_response(VERSION, correlation_id, 0, 0, 0, topics), slices))

    def _tell_watermarks(self, topics: list[tuple[bytes, list[PartitionFetched]]]) -> None:
        for followed in list(self._stale):
            partition = followed.partition
            if followed.is_answered:
                continue  # the follower would not expect it; its next position brings it up again
            del self._stale[followed]
            if partition is not None and partition.is_leading and followed.error is None:
                _add(topics, followed.key[0], _state(followed, partition))


def _add(topics: list[tuple[bytes, list[PartitionFetched]]], topic: bytes, fetched: PartitionFetched) -> None:
    if not topics or topics[-1][0] != topic:
        topics.append((topic, []))
    topics[-1][1].append(fetched)


def _state(
    followed: _Followed,
    partition: Partition,
    *,
    records_bytes: int = 0,
    diverging: tuple[int, int] | None = None,
) -> PartitionFetched:
    watermark, start_offset = followed.told = partition.high_watermark, partition.start_offset
    return PartitionFetched(
        followed.key[1], 0, watermark, partition.end_offset, start_offset, records_bytes, diverging
    )


def _failure(followed: _Followed, error: AlpacaError) -> PartitionFetched:
    partition = followed.partition
    code = code_of(error)
    if partition is None or not isinstance(error, OffsetOutOfRange):
        # Whatever it is, such as a damaged log, the follower retries.
        return PartitionFetched(followed.key[1], code or ErrorCode.UNKNOWN_SERVER_ERROR)
    return _state(followed, partition)._replace(error_code=code)


class ReplicaFetches:
    """Serves the fetches of all followers; `on_connection` takes over their connections."""

    def __init__(
        self,
        topics: LedPartitions,
        executor: Executor,
        stats: ReplicationStats,
        throttle: Throttle,
        now_ms: Callable[[], int],
    ) -> None:
        """Find partitions in `topics`, and verify stored bytes in `executor`.

        `throttle` limits what all followers together get for replicas that are not in sync.
        """
        self.topics = topics
        self.executor = executor
        self.stats = stats
        self.throttle = throttle
        self.now_ms = now_ms
        self._shared: Shared | None = None
        self._sessions: dict[Connection, Session] = {}

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            self._shared = Shared(loop, self, _Limits(), _SCRATCH_BYTES, tasks, None)
            try:
                await asyncio.Event().wait()
            finally:
                shared, self._shared = self._shared, None
                for connection in list(shared.connections):
                    connection.close("the broker is shutting down")

    def on_connection(self, transport: asyncio.Transport, peer: Peer) -> None:
        """Take over an authenticated connection."""
        if self._shared is None or not peer.cluster_id:
            transport.abort()  # not serving, or the nodes have not agreed on a cluster
            return
        of_node = [each for each, session in self._sessions.items() if session.node_id == peer.node_id]
        if len(of_node) >= MAX_SESSIONS_PER_NODE:
            of_node[0].close("the node has opened too many connections")
        connection = Connection(asyncio.get_running_loop(), self._shared)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if not connection.is_closed:
            self._sessions[connection] = Session(self, connection, peer)

    def left(self, session: Session) -> None:
        """Forget a session whose connection has closed."""
        for connection, each in list(self._sessions.items()):
            if each is session:
                del self._sessions[connection]

    def opened(self, connection: Connection) -> None:
        """Do nothing: the connection is authenticated already."""

    def handle(self, connection: Connection, frame: memoryview) -> None:
        self._sessions[connection].received(frame)

    def end_turn(self) -> None:
        """Do nothing: fetches stage nothing."""
