"""The queues that are compared: those of our APIs, and those of the peers with the same work.

All clients are raw connections in one epoll loop of this process. Those of HTTP, SQS, Redis and NATS request
messages; gRPC and RabbitMQ deliver without requests, up to the credit of a consumer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from . import grpc_load, http_load, nats, rabbitmq, redis_streams, sqs_load, topics
from .dialogue import Turns
from .elasticmq import elasticmq
from .jars import Unavailable
from .report import OURS, Report
from .servers import AlpacaMQ, Contender, Server
from .session import Session

SIZE = 100
TEXT = "x" * SIZE
BODY = TEXT.encode()
CONSUMERS = 8
PARTITIONS = 3
FILLED = 1000


class Publish(Protocol):
    """Makes requests with `batch` messages each, one in flight on each connection."""

    def __call__(self, turns: Turns, *, connections: int, batch: int) -> None: ...


# Receives and acknowledges all the messages of the queue: their number, how many together, the credit.
Drain = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A new queue on a running server."""

    publish: Publish
    drain: Drain
    # The most that one request takes.
    max_batch: int = FILLED

    def fill(self, messages: int) -> None:
        connections = 1 if self.max_batch == FILLED else CONSUMERS
        self.publish(Turns(messages // self.max_batch), connections=connections, batch=self.max_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueApi:
    """Queues of one server, used by one of its APIs."""

    contender: Contender
    create: Callable[[Server, str], Queue]


# Raises Unavailable.
Find = Callable[[], QueueApi]


def http() -> QueueApi:
    def create(server: Server, name: str) -> Queue:
        topics.create(server.address, name, PARTITIONS)
        address = server.addresses["http"]
        return Queue(
            publish=partial(http_load.publish, address, name, value=TEXT),
            drain=lambda messages, batch, _: http_load.drain_ahead(address, name, messages, CONSUMERS, batch),
        )

    return QueueApi(contender=AlpacaMQ(), create=create)


def grpc() -> QueueApi:
    def create(server: Server, name: str) -> Queue:
        topics.create(server.address, name, PARTITIONS)
        address = server.addresses["grpc"]
        return Queue(
            publish=partial(http_load.publish, server.addresses["http"], name, value=TEXT),
            drain=lambda messages, batch, credit: grpc_load.drain(
                address, name, messages, CONSUMERS, credit=credit, batch=batch
            ),
        )

    return QueueApi(contender=AlpacaMQ(), create=create)


def sqs() -> QueueApi:
    return QueueApi(contender=AlpacaMQ(), create=_sqs_queue)


def sqs_peer() -> QueueApi:
    return QueueApi(contender=elasticmq(), create=_sqs_queue)


def _sqs_queue(server: Server, name: str) -> Queue:
    queue = sqs_load.SqsQueue(server.addresses.get("sqs", server.address), name)
    queue.create()
    return Queue(
        publish=partial(queue.publish, body=TEXT),
        drain=lambda messages, _batch, _credit: queue.drain(messages, CONSUMERS),
        max_batch=sqs_load.BATCH,
    )


def redis_peer() -> QueueApi:
    def create(server: Server, name: str) -> Queue:
        redis_streams.create(server.address, name)
        return Queue(
            publish=partial(redis_streams.publish, server.address, name, body=BODY),
            drain=lambda messages, batch, _: redis_streams.drain(
                server.address, name, messages, CONSUMERS, batch
            ),
        )

    return QueueApi(contender=redis_streams.redis_streams(), create=create)


def nats_peer() -> QueueApi:
    def create(server: Server, name: str) -> Queue:
        nats.create(server.address, name)
        return Queue(
            publish=partial(nats.publish, server.address, name, body=BODY),
            drain=lambda messages, batch, _: nats.drain(server.address, name, messages, CONSUMERS, batch),
        )

    return QueueApi(contender=nats.nats(), create=create)


def classic_peer() -> QueueApi:
    return _rabbitmq("classic")


def quorum_peer() -> QueueApi:
    return _rabbitmq("quorum")


def _rabbitmq(queue_type: str) -> QueueApi:
    def create(server: Server, name: str) -> Queue:
        rabbitmq.create(server.address, name, queue_type)
        return Queue(
            publish=partial(rabbitmq.publish, server.address, name, body=BODY),
            drain=lambda messages, batch, credit: rabbitmq.drain(
                server.address, name, messages, CONSUMERS, prefetch=credit, batch=batch
            ),
        )

    return QueueApi(contender=rabbitmq.rabbitmq(queue_type), create=create)


def compare(
    session: Session,
    report: Report,
    finds: Sequence[Find],
    measure: Callable[[QueueApi, Server], None],
) -> None:
    """Run the same measurement on each server; a peer that is missing or does not start is reported."""
    for find in finds:
        try:
            api = find()
            if session.is_quick and api.contender.name != OURS:
                report.skip(api.contender.name, "a quick run is without its peers")
                continue
            with session.server(api.contender) as server:
                measure(api, server)
        except Unavailable as error:
            report.skip(find.__name__.removesuffix("_peer"), str(error))
