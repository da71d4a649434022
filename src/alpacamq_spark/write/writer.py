"""Writers for Spark: write in tasks, commit on the driver."""

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.model.errors import AlpacaError
from alpacamq_spark.commit.committer import abort, commit
from alpacamq_spark.errors import InvalidOption
from alpacamq_spark.options import WriteOptions
from alpacamq_spark.retry import FIRST_CONTACT_TIMEOUT_S, RETRY_TIMEOUT_S
from alpacamq_spark.worker import connected, skip_modules_in_collections

from .rows import check_columns
from .staging import JOBS, Batch, StagedWrite, StagingArea, unnamed_sink

if TYPE_CHECKING:
    from alpacamq_spark.encoding.values import Encoding

# Written to the standard error of Spark's driver.
log = logging.getLogger(__name__)

Messages = Sequence[WriterCommitMessage | None]

# Spark's names for the properties of a task's micro-batch.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"
_UNNUMBERED = -1
_ROWS_AT_ONCE = 10_000


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes the rows of one job, which become visible together when the job is done."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption('topics are append-only: use mode("append")')
        check_columns(schema, options)
        self._options = options
        self._encoding = _encoding(options, schema, FIRST_CONTACT_TIMEOUT_S)
        run = uuid.uuid4().hex
        self._batch = Batch(
            sink=options.transactional_id or unnamed_sink(run),
            query=JOBS,
            run=run,
            number=_UNNUMBERED if options.batch_id is None else options.batch_id,
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedWrite:
        return _stage(self._options, self._batch, iterator, self._encoding)

    def commit(self, messages: Messages) -> None:
        with _cluster(self._options) as cluster:
            commit(cluster, _staged(messages))

    def abort(self, messages: Messages) -> None:
        with _aborting(self._batch), _cluster(self._options) as cluster:
            abort(cluster, self._batch, _staged(messages))


class StreamWriter(DataSourceStreamWriter):  # type: ignore[misc]
    """Writes micro-batches, each visible exactly once. Takes rows, for Spark 4.0."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption('topics are append-only: use outputMode("append")')
        if options.batch_id is not None:
            raise InvalidOption("batchId is for jobs only: Spark numbers the batches of a stream")
        check_columns(schema, options)
        self._options = options
        self._schema = schema
        # A registry that restarts holds up a stream, but does not end it.
        self._encoding = _encoding(options, schema, RETRY_TIMEOUT_S)

    def write(self, iterator: Iterator[Row]) -> StagedWrite:
        return self.stage(arrow_batches(iterator, self._schema))

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedWrite:
        context = _task()
        query, run, number = (context.getLocalProperty(name) for name in (_QUERY_ID, _RUN_ID, _BATCH_ID))
        batch = Batch(
            sink=self._options.transactional_id or f"spark-{query}", query=query, run=run, number=int(number)
        )
        return _stage(self._options, batch, batches, self._encoding)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: ARG002, N803 - messages tell it
        skip_modules_in_collections()
        with _cluster(self._options) as cluster:
            commit(cluster, _staged(messages))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: ARG002, N803 - messages tell it
        # Without a message the batch is unknown: its repetition aborts what its tasks left, or the
        # timeout does.
        if staged := _staged(messages):
            with _aborting(staged[0].batch), _cluster(self._options) as cluster:
                abort(cluster, staged[0].batch, staged)


@contextmanager
def _aborting(batch: Batch) -> Iterator[None]:
    """Log an error of an abort instead of raising it.

    If an abort fails, Spark reports "Writing job failed." instead of the error that made it abort. What
    stays open is aborted by the next commit of the sink, or by its timeout.
    """
    try:
        yield
    except AlpacaError as error:
        log.warning("the failed batch %d of %r was not aborted: %s", batch.number, batch.sink, error)


def _cluster(options: WriteOptions) -> AbstractContextManager[Cluster]:
    return connected(options.servers, options.login, options.tls)


def check_reachable(options: WriteOptions) -> None:
    """Check that a broker answers, before tasks wait for one that does not exist."""
    with _cluster(options) as cluster:
        cluster.any_broker()


def _encoding(options: WriteOptions, schema: StructType, timeout_s: float) -> "Encoding | None":
    """Choose the schemas of keys and values on the driver; None if none is encoded."""
    if options.encode is None or options.topic is None:
        return None
    from alpacamq_spark.encoding.planning import plan_encoding

    return plan_encoding(options.encode, options.topic, schema, timeout_s)


def _stage(
    options: WriteOptions, batch: Batch, rows: Iterator[pa.RecordBatch], encoding: "Encoding | None"
) -> StagedWrite:
    if encoding is not None:
        from alpacamq_spark.encoding.values import RowEncoder

        rows = map(RowEncoder(encoding).encoded, rows)
    skip_modules_in_collections()
    context = _task()
    with _cluster(options) as cluster:
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


def arrow_batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Convert rows to batches of columns."""
    try:
        fields = to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # Spark 4.0 knows no other
        fields = to_arrow_schema(schema)
    convert = _converter(schema)
    waiting: list[Any] = []
    for row in rows:
        waiting.append(convert(row))
        if len(waiting) == _ROWS_AT_ONCE:
            yield pa.RecordBatch.from_pylist(waiting, schema=fields)
            waiting = []
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=fields)


def _converter(kind: DataType) -> Callable[[Any], Any]:
    """Return what turns values as Spark passes them into values for Arrow."""
    convert = _converter_of(kind)
    return lambda value: None if value is None else convert(value)


def _converter_of(kind: DataType) -> Callable[[Any], Any]:
    match kind:
        case StructType():
            fields = [(field.name, _converter(field.dataType)) for field in kind.fields]
            return lambda row: {name: inner(value) for (name, inner), value in zip(fields, row, strict=True)}
        case ArrayType():
            element = _converter(kind.elementType)
            return lambda values: [element(each) for each in values]
        case MapType():
            key, of_key = _converter(kind.keyType), _converter(kind.valueType)
            return lambda entries: [(key(name), of_key(value)) for name, value in entries.items()]
        case TimestampType():
            # Spark passes local times without their zone, which Arrow would take for UTC.
            return lambda time: time.astimezone(UTC)
    return lambda value: value
