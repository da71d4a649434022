"""Publishes the progress of runs to the broker, for the console: the last report of each pipeline in a
compacted topic.

For display only. A thread sends the reports, so a slow or absent broker does not delay the run.
"""

import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Self

import msgspec

from alpacamq.client.errors import ErrorCode, NotFound, Refused
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.fetch import PartitionFetcher
from alpacamq.client.kafka.offsets import Isolation
from alpacamq.client.kafka.producer import Producer
from alpacamq.client.kafka.topics import create_topic, find_topic
from alpacamq.model.errors import AlpacaError
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.pipelines import (
    MAX_ERROR_LENGTH,
    MAX_NAME_LENGTH,
    PIPELINES_TOPIC,
    PipelineProgress,
    PipelineState,
)
from alpacamq_spark.last_record import last_record

from .run import ANYONE, BatchDone, BrokerAccess, ProgressListener, RunResult
from .sources import reach

_SETTINGS = {
    "cleanup.policy": "compact",
    # Only the last report of a pipeline matters, so the log is kept short.
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
}
# Minimum and maximum interval of reports; the maximum makes killed runs detectable.
INTERVAL_S = 1.0
ALIVE_S = 10.0
# How long the end of a run waits for its last report to be sent.
_LAST_WORD_S = 5.0


class ProgressReports:
    """Sends the progress of one run while it is entered."""

    def __init__(self, broker: str, name: str, kind: str, access: BrokerAccess = ANYONE) -> None:
        self._broker = broker
        self._access = access
        now_ms = _now_ms()
        self._progress = PipelineProgress(
            name=name[:MAX_NAME_LENGTH],
            kind=kind,
            state=PipelineState.RUNNING,
            started=now_ms,
            updated=now_ms,
        )
        self._noting = threading.Lock()
        self._has_history = False
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pipeline-progress", daemon=True)

    def reporting_listener(self, listener: ProgressListener) -> ProgressListener:
        """Return a listener that also reports batches to the broker."""

        def batch(done: BatchDone) -> None:
            self._note(
                rows=done.total_rows,
                rows_per_second=done.rows_per_second,
                lag=done.lag,
                batch=done.batch,
                malformed=done.malformed,
                batch_at=_now_ms(),
            )
            listener.batch(done)

        return replace(listener, batch=batch)

    def behind(self, lag: int) -> None:
        """Report a lag between batches."""
        self._note(lag=lag)

    def done(self, outcome: RunResult) -> None:
        """Report the end of the run."""
        state = PipelineState.STOPPED if outcome.is_stopped else PipelineState.DONE
        # A batch without rows may not have been reported; a replay's reports count all of its runs.
        self._note(state=state, rows=max(outcome.rows, self._progress.rows))

    def __enter__(self) -> Self:
        self._changed.set()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._note(state=PipelineState.STOPPED)
        elif error is not None:
            words = str(error) if isinstance(error, AlpacaError) else f"{type(error).__name__}: {error}"
            failures = self._progress.failures + 1
            self._note(state=PipelineState.FAILED, error=words[:MAX_ERROR_LENGTH], failures=failures)
        self._ended.set()
        self._changed.set()
        self._thread.join(_LAST_WORD_S)

    def _note(self, **news: object) -> None:
        with self._noting:
            self._progress = msgspec.structs.replace(self._progress, **news)
        self._changed.set()

    def _run(self) -> None:
        cluster: Cluster | None = None
        while True:
            self._changed.wait(ALIVE_S)
            self._changed.clear()
            is_last = self._ended.is_set()
            try:
                cluster = cluster or reach(self._broker, self._access)
                self._send(cluster)
            except (AlpacaError, OSError):
                # The next report replaces this one, over a new connection.
                if cluster is not None:
                    cluster.close()
                cluster = None
            if is_last:
                break
            self._ended.wait(INTERVAL_S)
        if cluster is not None:
            cluster.close()

    def _send(self, cluster: Cluster) -> None:
        _make_topic(cluster)
        if not self._has_history:
            self._continue(last_report(cluster, self._progress.name))
            self._has_history = True
        progress = msgspec.structs.replace(self._progress, updated=_now_ms())
        producer = Producer(cluster, PIPELINES_TOPIC)
        producer.add(progress.name.encode(), msgspec.json.encode(progress))
        producer.flush()

    def _continue(self, last: PipelineProgress | None) -> None:
        """Go on counting failures from the last report of the pipeline, which a killed run did not end."""
        if last is not None:
            was_killed = last.state is PipelineState.RUNNING
            with self._noting:
                failures = self._progress.failures + last.failures + was_killed
                self._progress = msgspec.structs.replace(self._progress, failures=failures)


def last_report(cluster: Cluster, name: str) -> PipelineProgress | None:
    """Return the last report of a pipeline, or None."""
    try:
        topic = find_topic(cluster, PIPELINES_TOPIC)
    except NotFound:
        return None
    key = name[:MAX_NAME_LENGTH].encode()
    # One partition, unless an operator has added some.
    place = topic.all_partitions()[partition_for_key(key, len(topic.partitions))]
    record = last_record(PartitionFetcher(cluster, place, Isolation.COMMITTED), key)
    if record is None or record.value is None:
        return None
    try:
        return msgspec.json.decode(record.value, type=PipelineProgress)
    except msgspec.MsgspecError:
        return None


def _make_topic(cluster: Cluster) -> None:
    try:
        find_topic(cluster, PIPELINES_TOPIC)
    except NotFound:
        try:
            create_topic(cluster, PIPELINES_TOPIC, partitions=1, replicas=-1, settings=_SETTINGS)
        except Refused as refused:
            if refused.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
