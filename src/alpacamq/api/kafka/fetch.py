"""Fetch: whole batches from the log's files to the client, at once or when there are enough.

What is read is a slice of a file that the socket is fed from; its bytes never pass through here.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition import Partition
from alpacamq.broker.partition_traces import Origin
from alpacamq.broker.readable import Readable
from alpacamq.model.errors import AlpacaError, InvalidRequest, UnknownTopic, UnknownTopicId
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.fetch_codec import (
    TOPIC_IDS_FROM,
    FetchCall,
    PartitionFetched,
    PartitionWanted,
    decode_fetch,
    encode_fetch_response,
)
from alpacamq.protocol.framing import RequestHeader
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.tracing import Door

from .errors import code_of
from .fetch_sessions import NO_SESSION, FetchSession, FetchSessions
from .outbox import Piece

if TYPE_CHECKING:
    from .answers import Answer
    from .connection import Connection

log = get_logger(__name__)

MAX_FETCHED_PARTITIONS = 20_000
# A slice keeps its file open until it is sent. What does not fit waits for the next fetch.
MAX_SLICES = 128
VERIFY_ATTEMPTS = 3
_READ_COMMITTED = 1


class Found(NamedTuple):
    """What one partition has for a request."""

    topic: bytes
    fetched: PartitionFetched
    records: Readable | None
    # Where the records are from; they begin with the batch that has this offset.
    partition: Partition | None = None
    offset: int = 0

    @property
    def key(self) -> tuple[bytes, int]:
        return self.topic, self.fetched.partition


class PendingFetch:
    """A Fetch request that waits for enough bytes, or for its time to run out."""

    def __init__(
        self,
        broker: Broker,
        connection: "Connection",
        answer: "Answer",
        header: RequestHeader,
        call: FetchCall,
        session: FetchSession | None,
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._answer = answer
        self._header = header
        self._call = call
        self._session = session
        self._reads_committed = call.isolation_level == _READ_COMMITTED
        self._enough_bytes = min(call.min_bytes, call.max_bytes)
        self._readable_bytes = 0
        self._watched: list[Partition] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Answer now, or once there is enough."""
        found = self._gather()
        if self._call.max_wait_ms <= 0 or self._is_enough(found) or not _is_verified(found):
            self._answer_with(found)
        else:
            _release(found)
            self._park()

    def _answer_with(self, found: list[Found]) -> None:
        """Respond, after a check of bytes that come from an earlier life of the broker."""
        if _is_verified(found):
            self._respond(found)
        else:
            self._connection.spawn(self._verify_then_answer(found))

    def _is_enough(self, found: list[Found]) -> bool:
        self._readable_bytes = sum(part.fetched.records_bytes for part in found)
        return (
            not found
            or self._readable_bytes >= self._enough_bytes
            or any(part.fetched.error_code for part in found)
        )

    def _park(self) -> None:
        for topic, wanted in self._wanted():
            if (partition := self._broker.topics.find(topic, wanted.partition)) is not None:
                partition.watch(self, self._wake)
                self._watched.append(partition)
        self._timer = asyncio.get_running_loop().call_later(self._call.max_wait_ms / 1000, self._time_is_up)
        self._connection.on_close(self._leave)

    def _wake(self, added_bytes: int) -> None:
        """Some partition has more. Not all of it need be for us, so look before answering."""
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

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.unwatch(self)
        self._watched.clear()

    async def _verify_then_answer(self, found: list[Found]) -> None:
        """Check, then look again: where there is damage, that is known now and something else fits."""
        for _ in range(VERIFY_ATTEMPTS):
            if _is_verified(found):
                break
            for part in found:
                await self._verify(part)
            _release(found)
            found = self._gather()
        self._respond([_only_verified(part) for part in found])

    async def _verify(self, part: Found) -> None:
        partition = self._broker.topics.find(part.topic, part.fetched.partition)
        if part.records is None or part.records.verified or partition is None:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._broker.work_threads, partition.log.verify, part.records)
        except AlpacaError as error:
            log.error("stored_bytes_not_verified", partition=str(partition.identity), reason=str(error))

    def _wanted(self) -> Iterator[tuple[bytes, PartitionWanted]]:
        topics = self._call.topics if self._session is None else self._session.topics()
        for topic, partitions in topics:
            for wanted in partitions:
                yield topic, wanted

    def _gather(self) -> list[Found]:
        found: list[Found] = []
        room = self._call.max_bytes
        slices = 0
        for topic, wanted in self._wanted():
            part = self._read(topic, wanted, room, first=slices == 0)
            found.append(part)
            if part.records is not None:
                slices += 1
                room = max(room - part.records.length, 0) if slices < MAX_SLICES else 0
        return found

    def _read(self, topic: bytes, wanted: PartitionWanted, room: int, *, first: bool) -> Found:
        index = wanted.partition
        try:
            if (partition := self._broker.topics.find(topic, index)) is None:
                raise self._unknown(topic, index)
            partition.check_epoch(wanted.current_leader_epoch)
            stable = partition.last_stable_offset
            limit = stable if self._reads_committed else partition.high_watermark
            max_bytes = min(room, wanted.max_bytes)
            records = partition.read(wanted.fetch_offset, max_bytes, limit, at_least_one=first)
        except AlpacaError as error:
            return Found(topic, PartitionFetched(index, code_of(error)), None)
        aborted = None
        if self._reads_committed:
            aborted = (
                []
                if records is None
                else partition.log.transactions.aborted_between(wanted.fetch_offset, records.next_offset)
            )
        fetched = PartitionFetched(
            index,
            0,
            partition.high_watermark,
            stable,
            partition.log.start_offset,
            records.length if records is not None else 0,
            aborted_transactions=aborted,
        )
        return Found(topic, fetched, records, partition, wanted.fetch_offset)

    def _respond(self, found: list[Found]) -> None:
        self._count(found)
        session = self._session
        if session is not None:
            if self._call.session_epoch:  # the first answer of a session names every partition
                found = [
                    part
                    for part in found
                    if session.is_news((part.topic, part.fetched.partition), part.fetched)
                ]
            for part in found:
                session.tell((part.topic, part.fetched.partition), part.fetched)
        topics: list[tuple[bytes, list[PartitionFetched]]] = []
        for part in found:
            if part.records is not None:
                self._tell_traces(part)
            if not topics or topics[-1][0] != part.topic:
                topics.append((part.topic, []))
            topics[-1][1].append(part.fetched)
        pieces = encode_fetch_response(
            self._header.api_version,
            self._header.correlation_id,
            0,
            0,
            NO_SESSION if session is None else session.id,
            topics,
        )
        slices = [part.records for part in found if part.records is not None]
        self._answer.fill(_woven(pieces, slices))

    def _count(self, found: list[Found]) -> None:
        for _, fetched, records, partition, offset in found:
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
            traces.fetched(part.offset, part.records.next_offset, Origin(Door.KAFKA, client))

    def _unknown(self, topic: bytes, index: int) -> AlpacaError:
        if (error := self._broker.topics.not_ready(topic, index)) is not None:
            return error
        if self._header.api_version >= TOPIC_IDS_FROM:
            return UnknownTopicId(f"no topic with the id {topic.hex()} has a partition {index}")
        return UnknownTopic(f"there is no partition {index} of a topic {topic.decode()!r}")


def _is_verified(found: list[Found]) -> bool:
    return all(part.records is None or part.records.verified for part in found)


def _only_verified(part: Found) -> Found:
    """What could not be checked, because the disk does not give it, is an error and nothing else."""
    if part.records is None or part.records.verified:
        return part
    part.records.release()
    return Found(part.topic, PartitionFetched(part.fetched.partition, ErrorCode.KAFKA_STORAGE_ERROR), None)


def _release(found: list[Found]) -> None:
    for part in found:
        if part.records is not None:
            part.records.release()


def _woven(pieces: list[bytes], slices: list[Readable]) -> list[Piece]:
    """The response in the order it is sent: bytes, records, bytes, records, …, bytes."""
    woven: list[Piece] = [pieces[0]]
    for records, piece in zip(slices, pieces[1:], strict=True):
        woven.append(records)
        if piece:
            woven.append(piece)
    return woven


class FetchRequests:
    """Handles Fetch requests of all connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sessions = FetchSessions()

    def handle(self, connection: "Connection", header: RequestHeader, frame: memoryview) -> None:
        """Start on a request."""
        call = decode_fetch(header.api_version, frame, header.body_at)
        answer = connection.reserve()
        try:
            if sum(len(partitions) for _, partitions in call.topics) > MAX_FETCHED_PARTITIONS:
                raise InvalidRequest(f"a fetch may name {MAX_FETCHED_PARTITIONS} partitions at most")
            session = self._sessions.open(call, by_id=header.api_version >= TOPIC_IDS_FROM)
        except AlpacaError as error:
            answer.refused(code_of(error))
            answer.fill(
                encode_fetch_response(
                    header.api_version, header.correlation_id, 0, code_of(error), NO_SESSION, []
                )
            )
            return
        PendingFetch(self._broker, connection, answer, header, call, session).start()
