"""Metrics for Prometheus: plain numbers, read when they are asked for.

What has a name that users choose is limited in number: the rest of the topics is added up under
one name, the rest of the groups and queues is left out.
"""

import os
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

from alpacamq import __version__
from alpacamq.api.http.messages import Response
from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.exposition import CONTENT_TYPE, Exposition, Kind, Labels
from alpacamq.api.rest.lag import group_names, lags
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.broker import Broker
from alpacamq.broker.partition import Partition
from alpacamq.coordinator.transaction_messages import ListTransactions
from alpacamq.model.errors import AlpacaError
from alpacamq.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from alpacamq.queues.messages import DescribeReply, PartitionFigures

from .queue_figures import lanes_of
from .transaction_list import all_transactions, stats_of

MAX_TOPICS = 1000
MAX_GROUPS = 1000
MAX_QUEUES = 500
OTHER = "(other)"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


async def metrics(call: Call[Nothing, Nothing]) -> Response:
    backend = call.backend
    text = Exposition()
    _process(text, backend)
    _topics(text, backend.broker)
    _queues(text, backend.broker)
    for part in (_groups, _delays, _transactions):
        # A part that cannot answer now is left out: the others are of use without it.
        with suppress(AlpacaError):
            await part(text, backend.broker)
    _requests(text, backend)
    return Response(HTTPStatus.OK, text.encode(), CONTENT_TYPE)


def _process(text: Exposition, backend: Backend) -> None:
    broker = backend.broker
    node = {"version": __version__, "node_id": str(broker.settings.node_id), "cluster_id": broker.cluster_id}
    text.add(Kind.GAUGE, "alpacamq_info", "The broker; the number means nothing.", [(node, 1)])
    uptime_ms = broker.clock.now_ms() - backend.started_ms
    text.gauge("alpacamq_uptime_seconds", "Since this door was opened.", uptime_ms / 1000)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    text.counter(
        "process_cpu_seconds_total", "Processor time of the broker.", usage.ru_utime + usage.ru_stime
    )
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    text.gauge("process_resident_memory_bytes", "Memory of the broker.", resident_pages * _PAGE_BYTES)
    room = os.statvfs(broker.settings.data_directory)
    text.gauge("alpacamq_disk_free_bytes", "Room for data.", room.f_bavail * room.f_frsize)


def _topics(text: Exposition, broker: Broker) -> None:
    names = sorted(broker.topics.image.topics)
    by_label: dict[str, list[Partition]] = {}
    for place, name in enumerate(names):
        label = name if place < MAX_TOPICS else OTHER
        by_label.setdefault(label, []).extend(broker.topics.partitions_of(name))
    text.gauge("alpacamq_topics", "Topics, internal ones included.", len(names))
    text.gauge("alpacamq_partitions", "Partitions of all topics.", sum(map(len, by_label.values())))

    def add(kind: Kind, name: str, description: str, number: Callable[[Partition], float]) -> None:
        samples = [({"topic": label}, sum(map(number, parts))) for label, parts in by_label.items()]
        text.add(kind, f"alpacamq_topic_{name}", description, samples)

    add(Kind.GAUGE, "partitions", "Partitions of a topic.", lambda _: 1)
    add(Kind.GAUGE, "size_bytes", "What a topic takes on disk.", lambda each: each.log.size_bytes)
    add(
        Kind.GAUGE,
        "messages",
        "Offsets between the start and the end of a topic's partitions.",
        lambda each: each.high_watermark - each.log.start_offset,
    )
    add(
        Kind.COUNTER,
        "messages_written_total",
        "Messages ever written to a topic, markers included.",
        lambda each: each.high_watermark,
    )
    add(
        Kind.GAUGE,
        "damaged_partitions",
        "Partitions that do not serve all they should: see the broker's log.",
        lambda each: each.log.damage is not None or each.log.in_doubt is not None,
    )


async def _groups(text: Exposition, broker: Broker) -> None:
    if OFFSETS_TOPIC not in broker.topics.image.topics:
        return
    groups = await group_names(broker)
    text.gauge("alpacamq_groups", "Groups with members or committed offsets.", len(groups))
    text.add(
        Kind.GAUGE,
        "alpacamq_group_lag",
        "Messages a group has not come to.",
        [
            ({"group": each.group, "topic": each.topic}, each.messages)
            for each in await lags(broker, groups[:MAX_GROUPS])
        ],
    )


def _queues(text: Exposition, broker: Broker) -> None:
    queues = sorted(broker.queues.figures(), key=lambda each: each.queue)
    text.gauge("alpacamq_queues", "Groups that use a topic as a queue.", len(queues))
    found = queues[:MAX_QUEUES]

    def held(name: str, description: str, number: Callable[[PartitionFigures], int]) -> None:
        samples = [(_labels(each), sum(map(number, each.partitions))) for each in found]
        text.add(Kind.GAUGE, f"alpacamq_queue_{name}", description, samples)

    def counted(name: str, description: str, number: Callable[[DescribeReply], int]) -> None:
        samples = [(_labels(each), number(each)) for each in found]
        text.add(Kind.COUNTER, f"alpacamq_queue_{name}_total", description, samples)

    held("ready", "Messages that can be received.", lambda each: each.ready)
    held("in_flight", "Messages received and not settled.", lambda each: each.in_flight)
    held("resting", "Messages that wait for their next try.", lambda each: each.resting)
    counted("received", "Deliveries.", lambda each: each.received_total)
    counted("acked", "Messages acknowledged.", lambda each: each.acked_total)
    counted("nacked", "Deliveries given back as failed.", lambda each: each.nacked_total)
    counted("rejected", "Messages rejected.", lambda each: each.rejected_total)
    counted("expired_leases", "Deliveries nobody settled in time.", lambda each: each.expired_leases_total)
    counted("dead_lettered", "Messages set aside.", lambda each: each.dead_lettered_total)
    counted("redelivered", "Deliveries after the first.", lambda each: each.redelivered_total)
    _lanes(text, found)


def _lanes(text: Exposition, found: Sequence[DescribeReply]) -> None:
    lanes = [
        ({**_labels(queue), "lane": lane}, figures)
        for queue in found
        for lane, figures in lanes_of(queue.partitions).items()
    ]
    text.add(
        Kind.GAUGE,
        "alpacamq_queue_lane_ready",
        "Messages of a lane that can be received.",
        [(labels, figures.ready) for labels, figures in lanes],
    )
    text.add(
        Kind.COUNTER,
        "alpacamq_queue_lane_delivered_total",
        "Deliveries of a lane.",
        [(labels, figures.delivered_total) for labels, figures in lanes],
    )


async def _delays(text: Exposition, broker: Broker) -> None:
    figures = await broker.delays.figures()
    text.gauge("alpacamq_delayed_messages", "Messages that wait for their time.", figures.pending)
    text.counter("alpacamq_delayed_scheduled_total", "Messages delayed.", figures.scheduled_total)
    text.counter("alpacamq_delayed_delivered_total", "Delayed messages delivered.", figures.fired_total)
    text.counter(
        "alpacamq_delayed_dropped_total", "Delayed messages whose topic was deleted.", figures.dropped_total
    )
    text.counter("alpacamq_delayed_cancelled_total", "Delayed messages cancelled.", figures.cancelled_total)
    text.add(
        Kind.GAUGE,
        "alpacamq_delayed_late_seconds",
        "How long after their time the recent ones were delivered.",
        [({"quantile": "0.99"}, figures.late_ms_p99 / 1000)],
    )


async def _transactions(text: Exposition, broker: Broker) -> None:
    if TRANSACTIONS_TOPIC not in broker.topics.image.topics:
        return
    stats = stats_of(await all_transactions(broker, ListTransactions()))
    text.add(
        Kind.GAUGE,
        "alpacamq_transactional_ids",
        "Transactional ids by the state of their transaction.",
        [({"state": state}, count) for state, count in stats.by_state.items()],
    )
    if stats.oldest_started is not None:
        text.gauge(
            "alpacamq_oldest_transaction_seconds",
            "How long the oldest open transaction has been open.",
            (broker.clock.now_ms() - stats.oldest_started) / 1000,
        )


def _requests(text: Exposition, backend: Backend) -> None:
    text.add(
        Kind.COUNTER,
        "alpacamq_http_requests_total",
        "Requests this API has answered.",
        [
            ({"method": each.method, "path": each.path, "status": str(each.status)}, count)
            for each, count in backend.traffic
        ],
    )


def _labels(queue: DescribeReply) -> Labels:
    return {"group": queue.queue.group, "topic": queue.queue.topic}


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/metrics",
        summary="Metrics for Prometheus",
        handler=metrics,
        parameters=Nothing,
        body=Nothing,
        answers=(str,),
        content_type=CONTENT_TYPE,
    ),
)
