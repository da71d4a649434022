"""What an event leads to in the groups of a shard: records, replies, and departures."""

from dataclasses import dataclass, field
from typing import Self

from alpacamq.model.outcome import Outcome

from .share_messages import Departure


@dataclass(slots=True)
class GroupOutcome(Outcome):
    """`departures` are acted upon once `changes` are durable."""

    departures: list[Departure] = field(default_factory=list)

    def __iadd__(self, other: Outcome) -> Self:
        Outcome.__iadd__(self, other)
        if isinstance(other, GroupOutcome):
            self.departures += other.departures
        return self
