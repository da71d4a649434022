"""Runs a streaming query: reports progress by batch, and stops without losing work.

A stop waits for the batch being written. A batch cut off by a harder end is written again, exactly
once, by the next run.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alpacamq.client.kafka.offsets import commit_offsets
from alpacamq.model.errors import AlpacaError

from .definition import AVAILABLE_NOW, ONCE
from .errors import translate_spark_errors
from .malformed import Malformed, malformed_in
from .run import BatchDone, PipelineRun
from .sources import reach
from .timestamps import parse_duration

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

POLL_S = 0.2
# How often progress is collected during the work after a batch. Spark keeps the progress of 100 batches.
COLLECT_S = 1.0
NOTHING_BESIDE: Mapping[str, "DataStreamWriter"] = {}
# Starts without a batch in between.
_TRIES = 5
_WORKER_TOO_SLOW = "Python worker failed to connect back"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """The totals of an ended query."""

    rows: int
    batches: int
    last_batch: int | None
    lag: int | None
    is_stopped: bool
    malformed: Mapping[str, Malformed]


def trigger_options(trigger: str) -> dict[str, Any]:
    """Convert a trigger to Spark's arguments."""
    if trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    if trigger == ONCE:
        return {"once": True}
    return {"processingTime": f"{parse_duration(trigger)} milliseconds"}


def run_stream(
    run: PipelineRun,
    writer: "DataStreamWriter",
    *,
    trigger: str,
    after_batch: Callable[[BatchDone], None] = lambda _: None,
    beside: Mapping[str, "DataStreamWriter"] = NOTHING_BESIDE,
) -> StreamEnd:
    """Run a query until its trigger is done or a stop is requested. Raises PipelineFailed.

    Batches that were complete while `after_batch` ran are followed by one call.
    Queries `beside` it, by the names of their checkpoints, run as long as it does, or until they are done.
    """
    named = writer.queryName(run.name).option("checkpointLocation", run.checkpoint.stream)
    others = [
        each.queryName(f"{run.name}-{name}").option("checkpointLocation", f"{run.checkpoint.place}/{name}")
        for name, each in beside.items()
    ]
    main, *rest = (each.trigger(**trigger_options(trigger)) for each in (named, *others))
    following = _QueryFollower(run, main, rest, after_batch)
    with translate_spark_errors():
        is_stopped = following.follow()
    _publish(run)
    return StreamEnd(
        rows=following.rows,
        batches=following.batches,
        last_batch=following.last_batch,
        lag=following.lag,
        is_stopped=is_stopped,
        malformed=following.malformed,
    )


class _QueryFollower:
    """Starts a query and those beside it, follows it and reports its progress."""

    def __init__(
        self,
        run: PipelineRun,
        writer: "DataStreamWriter",
        beside: Sequence["DataStreamWriter"],
        after_batch: Callable[[BatchDone], None],
    ) -> None:
        self._run = run
        self._writer = writer
        self._beside = beside
        self._after_batch = after_batch
        self.rows = 0
        self.batches = 0
        self.last_batch: int | None = None
        self.lag: int | None = None
        self.malformed: dict[str, Malformed] = {}
        # The progress of batches that are not reported yet.
        self._collected: dict[int, Mapping[str, Any]] = {}

    def follow(self) -> bool:
        """Run the query until it ends by itself (False) or a stop is requested (True).

        On a busy machine Spark may give up waiting for a Python worker: when it starts the query or, from
        Spark 4.3 on, in the query's thread. Then the query is started again, from its checkpoint.
        """
        tries_left = _TRIES
        while True:
            before = self.batches
            query: StreamingQuery | None = None
            others: list[StreamingQuery] = []
            try:
                # Before the query, so that none of them begins behind it.
                for each in self._beside:
                    others.append(each.start())
                query = self._writer.start()
                return self._await_end(query, others)
            except Exception as error:
                tries_left -= 1
                if _WORKER_TOO_SLOW not in str(error) or not tries_left:
                    raise
            finally:
                for started in (*others, *([] if query is None else [query])):
                    started.stop()
            if query is not None:
                self._report_batches(query)
            if self.batches > before:
                tries_left = _TRIES
            self._run.listener.say("Spark gave up waiting for a Python worker; starting the query again")

    def _await_end(self, query: "StreamingQuery", others: Sequence["StreamingQuery"]) -> bool:
        busy_since: float | None = None
        while not query.awaitTermination(POLL_S):
            before, now = self.batches, time.monotonic()
            self._report_batches(query)
            if self.batches > before or not query.status["isDataAvailable"]:
                busy_since = None
            elif busy_since is None:
                busy_since = now
            self._run.listener.running(0.0 if busy_since is None else now - busy_since)
            for error in filter(None, (each.exception() for each in others)):
                raise error
            if self._run.interruption.is_requested:
                self._await_batch(query)
                return True
        self._report_batches(query)
        for each in others:
            while not each.awaitTermination(POLL_S):
                if self._run.interruption.is_requested:
                    return True
        return False

    def _await_batch(self, query: "StreamingQuery") -> None:
        """Wait for the current batch, up to the limit."""
        self._run.listener.say("stopping after this batch; Ctrl-C again stops at once")
        before = self.last_batch
        while (
            query.status["isTriggerActive"]
            and self.last_batch == before
            and not query.awaitTermination(POLL_S)
        ):
            self._report_batches(query)
        self._report_batches(query)

    def _report_batches(self, query: "StreamingQuery") -> None:
        """Report the batches completed since the last call, and do what follows them."""
        self._collect(query)
        done = None
        for number in sorted(self._collected):
            progress = self._collected.pop(number)
            rows = _rows(progress)
            self.last_batch = number
            self.batches += 1
            self.rows += rows
            self.lag = _lag(progress)
            for label, found in malformed_in(progress).items():
                known = self.malformed.get(label)
                self.malformed[label] = found if known is None else known.and_(found)
            duration_ms = int(progress.get("batchDuration", 0))
            done = BatchDone(
                batch=number,
                rows=rows,
                rows_per_second=rows * 1000 / duration_ms if duration_ms else 0.0,
                duration_ms=duration_ms,
                lag=self.lag,
                total_rows=self.rows,
                malformed=sum(each.count for each in self.malformed.values()),
            )
            self._run.listener.batch(done)
        if done is not None:
            with self._collecting(query):
                self._after_batch(done)

    def _collect(self, query: "StreamingQuery") -> None:
        for each in query.recentProgress:
            progress = json.loads(each.json)
            number = int(progress["batchId"])
            # Spark sometimes reports an idle trigger under the number of the next batch.
            if (self.last_batch is None or number > self.last_batch) and _has_run(progress):
                self._collected[number] = progress

    @contextmanager
    def _collecting(self, query: "StreamingQuery") -> Iterator[None]:
        """Collect progress in another thread, so that none is lost while this one is busy."""
        is_over = threading.Event()

        def collect() -> None:
            while not is_over.wait(COLLECT_S):
                try:
                    self._collect(query)
                except Exception:  # noqa: BLE001 - the session has ended, which this thread's owner finds out
                    return

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def _rows(progress: Mapping[str, Any]) -> int:
    """Sum the records read; not every kind of session gives the total."""
    return sum(int(source.get("numInputRows", 0)) for source in progress.get("sources", ()))


def _has_run(progress: Mapping[str, Any]) -> bool:
    return "addBatch" in progress.get("durationMs", {})


def _lag(progress: Mapping[str, Any]) -> int | None:
    """Count the records behind the batch at its end; needs Spark 4.2 or later."""
    lag = None
    for source in progress.get("sources", ()):
        latest, reached = _parsed(source.get("latestOffset")), _parsed(source.get("endOffset"))
        if latest is None or reached is None:
            continue
        for topic, offsets in latest.items():
            for partition, end in offsets.items():
                behind = int(end) - int(reached.get(topic, {}).get(partition, 0))
                lag = (lag or 0) + max(0, behind)
    return lag


def _parsed(offsets: object) -> Mapping[str, Mapping[str, Any]] | None:
    try:
        found = json.loads(offsets) if isinstance(offsets, str) else offsets
    except ValueError:
        return None
    return found if isinstance(found, Mapping) else None


def _publish(run: PipelineRun) -> None:
    """Publish the last batch, which Spark would report to its source only with the next one."""
    position = run.checkpoint.position()
    if position is None or not position.offsets:
        return
    try:
        with reach(run.broker, run.access) as cluster:
            commit_offsets(cluster, run.group, position.offsets)
    except AlpacaError:
        pass  # for display only; the run is complete
