"""Metrics of connections and requests of every API."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from alpacamq.telemetry import metrics_catalogue as m
from alpacamq.telemetry.metrics import ForwardStats, ListenerStats, Metrics
from alpacamq.telemetry.metrics_catalogue import Metric

from .exposition import Exposition, Labels


class Answered(NamedTuple):
    """A method and path of the route table, and the status of a response."""

    method: str
    path: str
    status: int


class Traffic:
    """Counts responses by route and status, which are bounded in number."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], Counter[int]] = {}

    def of(self, method: str, path: str) -> Counter[int]:
        """Return the responses of a route by status, to be counted there."""
        return self._answers.setdefault((method, path), Counter())

    def count(self, method: str, path: str, status: int) -> None:
        self.of(method, path)[status] += 1

    def __iter__(self) -> Iterator[tuple[Answered, int]]:
        for (method, path), statuses in sorted(self._answers.items()):
            for status, count in sorted(statuses.items()):
                yield Answered(method, path, status), count


def collect(text: Exposition, metrics: Metrics, traffic: Traffic) -> None:
    listeners = metrics.listeners
    text.add(
        m.CONNECTIONS, {(name,): listener.opened - listener.shut for name, listener in listeners.items()}
    )
    text.add(m.CONNECTIONS_OPENED, {(name,): listener.opened for name, listener in listeners.items()})
    text.add(m.CONNECTIONS_REFUSED, {(name,): listener.refused for name, listener in listeners.items()})
    text.add(m.CONNECTIONS_EVICTED, {(name,): listener.evicted for name, listener in listeners.items()})
    text.add(m.CONNECTIONS_FILTERED, {(name,): listener.filtered for name, listener in listeners.items()})
    text.add(m.HANDSHAKES, {(name,): listener.handshakes for name, listener in listeners.items()})
    text.add(
        m.FAILED_HANDSHAKES, {(name,): listener.failed_handshakes for name, listener in listeners.items()}
    )
    text.add(m.RECEIVED_BYTES, {(name,): listener.received_bytes for name, listener in listeners.items()})
    text.add(m.SENT_BYTES, {(name,): listener.sent_bytes for name, listener in listeners.items()})
    _requests(text, m.KAFKA_SECONDS, m.KAFKA_ERRORS, listeners["kafka"])
    _requests(text, m.SQS_SECONDS, m.SQS_ERRORS, listeners["sqs"])
    _requests(text, m.REGISTRY_SECONDS, m.REGISTRY_ERRORS, listeners["registry"])
    _requests(text, m.GRPC_SECONDS, m.GRPC_CALLS, listeners["grpc"])
    text.add(m.GRPC_OPEN, {(): listeners["grpc"].calls_open})
    _requests(text, m.FORWARDED_SECONDS, m.FORWARDED_ERRORS, metrics.forwarded)
    text.histograms(
        m.HTTP_SECONDS,
        [
            (_method_and_path(kind), stats.seconds)
            for kind, stats in sorted(listeners["http"].kinds.items())
            if stats.seconds.count
        ],
    )
    text.add(m.HTTP_REQUESTS, {(each.method, each.path, str(each.status)): count for each, count in traffic})


def _requests(
    text: Exposition, seconds: Metric, errors: Metric, requests: ListenerStats | ForwardStats
) -> None:
    kinds = sorted(requests.kinds.items())
    text.histograms(seconds, [((kind,), stats.seconds) for kind, stats in kinds if stats.seconds.count])
    refused: Mapping[Labels, int] = {
        (kind, reason): count for kind, stats in kinds for reason, count in sorted(stats.refusals.items())
    }
    text.add(errors, refused)


def _method_and_path(kind: str) -> Labels:
    method, _, path = kind.partition(" ")
    return method, path
