"""The plan of a replay: which offsets, cut into batches, fixed when it first runs. Pure.

Batches are numbered, and what a batch holds follows from the plan alone, so that one which is
written again is the same as before.
"""

from collections.abc import Iterable, Sequence

import msgspec

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq_spark.read.offset_json import assign_option, offsets_option


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of one partition, from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(TopicName(self.topic), self.partition)


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed, under a name of its own.

    `wanted` is what the pipeline said when the plan was made.
    """

    id: str
    wanted: str
    begin_ms: int | None
    end_ms: int | None
    rows: int
    batches: int
    spans: tuple[Span, ...]

    @property
    def transactional_id(self) -> str:
        return f"replay-{self.id}"

    def batch(self, number: int) -> list[Span]:
        """The offsets of one batch: the same share of every partition, so that they advance together."""
        found = []
        for span in self.spans:
            length = span.end - span.start
            start = span.start + length * number // self.batches
            end = span.start + length * (number + 1) // self.batches
            if start < end:
                found.append(Span(topic=span.topic, partition=span.partition, start=start, end=end))
        return found


class ReplayProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How many batches are done, and the rows in them."""

    batches: int = 0
    rows: int = 0


def batches_for(rows: int, spans: Iterable[Span], at_most: int) -> int:
    """How many batches of about `at_most` rows; never more than there are offsets."""
    offsets = max((span.end - span.start for span in spans), default=0)
    return min(-(-rows // at_most), offsets)


def span_options(spans: Sequence[Span]) -> dict[str, str]:
    """What reads these offsets, as options of the connector."""
    return {
        "assign": assign_option(span.place for span in spans),
        "startingOffsets": offsets_option({span.place: span.start for span in spans}),
        "endingOffsets": offsets_option({span.place: span.end for span in spans}),
    }
