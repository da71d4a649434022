"""Writers as Spark wants them: one object that writes in tasks and commits on the driver."""

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.commit.committer import abort, commit
from alpacamq_spark.errors import InvalidOption
from alpacamq_spark.options import WriteOptions

from .rows import check_columns
from .staging import JOBS, Batch, StagedWrite, StagingArea, alone

Messages = Sequence[WriterCommitMessage | None]

# What Spark says of the micro-batch a task belongs to.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"
_UNNUMBERED = -1
_ROWS_AT_ONCE = 10_000


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """One job's rows, visible all at once when the job is done."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption('a topic cannot be overwritten, only added to: use mode("append")')
        check_columns(schema, options)
        self._options = options
        run = uuid.uuid4().hex
        self._batch = Batch(
            sink=options.transactional_id or alone(run),
            query=JOBS,
            run=run,
            number=_UNNUMBERED if options.batch_id is None else options.batch_id,
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedWrite:
        return _stage(self._options, self._batch, iterator)

    def commit(self, messages: Messages) -> None:
        with Cluster(*self._options.servers) as cluster:
            commit(cluster, _staged(messages))

    def abort(self, messages: Messages) -> None:
        with Cluster(*self._options.servers) as cluster:
            abort(cluster, self._batch, _staged(messages))


class StreamWriter(DataSourceStreamWriter):  # type: ignore[misc]
    """One micro-batch after the other, each visible exactly once. As rows, for Spark 4.0."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption('a topic cannot be overwritten, only added to: use outputMode("append")')
        if options.batch_id is not None:
            raise InvalidOption("batchId is for jobs: the batches of a stream are numbered by Spark")
        check_columns(schema, options)
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> StagedWrite:
        return self.stage(_arrow(iterator, self._schema))

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedWrite:
        context = _task()
        query, run, number = (context.getLocalProperty(name) for name in (_QUERY_ID, _RUN_ID, _BATCH_ID))
        batch = Batch(
            sink=self._options.transactional_id or f"spark-{query}", query=query, run=run, number=int(number)
        )
        return _stage(self._options, batch, batches)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: ARG002, N803 - messages tell it
        with Cluster(*self._options.servers) as cluster:
            commit(cluster, _staged(messages))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: ARG002, N803 - messages tell it
        # Without a message nothing is known of the batch: what its tasks have left is reaped when it
        # is repeated, or by its timeout.
        if staged := _staged(messages):
            with Cluster(*self._options.servers) as cluster:
                abort(cluster, staged[0].batch, staged)


def check_reachable(options: WriteOptions) -> None:
    """Fail before tasks are started that would wait for a broker that never was."""
    with Cluster(*options.servers) as cluster:
        cluster.anyone()


def _stage(options: WriteOptions, batch: Batch, rows: Iterator[pa.RecordBatch]) -> StagedWrite:
    context = _task()
    with Cluster(*options.servers) as cluster:
        area = StagingArea(cluster, options, batch, context.partitionId(), context.attemptNumber())
        area.begin()
        try:
            for each in rows:
                area.write(each)
            return area.finish()
        except BaseException:
            area.give_up()
            raise


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    return context


def _staged(messages: Messages) -> list[StagedWrite]:
    return [each for each in messages if isinstance(each, StagedWrite)]


def _arrow(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows in batches of columns."""
    fields = to_arrow_schema(schema)
    waiting: list[Row] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == _ROWS_AT_ONCE:
            yield pa.RecordBatch.from_pylist([each.asDict(recursive=True) for each in waiting], schema=fields)
            waiting = []
    if waiting:
        yield pa.RecordBatch.from_pylist([each.asDict(recursive=True) for each in waiting], schema=fields)
