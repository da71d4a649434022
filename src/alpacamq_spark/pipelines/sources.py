"""Reads topics and archives as data frames, and writes data frames to topics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from alpacamq.client.connect import parse_address
from alpacamq.client.errors import NotFound
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.topics import Topic, list_topics
from alpacamq_spark.options import read_login
from alpacamq_spark.read.subscription import Subscription, read_subscription

from .archive.table import read_archive
from .errors import InvalidPipeline
from .registry import RegistryColumns
from .run import ANYONE, BrokerAccess, PipelineRun
from .timestamps import format_timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = "alpacamq"


class Topics(Protocol):
    """A selection of topics by names or by a pattern."""

    @property
    def topics(self) -> tuple[str, ...]: ...

    @property
    def pattern(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Named:
    """Topics by name."""

    topics: tuple[str, ...]
    pattern: str | None = None


def reach(broker: str, access: BrokerAccess = ANYONE) -> Cluster:
    """Connect to a broker's cluster. Raises InvalidPipeline for an invalid address."""
    try:
        addresses = [parse_address(each) for each in broker.split(",") if each.strip()]
    except ValueError as error:
        raise InvalidPipeline(f"broker: {error}") from None
    if not addresses:
        raise InvalidPipeline("broker: no address given")
    login = None
    if access.user is not None and access.password_file is not None:
        login = read_login(access.user, access.password_file)
    return Cluster(*addresses, login=login, tls=access.tls)


def subscription_options(source: Topics) -> dict[str, str]:
    """Return the connector's options for the topics."""
    if source.pattern is not None:
        return {"subscribePattern": source.pattern}
    return {"subscribe": ",".join(source.topics)}


def subscription(source: Topics) -> Subscription:
    """Return the checked subscription, which can find its partitions."""
    return read_subscription(subscription_options(source).get)


def matching_topics(cluster: Cluster, source: Topics) -> list[Topic]:
    """Return the existing topics. Raises NotFound if a named one does not exist, or none matches."""
    every = {topic.name: topic for topic in list_topics(cluster) if not topic.is_internal}
    names = {each.topic for each in subscription(source).partitions(cluster)}
    if not names:
        raise NotFound("topic that matches the pattern", source.pattern or "")
    return [every[name] for name in sorted(names) if name in every]


def check_topics(broker: str, source: Topics, access: BrokerAccess = ANYONE) -> None:
    """Check topics before Spark starts. Raises Unreachable, NotFound or InvalidOption."""
    with reach(broker, access) as cluster:
        matching_topics(cluster, source)


def read_stream(
    run: PipelineRun, source: Topics, options: Mapping[str, str], columns: RegistryColumns | None = None
) -> "DataFrame":
    """Read a stream of records with headers and decoded columns; its consumer group shows the progress."""
    reader = run.spark.readStream.format(FORMAT).options(
        **run.servers(),
        **subscription_options(source),
        includeHeaders="true",
        **{"groupId": run.group, **options},
        **(columns.options if columns else {}),
    )
    return (reader.schema(columns.schema()) if columns else reader).load()


def read_topics(run: PipelineRun, source: Topics, options: Mapping[str, str] | None = None) -> "DataFrame":
    """Read all current records of topics, with headers."""
    reader = run.spark.read.format(FORMAT).options(
        **run.servers(), **subscription_options(source), includeHeaders="true", **(options or {})
    )
    return reader.load()


def stream_options(*, max_records: int | None, on_data_loss: str) -> dict[str, str]:
    """Return the options common to streaming sources; `beginnings` has where they begin."""
    options = {"failOnDataLoss": "true" if on_data_loss == "fail" else "false"}
    if max_records is not None:
        options["maxOffsetsPerTrigger"] = str(max_records)
    return options


def write_records(frame: "DataFrame", run: PipelineRun, options: Mapping[str, str]) -> None:
    """Append rows to topics in one job."""
    frame.write.format(FORMAT).mode("append").options(**run.servers(), **options).save()


class RangeSource(Topics, Protocol):
    """Topics, or those in an archive."""

    @property
    def archive(self) -> str | None: ...


def read_source(run: PipelineRun, source: RangeSource) -> "DataFrame":
    """Read all records of the source."""
    from pyspark.sql import functions as f

    if source.archive is None:
        return read_topics(run, source)
    frame = read_archive(run.spark, run.place(source.archive))
    if source.topics:
        frame = frame.where(f.col("topic").isin(*source.topics))
    if source.pattern is not None:
        frame = frame.where(f.col("topic").rlike(f"^(?:{source.pattern})$"))
    return frame


def filter_time(
    frame: "DataFrame", source: RangeSource, begin_ms: int | None, end_ms: int | None
) -> "DataFrame":
    """Filter records from one time to before another."""
    from pyspark.sql import functions as f

    if begin_ms is not None:
        frame = frame.where(f.col("timestamp") >= f.timestamp_millis(f.lit(begin_ms)))
    if end_ms is not None:
        frame = frame.where(f.col("timestamp") < f.timestamp_millis(f.lit(end_ms)))
    if source.archive is not None:
        # The same for directories, so that Spark skips most of them.
        if begin_ms is not None:
            frame = frame.where(f.col("date") >= f.lit(format_timestamp(begin_ms)[:10]).cast("date"))
        if end_ms is not None:
            frame = frame.where(f.col("date") <= f.lit(format_timestamp(end_ms)[:10]).cast("date"))
    return frame
