"""Messages that doors bring one by one, made into the batches that a partition takes."""

from collections.abc import Iterator, Sequence

import msgspec

from alpacamq.model.batch import HEADER_BYTES, Codec
from alpacamq.model.errors import AlpacaError, InvalidRecord, InvalidTimestamp
from alpacamq.model.headers import LANE
from alpacamq.model.lanes import Lane
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.model.topics import INT64_MAX, TopicConfig

from .admission import check_timestamps

# What a record takes beside key, value and headers, at most: lengths, deltas, counts.
_RECORD_BYTES = 48
_HEADER_BYTES = 10


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message on its way into a topic."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None  # None: by key as Kafka's clients do, in turn where there is no key
    timestamp_ms: int | None = None  # None: now
    lane: Lane | None = None
    deliver_at_ms: int | None = None  # None, or a time that has passed: now

    @property
    def all_headers(self) -> tuple[Header, ...]:
        """The headers with the lane among them."""
        if self.lane is None:
            return self.headers
        others = tuple(header for header in self.headers if header.key != LANE)
        return (*others, Header(LANE, self.lane.text.encode()))

    def fault(self, config: TopicConfig, now_ms: int) -> AlpacaError | None:
        """What keeps this message out of a topic, which would keep out all of its batch."""
        if self.key is None and config.is_compacted:
            return InvalidRecord("the message has no key, which a compacted topic needs")
        if self.timestamp_ms is None or config.message_timestamp_type == "LogAppendTime":
            return None
        if not 0 <= self.timestamp_ms <= INT64_MAX:
            return InvalidTimestamp(f"timestamp {self.timestamp_ms} is not a time in milliseconds since 1970")
        try:
            check_timestamps(self.timestamp_ms, self.timestamp_ms, config, now_ms)
        except InvalidTimestamp as error:
            return error.with_traceback(None)
        return None


class Entry(msgspec.Struct, frozen=True):
    """A message's place among the results of its call, and the record made of it."""

    at: int
    record: Record

    @property
    def max_bytes(self) -> int:
        """What the record takes in a batch, at most."""
        _, _, key, value, headers = self.record
        size = _RECORD_BYTES + len(key or b"") + len(value or b"")
        for name, content in headers:
            size += 4 * len(name) + len(content or b"") + _HEADER_BYTES
        return size


def in_batches(entries: Sequence[Entry], limit_bytes: int) -> Iterator[Sequence[Entry]]:
    """As few batches as stay within the limit for certain; a message too large for it is alone."""
    first = 0
    size = HEADER_BYTES
    for index, entry in enumerate(entries):
        size += entry.max_bytes
        if size > limit_bytes and index > first:
            yield entries[first:index]
            first = index
            size = HEADER_BYTES + entry.max_bytes
    yield entries[first:]


def packed(entries: Sequence[Entry], codec: Codec, attributes: int) -> bytearray:
    """One batch of these messages, in their order."""
    records = [entry.record._replace(offset=delta) for delta, entry in enumerate(entries)]
    return write_batch(records, codec=codec, attributes=attributes)
