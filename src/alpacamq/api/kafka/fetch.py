"""Fetch: whole batches from log files to the client, immediately or once enough bytes are available.

Records are slices of files that go to the socket by sendfile; their bytes are not copied here.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.readable import Readable
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import AlpacaError, InvalidRequest
from alpacamq.model.names import id_of, topic_of
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ManyEntries
from alpacamq.protocol.fetch_codec import (
    NODES_FROM,
    RACK_FROM,
    TOPIC_IDS_FROM,
    FetchCall,
    PartitionFetched,
    PartitionWanted,
    decode_fetch,
    decode_fetch_in_slices,
    encode_fetch_response,
    encode_fetch_response_in_slices,
)
from alpacamq.protocol.framing import RequestHeader
from alpacamq.protocol.schema import run_to_end
from alpacamq.security.acls import Operation
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.tracing import ClientApi

from .brokers import LeaderHint, hinted_nodes, leader_hint, preferred_replica
from .errors import code_of
from .fetch_sessions import INITIAL_EPOCH, NO_SESSION, FetchSession, FetchSessions
from .inbox import NO_FRAME
from .operations import AllowedTopics
from .outbox import Piece
from .turns import Work

if TYPE_CHECKING:
    from .connection import Answer, Connection

log = get_logger(__name__)

MAX_FETCHED_PARTITIONS = 20_000
# Requests with more partitions are served in slices.
PARTITIONS_AT_ONCE = 128
# A slice keeps its file open until it is sent. More records are left to the next fetch.
MAX_SLICES = 128
VERIFY_ATTEMPTS = 3
# Rules are often changed one after another: fetches that wait are checked once for all of this time.
RIGHTS_DELAY_SECONDS = 0.05
CHECKED_AT_ONCE = 100
_READ_COMMITTED = 1
_NONE: AbstractSet[bytes] = frozenset()


class Found(NamedTuple):
    """The data of one partition for a request."""

    topic: bytes
    fetched: PartitionFetched
    records: Readable | None
    # The source of the records, and the offset of their first batch.
    partition: Partition | None = None
    offset: int = 0

    @property
    def key(self) -> tuple[bytes, int]:
        return self.topic, self.fetched.partition


class PendingFetch:
    """A Fetch request that waits for min_bytes or max_wait_ms."""

    def __init__(
        self,
        broker: Broker,
        connection: "Connection",
        answer: "Answer",
        header: RequestHeader,
        call: FetchCall,
        session: FetchSession | None,
        waiting: "set[PendingFetch]",
        tenant: str | None,
    ) -> None:
        # Part of the names of topics; not part of those in the response.
        self._prefix = b""
        if tenant is not None and header.api_version < TOPIC_IDS_FROM:
            self._prefix = topic_of(tenant, "").encode()
        self._broker = broker
        # Of all connections; it is among them while it waits.
        self._waiting = waiting
        self._connection = connection
        self._answer = answer
        self._header = header
        self._call = call
        self._session = session
        # The client, if there may be topics that it must not read.
        self._limited = connection.caller if broker.access.limits(connection.caller) else None
        self._reads_committed = call.isolation_level == _READ_COMMITTED
        # Earlier clients do not expect answers of followers.
        self._reads_followers = header.api_version >= RACK_FROM and call.replica_id < 0
        meter = connection.meter
        self._max_bytes = call.max_bytes if meter is None else min(call.max_bytes, meter.burst_bytes)
        self._enough_bytes = min(call.min_bytes, self._max_bytes)
        self._readable_bytes = 0
        self._watched: list[Partition] = []
        self._timer: asyncio.TimerHandle | None = None
        # Set when a partition has new records; for requests that are served in slices.
        self._woken = asyncio.Event()
        # Bytes that arrived since the partitions were last read.
        self._arrived_bytes = 0

    def start(self) -> None:
        """Respond now, or once enough bytes are available."""
        found = self._gather()
        if self._call.max_wait_ms <= 0 or self._is_enough(found) or not _is_verified(found):
            self._answer_with(found)
        else:
            _release(found)
            self._park()

    async def run(self, work: Work) -> None:
        """Do the same as `start` in slices, for requests with many partitions."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._call.max_wait_ms / 1000
        try:
            self._waiting.add(self)
            for topic, wanted in list(self._wanted()):
                await work.pause()
                # From the start: records that arrive while other partitions are read must not be missed.
                if (partition := self._find(topic, wanted.partition)) is not None:
                    partition.watch(self, self._wake_later)
                    self._watched.append(partition)
            while True:
                self._woken.clear()
                self._arrived_bytes = 0
                found = await self._gather_in_slices(work)
                if loop.time() >= until or self._is_enough(found) or not _is_verified(found):
                    break
                _release(found)
                work.leave()
                self._wake_later(0)  # records that arrived meanwhile may complete min_bytes
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
                        await self._woken.wait()
                self._answer.begin_now()
        finally:
            self._leave()
        if not _is_verified(found):
            work.leave()  # reading may be slow
        found = await self._verified(found, partial(self._gather_in_slices, work))
        await self._respond_in_slices(found, work)

    def _wake_later(self, added_bytes: int) -> None:
        self._arrived_bytes += added_bytes
        if self._readable_bytes + self._arrived_bytes >= self._enough_bytes:
            self._woken.set()

    def _answer_with(self, found: list[Found]) -> None:
        """Respond, after verifying bytes that were written before the last start of the broker."""
        if _is_verified(found):
            self._respond(found)
        else:
            self._connection.spawn(self._verify_then_answer(found))

    def _is_enough(self, found: list[Found]) -> bool:
        self._readable_bytes = sum(part.fetched.records_bytes for part in found)
        return (
            not found
            or self._readable_bytes >= self._enough_bytes
            or any(part.fetched.error_code or part.fetched.preferred_read_replica >= 0 for part in found)
        )

    def _park(self) -> None:
        for topic, wanted in self._wanted():
            if (partition := self._find(topic, wanted.partition)) is not None:
                partition.watch(self, self._wake)
                self._watched.append(partition)
        self._waiting.add(self)
        self._timer = asyncio.get_running_loop().call_later(self._call.max_wait_ms / 1000, self._time_is_up)
        self._connection.on_close(self._leave)

    def _wake(self, added_bytes: int) -> None:
        """Handle new records in a partition. Read before responding: not all of them may be visible to us."""
        self._readable_bytes += added_bytes
        if self._readable_bytes < self._enough_bytes:
            return
        found = self._gather()
        if self._is_enough(found):
            self._leave()
            self._connection.forget_on_close(self._leave)
            self._answer.begin_now()
            self._answer_with(found)
        else:
            _release(found)

    def _time_is_up(self) -> None:
        self._leave()
        self._connection.forget_on_close(self._leave)
        self._answer.begin_now()
        self._answer_with(self._gather())

    def rights_changed(self) -> None:
        """Respond now if the client has lost the right to a topic that it waits for."""
        known: dict[bytes, AlpacaError | None] = {}
        if self._limited is None or not any(self._refusal(topic, known) for topic, _ in self._wanted()):
            return
        if self._timer is not None:
            self._time_is_up()
        else:
            self._woken.set()

    def _leave(self) -> None:
        self._waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.unwatch(self)
        self._watched.clear()

    async def _verify_then_answer(self, found: list[Found]) -> None:
        async def look_again() -> list[Found]:
            return self._gather()

        self._respond(await self._verified(found, look_again))

    async def _verified(
        self, found: list[Found], look_again: Callable[[], Awaitable[list[Found]]]
    ) -> list[Found]:
        """Verify, then read again: damage is known now, and other records may fit."""
        for _ in range(VERIFY_ATTEMPTS):
            if _is_verified(found):
                break
            try:
                for part in found:
                    await self._verify(part)
            finally:
                _release(found)
            found = await look_again()
        return [_only_verified(part) for part in found]

    async def _verify(self, part: Found) -> None:
        partition = self._find(part.topic, part.fetched.partition)
        if part.records is None or part.records.verified or partition is None:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._broker.work_threads, partition.verify, part.records)
        except AlpacaError as error:
            log.error("stored_bytes_not_verified", partition=str(partition.identity), reason=str(error))

    def _wanted(self) -> Iterator[tuple[bytes, PartitionWanted]]:
        topics = self._call.topics if self._session is None else self._session.topics()
        for topic, partitions in topics:
            for wanted in partitions:
                yield topic, wanted

    @property
    def count(self) -> int:
        """The number of partitions requested."""
        if self._session is not None:
            return len(self._session.wanted)
        return sum(len(partitions) for _, partitions in self._call.topics)

    def _gather(self) -> list[Found]:
        return run_to_end(self._gathering())

    async def _gather_in_slices(self, work: Work) -> list[Found]:
        found: list[Found] = []
        try:
            return await work.run(self._gathering(found))
        except BaseException:
            _release(found)
            raise

    def _gathering(self, found: list[Found] | None = None) -> Generator[None, None, list[Found]]:
        """Read every requested partition into `found`, with a stop after each."""
        if found is None:
            found = []
        room = self._max_bytes
        slices = 0
        refusals: dict[bytes, AlpacaError | None] = {}
        # Topics that it was allowed to read before, and still is.
        allowed: AbstractSet[bytes] = _NONE
        limited = self._limited
        readable = self._connection.readable
        if (
            limited is not None
            and readable is not None
            and readable.epoch == self._broker.access.epoch
            and readable.caller is limited
            and readable.by_id is (self._header.api_version >= TOPIC_IDS_FROM)
        ):
            allowed = readable.keys
        for topic, wanted in list(self._wanted()):
            if (
                limited is not None
                and topic not in allowed
                and (refusal := self._refusal(topic, refusals)) is not None
            ):
                part = Found(topic, PartitionFetched(wanted.partition, code_of(refusal)), None)
            else:
                part = self._read(topic, wanted, room, first=slices == 0)
            found.append(part)
            if part.records is not None:
                slices += 1
                room = max(room - part.records.length, 0) if slices < MAX_SLICES else 0
            yield
        return found

    def _refusal(self, topic: bytes, known: dict[bytes, AlpacaError | None]) -> AlpacaError | None:
        """Return the error of a topic that the client must not read; `known` are those found before."""
        if topic not in known:
            assert self._limited is not None
            by_id = self._header.api_version >= TOPIC_IDS_FROM
            if (readable := self._connection.readable) is None:
                broker = self._broker
                readable = AllowedTopics(broker.access, broker.topics, Operation.READ)
                self._connection.readable = readable
            known[topic] = readable.refusal(self._limited, topic, by_id=by_id)
        return known[topic]

    def _without_refused(self, part: Found, known: dict[bytes, AlpacaError | None]) -> Found:
        """Return an error without records if the client lost the right to the topic meanwhile."""
        if (refusal := self._refusal(part.topic, known)) is None:
            return part
        if part.records is not None:
            part.records.release()
        return Found(part.topic, PartitionFetched(part.fetched.partition, code_of(refusal)), None)

    def _find(self, topic: bytes, index: int) -> Partition | None:
        """Return a partition that is led here, or followed if the client reads from followers."""
        topics = self._broker.topics
        if (partition := topics.find(topic, index)) is None and self._reads_followers:
            partition = topics.followed(topic, index)
        return partition

    def _preferred_replica(self, partition: Partition) -> int | None:
        """Return the follower that the client should read from, if this broker leads the partition."""
        topics, index = self._broker.topics, partition.identity.partition
        key = partition.topic_id.bytes
        if not (self._reads_followers and self._call.rack_id) or topics.find(key, index) is not partition:
            return None
        return preferred_replica(
            topics.image,
            PartitionId(partition.topic_id, index),
            self._broker.settings.node_id,
            self._call.rack_id,
        )

    def _read(self, topic: bytes, wanted: PartitionWanted, room: int, *, first: bool) -> Found:
        index = wanted.partition
        try:
            if (partition := self._find(topic, index)) is None:
                raise self._broker.topics.absence(topic, index)
            partition.check_epoch(wanted.current_leader_epoch)
            stable = partition.last_stable_offset
            if self._call.rack_id and (replica := self._preferred_replica(partition)) is not None:
                return Found(topic, _redirected(partition, replica), None, partition, wanted.fetch_offset)
            limit = stable if self._reads_committed else partition.high_watermark
            max_bytes = min(room, wanted.max_bytes)
            records = partition.read(wanted.fetch_offset, max_bytes, limit, at_least_one=first)
        except AlpacaError as error:
            failed = PartitionFetched(index, code_of(error), current_leader=self._hint(error))
            return Found(topic, failed, None)
        aborted = None
        if self._reads_committed:
            aborted = (
                [] if records is None else partition.aborted_between(wanted.fetch_offset, records.next_offset)
            )
        fetched = PartitionFetched(
            index,
            0,
            partition.high_watermark,
            stable,
            partition.start_offset,
            records.length if records is not None else 0,
            aborted_transactions=aborted,
        )
        return Found(topic, fetched, records, partition, wanted.fetch_offset)

    def _hint(self, error: AlpacaError) -> LeaderHint | None:
        return leader_hint(error) if self._header.api_version >= NODES_FROM else None

    def _respond(self, found: list[Found]) -> None:
        self._answer.fill(run_to_end(self._responding(found)))

    async def _respond_in_slices(self, found: list[Found], work: Work) -> None:
        if self._limited is not None:
            # Other requests had their turns since the first partition was read.
            known: dict[bytes, AlpacaError | None] = {}
            found = [self._without_refused(part, known) for part in found]
        try:
            pieces = await work.run(self._responding(found))
        except BaseException:
            _release(found)
            raise
        self._answer.fill(pieces)

    def _responding(self, found: list[Found]) -> Generator[None, None, list[Piece]]:
        """Encode the response, with stops in between."""
        session = self._session
        news = []
        for part in found:
            yield
            self._count(part)
            if session is not None:
                key = (part.topic, part.fetched.partition)
                # The first response of a session contains every partition.
                if self._call.session_epoch and not session.is_news(key, part.fetched):
                    continue
                session.tell(key, part.fetched)
            news.append(part)
        topics: list[tuple[bytes, list[PartitionFetched]]] = []
        leaders = set()
        prefix = self._prefix
        size = messages = 0
        for part in news:
            yield
            if part.fetched.current_leader is not None:
                leaders.add(part.fetched.current_leader[0])
            if part.records is not None:
                self._tell_traces(part)
                size += part.records.length
                # By offsets: records are sent from the file, and not looked at.
                messages += part.records.next_offset - part.offset
            topic = part.topic.removeprefix(prefix) if prefix else part.topic
            if not topics or topics[-1][0] != topic:
                topics.append((topic, []))
            topics[-1][1].append(part.fetched)
        throttle_ms = 0
        connection = self._connection
        if (meter := connection.meter) is not None:
            meter.read_credit -= size
            meter.read_message_credit -= messages
            if (
                meter.read_credit <= 0
                or meter.read_message_credit <= 0
                or meter.is_time_due
                or not connection.in_turn
            ):
                throttle_ms = connection.charge_due()
        pieces = yield from encode_fetch_response_in_slices(
            self._header.api_version,
            self._header.correlation_id,
            throttle_ms,
            0,
            NO_SESSION if session is None else session.id,
            topics,
            hinted_nodes(self._broker.topics.image, leaders, connection.listener.name) if leaders else (),
        )
        slices = [part.records for part in news if part.records is not None]
        return woven(pieces, slices)

    def _count(self, part: Found) -> None:
        _, fetched, records, partition, offset = part
        if fetched.error_code:
            self._answer.refused(fetched.error_code)
        elif records is not None and partition is not None:
            partition.fetched_bytes += records.length
            partition.fetched_messages += records.next_offset - offset

    def _tell_traces(self, part: Found) -> None:
        assert part.records is not None
        traces = None if part.partition is None else part.partition.traces
        if traces is not None and traces.may_be_read:
            client = self._header.client_id or ""
            traces.fetched(part.offset, part.records.next_offset, Origin(ClientApi.KAFKA, client))


def _redirected(partition: Partition, replica: int) -> PartitionFetched:
    """Return a response without records that names the replica to read from."""
    return PartitionFetched(
        partition.identity.partition,
        0,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.start_offset,
        preferred_read_replica=replica,
    )


def _is_verified(found: list[Found]) -> bool:
    return all(part.records is None or part.records.verified for part in found)


def _only_verified(part: Found) -> Found:
    """Return an error without records for data that could not be read and verified."""
    if part.records is None or part.records.verified:
        return part
    part.records.release()
    return Found(part.topic, PartitionFetched(part.fetched.partition, ErrorCode.KAFKA_STORAGE_ERROR), None)


def _release(found: list[Found]) -> None:
    for part in found:
        if part.records is not None:
            part.records.release()


def woven(pieces: list[bytes], slices: list[Readable]) -> list[Piece]:
    """Return the response in order of sending: bytes, records, bytes, records, …, bytes."""
    woven: list[Piece] = [pieces[0]]
    for records, piece in zip(slices, pieces[1:], strict=True):
        woven.append(records)
        if piece:
            woven.append(piece)
    return woven


def _answer_throttled(
    connection: "Connection", answer: "Answer", header: RequestHeader, session_id: int, throttle_ms: int
) -> None:
    """Respond without partitions, and throttle the connection."""
    connection.mute(throttle_ms)
    answer.fill(
        encode_fetch_response(header.api_version, header.correlation_id, throttle_ms, 0, session_id, [])
    )


class FetchRequests:
    """Handles Fetch requests of all connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sessions = FetchSessions()
        self._waiting: set[PendingFetch] = set()
        self._is_checking = False
        broker.access.subscribe(self._rights_changed)

    def handle(self, connection: "Connection", header: RequestHeader, frame: memoryview) -> None:
        """Start a request."""
        try:
            call = decode_fetch(header.api_version, frame, header.body_at)
        except ManyEntries:
            # Held: requests of a session are ordered.
            connection.hold()
            work = connection.work_while_open(frame)
            frame = connection.kept(frame)
            connection.spawn_while_open(
                work.drive(self._decode_in_slices(connection, connection.reserve(), header, frame, work))
            )
            return
        answer = connection.reserve()
        if (pending := self._pending(connection, answer, header, call)) is None:
            return
        if pending.count <= PARTITIONS_AT_ONCE:
            pending.start()
        else:
            work = connection.work_while_open(frame)
            connection.spawn_while_open(work.drive(self._serve_in_slices(pending, work)))

    async def _decode_in_slices(
        self,
        connection: "Connection",
        answer: "Answer",
        header: RequestHeader,
        frame: memoryview,
        work: Work,
    ) -> None:
        try:
            await work.begin()
            call = await work.run(decode_fetch_in_slices(header.api_version, frame, header.body_at))
            frame = NO_FRAME
            pending = self._pending(connection, answer, header, call)
            connection.proceed()
            if pending is not None:
                await pending.run(work)
        finally:
            work.leave()

    async def _serve_in_slices(self, pending: PendingFetch, work: Work) -> None:
        try:
            await work.begin()
            await pending.run(work)
        finally:
            work.leave()

    def _pending(
        self, connection: "Connection", answer: "Answer", header: RequestHeader, call: FetchCall
    ) -> PendingFetch | None:
        """Return the pending request, or None if it was refused."""
        try:
            if sum(len(partitions) for _, partitions in call.topics) > MAX_FETCHED_PARTITIONS:
                raise InvalidRequest(f"a fetch must not name more than {MAX_FETCHED_PARTITIONS} partitions")
            if call.replica_id >= 0:
                raise InvalidRequest("replicas fetch from the cluster listener")
            by_id = header.api_version >= TOPIC_IDS_FROM
            throttle_ms = 0
            if (meter := connection.meter) is not None:
                bucket = meter.fetch_bucket
                if bucket is None or bucket.level < 0.0:
                    throttle_ms = meter.fetch_wait_ms()
            if throttle_ms and call.session_epoch == INITIAL_EPOCH:
                # Without a session: the client repeats the request, and expects no partitions.
                _answer_throttled(connection, answer, header, NO_SESSION, throttle_ms)
                return None
            owner = connection.caller.name
            if (tenant := self._broker.access.tenant_of(connection.caller)) is not None:
                owner = id_of(tenant, owner)
                if not by_id:
                    call = _of_tenant(tenant, call)
            session = self._sessions.open(call, by_id=by_id, owner=owner)
        except AlpacaError as error:
            answer.refused(code_of(error))
            answer.fill(
                encode_fetch_response(
                    header.api_version, header.correlation_id, 0, code_of(error), NO_SESSION, []
                )
            )
            return None
        if throttle_ms:
            session_id = NO_SESSION if session is None else session.id
            _answer_throttled(connection, answer, header, session_id, throttle_ms)
            return None
        return PendingFetch(self._broker, connection, answer, header, call, session, self._waiting, tenant)

    def _rights_changed(self) -> None:
        if self._waiting and not self._is_checking:
            self._is_checking = True
            asyncio.get_running_loop().call_later(RIGHTS_DELAY_SECONDS, self._check_rights)

    def _check_rights(self) -> None:
        """Check the rights of the fetches that wait now; those that come later have the new ones."""
        # A change from now on needs another check.
        self._is_checking = False
        self._check_some(deque(self._waiting))

    def _check_some(self, waiting: deque[PendingFetch]) -> None:
        for _ in range(min(len(waiting), CHECKED_AT_ONCE)):
            pending = waiting.popleft()
            if pending in self._waiting:
                pending.rights_changed()
        if waiting:
            asyncio.get_running_loop().call_soon(self._check_some, waiting)


def _of_tenant(tenant: str, call: FetchCall) -> FetchCall:
    """Return a request of a tenant's client with the stored names of topics."""
    prefix = topic_of(tenant, "").encode()
    return call._replace(
        topics=[(prefix + name, partitions) for name, partitions in call.topics],
        forgotten=[(prefix + name, indexes) for name, indexes in call.forgotten],
    )
