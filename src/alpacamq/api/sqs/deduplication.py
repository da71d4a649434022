"""The memories of all FIFO queues: how large they may be, and how they come back after a restart.

Exact within a broker and across its restarts: deduplication ids are headers of the records themselves,
and those of the last five minutes are read back when a queue is first sent to.
"""

import asyncio
from collections.abc import AsyncIterator

from alpacamq.broker.broker import Broker
from alpacamq.broker.delay.service import DelayedMessage
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.read.record_reader import Limits, RecordReader
from alpacamq.model.headers import MESSAGE_ID, ORIGIN_TOPIC
from alpacamq.model.ids import NO_TIMESTAMP, TopicId
from alpacamq.model.records import Record

from .directory import Queue
from .errors import THROTTLED, Fault
from .outgoing import DEDUPLICATION_ID_HEADER, SENT_HEADER, SEQUENCE_HEADER
from .sent_window import WINDOW_MS, Remembered, Room, SentWindow, key_of

# All queues together, at about 200 bytes each.
MAX_REMEMBERED = 1_000_000
PAGE_RECORDS = 2000
PAGE_BYTES = 1 << 20


class Deduplication:
    """One memory per FIFO queue, made when the queue is first sent to."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._windows: dict[TopicId, SentWindow] = {}
        self._room = Room()
        self._loading: dict[TopicId, asyncio.Lock] = {}
        self._reader = RecordReader(broker.work_threads, broker.settings.unpacked_limit_bytes)

    async def window(self, queue: Queue) -> SentWindow:
        """The memory of a queue, with everything in it that was sent before."""
        topic_id = queue.topic.id
        if (window := self._windows.get(topic_id)) is not None:
            return window
        async with self._loading.setdefault(topic_id, asyncio.Lock()):
            if (window := self._windows.get(topic_id)) is None:
                self._forget_deleted()
                window = await self._read_back(queue)
                self._windows[topic_id] = window
        self._loading.pop(topic_id, None)
        return window

    def check_room(self) -> None:
        """Refuse one more message to remember where another would have to be forgotten too early."""
        if self._room.used < MAX_REMEMBERED:
            return
        now_ms = self._broker.clock.now_ms()
        for window in self._windows.values():
            window.forget_before(now_ms - WINDOW_MS)
        if self._room.used >= MAX_REMEMBERED:
            raise Fault(
                THROTTLED, f"More than {MAX_REMEMBERED} messages were sent to FIFO queues in five minutes."
            )

    def _forget_deleted(self) -> None:
        image = self._broker.topics.image
        for topic_id in [known for known in self._windows if image.topic_by_id(known) is None]:
            self._windows.pop(topic_id).clear()

    async def _read_back(self, queue: Queue) -> SentWindow:
        since_ms = self._broker.clock.now_ms() - WINDOW_MS
        found: list[tuple[Remembered, bytes]] = []
        # Those that wait come first: one that leaves in between is then met twice rather than never.
        async for message in self._delayed(queue):
            if (pair := remembered(queue, message.partition, _as_record(message))) is not None:
                found.append(pair)
        for index, partition in enumerate(self._broker.topics.partitions_of(queue.name)):
            async for record in self._records_since(partition, since_ms):
                if (pair := remembered(queue, index, record)) is not None:
                    found.append(pair)
        window = SentWindow(self._room)
        for place, key in sorted(found):
            window.remember(key, place)
        return window

    async def _delayed(self, queue: Queue) -> AsyncIterator[DelayedMessage]:
        after_id = -1
        while page := await self._broker.delays.messages(queue.name, after_id=after_id, limit=PAGE_RECORDS):
            for _, message in page:
                yield message
            after_id = page[-1][0]

    async def _records_since(self, partition: Partition, since_ms: int) -> AsyncIterator[Record]:
        end_offset = partition.high_watermark
        loop = asyncio.get_running_loop()
        first = await loop.run_in_executor(
            self._broker.work_threads, partition.log.offset_for_timestamp, since_ms, end_offset
        )
        offset = end_offset if first is None else first.offset
        limits = Limits(records=PAGE_RECORDS, size_bytes=PAGE_BYTES, before_offset=end_offset)
        while offset < end_offset:
            page = await self._reader.read(partition, offset, limits, committed=False)
            for record in page.records:
                yield record
            if page.next_offset <= offset:
                return
            offset = page.next_offset


def _as_record(message: DelayedMessage) -> Record:
    return Record(-1, NO_TIMESTAMP, message.key, message.value, message.headers)


def remembered(queue: Queue, partition: int, record: Record) -> tuple[Remembered, bytes] | None:
    """What a record says was sent; None if it was not sent as a message of a FIFO queue."""
    headers = {name: value or b"" for name, value in record.headers}
    deduplication_id = headers.get(DEDUPLICATION_ID_HEADER)
    # A dead letter was sent to another queue.
    if deduplication_id is None or record.key is None or ORIGIN_TOPIC in headers:
        return None
    try:
        key = message_key(queue, deduplication_id.decode(), record.key.decode())
        if (message_id := headers.get(MESSAGE_ID)) is None:
            return Remembered(record.timestamp_ms, partition, record.offset), key
        sent_ms, number = int(headers[SENT_HEADER]), int(headers[SEQUENCE_HEADER])
        return Remembered(sent_ms, partition, number, message_id.decode()), key
    except (ValueError, KeyError):
        return None  # not written by this API


def message_key(queue: Queue, deduplication_id: str, group_id: str) -> bytes:
    """Under what a message of this queue is remembered."""
    per_group = queue.attributes.get("DeduplicationScope") == "messageGroup"
    return key_of(deduplication_id, group_id if per_group else None)
