"""Topic names and topic settings, under Kafka's names."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from math import isfinite
from typing import Any

import msgspec

from .errors import InvalidConfig, InvalidTopicName
from .ids import TopicId, TopicName
from .names import local_topic, split_topic

MAX_NAME_LENGTH = 249
OFFSETS_TOPIC = TopicName("__consumer_offsets")
TRANSACTIONS_TOPIC = TopicName("__transaction_state")
QUEUES_TOPIC = TopicName("__queue_state")
DELAYS_TOPIC = TopicName("__delayed_messages")
AUDIT_TOPIC = TopicName("__audit")
# The name that Confluent's schema registry uses: its records are the same.
SCHEMAS_TOPIC = TopicName("_schemas")
# Written by the broker only; clients may read them.
INTERNAL_TOPICS = frozenset(
    {OFFSETS_TOPIC, TRANSACTIONS_TOPIC, QUEUES_TOPIC, DELAYS_TOPIC, AUDIT_TOPIC, SCHEMAS_TOPIC}
)
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIB = 1 << 20

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
# Where Confluent's serializers have their strategies; the part after it is accepted, too.
_STRATEGY_PACKAGE = "io.confluent.kafka.serializers.subject."
TOPIC_NAME_STRATEGY = _STRATEGY_PACKAGE + "TopicNameStrategy"
RECORD_NAME_STRATEGY = _STRATEGY_PACKAGE + "RecordNameStrategy"
TOPIC_RECORD_NAME_STRATEGY = _STRATEGY_PACKAGE + "TopicRecordNameStrategy"
_STRATEGIES = (TOPIC_NAME_STRATEGY, RECORD_NAME_STRATEGY, TOPIC_RECORD_NAME_STRATEGY)
_SHORT_STRATEGIES = {name.removeprefix(_STRATEGY_PACKAGE): name for name in _STRATEGIES}
# PARTITION:BROKER, or all.
_THROTTLED = r"[0-9]+:[0-9]+|\*"
# The names of namespaces and tables are those of directories, too.
_TABLE = r"([A-Za-z0-9_-]{1,100}(\.[A-Za-z0-9_-]{1,255}){1,4})?"


def is_topic_name(name: str) -> bool:
    """Return whether `name` consists of the characters of topic names, after the tenant if it has one."""
    return _LEGAL_NAME.fullmatch(local_topic(name)) is not None


def check_topic_name(name: str) -> TopicName:
    """Return `name` if it is a valid topic name. Raises InvalidTopicName with the reason."""
    local = local_topic(name)
    if not local:
        raise InvalidTopicName("a topic name cannot be empty")
    if local in {".", ".."}:
        raise InvalidTopicName(f"a topic cannot be named {local!r}")
    if len(name) > MAX_NAME_LENGTH:
        most = MAX_NAME_LENGTH - len(name) + len(local)
        raise InvalidTopicName(f"a topic name has at most {most} characters, this one {len(local)}")
    if not is_topic_name(name):
        raise InvalidTopicName(f"topic name {local!r} may contain only letters, digits, '.', '_' and '-'")
    return TopicName(name)


class ConfigKind(StrEnum):
    """The type of a setting's value, which also determines how its text is parsed."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    LIST = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One topic setting: type, bounds and description."""

    kind: ConfigKind
    default: Any
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    # Values inside the bounds that are invalid.
    excluded: tuple[Any, ...] = ()
    # The only value that can be honoured, for settings of features that do not exist here.
    only_default: bool = False
    pattern: str = ""  # of a text, or of each word of a list, which may then be empty
    # Other names of choices.
    aliases: Mapping[str, str] = field(default_factory=dict)
    doc: str

    def parse(self, name: str, text: str) -> Any:
        """Parse a value. Raises InvalidConfig."""
        try:
            value = _PARSERS[self.kind](text.strip())
            if not (value or self.pattern or self.kind is not ConfigKind.LIST):
                raise ValueError("an empty list")
        except ValueError:
            raise InvalidConfig(f"{name}={text!r} is not a valid {self.kind}") from None
        if self.aliases:
            value = self.aliases.get(value, value)
        if self.minimum is not None and value < self.minimum:
            raise InvalidConfig(f"{name}={text} is below its minimum {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise InvalidConfig(f"{name}={text} is above its maximum {self.maximum}")
        if value in self.excluded:
            raise InvalidConfig(f"{name} cannot be {text}")
        if self.only_default and value != self.default:
            raise InvalidConfig(f"{name}={text} is not supported: it can only be {self.text(self.default)}")
        words = value if self.kind is ConfigKind.LIST else (value,)
        if self.pattern:
            for word in words:
                if not re.fullmatch(self.pattern, word):
                    raise InvalidConfig(
                        f"{name}={text!r} contains {word!r}, which does not match {self.pattern}"
                    )
        if self.choices:
            for word in words:
                if word not in self.choices:
                    raise InvalidConfig(f"{name}={text!r} is not one of {', '.join(self.choices)}")
        return value

    def text(self, value: Any) -> str:
        """Format a value as users write it."""
        if self.kind is ConfigKind.LIST:
            return ",".join(value)
        return str(value).lower() if self.kind is ConfigKind.BOOLEAN else str(value)


def _words(text: str) -> tuple[str, ...]:
    return tuple(sorted({word.strip() for word in text.split(",") if word.strip()}))


def _whole(text: str) -> int:
    # int() also accepts underscores and digits of other scripts.
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ValueError("not a whole number")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if "_" in text or not isfinite(value):
        raise ValueError("not a number")
    return value


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text.lower() == "true"


_PARSERS: Mapping[ConfigKind, Callable[[str], Any]] = {
    ConfigKind.BOOLEAN: _truth,
    ConfigKind.INT: _whole,
    ConfigKind.LONG: _whole,
    ConfigKind.DOUBLE: _number,
    ConfigKind.STRING: str,
    ConfigKind.LIST: _words,
}

SETTINGS: Mapping[str, Setting] = {
    "cleanup.policy": Setting(
        kind=ConfigKind.LIST, default=("delete",), choices=("compact", "delete"),
        doc="How old segments are cleaned up: delete them, compact them to the last value per key, or both.",
    ),
    "compression.gzip.level": Setting(
        kind=ConfigKind.INT, default=-1, minimum=-1, maximum=9, excluded=(0,),
        doc="Level of gzip when the broker compresses (compression.type); -1 is zlib's default.",
    ),
    "compression.lz4.level": Setting(
        kind=ConfigKind.INT, default=9, minimum=1, maximum=17,
        doc="Level of lz4 when the broker compresses; as in Kafka, 9 is the fast mode.",
    ),
    "compression.type": Setting(
        kind=ConfigKind.STRING, default="producer",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        doc="Compression of stored batches; 'producer' keeps the producer's.",
    ),
    "compression.zstd.level": Setting(
        kind=ConfigKind.INT, default=3, minimum=-131_072, maximum=22,
        doc="Level of zstd when the broker compresses.",
    ),
    "confluent.key.schema.validation": Setting(
        kind=ConfigKind.BOOLEAN, default=False,
        doc="Whether keys must name a schema that is a version of their subject in the schema registry; "
        "with schema.validation=full they must also match it.",
    ),
    "confluent.key.subject.name.strategy": Setting(
        kind=ConfigKind.STRING, default=TOPIC_NAME_STRATEGY, choices=_STRATEGIES, aliases=_SHORT_STRATEGIES,
        doc="The subject of keys: TOPIC-key, the record's name, or TOPIC- and the record's name.",
    ),
    "confluent.value.schema.validation": Setting(
        kind=ConfigKind.BOOLEAN, default=False,
        doc="Whether values must name a schema that is a version of their subject; the same as "
        "schema.validation=id.",
    ),
    "confluent.value.subject.name.strategy": Setting(
        kind=ConfigKind.STRING, default=TOPIC_NAME_STRATEGY, choices=_STRATEGIES, aliases=_SHORT_STRATEGIES,
        doc="The subject of values: TOPIC-value, the record's name, or TOPIC- and the record's name.",
    ),
    "delete.retention.ms": Setting(
        kind=ConfigKind.LONG, default=DAY_MS, minimum=0, maximum=INT64_MAX,
        doc="How long compaction keeps a tombstone, so that slow readers see the deletion.",
    ),
    "file.delete.delay.ms": Setting(
        kind=ConfigKind.LONG, default=60_000, minimum=0, maximum=INT64_MAX,
        doc="No effect: files are deleted once their last reader has closed them.",
    ),
    "flush.messages": Setting(
        kind=ConfigKind.LONG, default=INT64_MAX, minimum=1, maximum=INT64_MAX,
        doc="fsync before acknowledging once this many records are unflushed; 1 is fsync for every batch.",
    ),
    "flush.ms": Setting(
        kind=ConfigKind.LONG, default=1000, minimum=0, maximum=INT64_MAX,
        doc="fsync at most this long after an append; the largest value leaves it to the operating system.",
    ),
    "follower.replication.throttled.replicas": Setting(
        kind=ConfigKind.LIST, default=(), pattern=_THROTTLED,
        doc="Replicas, as PARTITION:BROKER or * for all, that their brokers fill no faster than "
        "follower.replication.throttled.rate while they are not in sync.",
    ),
    "index.interval.bytes": Setting(
        kind=ConfigKind.INT, default=4096, minimum=0, maximum=INT32_MAX,
        doc="No effect: the broker chooses the density of its indexes.",
    ),
    "leader.replication.throttled.replicas": Setting(
        kind=ConfigKind.LIST, default=(), pattern=_THROTTLED,
        doc="Partitions and their leaders, as PARTITION:BROKER or * for all, whose replicas that are not in "
        "sync the leaders fill no faster than leader.replication.throttled.rate.",
    ),
    "local.retention.bytes": Setting(
        kind=ConfigKind.LONG, default=-2, only_default=True,
        doc="Tiered storage, which is not supported: -2 only.",
    ),
    "local.retention.ms": Setting(
        kind=ConfigKind.LONG, default=-2, only_default=True,
        doc="Tiered storage, which is not supported: -2 only.",
    ),
    "max.compaction.lag.ms": Setting(
        kind=ConfigKind.LONG, default=INT64_MAX, minimum=1, maximum=INT64_MAX,
        doc="Time after which a record is compacted whatever the share of uncompacted data is.",
    ),
    "max.message.bytes": Setting(
        kind=ConfigKind.INT, default=MIB + 12, minimum=0, maximum=INT32_MAX,
        doc="The largest record batch the topic accepts, as sent (after compression).",
    ),
    "message.delays": Setting(
        kind=ConfigKind.BOOLEAN, default=False,
        doc="Whether records that Kafka clients send with the header alpacamq-deliver-at are delayed until "
        "that time. The broker then reads the records of every batch.",
    ),
    "message.downconversion.enable": Setting(
        kind=ConfigKind.BOOLEAN, default=True,
        doc="No effect: record formats of Kafka before 0.11 are not supported.",
    ),
    "message.timestamp.after.max.ms": Setting(
        kind=ConfigKind.LONG, default=HOUR_MS, minimum=0, maximum=INT64_MAX,
        doc="How far ahead of the broker's clock a record's timestamp may be.",
    ),
    "message.timestamp.before.max.ms": Setting(
        kind=ConfigKind.LONG, default=INT64_MAX, minimum=0, maximum=INT64_MAX,
        doc="How far behind the broker's clock a record's timestamp may be.",
    ),
    "message.timestamp.type": Setting(
        kind=ConfigKind.STRING, default="CreateTime", choices=("CreateTime", "LogAppendTime"),
        doc="Whether a record's timestamp is the producer's or the broker's.",
    ),
    "min.cleanable.dirty.ratio": Setting(
        kind=ConfigKind.DOUBLE, default=0.5, minimum=0, maximum=1,
        doc="Share of uncompacted data in the log that triggers compaction.",
    ),
    "min.compaction.lag.ms": Setting(
        kind=ConfigKind.LONG, default=0, minimum=0, maximum=INT64_MAX,
        doc="Age before which a record is not compacted.",
    ),
    "min.insync.replicas": Setting(
        kind=ConfigKind.INT, default=1, minimum=1, maximum=INT32_MAX,
        doc="Replicas that must be in sync for acks=all to be accepted; more than there are count as all. "
        "The default of a topic with 3 or more replicas is 2.",
    ),
    "preallocate": Setting(
        kind=ConfigKind.BOOLEAN, default=False,
        doc="No effect: files grow as they are written.",
    ),
    "queue.backoff.initial.ms": Setting(
        kind=ConfigKind.LONG, default=1000, minimum=0, maximum=DAY_MS,
        doc="Queue mode: backoff after the first failed delivery of a message.",
    ),
    "queue.backoff.max.ms": Setting(
        kind=ConfigKind.LONG, default=60_000, minimum=0, maximum=DAY_MS,
        doc="Queue mode: the longest backoff between two deliveries.",
    ),
    "queue.backoff.multiplier": Setting(
        kind=ConfigKind.DOUBLE, default=2.0, minimum=1, maximum=100,
        doc="Queue mode: factor by which the backoff grows with each delivery.",
    ),
    "queue.dead.letter.topic": Setting(
        kind=ConfigKind.STRING, default="",
        doc="Queue mode: topic for messages that were rejected or delivered too often; "
        "empty is the topic's own name with .dlq.",
    ),
    "queue.deduplication.start": Setting(
        kind=ConfigKind.STRING, default="",
        doc="FIFO queues: offset in each partition, separated by commas, before which deduplication ids are "
        "forgotten; a purge sets it.",
    ),
    "queue.delay.ms": Setting(
        kind=ConfigKind.LONG, default=0, minimum=0, maximum=INT64_MAX,
        doc="Delay of messages published over HTTP and SQS without a delay of their own.",
    ),
    "queue.max.deliveries": Setting(
        kind=ConfigKind.INT, default=4, minimum=0, maximum=INT32_MAX,
        doc="Queue mode: deliveries after which a message is a dead letter (the first and three retries); "
        "0 is no limit.",
    ),
    "queue.max.in.flight": Setting(
        kind=ConfigKind.INT, default=1000, minimum=1, maximum=1_000_000,
        doc="Queue mode: unacknowledged messages one consumer may hold.",
    ),
    "queue.max.in.flight.total": Setting(
        kind=ConfigKind.INT, default=120_000, minimum=1, maximum=10_000_000,
        doc="Queue mode: unacknowledged messages all consumers of a group may hold together.",
    ),
    "queue.ordering": Setting(
        kind=ConfigKind.STRING, default="none", choices=("none", "key"),
        doc="Queue mode: 'key' delivers messages of the same key in order, one at a time.",
    ),
    "queue.priority.mode": Setting(
        kind=ConfigKind.STRING, default="fair", choices=("fair", "strict"),
        doc="Queue mode: whether lanes share deliveries by weight, or the most urgent goes first.",
    ),
    "queue.priority.starvation.ms": Setting(
        kind=ConfigKind.LONG, default=30_000, minimum=1, maximum=INT64_MAX,
        doc="Queue mode: a lane with messages that was not served for this long is served first once "
        "(fair mode).",
    ),
    "queue.ttl.action": Setting(
        kind=ConfigKind.STRING, default="drop", choices=("drop", "dead-letter"),
        doc="Queue mode: action for a message that was not processed within queue.ttl.ms.",
    ),
    "queue.ttl.ms": Setting(
        kind=ConfigKind.LONG, default=-1, minimum=-1, maximum=INT64_MAX,
        doc="Queue mode: age at which a message expires; -1 is never.",
    ),
    "queue.visibility.timeout.ms": Setting(
        kind=ConfigKind.LONG, default=30_000, minimum=0, maximum=DAY_MS,
        doc="Queue mode: default lease of a received message.",
    ),
    "remote.log.copy.disable": Setting(
        kind=ConfigKind.BOOLEAN, default=False, only_default=True,
        doc="Tiered storage, which is not supported: false only.",
    ),
    "remote.log.delete.on.disable": Setting(
        kind=ConfigKind.BOOLEAN, default=False, only_default=True,
        doc="Tiered storage, which is not supported: false only.",
    ),
    "remote.storage.enable": Setting(
        kind=ConfigKind.BOOLEAN, default=False, only_default=True,
        doc="Tiered storage, which is not supported: false only.",
    ),
    "retention.bytes": Setting(
        kind=ConfigKind.LONG, default=-1, minimum=-1, maximum=INT64_MAX,
        doc="Size of a partition above which its oldest segments are deleted; -1 is no limit.",
    ),
    "retention.ms": Setting(
        kind=ConfigKind.LONG, default=7 * DAY_MS, minimum=-1, maximum=INT64_MAX,
        doc="Age above which segments are deleted; -1 is no limit.",
    ),
    "schema.validation": Setting(
        kind=ConfigKind.STRING, default="none", choices=("none", "id", "full"),
        doc="Check of values by the schema registry: 'id' that they name a schema that is a version of their "
        "subject, 'full' also that they match it.",
    ),
    "schema.validation.subject": Setting(
        kind=ConfigKind.STRING, default="", pattern=r"[^\x00-\x1f\x7f-\x9f]{0,1000}",
        doc="Where values are checked: the subject whose latest version, a JSON schema, values must match "
        "that name no schema. Empty: such values are refused.",
    ),
    "segment.bytes": Setting(
        kind=ConfigKind.INT, default=64 * MIB, minimum=1024, maximum=1 << 30,
        doc="Size at which a segment is closed and a new one started.",
    ),
    "segment.index.bytes": Setting(
        kind=ConfigKind.INT, default=10 * MIB, minimum=4, maximum=INT32_MAX,
        doc="No effect: indexes grow with their segments.",
    ),
    "segment.jitter.ms": Setting(
        kind=ConfigKind.LONG, default=0, minimum=0, maximum=INT64_MAX,
        doc="Time by which segment.ms is shortened at most, different for each segment, to spread the work.",
    ),
    "segment.ms": Setting(
        kind=ConfigKind.LONG, default=7 * DAY_MS, minimum=1, maximum=INT64_MAX,
        doc="Age at which a segment is closed even if it is not full.",
    ),
    "sqs.attributes": Setting(
        kind=ConfigKind.STRING, default="",
        doc="Attributes and tags of a queue that only the SQS API uses, as JSON.",
    ),
    "table.enable": Setting(
        kind=ConfigKind.BOOLEAN, default=False,
        doc="Whether the runner of alpacactl pipeline tables keeps an Iceberg table in step with the topic.",
    ),
    "table.key": Setting(
        kind=ConfigKind.LIST, default=(), pattern=r"[^\s,]+",
        doc="Columns of the value that are the key of the table's rows, with table.mode=upsert; "
        "empty is the key of the record.",
    ),
    "table.mode": Setting(
        kind=ConfigKind.STRING, default="append", choices=("append", "upsert"),
        doc="Whether the table has a row for each record, or the last one for each key.",
    ),
    "table.name": Setting(
        kind=ConfigKind.STRING, default="", pattern=_TABLE,
        doc="Namespace and name of the table; empty is the topic's own name in the namespace of the runner.",
    ),
    "trace.enable": Setting(
        kind=ConfigKind.BOOLEAN, default=True,
        doc="Whether messages of the topic are traced, if their producers or trace.sample request it.",
    ),
    "trace.headers": Setting(
        kind=ConfigKind.STRING, default="first", choices=("first", "all", "none"),
        doc="Whether traces that producers began are continued. For batches of Kafka clients, 'first' "
        "reads those whose first record has the header traceparent, 'all' reads every one.",
    ),
    "trace.sample": Setting(
        kind=ConfigKind.DOUBLE, default=0.0, minimum=0, maximum=1,
        doc="Share of messages traced without a trace of their producers: 0.001 is every "
        "thousandth.",
    ),
    "unclean.leader.election.enable": Setting(
        kind=ConfigKind.BOOLEAN, default=False,
        doc="No effect with one replica.",
    ),
}  # fmt: skip


# Settings whose value is the name of a topic.
_NAMES_OF_TOPICS = frozenset({"queue.dead.letter.topic"})


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings, defaults filled in; fields are named as in SETTINGS, dots as underscores."""

    cleanup_policy: tuple[str, ...]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    confluent_key_schema_validation: bool
    confluent_key_subject_name_strategy: str
    confluent_value_schema_validation: bool
    confluent_value_subject_name_strategy: str
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_delays: bool
    message_downconversion_enable: bool
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    queue_backoff_initial_ms: int
    queue_backoff_max_ms: int
    queue_backoff_multiplier: float
    queue_dead_letter_topic: str
    queue_deduplication_start: str
    queue_delay_ms: int
    queue_max_deliveries: int
    queue_max_in_flight: int
    queue_max_in_flight_total: int
    queue_ordering: str
    queue_priority_mode: str
    queue_priority_starvation_ms: int
    queue_ttl_action: str
    queue_ttl_ms: int
    queue_visibility_timeout_ms: int
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    schema_validation: str
    schema_validation_subject: str
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    sqs_attributes: str
    table_enable: bool
    table_key: tuple[str, ...]
    table_mode: str
    table_name: str
    trace_enable: bool
    trace_headers: str
    trace_sample: float
    unclean_leader_election_enable: bool
    # Not a setting, but what follows from some, as it is read for every batch: whether keys or values are
    # checked against schemas.
    checks_schemas: bool

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes_old(self) -> bool:
        return "delete" in self.cleanup_policy


def check_setting(name: str, text: str) -> Any:
    """Parse the value of one setting. Raises InvalidConfig, with a suggestion for an unknown name."""
    if (setting := SETTINGS.get(name)) is None:
        near = get_close_matches(name[:MAX_NAME_LENGTH], SETTINGS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidConfig(f"no topic setting is named {name!r}{hint}")
    value = setting.parse(name, text)
    if name in _NAMES_OF_TOPICS and value:
        if split_topic(value)[0] is not None:
            raise InvalidConfig(f"{name}={text!r}: a topic of the same tenant has its name in the tenant")
        try:
            check_topic_name(value)
        except InvalidTopicName as error:
            raise InvalidConfig(f"{name}={text!r}: {error}") from None
    return value


def check_settings(overrides: Mapping[str, str]) -> None:
    """Check the settings of a topic, each and together. Raises InvalidConfig."""
    for name, text in overrides.items():
        check_setting(name, text)
    check_lags(overrides)


def check_lags(overrides: Mapping[str, str]) -> None:
    """Check that compaction lags do not contradict each other. Raises InvalidConfig."""
    shortest, longest = (
        check_setting(name, overrides[name]) if name in overrides else SETTINGS[name].default
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if shortest > longest:
        raise InvalidConfig(f"min.compaction.lag.ms={shortest} is above max.compaction.lag.ms={longest}")


def topic_config(overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> TopicConfig:
    """Return the settings of a topic with `overrides` on a broker with `defaults`."""
    values = {name: setting.default for name, setting in SETTINGS.items()}
    for source in (defaults or {}, overrides):
        for name, text in source.items():
            values[name] = check_setting(name, text)
    checks_schemas = (
        values["schema.validation"] != "none"
        or values["confluent.value.schema.validation"]
        or values["confluent.key.schema.validation"]
    )
    return TopicConfig(
        **{name.replace(".", "_"): value for name, value in values.items()}, checks_schemas=checks_schemas
    )


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's metadata."""

    name: TopicName
    id: TopicId
    partitions: int
    overrides: Mapping[str, str] = {}

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS
