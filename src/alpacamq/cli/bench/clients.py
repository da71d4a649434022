"""The clients of the benchmarks."""

import math
import random
import string
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct

from alpacamq.client.errors import Unreachable
from alpacamq.client.http.connection import HttpApi
from alpacamq.client.http.queues import QueueName, Settle, receive, settle
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.fetch import PartitionFetcher
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.client.kafka.producer import PartitionWriter
from alpacamq.model.address import Address
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Record, read_records, write_batch

from .load import Gate, Load, Meter

# The scheduled time, at the start of a value; all clients use the same clock.
_DUE = Struct(">q")
DUE_BYTES = _DUE.size
# Time to wait for written messages when no more arrive.
_GRACE_S = 10.0
_WAIT_MS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTopic:
    """The topic under load."""

    broker: Address
    topic: str
    partitions: int

    def of(self, client: int) -> TopicPartition:
        return TopicPartition(TopicName(self.topic), client % self.partitions)


class Writer:
    """Writes batches of its own records to one partition, one request at a time."""

    def __init__(self, place: BenchTopic, client: int, load: Load) -> None:
        self._load = load
        self._cluster = Cluster(place.broker)
        self._writer = PartitionWriter(self._cluster, place.of(client), load.acks)
        # Text of few letters, which compresses about as well as typical messages.
        letters = random.Random(client).choices(string.ascii_lowercase[:16], k=load.size_bytes)  # noqa: S311
        self._value = "".join(letters).encode()
        self._batches: dict[int, bytearray] = {}

    def close(self) -> None:
        self._cluster.close()

    def write(self, count: int) -> int:
        """Write a pre-encoded batch of `count` records; return the bytes of their values."""
        if (batch := self._batches.get(count)) is None:
            batch = self._batches[count] = self._packed([self._value] * count)
        self._writer.write(batch)
        return count * len(self._value)

    def write_due(self, count: int, due_ns: int) -> int:
        """Write records with the scheduled time in their values."""
        value = _DUE.pack(due_ns) + self._value[DUE_BYTES:]
        self._writer.write(self._packed([value] * count))
        return count * len(value)

    def _packed(self, values: list[bytes]) -> bytearray:
        now_ms = time.time_ns() // 1_000_000
        records = [Record(number, now_ms, None, value) for number, value in enumerate(values)]
        return write_batch(records, codec=self._load.codec)


def produce(place: BenchTopic, load: Load, client: int, meter: Meter, gate: Gate) -> None:
    """Write, and measure each acknowledgement."""
    writer = Writer(place, client, load)
    try:
        gate.wait()
        for count, due_ns in load.plan(client, gate.stop):
            size_bytes = writer.write(count)
            meter.took("publish", due_ns, count)
            meter.done(count, size_bytes)
    finally:
        writer.close()


def consume(
    place: BenchTopic, load: Load, ends: Mapping[TopicPartition, int], client: int, meter: Meter, gate: Gate
) -> None:
    """Read the client's partitions from start to end, and measure each fetch."""
    mine = [each for each in sorted(ends) if each.partition % load.clients == client]
    wanted = load.share(client)
    with Cluster(place.broker) as cluster:
        fetchers = [PartitionFetcher(cluster, each, Isolation.COMMITTED) for each in mine]
        spans = extents(cluster, mine)
        gate.wait()
        until = math.inf if load.duration_s is None else time.monotonic() + load.duration_s
        for partition, fetcher in zip(mine, fetchers, strict=True):
            position = spans[partition].start
            while position < ends[partition] and not gate.stop.is_set() and time.monotonic() < until:
                began = time.monotonic_ns()
                batches = list(fetcher.fetch(position).batches)
                meter.took("fetch", began)
                position = batches[-1].header.next_offset if batches else ends[partition]
                meter.done(
                    sum(each.header.record_count for each in batches if each.is_visible),
                    sum(len(each.data) for each in batches),
                )
                if wanted is not None and meter.messages >= wanted:
                    return


class SentCounts:
    """Counts of written messages, shared with concurrent readers."""

    def __init__(self, writers: int) -> None:
        self._counts = [0] * writers
        self._working = writers

    def more(self, client: int, count: int) -> None:
        self._counts[client] += count

    def ended(self) -> None:
        self._working -= 1

    @property
    def is_all(self) -> bool:
        return self._working <= 0

    def to(self, partition: int, partitions: int) -> int:
        return sum(count for client, count in enumerate(self._counts) if client % partitions == partition)

    @property
    def total(self) -> int:
        return sum(self._counts)


def publish_timed(
    place: BenchTopic, load: Load, sent: SentCounts, client: int, meter: Meter, gate: Gate
) -> None:
    """Write messages with their scheduled time, and measure the acknowledgements."""
    writer = Writer(place, client, load)
    try:
        gate.wait()
        for count, due_ns in load.plan(client, gate.stop):
            writer.write_due(count, due_ns)
            meter.took("publish", due_ns, count)
            sent.more(client, count)
    finally:
        sent.ended()
        writer.close()


def follow(place: BenchTopic, sent: SentCounts, partition: int, meter: Meter, gate: Gate) -> None:
    """Read one partition as it grows, and measure each message from its scheduled time."""
    with Cluster(place.broker) as cluster:
        fetcher = PartitionFetcher(cluster, place.of(partition), Isolation.COMMITTED)
        position = extents(cluster, [place.of(partition)])[place.of(partition)].end
        patience = IdleTimeout(sent)
        gate.wait()
        while not gate.stop.is_set():
            if sent.is_all and meter.messages >= sent.to(partition, place.partitions):
                return
            for batch in fetcher.fetch(position).batches:
                position = batch.header.next_offset
                for record in read_records(batch.data):
                    meter.took("end to end", _due(record.value))
                    meter.done(1, len(record.value or b""))
            patience.check(meter.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Receives and acknowledges until all messages are done."""

    api: Address
    queue: QueueName
    load: Load
    sent: SentCounts
    meters: list[Meter] = field(default_factory=list)

    def run(self, meter: Meter, gate: Gate) -> None:
        patience = IdleTimeout(self.sent)
        self.meters.append(meter)
        with HttpApi(self.api) as http:
            http.get(["livez"], dict[str, object])
            gate.wait()
            while not gate.stop.is_set():
                done = sum(each.messages for each in self.meters)
                if self.sent.is_all and done >= self.sent.total:
                    return
                patience.check(done)
                self._receive_some(http, meter)

    def _receive_some(self, http: HttpApi, meter: Meter) -> None:
        began = time.monotonic_ns()
        messages = receive(http, self.queue, max_messages=self.load.batch, wait_ms=_WAIT_MS)
        if not messages:
            return
        meter.took("receive", began)
        if self.load.rate is not None:
            for each in messages:
                meter.took("end to end", _due(each.value_base64))
        began = time.monotonic_ns()
        for _, problem in settle(http, Settle.ACK, [each.receipt for each in messages]):
            if problem is not None:
                raise problem
        meter.took("ack", began)
        meter.done(len(messages), sum(len(each.value_base64 or b"") for each in messages))


class IdleTimeout:
    """Fails if everything was sent and no more messages arrive for a while."""

    def __init__(self, sent: SentCounts) -> None:
        self._sent = sent
        self._seen = -1
        self._since = 0.0

    def check(self, seen: int) -> None:
        now = time.monotonic()
        if seen != self._seen or not self._sent.is_all:
            self._seen, self._since = seen, now
        elif now - self._since > _GRACE_S:
            raise Unreachable(f"acknowledged messages did not arrive within {_GRACE_S:.0f} s")


def _due(value: bytes | None) -> int:
    due: int = _DUE.unpack_from(value or bytes(DUE_BYTES))[0]
    return due
