"""Sends dead letters back to their topics, each once however often the redrive runs.

A numbered batch is first recorded in the checkpoint, by offsets, and then written under one
transactional id with that number. The next run completes a batch that a run recorded but did not
write, and dead letters in any batch are not sent again.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from alpacamq.client.errors import NotFound
from alpacamq.client.kafka.offsets import extents
from alpacamq.client.kafka.topics import list_topics
from alpacamq.model.headers import DEAD_LETTER_HEADERS
from alpacamq_spark.commit.committer import complete
from alpacamq_spark.pipelines.definition import Redrive
from alpacamq_spark.pipelines.errors import BadPlan, condition
from alpacamq_spark.pipelines.replay.plan import PlannedRange, span_options
from alpacamq_spark.pipelines.run import BatchDone, PipelineRun, Plain, Section
from alpacamq_spark.pipelines.sources import reach, write_records
from alpacamq_spark.write.staging import JOBS, Batch

from .letters import Letters, letters_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BATCH = 50_000
_SHOWN = 20
_PLACE = ("topic", "partition", "offset")
_BATCHES = "redrive"
_DONE = "redrive-done.json"


class RedriveBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that are sent back together, and their topics. Topic ids distinguish topics from later
    ones of the same name."""

    rows: int
    spans: tuple[PlannedRange, ...]
    topic_ids: Mapping[str, str]
    targets: tuple[str, ...] = ()


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The number of batches written."""

    batches: int = 0


@dataclass(slots=True, kw_only=True)
class Redriven:
    """The dead letters that were, or would be, sent back."""

    rows: int
    data: dict[str, Plain]
    sections: list[Section]
    notes: list[str] = field(default_factory=list)


def redriven(redrive: Redrive, run: PipelineRun, letters: Letters, data: "StructType | None") -> Redriven:
    """Send back the matching dead letters, or show which would be."""
    journal = _RedriveLog(run, letters)
    work = _RedriveJob(redrive, run, letters, data, journal)
    if not redrive.execute:
        return work.shown()
    return work.done()


class _RedriveLog:
    """The batches in a checkpoint: those written, and perhaps one that is not."""

    def __init__(self, run: PipelineRun, letters: Letters) -> None:
        self._checkpoint = run.checkpoint
        self._ids = letters.ids()
        self.transactional_id = f"redrive-{run.checkpoint.identity()}"
        names = [name for name in run.checkpoint.storage.names(_BATCHES) if name.endswith(".json")]
        self._planned = len(names)
        self.done = (run.checkpoint.recall(_DONE, Done) or Done()).batches
        self._spans: list[PlannedRange] = []
        for number in range(self._planned):
            batch = self.batch(number)
            self._note(batch)

    def batch(self, number: int) -> RedriveBatch:
        found = self._checkpoint.recall(f"{_BATCHES}/{number:010}.json", RedriveBatch)
        if found is None:
            raise BadPlan(f"batch {number} of the redrive is missing in {self._checkpoint.place}")
        return found

    def plan(self, batch: RedriveBatch) -> int:
        """Record a batch; return its number."""
        number = self._planned
        self._checkpoint.remember(f"{_BATCHES}/{number:010}.json", batch)
        self._planned += 1
        self._note(batch)
        return number

    def finish(self, number: int) -> None:
        self.done = number + 1
        self._checkpoint.remember(_DONE, Done(batches=self.done))

    def unfinished(self) -> list[int]:
        return list(range(self.done, self._planned))

    def sent(self) -> list[PlannedRange]:
        """Return the offsets not to be sent again, for the current topics."""
        return self._spans

    def _note(self, batch: RedriveBatch) -> None:
        self._spans += [
            span for span in batch.spans if self._ids.get(span.topic) == batch.topic_ids.get(span.topic)
        ]


class _RedriveJob:
    """One redrive: selects, shows and sends dead letters."""

    def __init__(
        self,
        redrive: Redrive,
        run: PipelineRun,
        letters: Letters,
        data: "StructType | None",
        journal: _RedriveLog,
    ) -> None:
        self._redrive = redrive
        self._run = run
        self._letters = letters
        self._data = data
        self._journal = journal
        self._now_ms = time.time_ns() // 1_000_000
        self._sent = 0

    def shown(self) -> Redriven:
        """Return what would be sent back."""
        from pyspark.sql import functions as f

        matching = self._matching()
        by_topic = [
            (row["origin_topic"], row["count"])
            for row in matching.groupBy("origin_topic").agg(f.count("*").alias("count")).collect()
        ]
        total = sum(count for _, count in by_topic)
        sample = matching.orderBy("topic", "partition", "offset").limit(_SHOWN)
        columns = ["topic", "partition", "offset", "reason", "origin_topic"]
        rows = [list(row) for row in sample.select(*columns).collect()]
        return Redriven(
            rows=0,
            data={
                "executed": False,
                "matching": total,
                "redriven": 0,
                "targets": [{"topic": topic, "count": count} for topic, count in sorted(by_topic)],
                "sample": [dict(zip(columns, row, strict=True)) for row in rows],
            },
            sections=[
                Section(["would go to", "count"], sorted(by_topic), title=f"redrive of {total}"),
                Section(columns, rows, title=f"the first {len(rows)}"),
            ],
            notes=["nothing was sent; set execute = true or add --execute to send"] if total else [],
        )

    def done(self) -> Redriven:
        """Send back, beginning with a batch that an earlier run recorded but did not write."""
        for number in self._journal.unfinished():
            self._send(number)
        limit = self._redrive.limit
        while not self._run.interruption.is_requested and (limit is None or self._sent < limit):
            batch = self._next_batch(BATCH if limit is None else min(BATCH, limit - self._sent))
            if batch is None:
                break
            self._send(self._journal.plan(batch))
        sent = self._sent
        return Redriven(
            rows=sent,
            data={"executed": True, "redriven": sent, "batches": self._journal.done},
            sections=[Section(["redriven", "batches in all"], [[sent, self._journal.done]], title="redrive")],
        )

    def _matching(self) -> "DataFrame":
        """Return matching dead letters that were not sent back yet."""
        from pyspark.sql import functions as f

        frame = letters_frame(self._run, self._letters, self._data, self._now_ms)
        with condition("redrive.where"):
            matching = frame.where(self._redrive.where)
        known = matching.where(f.col("origin_topic") != "")
        if not (sent := self._journal.sent()):
            return known
        return known.join(self._offsets(sent), list(_PLACE), "left_anti")

    def _next_batch(self, at_most: int) -> RedriveBatch | None:
        found = (
            self._matching()
            .select("topic", "partition", "offset", "origin_topic")
            .orderBy("topic", "partition", "offset")
            .limit(at_most)
            .collect()
        )
        if not found:
            return None
        targets = tuple(sorted({row["origin_topic"] for row in found}))
        self._check_targets(targets)  # before it is recorded, so that another condition can exclude it
        spans = packed((row["topic"], row["partition"], row["offset"]) for row in found)
        return RedriveBatch(
            rows=len(found), spans=tuple(spans), topic_ids=self._letters.ids(), targets=targets
        )

    def _check_targets(self, topics: Iterable[str]) -> None:
        """Check that target topics exist: a deleted topic is not recreated for its dead letters."""
        with reach(self._run.broker, self._run.access) as cluster:
            every = [topic.name for topic in list_topics(cluster)]
        for topic in topics:
            if topic not in every:
                raise NotFound("topic to send dead letters back to,", topic, every)

    def _send(self, number: int) -> None:
        started_at = time.monotonic()
        batch = self._journal.batch(number)
        spans = self._left(batch)
        rows = sum(span.end - span.start for span in spans)
        if rows < batch.rows:
            self._run.listener.say(f"{batch.rows - rows} dead letters selected by an earlier run are gone")
        if not spans:
            # The run that selected them may have written them, and died before committing all of them.
            batch_of_sink = Batch(
                sink=self._journal.transactional_id, query=JOBS, run=uuid4().hex, number=number
            )
            with reach(self._run.broker, self._run.access) as cluster:
                complete(cluster, batch_of_sink)
            self._journal.finish(number)
            return
        self._check_targets(batch.targets)
        options = span_options(covering(spans))
        letters = letters_frame(self._run, self._letters, None, self._now_ms, options)
        chosen = letters.join(self._offsets(spans), list(_PLACE), "left_semi")
        write_records(
            self._records(chosen),
            self._run,
            {"transactionalId": self._journal.transactional_id, "batchId": str(number)},
        )
        self._journal.finish(number)
        self._sent += rows
        took_s = time.monotonic() - started_at
        self._run.listener.batch(
            BatchDone(
                batch=number,
                rows=rows,
                rows_per_second=rows / took_s,
                duration_ms=int(took_s * 1000),
                lag=None,
                total_rows=self._sent,
            )
        )

    def _left(self, batch: RedriveBatch) -> list[PlannedRange]:
        """Return the part of a batch that still exists: an earlier run may have recorded it long ago."""
        with reach(self._run.broker, self._run.access) as cluster:
            ids: dict[str, str] = {topic.name: topic.id for topic in list_topics(cluster)}
            same = [span for span in batch.spans if ids.get(span.topic) == batch.topic_ids.get(span.topic)]
            logs = extents(cluster, {span.place for span in same})
        kept = [msgspec.structs.replace(span, start=max(span.start, logs[span.place].start)) for span in same]
        return [span for span in kept if span.start < span.end]

    def _records(self, chosen: "DataFrame") -> "DataFrame":
        """Return dead letters as the original records, but with new timestamps."""
        from pyspark.sql import functions as f

        with reach(self._run.broker, self._run.access) as cluster:
            counts = {topic.name: len(topic.partitions) for topic in list_topics(cluster)}
        known = f.create_map(*[f.lit(each) for pair in counts.items() for each in pair])
        # A recreated topic may have fewer partitions than the original.
        is_there = f.col("origin_partition") < f.try_element_at(known, f.col("origin_topic"))
        ordered = chosen.sortWithinPartitions("topic", "partition", "offset")
        return ordered.select(
            f.col("_key").alias("key"),
            f.col("_value").alias("value"),
            f.filter("_headers", lambda header: ~header["key"].isin(*DEAD_LETTER_HEADERS)).alias("headers"),
            f.col("origin_topic").alias("topic"),
            f.when(is_there, f.col("origin_partition")).alias("partition"),
        )

    def _offsets(self, spans: Sequence[PlannedRange]) -> "DataFrame":
        """Return one row per offset: Spark joins equal values well, and ranges badly."""
        rows = [(span.topic, span.partition, span.start, span.end) for span in spans]
        schema = "topic STRING, partition INT, start BIGINT, end BIGINT"
        frame = self._run.spark.createDataFrame(rows, schema)
        return frame.selectExpr("topic", "partition", "explode(sequence(start, end - 1)) AS offset")


def packed(places: Iterable[tuple[str, int, int]]) -> list[PlannedRange]:
    """Combine single offsets, in order, to ranges."""
    spans: list[PlannedRange] = []
    for topic, partition, offset in places:
        last = spans[-1] if spans else None
        if last is not None and (last.topic, last.partition, last.end) == (topic, partition, offset):
            spans[-1] = msgspec.structs.replace(last, end=offset + 1)
        else:
            spans.append(PlannedRange(topic=topic, partition=partition, start=offset, end=offset + 1))
    return spans


def covering(spans: Sequence[PlannedRange]) -> list[PlannedRange]:
    """Return for every partition the range that covers all of its ranges."""
    hull: dict[tuple[str, int], PlannedRange] = {}
    for span in spans:
        at = (span.topic, span.partition)
        before = hull.get(at, span)
        hull[at] = PlannedRange(
            topic=span.topic,
            partition=span.partition,
            start=min(before.start, span.start),
            end=max(before.end, span.end),
        )
    return list(hull.values())
