"""Runs a streaming query: progress as batches are done, and an end that loses no work.

To stop is to wait for the batch that is being written. Whatever a harder end cuts off is written
again, exactly once, by the next run.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alpacamq.client.kafka.offsets import commit_offsets
from alpacamq.model.errors import AlpacaError

from .definition import AVAILABLE_NOW, ONCE
from .failures import explained
from .run import BatchDone, Run
from .sources import reach
from .timestamps import parse_span

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

POLL_S = 0.2
_STARTS = 3
_WORKER_TOO_SLOW = "Python worker failed to connect back"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """What a query did before it ended."""

    rows: int
    batches: int
    last_batch: int | None
    lag: int | None
    is_stopped: bool


def trigger_options(trigger: str) -> dict[str, Any]:
    """A trigger as Spark takes it."""
    if trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    if trigger == ONCE:
        return {"once": True}
    return {"processingTime": f"{parse_span(trigger)} milliseconds"}


def run_stream(
    run: Run,
    writer: "DataStreamWriter",
    *,
    trigger: str,
    after_batch: Callable[[BatchDone], None] = lambda _: None,
) -> StreamEnd:
    """Run a query until its trigger is through or it is asked to stop; PipelineFailed if it fails."""
    named = writer.queryName(run.name).option("checkpointLocation", run.checkpoint.stream)
    with explained():
        query = _started(named.trigger(**trigger_options(trigger)))
        following = _Following(run, query, after_batch)
        try:
            is_stopped = following.to_the_end()
        finally:
            query.stop()
    _publish(run)
    return StreamEnd(
        rows=following.rows,
        batches=following.batches,
        last_batch=following.last_batch,
        lag=following.lag,
        is_stopped=is_stopped,
    )


def _started(writer: "DataStreamWriter") -> "StreamingQuery":
    """Start a query. On a busy machine Spark may lose patience with its own Python worker; that passes."""
    for tries_left in reversed(range(_STARTS)):
        try:
            return writer.start()
        except Exception as error:
            if _WORKER_TOO_SLOW not in str(error) or not tries_left:
                raise
    raise AssertionError("unreachable")


class _Following:
    """A query and what was seen of it so far."""

    def __init__(self, run: Run, query: "StreamingQuery", after_batch: Callable[[BatchDone], None]) -> None:
        self._run = run
        self._query = query
        self._after_batch = after_batch
        self.rows = 0
        self.batches = 0
        self.last_batch: int | None = None
        self.lag: int | None = None

    def to_the_end(self) -> bool:
        """Until the query ends by itself (False) or was asked to stop (True)."""
        while not self._query.awaitTermination(POLL_S):
            self._look()
            if self._run.interruption.is_asked:
                self._await_batch()
                return True
        self._look()
        return False

    def _await_batch(self) -> None:
        """Until the batch that is under way is done, unless it may not take so long."""
        self._run.teller.say("stopping after this batch; Ctrl-C again stops at once")
        before = self.last_batch
        while (
            self._query.status["isTriggerActive"]
            and self.last_batch == before
            and not self._query.awaitTermination(POLL_S)
        ):
            self._look()
        self._look()

    def _look(self) -> None:
        """Tell of the batches that were done since the last look."""
        for each in self._query.recentProgress:
            progress = json.loads(each.json)
            number, rows = int(progress["batchId"]), _rows(progress)
            # Spark reports now and then that there was nothing to do, under the number of the next batch.
            if (self.last_batch is not None and number <= self.last_batch) or not _has_run(progress):
                continue
            self.last_batch = number
            self.batches += 1
            self.rows += rows
            self.lag = _lag(progress)
            duration_ms = int(progress.get("batchDuration", 0))
            done = BatchDone(
                batch=number,
                rows=rows,
                rows_per_second=rows * 1000 / duration_ms if duration_ms else 0.0,
                duration_ms=duration_ms,
                lag=self.lag,
                total_rows=self.rows,
            )
            self._run.teller.batch(done)
            self._after_batch(done)


def _rows(progress: Mapping[str, Any]) -> int:
    """Records read; in all is not told by every kind of session."""
    return sum(int(source.get("numInputRows", 0)) for source in progress.get("sources", ()))


def _has_run(progress: Mapping[str, Any]) -> bool:
    return "addBatch" in progress.get("durationMs", {})


def _lag(progress: Mapping[str, Any]) -> int | None:
    """Records that were there when the batch ended and are not in it; Spark 4.2 and later tell."""
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


def _publish(run: Run) -> None:
    """Let operators see the very last batch too, of which Spark tells its source only with the next."""
    position = run.checkpoint.position()
    if position is None or not position.offsets:
        return
    try:
        with reach(run.broker) as cluster:
            commit_offsets(cluster, run.group, position.offsets)
    except AlpacaError:
        pass  # a view for people; the run has done its work
