"""What an event leads to: records to be written, and replies to be sent once they are durable."""

from dataclasses import dataclass, field
from typing import NamedTuple, Self


class Change(NamedTuple):
    """One keyed record of the machine's internal topic; no value means the thing is gone."""

    key: bytes
    value: bytes | None


class Reply(NamedTuple):
    """An answer for whoever brought `to`: a result, or an AlpacaError as a value."""

    to: object
    answer: object


@dataclass(slots=True)
class Outcome:
    """Changes are written as one batch; replies wait for that batch, and for those before it."""

    changes: list[Change] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)

    def __iadd__(self, other: "Outcome") -> Self:
        self.changes += other.changes
        self.replies += other.replies
        return self
