"""Parses and checks the options of the data source, named as in Spark's Kafka source."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum, StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from alpacamq.client.connect import Tls, parse_address
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import Login
from alpacamq.client.kafka.offsets import Isolation
from alpacamq.model.address import Address
from alpacamq.model.batch import Codec
from alpacamq.model.errors import InvalidTopicName
from alpacamq.model.ids import TopicName
from alpacamq.model.topics import check_topic_name
from alpacamq.registry.framing import Part
from alpacamq.registry.schema import SchemaType

from .client_options import CLIENT_PREFIX, SECURITY_OPTIONS, has_effect, kafka_security
from .decoding.registry import RegistryAccess
from .errors import InvalidOption
from .read.positions import Edge, Positions, read_positions
from .read.subscription import Subscription, read_subscription

T = TypeVar("T")

log = logging.getLogger(__name__)

SERVERS = "kafka.bootstrap.servers"

READ_OPTIONS = (
    SERVERS,
    "assign",
    "caFile",
    "certFile",
    "decode",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "groupId",
    "includeHeaders",
    "kafka.group.id",
    "kafka.isolation.level",
    "keyFile",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "message",
    "minOffsetsPerTrigger",
    "minPartitions",
    "passwordFile",
    "readerSchemas",
    "registry",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
    "tls",
    "user",
    "watchedSubjects",
)
WRITE_OPTIONS = (
    SERVERS,
    "batchId",
    "caFile",
    "certFile",
    "derive",
    "encode",
    "includeHeaders",
    "kafka.compression.type",
    "kafka.transaction.timeout.ms",
    "keyFile",
    "message",
    "passwordFile",
    "registry",
    "schemaType",
    "subject",
    "tls",
    "topic",
    "transactionalId",
    "user",
    "version",
)
# Those of them that need `encode`.
_ENCODE_OPTIONS = ("derive", "message", "schemaType", "subject", "version")
# Spark's own options, which are passed to sources as well.
_SPARK_OPTIONS = ("checkpointLocation", "queryName", "outputMode")
# Options of Spark's Kafka source, which have no effect here and do not change results.
_WITHOUT_EFFECT = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
)
# Options of streams, which Spark's Kafka source takes for batch reads, too, and does not use for them.
_OF_STREAMS = ("groupId", "kafka.group.id", "maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger")
MAX_TRANSACTION_MS = 900_000
MAX_TRIGGER_DELAY_S = 900.0
_UNITS_S = {"": 0.001, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
# The columns of parts that are decoded by the schema registry.
DECODED: Mapping[Part, str] = {Part.VALUE: "data", Part.KEY: "key_data"}
_ISOLATIONS = {"read_committed": Isolation.COMMITTED, "read_uncommitted": Isolation.UNCOMMITTED}
_CODECS = {codec.name.lower(): codec for codec in Codec}
_SCHEMA_TYPES = {each.lower(): each for each in SchemaType}
_BOOLEANS = {"true": True, "false": False}


class Derive(StrEnum):
    """When a schema is derived from the columns of a write."""

    MISSING = "missing"  # if the subject does not exist
    ALWAYS = "always"  # also if the columns do not fit its latest version
    NEVER = "never"


class ReadMode(Enum):
    """How a source is read, which determines the default start."""

    BATCH = Edge.EARLIEST
    STREAM = Edge.LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a read."""

    servers: tuple[Address, ...]
    login: Login | None
    tls: Tls | None
    subscription: Subscription
    starting: Positions
    ending: Positions
    isolation: Isolation
    include_headers: bool
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    # A micro-batch waits for this many records, but not longer than the delay.
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    min_partitions: int | None
    max_records_per_partition: int | None
    group_id: str | None
    # The parts to decode by the schema registry, and the ids of the schemas that they are read as, if given.
    decode: tuple[Part, ...]
    registry: RegistryAccess | None
    reader_schemas: Mapping[str, Mapping[Part, int]] | None
    # Subjects whose later versions are refused, by part; an empty one is that of the topic.
    watched_subjects: Mapping[Part, str]
    # The message that values of Protobuf schemas have, if not the first.
    message: str | None
    # Options that were given and have no effect.
    ignored: tuple[str, ...] = field(compare=False)

    def connect(self) -> Cluster:
        return Cluster(*self.servers, login=self.login, tls=self.tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeOptions:
    """How the columns of a write become keys and values of schemas of a registry."""

    parts: tuple[Part, ...]
    registry: RegistryAccess
    derive: Derive
    # The language of a new subject, Avro by default.
    schema_type: SchemaType | None
    # Of values: the subject, if it is not named for the topic, the version to use, if not the latest, and the
    # message of Protobuf, if not the first.
    subject: str | None
    version: int | None
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a write."""

    servers: tuple[Address, ...]
    login: Login | None
    tls: Tls | None
    topic: TopicName | None
    transactional_id: str | None
    batch_id: int | None
    transaction_timeout_ms: int
    codec: Codec
    encode: EncodeOptions | None
    # Options that were given and have no effect.
    ignored: tuple[str, ...] = field(compare=False)

    def connect(self) -> Cluster:
        return Cluster(*self.servers, login=self.login, tls=self.tls)


def read_options(given: Mapping[str, str], mode: ReadMode) -> ReadOptions:
    """Parse the options of a read. Raises InvalidOption."""
    options = _Options(given, READ_OPTIONS)
    least, most = options.count("minOffsetsPerTrigger"), options.count("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise InvalidOption(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    if mode is ReadMode.STREAM:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if options.get(name) is not None:
                raise InvalidOption(f"{name} is for batch reads: a stream has no end")
    of_others = _OF_STREAMS if mode is ReadMode.BATCH else ()
    without_effect = [name for name in of_others if options.get(name) is not None]
    return ReadOptions(
        servers=options.servers(),
        login=options.login(),
        tls=options.tls(),
        subscription=read_subscription(options.get),
        starting=read_positions(options.get, "starting", mode.value),
        ending=read_positions(options.get, "ending", Edge.LATEST),
        isolation=options.choice("kafka.isolation.level", _ISOLATIONS, Isolation.COMMITTED),
        include_headers=options.choice("includeHeaders", _BOOLEANS, False),
        fail_on_data_loss=options.choice("failOnDataLoss", _BOOLEANS, True),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=options.seconds("maxTriggerDelay", MAX_TRIGGER_DELAY_S),
        min_partitions=options.count("minPartitions"),
        max_records_per_partition=options.count("maxRecordsPerPartition"),
        group_id=options.get("groupId") or options.get("kafka.group.id"),
        decode=options.parts("decode"),
        registry=options.registry(),
        reader_schemas=options.reader_schemas(),
        watched_subjects=options.watched_subjects(),
        message=options.get("message"),
        ignored=tuple(sorted({*options.ignored, *without_effect})),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises InvalidOption."""
    options = _Options(given, WRITE_OPTIONS)
    topic = options.get("topic")
    try:
        name = None if topic is None else check_topic_name(topic)
    except InvalidTopicName as error:
        raise InvalidOption(f"topic: {error}") from None
    batch = options.get("batchId")
    if batch is not None and options.get("transactionalId") is None:
        raise InvalidOption("batchId needs a transactionalId")
    return WriteOptions(
        servers=options.servers(),
        login=options.login(),
        tls=options.tls(),
        topic=name,
        transactional_id=options.get("transactionalId"),
        batch_id=None if batch is None else options.number("batchId", batch, least=0),
        transaction_timeout_ms=options.count("kafka.transaction.timeout.ms") or MAX_TRANSACTION_MS,
        codec=options.choice("kafka.compression.type", _CODECS, Codec.NONE),
        encode=_encode_options(options),
        ignored=options.ignored,
    )


def _encode_options(options: "_Options") -> EncodeOptions | None:
    parts, registry = options.parts("encode"), options.registry()
    if not parts or registry is None:
        for name in _ENCODE_OPTIONS:
            if options.get(name) is not None:
                raise InvalidOption(f"{name} is for encode=value, encode=key or encode=key,value")
        return None
    if options.get("topic") is None:
        raise InvalidOption("encode needs the option topic, after which the subject is named")
    if Part.VALUE not in parts:
        for name in ("message", "subject", "version"):
            if options.get(name) is not None:
                raise InvalidOption(f"{name} is for values, and only keys are encoded")
    derive = options.choice("derive", {each.value: each for each in Derive}, Derive.MISSING)
    version = options.count("version")
    if version is not None and derive is Derive.ALWAYS:
        raise InvalidOption("version and derive=always exclude each other")
    return EncodeOptions(
        parts=tuple(dict.fromkeys(parts)),
        registry=registry,
        derive=derive,
        schema_type=options.choice("schemaType", _SCHEMA_TYPES, None),
        subject=options.get("subject"),
        version=version,
        message=options.get("message"),
    )


def warn_of_ignored(names: Sequence[str]) -> None:
    """Write a warning about options without effect to the standard error of Spark's driver."""
    if names:
        log.warning("options without effect on the connector: %s", ", ".join(names))


class _Options:
    """The given options, with case-insensitive names as in Spark."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): text for name, text in given.items()}
        accepted = {name.lower() for name in (*known, *_SPARK_OPTIONS, *SECURITY_OPTIONS)}
        without_effect = {name.lower(): name for name in _WITHOUT_EFFECT}
        ignored: dict[str, str] = {}
        for name, text in self._given.items():
            if name in accepted:
                continue
            if name in without_effect:
                ignored[name] = without_effect[name]
            elif not name.startswith(CLIENT_PREFIX):
                raise InvalidOption(_unknown(name, known))
            elif not has_effect(name, text, is_read=known is READ_OPTIONS):
                ignored[name] = name
        self._security = kafka_security(self.get, ignored)
        self.ignored = tuple(sorted({*ignored.values(), *self._security.unused}))

    def get(self, name: str) -> str | None:
        text = self._given.get(name.lower())
        if text is not None and not text.strip():
            raise InvalidOption(f"{name} is empty")
        return text

    def servers(self) -> tuple[Address, ...]:
        text = self.get(SERVERS)
        if text is None or not text.strip(", "):
            raise InvalidOption(f"{SERVERS} is missing: give broker addresses as HOST:PORT,HOST:PORT")
        try:
            return tuple(parse_address(each) for each in text.split(",") if each.strip())
        except ValueError as error:
            raise InvalidOption(f"{SERVERS}: {error}") from None

    def login(self) -> Login | None:
        """Return the user, and its password from the file, which the driver reads."""
        if self._security.is_given:
            return self._security.login
        user, path = self.get("user"), self.get("passwordFile")
        if user is None and path is None:
            return None
        if user is None or path is None:
            raise InvalidOption("user and passwordFile belong together")
        return read_login(user, path)

    def tls(self) -> Tls | None:
        """Return how to use TLS, with files that every machine of the job has; None if it is not used."""
        if self._security.is_given:
            return self._security.tls
        ca, certificate, key = self.get("caFile"), self.get("certFile"), self.get("keyFile")
        if key is not None and certificate is None:
            raise InvalidOption("keyFile needs certFile")
        is_wanted = self.choice("tls", _BOOLEANS, ca is not None or certificate is not None)
        if not is_wanted and (ca or certificate):
            raise InvalidOption("caFile and certFile are for tls=true")
        return Tls(ca=ca, certificate=certificate, key=key) if is_wanted else None

    def parts(self, name: str) -> tuple[Part, ...]:
        """Return the parts of a record that a list names."""
        try:
            return tuple(Part(each.strip()) for each in (self.get(name) or "").split(",") if each.strip())
        except ValueError:
            raise InvalidOption(f"{name}={self.get(name)!r} is not value, key or key,value") from None

    def registry(self) -> RegistryAccess | None:
        """Return the schema registry, with the same user and TLS as the broker."""
        url = self.get("registry")
        if url is None:
            for name in ("decode", "encode"):
                if self.get(name) is not None:
                    raise InvalidOption(f"{name} needs a schema registry: registry=http://HOST:8080/schemas")
            return None
        access = RegistryAccess(url=url, login=self.login(), tls=self.tls())
        access.client()  # checks the address
        return access

    def watched_subjects(self) -> Mapping[Part, str]:
        text = self.get("watchedSubjects")
        if text is None:
            return {}
        try:
            return msgspec.json.decode(text, type=dict[Part, str])
        except msgspec.MsgspecError as error:
            raise InvalidOption(
                f'watchedSubjects must look like {{"value":"orders-value"}}: {error}'
            ) from None

    def reader_schemas(self) -> Mapping[str, Mapping[Part, int]] | None:
        text = self.get("readerSchemas")
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=dict[str, dict[Part, int]])
        except msgspec.MsgspecError as error:
            raise InvalidOption(
                f'readerSchemas must look like {{"orders":{{"value":17}}}}: {error}'
            ) from None

    def count(self, name: str) -> int | None:
        text = self.get(name)
        return None if text is None else self.number(name, text, least=1)

    def number(self, name: str, text: str, *, least: int) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < least:
            raise InvalidOption(f"{name}={text!r} is not a whole number of {least} or more")
        return int(text)

    def seconds(self, name: str, otherwise: float) -> float:
        """Return a duration, which is a number of milliseconds or has a unit, as in Spark: 30s, 15m."""
        text = self.get(name)
        if text is None:
            return otherwise
        found = re.fullmatch(r"([0-9]{1,12})\s*(ms|s|m|min|h|d|)", text.strip().lower())
        if found is None:
            raise InvalidOption(f"{name}={text!r} is not a duration such as 500ms, 30s, 15m, 2h or 1d")
        return int(found[1]) * _UNITS_S[found[2]]

    def choice(self, name: str, choices: Mapping[str, T], otherwise: T) -> T:
        text = self.get(name)
        if text is None:
            return otherwise
        if text.strip().lower() not in choices:
            raise InvalidOption(f"{name}={text!r} is not one of {', '.join(choices)}")
        return choices[text.strip().lower()]


def read_login(user: str, path: str) -> Login:
    """Return a user with the password in a file. Raises InvalidOption."""
    try:
        password = Path(path).read_text(encoding="utf-8").partition("\n")[0].removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"passwordFile: cannot read {path}: {error}") from None
    if not password:
        raise InvalidOption(f"passwordFile: {path} has no password on its first line")
    return Login(user=user, password=password)


def _unknown(name: str, known: tuple[str, ...]) -> str:
    spelt = {each.lower(): each for each in known}
    if name == "path":
        return "a path is not supported: name topics with subscribe when reading, with topic when writing"
    other = {each.lower() for each in (*READ_OPTIONS, *WRITE_OPTIONS)}
    if name in other:
        return f"the option {name!r} is for {'writing' if known is READ_OPTIONS else 'reading'}"
    near = get_close_matches(name, spelt, n=1, cutoff=0.5)
    hint = f"did you mean {spelt[near[0]]}?" if near else f"options are {', '.join(known)}"
    return f"unknown option {name!r}; {hint}"
