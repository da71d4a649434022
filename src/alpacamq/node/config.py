"""The configuration of one node: its sections, and how file, environment and command line make one.

The fields below are the only table of options. Reading, the commented example and the guide's page
all follow from it. Nothing else in AlpacaMQ looks at the environment. Each part of the broker is
given its own section, never the whole.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from alpacamq.model.address import Address
from alpacamq.model.topics import DAY_MS, INT32_MAX, INT64_MAX, MIB
from alpacamq.telemetry import Format, Level

from .options import (
    PREFIX,
    ConfigError,
    Option,
    TopicDefault,
    nearest,
    options_of,
    topic_defaults,
    variable_of,
)
from .sections import (
    DelaysConfig,
    HttpConfig,
    MetricsConfig,
    QueuesConfig,
    SqsConfig,
    TracingConfig,
    check_http,
    check_sqs,
    check_tracing,
)

__all__ = ["OPTIONS", "SECTIONS", "Address", "ConfigError", "NodeConfig", "load"]

KIB = 1 << 10
TIB = 1 << 40

# Kubernetes describes every service of a namespace to every pod in variables named after it. A
# service named alpacamq must not stop the broker from starting.
_SERVICE_VARIABLE = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP|SCTP))(_\w+)?")
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
# Tells clients where a broker is; whoever exports it for alpacactl may start a broker, too.
_OF_CLIENTS = frozenset({"ALPACAMQ_ADDRESS"})


class IdentityConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[node]: who this broker is and where its data lies."""

    id: Annotated[int, Meta(ge=0, le=INT32_MAX, description="The broker's id, unique in its cluster.")] = 1
    data_dir: Annotated[
        Path,
        Meta(
            description="Directory that holds everything the broker keeps; made when it is missing. "
            "A relative path starts at the directory the broker is started in."
        ),
    ] = Path("data")


class KafkaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[kafka]: the API for Kafka clients."""

    listen: Annotated[
        Address,
        Meta(description="Address to listen on. 0.0.0.0 is every interface; port 0 takes a free port."),
    ] = Address("127.0.0.1", 9092)
    advertised: Annotated[
        Address | None,
        Meta(
            description="Address clients are told to connect to, when it differs from the one listened on. "
            "Empty: the listening address, or this machine's host name where that is every interface."
        ),
    ] = None
    max_connections: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Connections open at once. For a further one the connection idle for longest is "
            "closed; where none is idle, the new one is closed.",
        ),
    ] = 2000
    idle_timeout_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX, description="A connection that sends nothing for this long is closed.")
    ] = 600_000
    frame_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Time for a request to arrive whole once its first byte has; "
            "a large one gets as much more as it needs at 64 KiB/s.",
        ),
    ] = 30_000
    max_request_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=INT32_MAX,
            description="The largest request; the connection that announces a larger one is closed.",
        ),
    ] = 100 * MIB
    connection_in_flight_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=TIB,
            description="Bytes of requests and responses one connection may have under way; "
            "beyond it, no more is read from the connection until some are done.",
        ),
    ] = 16 * MIB
    in_flight_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=TIB,
            description="Memory for requests larger than 64 KiB of all connections together, taken as they "
            "arrive; at least max_request_bytes. Beyond it, one request at a time is let in, and those that "
            "hold memory and arrive at less than 1 MiB/s are given up.",
        ),
    ] = 128 * MIB
    connection_in_flight_requests: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Requests one connection may have under way.")
    ] = 1000

    def advertised_for(self, bound: Address, host_name: str) -> Address:
        """Where clients are sent when the listener got `bound` and the machine is `host_name`."""
        if self.advertised is None:
            return Address(host_name if bound.is_wildcard else self.listen.host, bound.port)
        return Address(self.advertised.host, self.advertised.port or bound.port)


class TopicsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[topics]: what a topic gets when nobody says otherwise."""

    auto_create: Annotated[
        bool, Meta(description="Whether a client that asks for a topic that does not exist gets it made.")
    ] = True
    default_partitions: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Partitions of a topic whose creator does not name a number."),
    ] = 3
    max_partitions: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Partitions this node holds at most; beyond it, none is made."),
    ] = 10_000
    defaults: Mapping[str, str] = {}


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[log]: how partitions are kept on disk."""

    open_files: Annotated[
        int,
        Meta(
            ge=0,
            le=INT32_MAX,
            description="Segment files held open at once. 0: derived from the process's limit (ulimit -n).",
        ),
    ] = 0
    index_cache_bytes: Annotated[
        int,
        Meta(ge=64 * KIB, le=TIB, description="Memory for the offset and time indexes of older segments."),
    ] = 8 * MIB
    retention_check_ms: Annotated[
        int,
        Meta(
            ge=1, le=INT32_MAX, description="How often partitions are looked at for deletion and compaction."
        ),
    ] = 30_000
    clock_hold_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=INT64_MAX,
            description="How long the machine's clock must stay where it has jumped to before the broker "
            "follows: until then nothing is deleted, expires or is due because of the jump.",
        ),
    ] = 3_600_000
    checkpoint_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=TIB,
            description="Bytes a partition takes between two notes of how far it is flushed; "
            "about as much of each is read again after a crash.",
        ),
    ] = 8 * MIB
    unpacked_limit_bytes: Annotated[
        int,
        Meta(ge=KIB, le=INT32_MAX, description="What one batch may unpack to where it has to be unpacked."),
    ] = 64 * MIB


class GroupsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[groups]: consumer groups and their committed offsets."""

    initial_rebalance_delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=INT32_MAX,
            description="How long a new group waits for more members before its first assignment (classic).",
        ),
    ] = 200
    session_timeout_ms: Annotated[
        int,
        Meta(
            ge=1000,
            le=INT32_MAX,
            description="A member not heard for this long is out; classic clients choose for themselves.",
        ),
    ] = 30_000
    heartbeat_interval_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=INT32_MAX,
            description="How often members with group.protocol=consumer report; in small groups more often.",
        ),
    ] = 3000
    max_members: Annotated[int, Meta(ge=1, le=1_000_000, description="Members one group may have.")] = 1000
    offsets_retention_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT64_MAX,
            description="How long committed offsets are kept after the last member has left.",
        ),
    ] = 7 * DAY_MS


class TransactionsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[transactions]: transactional producers."""

    max_timeout_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX, description="The longest a producer may ask its transactions to last.")
    ] = 15 * 60_000
    id_expiration_ms: Annotated[
        int,
        Meta(ge=1, le=INT64_MAX, description="How long a transactional id that is not used is remembered."),
    ] = 7 * DAY_MS


class LoggingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[logging]: what the broker says on standard error."""

    level: Annotated[Level, Meta(description="The least grave events to write.")] = Level.INFO
    format: Annotated[Format, Meta(description="auto is text on a terminal and JSON elsewhere.")] = (
        Format.AUTO
    )


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything there is to configure on a node, one section each."""

    node: IdentityConfig = IdentityConfig()
    kafka: KafkaConfig = KafkaConfig()
    http: HttpConfig = HttpConfig()
    sqs: SqsConfig = SqsConfig()
    topics: TopicsConfig = TopicsConfig()
    log: LogConfig = LogConfig()
    groups: GroupsConfig = GroupsConfig()
    transactions: TransactionsConfig = TransactionsConfig()
    queues: QueuesConfig = QueuesConfig()
    delays: DelaysConfig = DelaysConfig()
    tracing: TracingConfig = TracingConfig()
    metrics: MetricsConfig = MetricsConfig()
    logging: LoggingConfig = LoggingConfig()


SECTIONS: Mapping[str, type[msgspec.Struct]] = {
    "node": IdentityConfig,
    "kafka": KafkaConfig,
    "http": HttpConfig,
    "sqs": SqsConfig,
    "topics": TopicsConfig,
    "log": LogConfig,
    "groups": GroupsConfig,
    "transactions": TransactionsConfig,
    "queues": QueuesConfig,
    "delays": DelaysConfig,
    "tracing": TracingConfig,
    "metrics": MetricsConfig,
    "logging": LoggingConfig,
}
OPTIONS: Mapping[str, Option | TopicDefault] = {
    **{option.key: option for name, struct in SECTIONS.items() for option in options_of(name, struct)},
    **{option.key: option for option in topic_defaults()},
}


def load(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> NodeConfig:
    """The configuration: the file's values, replaced by the environment's, replaced by `overrides`.

    `overrides` are what the command line says, by dotted key. ConfigError names the first fault.
    """
    values: dict[str, Any] = {}
    if path is not None:
        values |= _from_file(path)
    values |= _from_environment(environ)
    values |= _from_command_line(overrides)
    config = _assemble(values)
    _check_together(config)
    return config


def _from_file(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    for key, value in _leaves(document, ""):
        if (option := OPTIONS.get(key)) is not None:
            yield key, option.read(value, f"{path}: {key}")
        elif key in SECTIONS or key == "topics.defaults":
            if value != {}:
                raise ConfigError(f"{path}: {key} must be a table, [{key}], not {value!r}")
        else:
            raise ConfigError(f"{path}: there is no option {key}{nearest(key, [*OPTIONS, *SECTIONS])}")


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Every value below `table` by its dotted key, so that retention.ms may be written bare or quoted."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value and (key not in OPTIONS or _is_prefix(key)):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _is_prefix(key: str) -> bool:
    """Whether names of other options begin with this one's, as queue.max.in.flight.total's does."""
    return any(option.startswith(f"{key}.") for option in OPTIONS)


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    keys = {variable_of(key): key for key in OPTIONS}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in _OF_CLIENTS:
            continue
        if (key := keys.get(variable)) is not None:
            yield key, OPTIONS[key].read_text(text, variable)
        elif not _is_service_variable(variable, text):
            raise ConfigError(f"the variable {variable} sets no option{nearest(variable, keys)}")


def _from_command_line(overrides: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for key, text in overrides.items():
        if (option := OPTIONS.get(key)) is None:
            raise ConfigError(f"there is no option {key}{nearest(key, OPTIONS)}")
        yield key, option.read_text(text, f"{key} on the command line")


def _is_service_variable(variable: str, text: str) -> bool:
    return bool(_SERVICE_VARIABLE.fullmatch(variable.removeprefix(PREFIX)) or _SERVICE_LINK.match(text))


def _assemble(values: Mapping[str, Any]) -> NodeConfig:
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    defaults: dict[str, str] = {}
    for key, value in values.items():
        match OPTIONS[key]:
            case TopicDefault(name=name):
                defaults[name] = value
            case Option():
                section, _, name = key.partition(".")
                sections[section][name] = value
    sections["topics"]["defaults"] = defaults
    made: dict[str, Any] = {name: struct(**sections[name]) for name, struct in SECTIONS.items()}
    return NodeConfig(**made)


def _check_together(config: NodeConfig) -> None:
    """Refuse values that are each acceptable but cannot be served together."""
    kafka, topics = config.kafka, config.topics
    if kafka.in_flight_bytes < kafka.max_request_bytes:
        raise ConfigError(
            f"kafka.in_flight_bytes ({kafka.in_flight_bytes}) must be at least "
            f"kafka.max_request_bytes ({kafka.max_request_bytes})"
        )
    if topics.default_partitions > topics.max_partitions:
        raise ConfigError(
            f"topics.default_partitions ({topics.default_partitions}) must be at most "
            f"topics.max_partitions ({topics.max_partitions})"
        )
    check_http("http", config.http)
    check_http("sqs", config.sqs)
    check_sqs(config.sqs)
    check_tracing(config.tracing)
