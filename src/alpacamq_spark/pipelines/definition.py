"""Pipeline definitions: one struct for each kind, and the parts they share.

Fields are the keys of the file, with their defaults. `check` rejects combinations of values that are
invalid together.
"""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from alpacamq.model.dead_letters import default_dead_letter_topic

from .errors import InvalidPipeline
from .tables.partitions import parse_partition
from .tables.sorting import parse_sort
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
    # For clusters without AlpacaMQ: the archive of `alpacactl pipeline package`, and the Python of workers.
    package: str | None = None
    python: str | None = None

    def check(self, place: str) -> None:
        for name in ("package", "python"):
            is_local = self.master is None or self.master.startswith("local")
            if getattr(self, name) is not None and is_local:
                raise InvalidPipeline(f"{place}.{name} is for the workers of a cluster: set {place}.master")
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


SchemaLanguage: TypeAlias = Literal["avro", "json", "protobuf"]
DeriveWhen: TypeAlias = Literal["missing", "always", "never"]
Compression: TypeAlias = Literal["zstd", "snappy", "gzip", "lz4", "none"]
_TABLE = re.compile(r"[^.\s]+(\.[^.\s]+)+")


class CatalogSettings(Part, frozen=True, kw_only=True):
    """[catalog]: the catalog of Iceberg tables, by PyIceberg's properties.

    Without type and uri, a SQLite file in the warehouse; with the name alone, what PyIceberg's own
    configuration has under it.
    """

    name: str | None = None
    type: Literal["sql", "rest", "glue", "hive", "dynamodb", "bigquery"] | None = None
    uri: str | None = None
    warehouse: str | None = None
    settings: Mapping[str, str | int | float | bool] = {}


class TableSink(Part, frozen=True, kw_only=True):
    """The keys of a sink that is a table."""

    path: str | None = None
    format: Literal["parquet", "iceberg", "delta"] = "parquet"
    table: str | None = None
    mode: str = "append"
    partition_by: tuple[str, ...] | None = None
    # The order of rows inside files.
    sort_by: tuple[str, ...] = ()
    # Of archives and tables "zstd"; of the files of a query Spark's default, and of records none.
    compression: Compression | None = None
    # How long earlier states of a table can be read.
    keep_snapshots: str | None = None
    # For Delta tables that are not on this machine, as delta-rs has them.
    storage_options: Mapping[str, str | int | float | bool] = {}

    @property
    def codec(self) -> Compression:
        """The compression of an archive or a table."""
        return self.compression or "zstd"

    @property
    def is_table(self) -> bool:
        """Return whether the sink is a table, and not files or a topic."""
        return self.format != "parquet"

    def check(self, place: str) -> None:
        match self.format:
            case "iceberg":
                self._check_iceberg(place)
            case "delta":
                self._check_delta(place)
        if self.is_table:
            for each in self.partition_by or ():
                parse_partition(each)
            for each in self.sort_by:
                parse_sort(each)
            if self.keep_snapshots is not None:
                _check_duration(f"{place}.keep_snapshots", self.keep_snapshots)
        elif self.mode == "upsert":
            raise InvalidPipeline(f"{place}: mode = 'upsert' needs format = 'iceberg' or 'delta'")
        elif self.keep_snapshots is not None:
            raise InvalidPipeline(f"{place}.keep_snapshots needs format = 'iceberg' or 'delta'")
        elif self.sort_by:
            raise InvalidPipeline(f"{place}.sort_by needs format = 'iceberg' or 'delta'")
        if self.format == "parquet" and self.table is not None:
            raise InvalidPipeline(f"{place}.table needs format = 'iceberg'")
        if self.format != "delta" and self.storage_options:
            raise InvalidPipeline(f"{place}.storage_options needs format = 'delta'")

    def _check_iceberg(self, place: str) -> None:
        if self.table is None:
            raise InvalidPipeline(f"{place}: format = 'iceberg' needs table = 'NAMESPACE.NAME'")
        if not _TABLE.fullmatch(self.table):
            raise InvalidPipeline(
                f"{place}.table = {self.table!r} is not a namespace and a name, as in 'sales.orders'"
            )
        if self.path is not None:
            raise InvalidPipeline(
                f"{place}: path and format = 'iceberg' exclude each other; files are in the warehouse of "
                "the catalog"
            )

    def _check_delta(self, place: str) -> None:
        if self.table is not None:
            raise InvalidPipeline(f"{place}: a Delta table has no name but a path; set path instead of table")
        if self.path is None:
            raise InvalidPipeline(f"{place}: format = 'delta' needs path, the directory of the table")
        for each in self.partition_by or ():
            if (found := parse_partition(each)).unit != "identity":
                raise InvalidPipeline(
                    f"{place}.partition_by: Delta tables are partitioned by columns, not by {found}; "
                    "archives have the column date, and queries can select one"
                )


class ArchiveSink(TableSink, frozen=True, kw_only=True):
    """The location of an archive, or a table; with mode = 'upsert' of the last record for each key."""

    mode: Literal["append", "upsert"] = "append"

    def check(self, place: str) -> None:
        super().check(place)
        if self.format == "parquet" and self.path is None:
            raise InvalidPipeline(f"{place} lacks the key path")
        if self.format == "parquet" and self.partition_by is not None:
            raise InvalidPipeline(
                f"{place}.partition_by needs format = 'iceberg' or 'delta'; archives have fixed ones"
            )


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The keys that all kinds have in common."""

    name: str | None = None
    broker: str | None = None
    # A broker that requires authentication: a user, and a file with its password.
    user: str | None = None
    password_file: str | None = None
    # TLS; by default if there is a file of authorities or a certificate.
    tls: bool | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    # The address of a schema registry, if it is not that of the broker.
    registry: str | None = None
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
    catalog: CatalogSettings | None = None
    steps: tuple[Filter | Compact, ...] = ()
    schema: str | None = None
    decode: Literal["registry"] | None = None
    decode_key: Literal["registry"] | None = None
    subject: str | None = None
    version: Count | None = None
    message: str | None = None
    # An Iceberg table for copies of records that cannot be decoded.
    dead_letter_table: str | None = None
    trigger: str = "available-now"

    def check(self) -> None:
        check_trigger(self.trigger)
        _check_decoding(self, "")
        if self.dead_letter_table is not None:
            _check_dead_letter_table("", self.dead_letter_table)
            if (self.schema, self.decode, self.decode_key) == (None, None, None):
                raise InvalidPipeline("dead_letter_table needs schema, decode or decode_key")
            if self.dead_letter_table == self.sink.table:
                raise InvalidPipeline(f"dead_letter_table: {self.sink.table!r} is the table of the sink, too")
        if sum(isinstance(step, Compact) for step in self.steps) > 1:
            raise InvalidPipeline("steps: only one compact step is allowed")
        if self.dead_letter_table is None:
            _check_catalog(self.catalog, self.sink)


class ReplaySource(Part, rename={"begin": "from", "end": "to"}, frozen=True, kw_only=True):
    """A range of an archive, a table or topics, or a query over a table."""

    archive: str | None = None
    # An Iceberg table.
    table: str | None = None
    # The directory of a Delta table, and the options of its storage.
    delta: str | None = None
    storage_options: Mapping[str, str | int | float | bool] = {}
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    begin: Position | None = None
    end: Position | None = None
    # Only records with these keys, as text.
    keys: tuple[str, ...] = ()
    # A query over the table, whose result is that of a transform; and the columns that order it.
    sql: str | None = None
    order: tuple[str, ...] = ()

    def check(self, place: str) -> None:
        if self.pattern is not None and self.topics:
            raise InvalidPipeline(f"{place}: topics and pattern exclude each other")
        stored = {"archive": self.archive, "table": self.table, "delta": self.delta}
        if len(given := [name for name, where in stored.items() if where is not None]) > 1:
            raise InvalidPipeline(f"{place}: {' and '.join(given)} exclude each other")
        if self.is_live and not self.topics and self.pattern is None:
            raise InvalidPipeline(f"{place} needs archive, table, delta, topics or pattern")
        if self.storage_options and self.delta is None:
            raise InvalidPipeline(f"{place}.storage_options needs {place}.delta")
        if self.table is not None and not _TABLE.fullmatch(self.table):
            raise InvalidPipeline(
                f"{place}.table = {self.table!r} is not a namespace and a name, as in 'sales.orders'"
            )
        if self.sql is not None and not self.is_table:
            raise InvalidPipeline(
                f"{place}.sql is a query over a table, and {place}.table or {place}.delta is missing"
            )
        if self.order and self.sql is None:
            raise InvalidPipeline(f"{place}.order is for sql; other records have the order of their offsets")
        chosen = [self.begin, self.end, self.pattern]
        if self.sql is not None and (self.topics or self.keys or chosen != [None] * 3):
            raise InvalidPipeline(f"{place}: from, to, keys and topics exclude sql; use WHERE")
        for name, position in (("from", self.begin), ("to", self.end)):
            _check_position(f"{place}.{name}", position)

    @property
    def is_live(self) -> bool:
        """Whether the records are those that the topics have."""
        return self.archive is None and not self.is_table

    @property
    def is_table(self) -> bool:
        """Return whether the records are rows of an Iceberg or Delta table."""
        return self.table is not None or self.delta is not None


class ReplaySink(Part, frozen=True, kw_only=True):
    """The target topic, and how records are partitioned and timestamped."""

    topic: str
    partition: Literal["by-key", "original"] = "by-key"
    timestamp: Literal["now", "original"] = "now"
    position_headers: bool = True
    # How the columns of source.sql become records: see TransformSink.
    encode: Literal["registry"] | None = None
    encode_key: Literal["registry"] | None = None
    schema_type: SchemaLanguage | None = None
    derive: DeriveWhen | None = None
    subject: str | None = None
    version: Count | None = None
    message: str | None = None

    def check(self, place: str) -> None:
        _check_encoding(self, place)


class Replay(Definition, tag="replay", frozen=True, kw_only=True):
    """A range of an archive, a table or topics, written to a topic."""

    source: ReplaySource
    sink: ReplaySink
    catalog: CatalogSettings | None = None
    steps: tuple[Filter, ...] = ()
    rate: Count | None = None
    batch: Count = 500_000

    is_stream: ClassVar[bool] = False

    def check(self) -> None:
        source, topic = self.source, self.sink.topic
        if source.is_live and (topic in source.topics or _matches(source.pattern, topic)):
            raise InvalidPipeline(
                f"sink.topic: {topic!r} is a topic of the source, so its records would be written to it again"
            )
        if self.catalog is not None and source.table is None:
            raise InvalidPipeline("catalog is for source.table")
        if source.sql is None:
            if self.sink.encode is not None or self.sink.encode_key is not None:
                raise InvalidPipeline(
                    "sink: encode is for source.sql; other records are written again as they are"
                )
            return
        if self.steps:
            raise InvalidPipeline("steps: a filter is for a replay without source.sql; use WHERE")
        if (self.sink.partition, self.sink.timestamp) != ("by-key", "now"):
            raise InvalidPipeline(
                "sink: partition and timestamp = 'original' exclude source.sql; let the query have "
                "the columns 'partition' and 'timestamp' beside 'value'"
            )


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
    decode: Literal["registry"] | None = None
    decode_key: Literal["registry"] | None = None
    subject: str | None = None
    version: Count | None = None
    message: str | None = None
    malformed: Literal["keep", "drop", "fail", "dead-letter"] = "keep"
    # The topic for malformed values, if not the dead-letter topic of the source.
    dead_letters: str | None = None
    # Or an Iceberg table for them.
    dead_letter_table: str | None = None
    watermark: Watermark | None = None
    start: Literal["earliest", "latest"] = "earliest"
    max_records: Count | None = None
    on_data_loss: Literal["fail", "skip"] = "fail"

    def check(self, place: str) -> None:
        if self.schema is not None and self.format != "json":
            raise InvalidPipeline(f"{place}: a schema is for JSON values only, not for {self.format}")
        if self.decode is not None and self.format != "json":
            raise InvalidPipeline(f"{place}: decode and format exclude each other")
        if self.dead_letters is not None and self.malformed != "dead-letter":
            raise InvalidPipeline(f"{place}.dead_letters is for malformed = 'dead-letter'")
        if self.dead_letter_table is not None:
            if self.malformed != "dead-letter":
                raise InvalidPipeline(f"{place}.dead_letter_table is for malformed = 'dead-letter'")
            if self.dead_letters is not None:
                raise InvalidPipeline(f"{place}: dead_letters and dead_letter_table exclude each other")
            _check_dead_letter_table(f"{place}.", self.dead_letter_table)
        if self.malformed == "dead-letter" and self.format != "json" and self.decode_key is None:
            raise InvalidPipeline(f"{place}: values of the format {self.format} are never malformed")
        _check_decoding(self, f"{place}: ")


class View(Part, frozen=True, kw_only=True):
    """A step that names a query for later steps."""

    name: str
    sql: str


class TransformSink(TableSink, frozen=True, kw_only=True):
    """A topic, a directory of Parquet files, or a table."""

    topic: str | None = None
    key: str | tuple[str, ...] | None = None
    mode: Literal["append", "update", "upsert"] = "append"
    # For topics: values and keys as those of the schema registry.
    encode: Literal["registry"] | None = None
    encode_key: Literal["registry"] | None = None
    # The language of a new subject, and when a schema is derived from the columns.
    schema_type: SchemaLanguage | None = None
    derive: DeriveWhen | None = None
    subject: str | None = None
    version: Count | None = None
    message: str | None = None

    def check(self, place: str) -> None:
        super().check(place)
        _check_encoding(self, place)
        if self.topic is None and (self.encode is not None or self.encode_key is not None):
            raise InvalidPipeline(f"{place}: encode and encode_key are for a topic")
        if [self.topic, self.path, self.table].count(None) != 2:
            raise InvalidPipeline(f"{place} needs either topic or path, or table with format = 'iceberg'")
        if self.path is not None and not self.is_table and (self.key is not None or self.mode != "append"):
            raise InvalidPipeline(f"{place}: key and mode are for topics and tables; files are append-only")
        if self.topic is not None and self.partition_by:
            raise InvalidPipeline(f"{place}: partition_by is for files; records are partitioned by key")
        if self.topic is not None and not isinstance(self.key, str | None):
            raise InvalidPipeline(f"{place}.key: a record has one key column, not a list")
        if self.mode == "update" and not self.is_table:
            raise InvalidPipeline(
                f"{place}: records are only appended to a topic, so mode = 'update' is not possible; give "
                "an aggregation a window and a watermark, or keep its rows in a table with mode = 'upsert'"
            )
        if not self.is_table:
            return
        if self.mode == "update":
            raise InvalidPipeline(f"{place}: a table takes mode = 'upsert' instead of 'update'")
        if bool(self.key) != (self.mode == "upsert"):
            raise InvalidPipeline(f"{place}: mode = 'upsert' and key belong together for a table")

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return (self.key,) if isinstance(self.key, str) else self.key or ()


class Transform(Definition, tag="transform", frozen=True, kw_only=True):
    """SQL over topics, to a topic or a table."""

    sources: Mapping[str, TableSource]
    sql: str
    sink: TransformSink
    catalog: CatalogSettings | None = None
    steps: tuple[View, ...] = ()
    trigger: str = "available-now"

    def check(self) -> None:
        check_trigger(self.trigger)
        tables = [source.dead_letter_table for source in self.sources.values()]
        if tables.count(None) == len(tables):
            _check_catalog(self.catalog, self.sink)
        if self.sink.table is not None and self.sink.table in tables:
            raise InvalidPipeline(f"sink.table: {self.sink.table!r} is the table of malformed values, too")
        if not self.sources:
            raise InvalidPipeline("sources: name at least one topic")
        read = {source.topic or name: name for name, source in self.sources.items()}
        if self.sink.topic in read:
            raise InvalidPipeline(
                f"sink.topic: {self.sink.topic!r} is the topic of sources.{read[self.sink.topic]}, so the "
                "pipeline would read its own results without end"
            )
        for name in self.sources:
            topic = self.dead_letter_topic(name)
            if topic is not None and topic in (*read, self.sink.topic):
                raise InvalidPipeline(
                    f"sources.{name}.dead_letters: {topic!r} is another topic of the pipeline, a source or "
                    "the sink"
                )

    def dead_letter_topic(self, table: str) -> str | None:
        """Return the topic for the malformed values of a table; None if they go elsewhere."""
        source = self.sources[table]
        if source.malformed != "dead-letter" or source.dead_letter_table is not None:
            return None
        return source.dead_letters or default_dead_letter_topic(source.topic or table)


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
        if self.sink.path is not None and self.sink.path == self.source.archive:
            raise InvalidPipeline(f"sink.path: {self.sink.path!r} is the archive that the pipeline reads")


class Tables(Definition, tag="tables", frozen=True, kw_only=True):
    """The runner of the Iceberg tables that topics enable with their settings."""

    catalog: CatalogSettings | None = None
    # Of tables that the settings of their topics do not name.
    namespace: str = "topics"
    # An Iceberg table for copies of records that cannot be decoded.
    dead_letter_table: str | None = None
    max_records: Count | None = None
    compression: Compression = "zstd"
    keep_snapshots: str | None = None
    trigger: str = "10s"

    is_stream: ClassVar[bool] = False

    def check(self) -> None:
        check_trigger(self.trigger)
        if not _TABLE.fullmatch(f"{self.namespace}.table"):
            raise InvalidPipeline(f"namespace = {self.namespace!r} is not the name of a namespace")
        if self.dead_letter_table is not None:
            _check_dead_letter_table("", self.dead_letter_table)
        if self.keep_snapshots is not None:
            _check_duration("keep_snapshots", self.keep_snapshots)


Kind: TypeAlias = Archive | Replay | Transform | DeadLetters | Analytics | Tables
KINDS: tuple[type[Definition], ...] = (Archive, Replay, Transform, DeadLetters, Analytics, Tables)

ONCE, AVAILABLE_NOW = "once", "available-now"


def check_trigger(trigger: str) -> None:
    """Reject an invalid trigger."""
    if trigger not in (ONCE, AVAILABLE_NOW):
        try:
            parse_duration(trigger)
        except ValueError as error:
            raise InvalidPipeline(f"trigger: {error}, nor {ONCE} or {AVAILABLE_NOW}") from None


class Decoded(Protocol):
    """What can be decoded by the schema registry."""

    @property
    def schema(self) -> str | None: ...

    @property
    def decode(self) -> Literal["registry"] | None: ...

    @property
    def decode_key(self) -> Literal["registry"] | None: ...

    @property
    def subject(self) -> str | None: ...

    @property
    def version(self) -> int | None: ...

    @property
    def message(self) -> str | None: ...


def _check_decoding(decoded: Decoded, place: str) -> None:
    if decoded.decode is not None and decoded.schema is not None:
        raise InvalidPipeline(f"{place}decode and schema exclude each other")
    if decoded.decode is None:
        for name in ("subject", "version", "message"):
            if getattr(decoded, name) is not None:
                raise InvalidPipeline(f"{place}{name} is for decode = 'registry'")


class Encoded(Protocol):
    """A sink whose columns can be encoded by the schema registry."""

    @property
    def encode(self) -> Literal["registry"] | None: ...

    @property
    def encode_key(self) -> Literal["registry"] | None: ...

    @property
    def schema_type(self) -> SchemaLanguage | None: ...

    @property
    def derive(self) -> DeriveWhen | None: ...

    @property
    def subject(self) -> str | None: ...

    @property
    def version(self) -> int | None: ...

    @property
    def message(self) -> str | None: ...


def _check_encoding(encoded: Encoded, place: str) -> None:
    if encoded.encode is None:
        for name in ("subject", "version", "message"):
            if getattr(encoded, name) is not None:
                raise InvalidPipeline(f"{place}.{name} is for encode = 'registry'")
    if encoded.encode is None and encoded.encode_key is None:
        for name in ("schema_type", "derive"):
            if getattr(encoded, name) is not None:
                raise InvalidPipeline(f"{place}.{name} is for encode or encode_key = 'registry'")
    if encoded.version is not None and encoded.derive == "always":
        raise InvalidPipeline(f"{place}: version and derive = 'always' exclude each other")


def _check_dead_letter_table(place: str, name: str) -> None:
    if not _TABLE.fullmatch(name):
        raise InvalidPipeline(
            f"{place}dead_letter_table = {name!r} is not a namespace and a name, as in 'sales.malformed'"
        )


def _check_catalog(catalog: CatalogSettings | None, sink: TableSink) -> None:
    if catalog is not None and sink.format != "iceberg":
        raise InvalidPipeline("catalog is for sink.format = 'iceberg'")


def _matches(pattern: str | None, topic: str) -> bool:
    try:
        return pattern is not None and re.fullmatch(pattern, topic) is not None
    except re.error as error:
        raise InvalidPipeline(f"source.pattern: {pattern!r} is not a regular expression: {error}") from None


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
