"""Summary of a trace: first position, start, last change and status."""

from collections.abc import Iterable
from typing import NamedTuple

from .events import Status, TraceEvent, status_after

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
        "started_us",
        "status",
        "topic",
        "trace_id",
    )

    def __init__(self, first: TraceEvent) -> None:
        self.trace_id = first.trace_id
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
    def place(self) -> Place | None:
        """First position of the message."""
        return self.places[0] if self.places else None


def summarize(events: Iterable[TraceEvent]) -> list[TraceSummary]:
    """Return one summary per trace of these events."""
    summaries: dict[str, TraceSummary] = {}
    for event in events:
        if (summary := summaries.get(event.trace_id)) is None:
            summaries[event.trace_id] = TraceSummary(event)
        else:
            summary.add(event)
    return list(summaries.values())
