"""Topics as data frames: the options of the connector for what a pipeline says of its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from alpacamq.client.connect import parse_address
from alpacamq.client.errors import NotFound
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.topics import Topic, every_topic
from alpacamq_spark.read.subscription import Subscription, read_subscription

from .errors import InvalidPipeline
from .run import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = "alpacamq"


class Topics(Protocol):
    """What says which topics are meant: names, or a pattern."""

    @property
    def topics(self) -> tuple[str, ...]: ...

    @property
    def pattern(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Named:
    """Topics by name."""

    topics: tuple[str, ...]
    pattern: str | None = None


def reach(broker: str) -> Cluster:
    """The cluster of a broker; InvalidPipeline if that is no address."""
    try:
        addresses = [parse_address(each) for each in broker.split(",") if each.strip()]
    except ValueError as error:
        raise InvalidPipeline(f"broker: {error}") from None
    if not addresses:
        raise InvalidPipeline("broker: no address is given")
    return Cluster(*addresses)


def subscription_options(source: Topics) -> dict[str, str]:
    """How the connector is told which topics to read."""
    if source.pattern is not None:
        return {"subscribePattern": source.pattern}
    return {"subscribe": ",".join(source.topics)}


def subscription(source: Topics) -> Subscription:
    """The same, checked, and able to find its partitions."""
    return read_subscription(subscription_options(source).get)


def matching_topics(cluster: Cluster, source: Topics) -> list[Topic]:
    """The topics there are by now; NotFound if one that is named is not there, or none fits the pattern."""
    every = {topic.name: topic for topic in every_topic(cluster) if not topic.is_internal}
    names = {each.topic for each in subscription(source).partitions(cluster)}
    if not names:
        raise NotFound("topic that fits the pattern", source.pattern or "")
    return [every[name] for name in sorted(names) if name in every]


def check_topics(broker: str, source: Topics) -> None:
    """Fail now rather than when Spark has started: Unreachable, NotFound or InvalidOption."""
    with reach(broker) as cluster:
        matching_topics(cluster, source)


def read_stream(run: Run, source: Topics, options: Mapping[str, str]) -> "DataFrame":
    """A stream of records, with headers, whose progress operators see."""
    reader = run.spark.readStream.format(FORMAT).options(
        **run.servers(),
        **subscription_options(source),
        includeHeaders="true",
        groupId=run.group,
        **options,
    )
    return reader.load()


def read_topics(run: Run, source: Topics, options: Mapping[str, str] | None = None) -> "DataFrame":
    """All records of topics, with headers, as they are now."""
    reader = run.spark.read.format(FORMAT).options(
        **run.servers(), **subscription_options(source), includeHeaders="true", **(options or {})
    )
    return reader.load()


def stream_options(*, start: str, max_records: int | None, on_data_loss: str) -> dict[str, str]:
    """What sources of streams have in common."""
    options = {
        "startingOffsets": start,
        "failOnDataLoss": "true" if on_data_loss == "fail" else "false",
    }
    if max_records is not None:
        options["maxOffsetsPerTrigger"] = str(max_records)
    return options


def write_records(frame: "DataFrame", run: Run, options: Mapping[str, str]) -> None:
    """Append rows to topics, all of them at once."""
    frame.write.format(FORMAT).mode("append").options(**run.servers(), **options).save()
