"""Runs the benchmarks: creates a topic, puts load on it, and reports the results."""

import argparse
import math
import random
import secrets
import signal
import string
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from struct import Struct

from alpacamq.cli.cells import Cell, size_text
from alpacamq.cli.commands import broker_addresses, connect, connect_http
from alpacamq.cli.output import Output, Table, print_message
from alpacamq.cli.progress import ProgressBar
from alpacamq.client.connect import Tls
from alpacamq.client.errors import NotFound, Unreachable
from alpacamq.client.http.connection import HttpApi, Problem
from alpacamq.client.http.queues import QueueName, Settle, delete_queues, receive, settle
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import Login
from alpacamq.client.kafka.fetch import PartitionFetcher
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.client.kafka.producer import Acks, PartitionWriter
from alpacamq.client.kafka.topics import create_topic, delete_topic, find_topic
from alpacamq.model.address import Address
from alpacamq.model.batch import Codec
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Record, read_records, write_batch

from .load import Gate, Load, Measured, Meter, measure

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
    login: Login | None
    tls: Tls | None

    def of(self, client: int) -> TopicPartition:
        return TopicPartition(TopicName(self.topic), client % self.partitions)


class Writer:
    """Writes batches of its own records to one partition, one request at a time."""

    def __init__(self, place: BenchTopic, client: int, load: Load) -> None:
        self._load = load
        self._cluster = Cluster(place.broker, login=place.login, tls=place.tls)
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
    with Cluster(place.broker, login=place.login, tls=place.tls) as cluster:
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
    with Cluster(place.broker, login=place.login, tls=place.tls) as cluster:
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

    connect: Callable[[], HttpApi]
    queue: QueueName
    load: Load
    sent: SentCounts
    meters: list[Meter] = field(default_factory=list)

    def run(self, meter: Meter, gate: Gate) -> None:
        patience = IdleTimeout(self.sent)
        self.meters.append(meter)
        with self.connect() as http:
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


_DURATION_MS = 10_000
_CONSUMED = 500_000
_QUEUED = 10_000
_LATENCY_RATE = 1000
_FILL_BATCH = 1000
# A run that misses more than this fraction of the planned messages reports that the broker did not keep up.
_MISSED = 0.01
# Threads that wait for a response should not also wait for each other.
_SWITCH_S = 0.0005


def run_produce(parsed: argparse.Namespace, output: Output) -> None:
    load = _load(parsed, messages=None)
    with _topic(parsed) as place:
        bar = ProgressBar("writing", load.planned)
        measured = measure(partial(produce, place, load), load.clients, bar)
        _report("produce", place, load, measured, output)


def run_consume(parsed: argparse.Namespace, output: Output) -> None:
    load = _load(parsed, messages=_CONSUMED)
    with _topic(parsed) as place:
        if parsed.topic is None:
            _fill(place, load, load.messages or _CONSUMED)
        partitions = [TopicPartition(TopicName(place.topic), index) for index in range(place.partitions)]
        with connect(parsed) as cluster:
            spans = extents(cluster, partitions)
        ends = {each: span.end for each, span in spans.items()}
        bar = ProgressBar("reading", sum(span.end - span.start for span in spans.values()))
        measured = measure(partial(consume, place, load, ends), load.clients, bar)
        _report("consume", place, load, measured, output)


def run_queue(parsed: argparse.Namespace, output: Output) -> None:
    paced = parsed.rate is not None
    load = _load(parsed, messages=None if paced else _QUEUED)
    with _topic(parsed) as place, _queue(parsed, place) as queue:
        writers = load.clients if paced else 0
        sent = SentCounts(writers or 1)
        # One message per request if they are measured individually.
        writing = replace(load, batch=1)
        if not paced:
            total = load.messages or _QUEUED
            _fill(place, load, total)
            sent.more(0, total)
            sent.ended()
        drain = Drain(connect=partial(connect_http, parsed), queue=queue, load=load, sent=sent)

        def client(number: int, meter: Meter, gate: Gate) -> None:
            if number < writers:
                publish_timed(place, writing, sent, number, meter, gate)
            else:
                drain.run(meter, gate)

        bar = ProgressBar("receiving", load.planned)
        measured = measure(client, writers + load.clients, bar)
        _report("queue", place, load, measured, output)


def run_latency(parsed: argparse.Namespace, output: Output) -> None:
    load = _load(parsed, messages=None)
    load = replace(load, rate=load.rate or _LATENCY_RATE)
    with _topic(parsed) as place:
        sent = SentCounts(load.clients)

        def client(number: int, meter: Meter, gate: Gate) -> None:
            if number < load.clients:
                publish_timed(place, load, sent, number, meter, gate)
            else:
                follow(place, sent, number - load.clients, meter, gate)

        bar = ProgressBar("sending and reading", load.planned)
        measured = measure(client, load.clients + place.partitions, bar)
        _report("latency", place, load, measured, output)


def _load(parsed: argparse.Namespace, *, messages: int | None) -> Load:
    """Build the load from the arguments; without a limit or `messages`, use a default duration."""
    sys.setswitchinterval(_SWITCH_S)
    wanted = parsed.messages or (messages if parsed.duration is None else None)
    duration_ms = parsed.duration or (_DURATION_MS if wanted is None else None)
    return Load(
        clients=parsed.clients,
        messages=wanted,
        duration_s=None if duration_ms is None else duration_ms / 1000,
        rate=parsed.rate,
        size_bytes=parsed.size,
        batch=parsed.batch,
        acks=Acks[parsed.acks.upper()],
        codec=Codec[parsed.compression.upper()],
    )


@contextmanager
def _topic(parsed: argparse.Namespace) -> Iterator[BenchTopic]:
    """Yield the named topic, or a temporary one."""
    address = broker_addresses(parsed)[0]
    name = parsed.topic or f"bench-{secrets.token_hex(4)}"
    with connect(parsed) as cluster:
        is_made = False
        try:
            topic = find_topic(cluster, name)
        except NotFound:
            create_topic(
                cluster, name, partitions=parsed.partitions or parsed.clients, replicas=-1, settings={}
            )
            is_made = True
            topic = find_topic(cluster, name)
    try:
        yield BenchTopic(
            broker=address,
            topic=name,
            partitions=len(topic.partitions),
            login=parsed.target.login,
            tls=parsed.target.tls,
        )
    finally:
        if is_made and not parsed.keep:
            with _undisturbed(), connect(parsed) as cluster:
                delete_topic(cluster, name)
        elif is_made:
            print_message(f"kept topic {name}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore further Ctrl-C during cleanup; requests have deadlines."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _queue(parsed: argparse.Namespace, place: BenchTopic) -> Iterator[QueueName]:
    """Yield a temporary queue on the topic that starts at its end."""
    queue = QueueName(f"bench-{secrets.token_hex(4)}", place.topic)
    with connect_http(parsed) as api:
        receive(api, queue, max_messages=1, wait_ms=0, start="latest")
        try:
            yield queue
        finally:
            # Deleting the topic deletes it as well.
            with suppress(Problem):
                delete_queues(api, queue.group)


def _fill(place: BenchTopic, load: Load, messages: int) -> None:
    """Write the messages to read, at full speed."""
    writing = replace(
        load,
        messages=messages,
        duration_s=None,
        rate=None,
        batch=_FILL_BATCH,
        clients=place.partitions,
        acks=Acks.ALL,
    )
    measured = measure(partial(produce, place, writing), writing.clients, ProgressBar("filling", messages))
    if measured.is_interrupted:
        raise KeyboardInterrupt


def _report(what: str, place: BenchTopic, load: Load, measured: Measured, output: Output) -> None:
    seconds = max(measured.seconds, 1e-9)
    rate, byte_rate = measured.messages / seconds, measured.size_bytes / seconds
    summaries = {name: histogram.summary() for name, histogram in sorted(measured.times.items())}
    quantiles = list(next(iter(summaries.values()), {}))
    output.show(
        {
            "bench": what,
            "topic": place.topic,
            "partitions": place.partitions,
            "clients": load.clients,
            "size_bytes": load.size_bytes,
            "planned_messages": load.planned,
            "messages": measured.messages,
            "bytes": measured.size_bytes,
            "seconds": round(measured.seconds, 3),
            "messages_per_second": round(rate, 1),
            "megabytes_per_second": round(byte_rate / 1e6, 3),
            "is_paced": load.rate is not None,
            "latency_ms": {
                name.replace(" ", "_"): {each: round(value, 3) for each, value in summary.items()}
                for name, summary in summaries.items()
            },
        },
        Table(
            ["messages", "seconds", "messages/s", "data/s"],
            [
                [
                    measured.messages,
                    Cell(f"{measured.seconds:.2f}", is_number=True),
                    Cell(f"{rate:,.0f}", is_number=True),
                    Cell(f"{size_text(byte_rate)}/s", is_number=True),
                ]
            ],
        ),
        Table(
            ["milliseconds", *quantiles],
            [
                [name, *(Cell(f"{value:.2f}", is_number=True) for value in summary.values())]
                for name, summary in summaries.items()
            ],
        ),
    )
    if load.rate is not None and load.planned and measured.messages < load.planned * (1 - _MISSED):
        print_message(
            f"only {measured.messages} of {load.planned} planned messages: "
            "the broker or this client could not keep the rate"
        )
    if measured.is_interrupted:
        raise KeyboardInterrupt
