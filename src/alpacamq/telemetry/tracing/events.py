"""Trace events, one for each step of a message, and the summary of a trace."""

import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

Attribute = str | int | float | bool


class ClientApi(StrEnum):
    """API of a step; steps of the broker itself have their own value."""

    KAFKA = "kafka"
    HTTP = "http"
    SQS = "sqs"
    GRPC = "grpc"
    BROKER = "broker"


class Step(StrEnum):
    """Names of events."""

    RECEIVED = "publish.received"
    PARTITIONED = "publish.partitioned"
    PERSISTED = "publish.persisted"
    REPLICATED = "publish.replicated"
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
    """Status of a message."""

    PUBLISHED = "published"
    DELAYED = "delayed"
    IN_FLIGHT = "in-flight"
    ACKED = "acked"
    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


# The attribute that distinguishes a lease from a read of the log.
DELIVERY_COUNT = "delivery_count"


class TraceKey(NamedTuple):
    """What is one trace. Clients choose ids: those of different tenants are different traces."""

    scope: str
    trace_id: str


def scope_of(topic: str) -> str:
    """Return the scope of the trace ids of a topic: what comes before its name, empty for plain names."""
    return topic[: topic.find(":") + 1]


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step. Times are in microseconds since 1970; -1 is an unknown position.

    The trace id is the first field, so that lines of the trace log can be filtered without decoding.
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
    def key(self) -> "TraceKey":
        """The trace that it belongs to."""
        return TraceKey(scope_of(self.topic), self.trace_id)

    @property
    def has_place(self) -> bool:
        """Whether the position of the message is known."""
        return self.offset >= 0

    @property
    def is_leased(self) -> bool:
        """Whether a fetch was a lease by a queue's consumer, not a read of the log."""
        return DELIVERY_COUNT in self.attributes

    @property
    def is_ungrouped_read(self) -> bool:
        """Whether a client read the log without naming a group, such as a browser of messages."""
        return self.name == Step.FETCHED and not self.group and not self.is_leased


_STATUS_AFTER: Mapping[str, Status] = {
    Step.RECEIVED: Status.PUBLISHED,
    Step.PERSISTED: Status.PUBLISHED,
    Step.REPLICATED: Status.PUBLISHED,
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
    """Return the status after a step. Reading the log does not change it."""
    if event.name == Step.FETCHED:
        return Status.IN_FLIGHT if event.is_leased else before
    return _STATUS_AFTER.get(event.name, before)


def now_us() -> int:
    return time.time_ns() // 1000


# Maximum number of positions of a trace; the first ones are kept.
MAX_PLACES = 16
KEY = "key"


class Place(NamedTuple):
    """A position that a message has or had."""

    topic: str
    partition: int
    offset: int


class TraceSummary:
    """Updated with every event of its trace."""

    __slots__ = (
        "ended_us",
        "events",
        "is_whole",
        "keys",
        "places",
        "scope",
        "started_us",
        "status",
        "topic",
        "trace_id",
    )

    def __init__(self, first: TraceEvent) -> None:
        self.scope, self.trace_id = first.key
        self.topic = first.topic
        self.started_us = self.ended_us = first.at_us
        self.events = 0
        self.status = Status.PUBLISHED
        self.places: list[Place] = []
        self.keys: list[str] = []
        # False if earlier events are only in the trace log.
        self.is_whole = True
        self.add(first)

    def add(self, event: TraceEvent) -> None:
        """Add an event, in the order they were recorded."""
        self.events += 1
        self.started_us = min(self.started_us, event.at_us)
        # Anyone may look at a message at any time: that does not prolong its trace.
        if not event.is_ungrouped_read:
            self.ended_us = max(self.ended_us, event.at_us)
        self.status = status_after(event, self.status)
        if event.has_place and len(self.places) < MAX_PLACES:
            place = Place(event.topic, event.partition, event.offset)
            if place not in self.places:
                self.places.append(place)
        key = event.attributes.get(KEY)
        if isinstance(key, str) and key not in self.keys and len(self.keys) < MAX_PLACES:
            self.keys.append(key)

    @property
    def key(self) -> TraceKey:
        return TraceKey(self.scope, self.trace_id)

    @property
    def place(self) -> Place | None:
        """First position of the message."""
        return self.places[0] if self.places else None


def summarize(events: Iterable[TraceEvent]) -> list[TraceSummary]:
    """Return one summary per trace of these events."""
    summaries: dict[TraceKey, TraceSummary] = {}
    for event in events:
        if (summary := summaries.get(event.key)) is None:
            summaries[event.key] = TraceSummary(event)
        else:
            summary.add(event)
    return list(summaries.values())
