"""Connections and requests of every door, in figures."""

from collections.abc import Mapping

from alpacamq.api.rest.exposition import Exposition, Labels
from alpacamq.api.rest.traffic import Traffic
from alpacamq.telemetry import metrics_catalogue as m
from alpacamq.telemetry.metrics import DoorFigures, Metrics
from alpacamq.telemetry.metrics_catalogue import Metric


def collect(text: Exposition, metrics: Metrics, traffic: Traffic) -> None:
    doors = metrics.doors
    text.add(m.CONNECTIONS, {(name,): door.opened - door.shut for name, door in doors.items()})
    text.add(m.CONNECTIONS_OPENED, {(name,): door.opened for name, door in doors.items()})
    text.add(m.CONNECTIONS_REFUSED, {(name,): door.refused for name, door in doors.items()})
    text.add(m.CONNECTIONS_EVICTED, {(name,): door.evicted for name, door in doors.items()})
    text.add(m.RECEIVED_BYTES, {(name,): door.received_bytes for name, door in doors.items()})
    text.add(m.SENT_BYTES, {(name,): door.sent_bytes for name, door in doors.items()})
    _requests(text, m.KAFKA_SECONDS, m.KAFKA_ERRORS, doors["kafka"])
    _requests(text, m.SQS_SECONDS, m.SQS_ERRORS, doors["sqs"])
    text.histograms(
        m.HTTP_SECONDS,
        [
            (_method_and_path(kind), figures.seconds)
            for kind, figures in sorted(doors["http"].kinds.items())
            if figures.seconds.count
        ],
    )
    text.add(m.HTTP_REQUESTS, {(each.method, each.path, str(each.status)): count for each, count in traffic})


def _requests(text: Exposition, seconds: Metric, errors: Metric, door: DoorFigures) -> None:
    kinds = sorted(door.kinds.items())
    text.histograms(seconds, [((kind,), figures.seconds) for kind, figures in kinds if figures.seconds.count])
    refused: Mapping[Labels, int] = {
        (kind, reason): count for kind, figures in kinds for reason, count in sorted(figures.refusals.items())
    }
    text.add(errors, refused)


def _method_and_path(kind: str) -> Labels:
    method, _, path = kind.partition(" ")
    return method, path
