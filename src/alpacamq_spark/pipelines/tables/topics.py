"""Keeps Iceberg tables in step with topics: the runner of the tables that topics enable with their settings.

Each topic has a thread, a query, a checkpoint and a report of its own. A failure is reported and tried again,
with a growing pause, while the others go on.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import commit_offsets
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicPartition
from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.definition import AVAILABLE_NOW, ONCE, Compact, Tables
from alpacamq_spark.pipelines.errors import ForeignTable, PipelineFailed, translate_spark_errors
from alpacamq_spark.pipelines.evolution import through_new_schemas
from alpacamq_spark.pipelines.malformed import Malformed, with_malformed
from alpacamq_spark.pipelines.reporting import ProgressReports
from alpacamq_spark.pipelines.run import (
    BatchDone,
    Interruption,
    PipelineRun,
    Plain,
    ProgressListener,
    Report,
    RunResult,
    Section,
)
from alpacamq_spark.pipelines.sources import Named, reach

from .dead_letters import DeadLetterCopies
from .partitions import parse_partition
from .pipeline import TableEnd, iceberg_place, need_pyiceberg, run_into_table
from .topic_rows import START, TopicRows, latest_schema, topic_options, topic_rows
from .topic_settings import TopicTable, enabled_tables, lags

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.types import DataType, StructType

    from .iceberg import TablePlace

POLL_S = 1.0
_LAG_EVERY_S = 5.0
_SCHEMA_EVERY_S = 15.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
# A query that lasted longer does not count as a failed start.
_WELL_AFTER_S = 60.0
_TOPICS = "topics"
# Followers that have ended, for the report.
_KEPT = 1000
KIND = "table"


def run_tables(definition: Tables, run: PipelineRun) -> RunResult:
    """Keep the tables in step until a stop is requested; or once, if the trigger says so."""
    need_pyiceberg()
    runner = _Runner(definition, run)
    try:
        runner.run()
    finally:
        runner.stop()
    return runner.result()


class _Runner:
    """Starts and stops followers of topics as their settings change."""

    def __init__(self, definition: Tables, run: PipelineRun) -> None:
        self._definition = definition
        self._run = run
        self._followers: dict[str, _Follower] = {}
        self._ended: list[_Follower] = []
        self._cluster: Cluster | None = None
        self._refused: dict[str, str] = {}
        self._is_once = definition.trigger in (ONCE, AVAILABLE_NOW)
        self._noting = threading.Lock()
        self._rows = self._batches = 0
        # Catalogs and namespaces are created by one thread at a time.
        self.preparing = threading.Lock()

    def run(self) -> None:
        measured = -_LAG_EVERY_S
        is_reached = True
        while not self._run.interruption.is_requested:
            # Raises if the JVM has ended; then the next run needs another one.
            with translate_spark_errors():
                _ = self._run.spark.version
            try:
                self._adjust()
                if time.monotonic() - measured > _LAG_EVERY_S:
                    measured = time.monotonic()
                    self._measure()
                is_reached = True
            except (AlpacaError, OSError) as error:
                if is_reached:
                    self._run.listener.say(f"the settings of topics cannot be read: {error}")
                is_reached = False
                self._disconnect()
            if self._is_once and is_reached and not any(each.is_alive for each in self._followers.values()):
                return
            self._run.interruption.wait(POLL_S)

    def stop(self) -> None:
        """Stop all followers after their batches."""
        for each in self._followers.values():
            each.stop()
        for each in self._followers.values():
            each.join()
        self._disconnect()

    def result(self) -> RunResult:
        followers = sorted([*self._ended, *self._followers.values()], key=lambda each: each.table.topic)
        failed = [f"{each.table.topic}: {each.error}" for each in followers if each.error]
        failed += [f"{topic}: {reason}" for topic, reason in self._refused.items()]
        if self._is_once and failed:
            raise PipelineFailed(f"{len(failed)} tables are not in step: {'; '.join(failed)}")
        tables: list[dict[str, Plain]] = [
            {
                "topic": each.table.topic,
                "table": each.table.table,
                "mode": each.table.mode,
                "rows": each.rows,
                "error": each.error or None,
            }
            for each in followers
        ]
        report = Report(
            data={"rows": self._rows, "tables": tables},
            sections=[
                Section(["topic", "table", "mode", "rows", "error"], [list(row.values()) for row in tables])
            ],
        )
        found = {label: each for follower in followers for label, each in follower.malformed().items()}
        handled = "kept in _value"
        if (letters := self._definition.dead_letter_table) is not None:
            handled = f"{handled}, and copied to table {letters}"
        report = with_malformed(report, found, dict.fromkeys(found, handled))
        is_stopped = self._run.interruption.is_requested
        return RunResult(rows=self._rows, report=report, is_stopped=is_stopped)

    def _adjust(self) -> None:
        """Start and stop followers by the settings that topics have now."""
        wanted = self._wanted(enabled_tables(self._connected(), self._definition.namespace))
        for topic, follower in list(self._followers.items()):
            if topic not in wanted or not _is_same(wanted[topic], follower.table):
                follower.stop()
            if not follower.is_alive and not self._is_once:
                follower.join()
                self._ended.append(self._followers.pop(topic))
                del self._ended[:-_KEPT]
        for topic, table in wanted.items():
            if topic not in self._followers:
                self._run.listener.say(f"{topic} → {table.table}")
                self._followers[topic] = _Follower(self, self._definition, self._run, table)
                self._followers[topic].start()

    def _wanted(self, tables: list[TopicTable]) -> dict[str, TopicTable]:
        """Return the tables by topic, without those that another topic has already."""
        owners: dict[str, str] = {each.table.table: topic for topic, each in self._followers.items()}
        wanted, refused = {}, {}
        for each in tables:
            owner = owners.setdefault(each.table, each.topic)
            if each.table == self._definition.dead_letter_table:
                refused[each.topic] = f"table {each.table} is that of malformed values; set table.name"
            elif owner == each.topic:
                wanted[each.topic] = each
            else:
                refused[each.topic] = f"table {each.table} is that of topic {owner}; set table.name"
        for topic in refused.keys() - self._refused.keys():
            self._run.listener.say(f"{topic}: {refused[topic]}")
        self._refused = refused
        return wanted

    def _measure(self) -> None:
        """Report lags, and commit positions to the consumer groups that show them."""
        cluster = self._connected()
        living = [each for each in self._followers.values() if each.is_alive]
        reached = [(each.table, each.position()) for each in living]
        behind = lags(cluster, reached)
        for each, (_, position) in zip(living, reached, strict=True):
            each.report_lag(behind[each.table.topic])
            if position:
                commit_offsets(cluster, each.group, position)

    def note(self, done: BatchDone) -> None:
        """Pass on a batch of a follower, with the totals of all."""
        with self._noting:
            self._rows += done.rows
            self._batches += 1
            lag = sum(each.lag for each in list(self._followers.values()))
            total = replace(done, batch=self._batches, total_rows=self._rows, lag=lag, malformed=0)
            self._run.listener.batch(total)

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = reach(self._run.broker, self._run.access)
        return self._cluster

    def _disconnect(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None


def _is_same(one: TopicTable, other: TopicTable) -> bool:
    """Return whether a follower can go on; it finds new partitions itself."""
    return replace(one, partitions=0) == replace(other, partitions=0)


class _Follower:
    """Keeps one table in step, in a thread."""

    def __init__(self, runner: _Runner, definition: Tables, run: PipelineRun, table: TopicTable) -> None:
        self.table = table
        self.error = ""
        self.rows = 0
        self.lag = 0
        self._runner = runner
        self._definition = definition
        self._all = run
        self._is_once = definition.trigger in (ONCE, AVAILABLE_NOW)
        self._stopping = Interruption()
        # Ends the query alone, so that the next one has another schema.
        self._query = Interruption()
        self._reports: ProgressReports | None = None
        self._end: TableEnd | None = None
        self._checkpoint = Checkpoint(f"{run.checkpoint.place}/{_TOPICS}/{table.checkpoint}", run.spark)
        self._thread = threading.Thread(target=self._follow, name=table.pipeline, daemon=True)

    @property
    def group(self) -> str:
        """The consumer group that shows the position."""
        return f"pipeline-{self.table.pipeline}"

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.request()
        self._query.request()

    def join(self) -> None:
        self._thread.join()

    def position(self) -> Mapping[TopicPartition, int]:
        """Return the offsets that are in the table."""
        position = self._checkpoint.position()
        return {} if position is None else position.offsets

    def report_lag(self, lag: int) -> None:
        self.lag = lag
        if (reports := self._reports) is not None:
            reports.behind(lag)

    def malformed(self) -> dict[str, Malformed]:
        """Return the malformed values of the last run."""
        found = {} if self._end is None else self._end.stream.malformed
        return {f"{self.table.topic} {label}": each for label, each in found.items()}

    def _follow(self) -> None:
        failures = 0
        while not self._stopping.is_requested:
            began = time.monotonic()
            try:
                self._run_once()
            except Exception as error:  # noqa: BLE001 - whatever it is, other topics go on
                self.error = (
                    str(error) if isinstance(error, AlpacaError) else f"{type(error).__name__}: {error}"
                )
                lasted_s = time.monotonic() - began
                failures = 1 if lasted_s > _WELL_AFTER_S else failures + 1
                if self._is_once:
                    return
                pause_s = min(_FIRST_PAUSE_S * 2 ** min(failures - 1, 10), _LONGEST_PAUSE_S)
                self._say(f"failed: {self.error}; the next try begins in {pause_s:.0f} s")
                self._stopping.wait(pause_s)
            else:
                self.error = ""
                if self._is_once:
                    return

    def _run_once(self) -> None:
        """Run the query until it is done, is stopped, or has to read values as another schema."""
        self._query = Interruption()
        if self._stopping.is_requested:
            return
        name, everyone = self.table.pipeline, self._all
        reports = ProgressReports(everyone.broker, name, KIND, everyone.access)
        listener = ProgressListener(say=self._say, batch=self._batch)
        run = replace(
            everyone,
            name=name,
            kind=KIND,
            checkpoint=self._checkpoint,
            interruption=self._query,
            listener=reports.reporting_listener(listener),
        )
        with self._checkpoint.held(), reports, translate_spark_errors():
            self._reports = reports
            try:
                end, _ = through_new_schemas(run, self._into_table)
                self._end = end
                with suppress(AlpacaError, OSError), reach(run.broker, run.access) as cluster:
                    self.report_lag(lags(cluster, [(self.table, self.position())])[self.table.topic])
                stream = end.stream
                reports.done(
                    RunResult(rows=stream.rows, report=Report(data={}), is_stopped=stream.is_stopped)
                )
            finally:
                self._reports = None

    def _into_table(self, run: PipelineRun) -> TableEnd:
        definition, table = self._definition, self.table
        sink = msgspec.structs.replace(
            table.sink, compression=definition.compression, keep_snapshots=definition.keep_snapshots
        )
        place = iceberg_place(definition.catalog, sink, run.place)
        with self._runner.preparing:
            known = self._known(place)
        rows = topic_rows(run, table, known, definition.max_records)
        columns = rows.frame if rows.upsert is None else rows.frame.drop(*rows.upsert.control)
        partition_by = ("day(_timestamp)",) if rows.upsert is None else ()
        with self._runner.preparing:
            create_table(place, run.name, columns.schema, partition_by)
            beside = self._dead_letter_writers(run, rows)
        watch = _SchemaWatch(run, table.topic, rows.schema)
        run = replace(run, listener=replace(run.listener, running=watch.look))
        return run_into_table(
            run,
            rows.frame,
            sink,
            definition.catalog,
            trigger=definition.trigger,
            upsert=rows.upsert,
            partition_by=partition_by,
            compact=Compact(),
            beside=beside,
        )

    def _dead_letter_writers(self, run: PipelineRun, rows: TopicRows) -> "dict[str, DataStreamWriter]":
        """Return the query that copies malformed records to their table, if there is one."""
        definition = self._definition
        if definition.dead_letter_table is None or rows.columns is None:
            return {}
        copies = DeadLetterCopies(
            source=Named((self.table.topic,)),
            start=START,
            options=topic_options(definition.max_records),
            columns=rows.columns,
        )
        return copies.writers(run, definition.dead_letter_table, definition.catalog)

    def _known(self, place: "TablePlace") -> "Mapping[str, DataType]":
        """Return the columns of the table. Raises ForeignTable if it is not this topic's."""
        known = place.types()
        if known and (table := place.open(self.table.pipeline)).state() is None and any(table.stats()):
            raise ForeignTable(f"table {place.table} has rows of others; name another one with table.name")
        return known

    def _batch(self, done: BatchDone) -> None:
        self.rows += done.rows
        self._runner.note(done)

    def _say(self, text: str) -> None:
        self._all.listener.say(f"{self.table.topic}: {text}")


def create_table(
    place: "TablePlace", pipeline: str, schema: "StructType", partition_by: Sequence[str]
) -> None:
    """Create a table unless it exists."""
    place.create_or_open(pipeline, schema, None, [parse_partition(each) for each in partition_by])


class _SchemaWatch:
    """Ends a query when the topic has another schema than the one it reads values as."""

    def __init__(self, run: PipelineRun, topic: str, schema: int | None) -> None:
        self._run = run
        self._topic = topic
        self._schema = schema
        self._looked = time.monotonic()

    def look(self, _: float) -> None:
        if time.monotonic() - self._looked < _SCHEMA_EVERY_S:
            return
        self._looked = time.monotonic()
        # A registry that does not answer is reported when values cannot be decoded.
        with suppress(AlpacaError, OSError):
            if latest_schema(self._run, self._topic) not in (self._schema, None):
                self._run.listener.say("its values have another schema")
                self._run.interruption.request()
