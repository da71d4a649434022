"""What happens to a message, one event for each step of its life."""

import time
from collections.abc import Mapping
from enum import StrEnum

import msgspec

Attribute = str | int | float | bool


class ClientApi(StrEnum):
    """Through which API a step came; the broker's own steps come through none."""

    KAFKA = "kafka"
    HTTP = "http"
    SQS = "sqs"
    BROKER = "broker"


class Step(StrEnum):
    """The names of events."""

    RECEIVED = "publish.received"
    PARTITIONED = "publish.partitioned"
    PERSISTED = "publish.persisted"
    FETCHED = "consume.fetched"
    ACKED = "consume.acked"
    NACKED = "consume.nacked"
    REJECTED = "consume.rejected"
    EXPIRED = "consume.expired"
    SCHEDULED = "delay.scheduled"
    READY = "delay.ready"
    CANCELLED = "delay.cancelled"
    DELAY_EXPIRED = "delay.expired"
    TIMED_OUT = "visibility.timeout"
    EXTENDED = "visibility.extended"
    DEAD_LETTERED = "dlq.routed"
    REDRIVEN = "dlq.redriven"


class Status(StrEnum):
    """Where a message is."""

    PUBLISHED = "published"
    DELAYED = "delayed"
    IN_FLIGHT = "in-flight"
    ACKED = "acked"
    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


# The attribute that tells a message leased from a queue from one read in its log.
DELIVERY_COUNT = "delivery_count"


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step. Times are in microseconds since 1970; -1 is a place that is not known.

    The trace comes first: lines of the trace log are told apart by it without being decoded.
    """

    trace_id: str
    span_id: str
    at_us: int
    name: str
    parent_span_id: str = ""
    topic: str = ""
    partition: int = -1
    offset: int = -1
    group: str = ""
    consumer: str = ""
    api: str = msgspec.field(default=ClientApi.BROKER.value, name="door")
    attributes: Mapping[str, Attribute] = {}

    @property
    def has_place(self) -> bool:
        """Whether it tells where the message lies."""
        return self.offset >= 0

    @property
    def is_leased(self) -> bool:
        """Of a fetch: whether the message was leased by a queue's consumer, not read from the log."""
        return DELIVERY_COUNT in self.attributes


_STATUS_AFTER: Mapping[str, Status] = {
    Step.RECEIVED: Status.PUBLISHED,
    Step.PERSISTED: Status.PUBLISHED,
    Step.ACKED: Status.ACKED,
    Step.NACKED: Status.PUBLISHED,
    Step.REJECTED: Status.PUBLISHED,
    Step.EXPIRED: Status.EXPIRED,
    Step.SCHEDULED: Status.DELAYED,
    Step.READY: Status.PUBLISHED,
    Step.CANCELLED: Status.CANCELLED,
    Step.DELAY_EXPIRED: Status.EXPIRED,
    Step.TIMED_OUT: Status.PUBLISHED,
    Step.DEAD_LETTERED: Status.DEAD_LETTERED,
    Step.REDRIVEN: Status.PUBLISHED,
}


def status_after(event: TraceEvent, before: Status) -> Status:
    """Where a message is after a step. Reading the log takes a message from nobody."""
    if event.name == Step.FETCHED:
        return Status.IN_FLIGHT if event.is_leased else before
    return _STATUS_AFTER.get(event.name, before)


def now_us() -> int:
    return time.time_ns() // 1000
