"""The plan of a replay: its offsets, divided into batches, fixed when it first runs. Pure.

Batches are numbered, and the content of a batch depends on the plan alone, so that a batch written
again is the same as before.
"""

from collections.abc import Iterable, Sequence

import msgspec

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq_spark.read.positions import assign_option, offsets_option


class PlannedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of one partition, from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(TopicName(self.topic), self.partition)


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets to replay.

    `wanted` is the pipeline's definition when the plan was made.
    """

    id: str
    wanted: str
    begin_ms: int | None
    end_ms: int | None
    rows: int
    batches: int
    spans: tuple[PlannedRange, ...]
    # The state of a table that is replayed.
    snapshot: int | str | None = None

    @property
    def transactional_id(self) -> str:
        return f"replay-{self.id}"

    def batch(self, number: int) -> list[PlannedRange]:
        """Return the offsets of one batch: the same share of every partition, so all advance together."""
        found = []
        for span in self.spans:
            length = span.end - span.start
            start = span.start + length * number // self.batches
            end = span.start + length * (number + 1) // self.batches
            if start < end:
                found.append(PlannedRange(topic=span.topic, partition=span.partition, start=start, end=end))
        return found


class ReplayProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The number of completed batches, and their rows."""

    batches: int = 0
    rows: int = 0


def batches_for(rows: int, spans: Iterable[PlannedRange], at_most: int) -> int:
    """Return the number of batches of about `at_most` rows; at most one per offset."""
    offsets = max((span.end - span.start for span in spans), default=0)
    return min(-(-rows // at_most), offsets)


def span_options(spans: Sequence[PlannedRange]) -> dict[str, str]:
    """Return the connector's options to read these offsets."""
    return {
        "assign": assign_option(span.place for span in spans),
        "startingOffsets": offsets_option({span.place: span.start for span in spans}),
        "endingOffsets": offsets_option({span.place: span.end for span in spans}),
    }
