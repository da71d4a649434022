"""Pipeline definitions: one struct for each kind, and the parts they share.

Fields are the keys of the file, with their defaults. `check` rejects combinations of values that are
invalid together.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from .errors import InvalidPipeline
from .timestamps import parse_duration, parse_timestamp

Count = Annotated[int, Meta(ge=1, le=2**53)]
# One offset for all partitions, one for each (topic, then partition), or a time.
Position: TypeAlias = int | str | Mapping[str, Mapping[str, int]]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a pipeline file; unknown keys are rejected."""

    def check(self, place: str) -> None:
        """Reject invalid combinations of values. Raises InvalidPipeline."""


class SparkSettings(Part, frozen=True, kw_only=True):
    """[spark]: where Spark runs, and its own settings."""

    master: str | None = None
    remote: str | None = None
    settings: Mapping[str, str | int | float | bool] = {}

    def check(self, place: str) -> None:
        if self.master is not None and self.remote is not None:
            raise InvalidPipeline(f"{place}: master and remote exclude each other")
        if self.remote is not None and not self.remote.startswith("sc://"):
            raise InvalidPipeline(f"{place}.remote must be a Spark Connect address, sc://HOST:PORT")


class TopicSource(Part, frozen=True, kw_only=True):
    """Topics by name or by a pattern for whole names."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    start: Literal["earliest", "latest"] = "earliest"
    max_records: Count | None = None
    on_data_loss: Literal["fail", "skip"] = "fail"

    def check(self, place: str) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise InvalidPipeline(f"{place} needs either topics or pattern")


class Filter(Part, tag_field="do", tag="filter", frozen=True, kw_only=True):
    """A step that keeps the records for which a SQL condition is true."""

    where: str


class Compact(Part, tag_field="do", tag="compact", frozen=True, kw_only=True):
    """A step that merges the many small files of an archive."""

    fan_in: Annotated[int, Meta(ge=2, le=1000)] = 10
    target_mb: Annotated[int, Meta(ge=1, le=4096)] = 128


class ArchiveSink(Part, frozen=True, kw_only=True):
    """The location of an archive."""

    path: str
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The keys that all kinds have in common."""

    name: str | None = None
    broker: str | None = None
    checkpoint: str | None = None
    spark: SparkSettings = SparkSettings()

    is_stream: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        return str(type(self).__struct_config__.tag)

    def check(self) -> None:
        """Reject invalid combinations of values. Raises InvalidPipeline."""


class Archive(Definition, tag="archive", frozen=True, kw_only=True):
    """Topics to Parquet, partitioned by topic, date and hour."""

    source: TopicSource
    sink: ArchiveSink
    steps: tuple[Filter | Compact, ...] = ()
    schema: str | None = None
    trigger: str = "available-now"

    def check(self) -> None:
        check_trigger(self.trigger)
        if sum(isinstance(step, Compact) for step in self.steps) > 1:
            raise InvalidPipeline("steps: only one compact step is allowed")


class ReplaySource(Part, rename={"begin": "from", "end": "to"}, frozen=True, kw_only=True):
    """A range of an archive or of topics."""

    archive: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    begin: Position | None = None
    end: Position | None = None

    def check(self, place: str) -> None:
        if self.pattern is not None and self.topics:
            raise InvalidPipeline(f"{place}: topics and pattern exclude each other")
        if self.archive is None and not self.topics and self.pattern is None:
            raise InvalidPipeline(f"{place} needs archive, topics or pattern")
        for name, position in (("from", self.begin), ("to", self.end)):
            _check_position(f"{place}.{name}", position)


class ReplaySink(Part, frozen=True, kw_only=True):
    """The target topic, and how records are partitioned and timestamped."""

    topic: str
    partition: Literal["by-key", "original"] = "by-key"
    timestamp: Literal["now", "original"] = "now"
    position_headers: bool = True


class Replay(Definition, tag="replay", frozen=True, kw_only=True):
    """A range of an archive or of topics, written to a topic."""

    source: ReplaySource
    sink: ReplaySink
    steps: tuple[Filter, ...] = ()
    rate: Count | None = None
    batch: Count = 500_000

    is_stream: ClassVar[bool] = False


class Watermark(Part, frozen=True, kw_only=True):
    """How late records may arrive, by a timestamp column."""

    column: str = "_timestamp"
    delay: str

    def check(self, place: str) -> None:
        _check_duration(f"{place}.delay", self.delay)


class TableSource(Part, frozen=True, kw_only=True):
    """A topic as a table in SQL."""

    topic: str | None = None
    schema: str | None = None
    format: Literal["json", "text", "binary"] = "json"
    malformed: Literal["keep", "drop", "fail"] = "keep"
    watermark: Watermark | None = None
    start: Literal["earliest", "latest"] = "earliest"
    max_records: Count | None = None
    on_data_loss: Literal["fail", "skip"] = "fail"

    def check(self, place: str) -> None:
        if self.schema is not None and self.format != "json":
            raise InvalidPipeline(f"{place}: a schema is for JSON values only, not for {self.format}")


class View(Part, frozen=True, kw_only=True):
    """A step that names a query for later steps."""

    name: str
    sql: str


class TransformSink(Part, frozen=True, kw_only=True):
    """A topic, or a table of Parquet files."""

    topic: str | None = None
    path: str | None = None
    key: str | None = None
    mode: Literal["append", "update"] = "append"
    partition_by: tuple[str, ...] = ()

    def check(self, place: str) -> None:
        if (self.topic is None) == (self.path is None):
            raise InvalidPipeline(f"{place} needs either topic or path")
        if self.path is not None and (self.key is not None or self.mode != "append"):
            raise InvalidPipeline(f"{place}: key and mode are for topics; files are append-only")
        if self.topic is not None and self.partition_by:
            raise InvalidPipeline(f"{place}: partition_by is for files; records are partitioned by key")


class Transform(Definition, tag="transform", frozen=True, kw_only=True):
    """SQL over topics, to a topic or a table."""

    sources: Mapping[str, TableSource]
    sql: str
    sink: TransformSink
    steps: tuple[View, ...] = ()
    trigger: str = "available-now"

    def check(self) -> None:
        check_trigger(self.trigger)
        if not self.sources:
            raise InvalidPipeline("sources: name at least one topic")


class DeadLetterSource(Part, frozen=True, kw_only=True):
    """Dead-letter topics: of these topics, or by a pattern for whole names."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def check(self, place: str) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise InvalidPipeline(f"{place} needs either topics or pattern")


class Redrive(Part, frozen=True, kw_only=True):
    """Selects the dead letters to send back; nothing is sent unless `execute` is true."""

    where: str
    execute: bool = False
    limit: Count | None = None


class DeadLettersSink(Part, frozen=True, kw_only=True):
    """Where the summary is written besides the report."""

    path: str


class DeadLetters(Definition, tag="dead-letters", frozen=True, kw_only=True):
    """Analysis of dead-letter topics, and redrive."""

    source: DeadLetterSource
    schema: str | None = None
    age_buckets: tuple[str, ...] = ("1h", "1d", "7d")
    redrive: Redrive | None = None
    sink: DeadLettersSink | None = None

    is_stream: ClassVar[bool] = False

    def check(self) -> None:
        for bucket in self.age_buckets:
            _check_duration("age_buckets", bucket)
        spans = [parse_duration(bucket) for bucket in self.age_buckets]
        if spans != sorted(set(spans)):
            raise InvalidPipeline("age_buckets must ascend")


class AnalyticsSource(Part, rename={"begin": "from", "end": "to"}, frozen=True, kw_only=True):
    """An archive or topics, and a time range."""

    archive: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    begin: str | None = None
    end: str | None = None

    def check(self, place: str) -> None:
        if self.pattern is not None and self.topics:
            raise InvalidPipeline(f"{place}: topics and pattern exclude each other")
        if self.archive is None and not self.topics and self.pattern is None:
            raise InvalidPipeline(f"{place} needs archive, topics or pattern")
        for name, time in (("from", self.begin), ("to", self.end)):
            _check_position(f"{place}.{name}", time)


class AnalyticsSink(Part, frozen=True, kw_only=True):
    """Where tables and the report are written."""

    path: str | None = None
    report: str | None = None


class Analytics(Definition, tag="analytics", frozen=True, kw_only=True):
    """Throughput, sizes, key skew and latency, by topic and time window."""

    source: AnalyticsSource
    window: str = "1 hour"
    latency_header: str | None = None
    top_keys: Annotated[int, Meta(ge=1, le=1000)] = 10
    sink: AnalyticsSink = AnalyticsSink()

    is_stream: ClassVar[bool] = False

    def check(self) -> None:
        _check_duration("window", self.window)
        if parse_duration(self.window) < 1:
            raise InvalidPipeline("window must be longer than 0")


Kind: TypeAlias = Archive | Replay | Transform | DeadLetters | Analytics
KINDS: tuple[type[Definition], ...] = (Archive, Replay, Transform, DeadLetters, Analytics)

ONCE, AVAILABLE_NOW = "once", "available-now"


def check_trigger(trigger: str) -> None:
    """Reject an invalid trigger."""
    if trigger not in (ONCE, AVAILABLE_NOW):
        try:
            parse_duration(trigger)
        except ValueError as error:
            raise InvalidPipeline(f"trigger: {error}, nor {ONCE} or {AVAILABLE_NOW}") from None


def _check_duration(place: str, text: str) -> None:
    try:
        parse_duration(text)
    except ValueError as error:
        raise InvalidPipeline(f"{place}: {error}") from None


def _check_position(place: str, position: Position | None) -> None:
    if isinstance(position, str):
        try:
            parse_timestamp(position, 0)
        except ValueError as error:
            raise InvalidPipeline(f"{place}: {error}") from None
    if isinstance(position, int) and position < 0:
        raise InvalidPipeline(f"{place}: an offset is 0 or more, not {position}")
    if isinstance(position, Mapping):
        for topic, offsets in position.items():
            for partition, offset in offsets.items():
                if not (partition.isascii() and partition.isdigit()) or offset < 0:
                    raise InvalidPipeline(
                        f"{place}.{topic}: {partition} = {offset} is not a partition and its offset"
                    )
