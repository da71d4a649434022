"""Runs the benchmarks: creates a topic, puts load on it, and reports the results."""

import argparse
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from alpacamq.cli.cells import Cell, size_text
from alpacamq.cli.commands import broker_address, connect, connect_http, http_address
from alpacamq.cli.output import Output, Table, print_message
from alpacamq.cli.progress import ProgressBar
from alpacamq.client.errors import NotFound
from alpacamq.client.http.connection import Problem
from alpacamq.client.http.queues import QueueName, delete_queues, receive
from alpacamq.client.kafka.offsets import extents
from alpacamq.client.kafka.producer import Acks
from alpacamq.client.kafka.topics import create_topic, delete_topic, find_topic
from alpacamq.model.batch import Codec
from alpacamq.model.ids import TopicName, TopicPartition

from .clients import BenchTopic, Drain, SentCounts, consume, follow, produce, publish_timed
from .load import Gate, Load, Measured, Meter, measure

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
        drain = Drain(api=http_address(parsed), queue=queue, load=load, sent=sent)

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
    address = broker_address(parsed)
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
        yield BenchTopic(broker=address, topic=name, partitions=len(topic.partitions))
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
