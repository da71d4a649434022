"""One trace in short: where its message was first, when it began and last changed, and where it is now."""

from collections.abc import Iterable
from typing import NamedTuple

from .events import Status, TraceEvent, status_after

# Of one trace: a message that is moved to and fro has the last of them forgotten, not the first.
MAX_PLACES = 16
KEY = "key"


class Place(NamedTuple):
    """Where a message lies, or has lain."""

    topic: str
    partition: int
    offset: int


class TraceSummary:
    """Grows with every event of its trace."""

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
        # Whether there are no events before these, which only the trace log has.
        self.is_whole = True
        self.add(first)

    def add(self, event: TraceEvent) -> None:
        """One more step, in the order in which they were recorded."""
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
        """Where the message was first."""
        return self.places[0] if self.places else None


def summed_up(events: Iterable[TraceEvent]) -> list[TraceSummary]:
    """One summary for each trace that these events are of."""
    summaries: dict[str, TraceSummary] = {}
    for event in events:
        if (summary := summaries.get(event.trace_id)) is None:
            summaries[event.trace_id] = TraceSummary(event)
        else:
            summary.add(event)
    return list(summaries.values())
