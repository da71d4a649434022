"""Configuration of one node: its sections, and reading them from file, environment and command line.

The fields below are the only table of options. Parsing, the commented example and the guide's page
are derived from it. No other module reads the environment. Each part of the broker gets its own
section, never the whole configuration.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from alpacamq.broker.tls import ClientCertificates
from alpacamq.model.address import Address
from alpacamq.model.topics import DAY_MS, INT32_MAX, INT64_MAX, MIB, SETTINGS, ConfigKind, Setting
from alpacamq.telemetry import Format, Level

from .cluster import ClusterConfig, check_cluster
from .listeners import (
    RESERVED_NAMES,
    ListenerApi,
    ListenerConfig,
    NamedListener,
    TlsConfig,
    check_mechanisms,
    check_tls,
    is_listener_name,
)
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
    GrpcConfig,
    HttpApiConfig,
    HttpConfig,
    MetricsConfig,
    QueuesConfig,
    RegistryConfig,
    SqsConfig,
    TracingConfig,
    check_grpc,
    check_http,
    check_sqs,
    check_tracing,
)
from .security import AuditConfig, SecurityConfig, check_audit, check_listeners, check_security

__all__ = ["OPTIONS", "SECTIONS", "Address", "ConfigError", "NodeConfig", "load"]

KIB = 1 << 10
TIB = 1 << 40

# Kubernetes describes every service of a namespace to every pod in variables named after it. A
# service named alpacamq must not stop the broker from starting.
_SERVICE_VARIABLE = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP|SCTP))(_\w+)?")
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
# Read by clients; it may be exported for alpacactl in the environment of a broker.
_CLIENT_VARIABLES = frozenset(
    f"{PREFIX}{name}" for name in ("ADDRESS", "USER", "PASSWORD", "TLS", "CA", "CERT", "KEY")
)


class IdentityConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[node]: identity and data directory of the broker."""

    id: Annotated[int, Meta(ge=0, le=INT32_MAX, description="The broker's id, unique in its cluster.")] = 1
    data_dir: Annotated[
        Path,
        Meta(
            description="Directory for all data of the broker; created if it does not exist. "
            "A relative path is resolved against the working directory."
        ),
    ] = Path("data")


class KafkaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[kafka]: the API for Kafka clients."""

    listen: Annotated[
        Address,
        Meta(description="Address to listen on. 0.0.0.0 is all interfaces; port 0 selects a free port."),
    ] = Address("127.0.0.1", 9092)
    advertised: Annotated[
        Address | None,
        Meta(
            description="Address that clients connect to, if it differs from the listening address. "
            "Empty: the listening address, or this machine's host name if that is all interfaces."
        ),
    ] = None
    tls: Annotated[bool, Meta(description="Whether connections use TLS; needs section [tls].")] = False
    client_certificates: Annotated[
        ClientCertificates,
        Meta(
            description="Whether clients present a certificate, which needs tls.client_ca: it authenticates "
            "them, unless they log in as another user."
        ),
    ] = ClientCertificates.NONE
    max_connections: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Maximum number of open connections. A further one closes the connection that "
            "was idle "
            "longest; if none is idle, the new one is closed.",
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
            description="Time to receive a complete request after its first byte; "
            "a large one gets additional time at 64 KiB/s. Also the time to authenticate, if clients must.",
        ),
    ] = 30_000
    max_request_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=INT32_MAX,
            description="Maximum request size; a connection that announces a larger one is closed.",
        ),
    ] = 100 * MIB
    connection_in_flight_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=TIB,
            description="Maximum bytes of requests and responses in progress on one connection; "
            "beyond it, the connection is not read until some are done.",
        ),
    ] = 16 * MIB
    in_flight_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=TIB,
            description="Memory for requests larger than 64 KiB of all connections together, allocated "
            "as they "
            "arrive; at least max_request_bytes. Beyond it, one request at a time is admitted, and "
            "requests that "
            "hold memory and arrive at less than 1 MiB/s are dropped.",
        ),
    ] = 128 * MIB
    connection_in_flight_requests: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Maximum number of requests in progress on one connection.")
    ] = 1000


class TopicsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[topics]: creation of topics."""

    auto_create: Annotated[
        bool, Meta(description="Whether topics are created when a client first uses them.")
    ] = True
    default_partitions: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Number of partitions of topics created without one."),
    ] = 3
    max_partitions: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Maximum number of partitions on this node; beyond it, none is created.",
        ),
    ] = 10_000
    defaults: Mapping[str, str] = {}


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[log]: storage of partitions on disk."""

    open_files: Annotated[
        int,
        Meta(
            ge=0,
            le=INT32_MAX,
            description="Maximum number of open segment files. 0: derived from the process's limit "
            "(ulimit -n).",
        ),
    ] = 0
    index_cache_bytes: Annotated[
        int,
        Meta(ge=64 * KIB, le=TIB, description="Memory for the offset and time indexes of older segments."),
    ] = 8 * MIB
    retention_check_ms: Annotated[
        int,
        Meta(ge=1, le=INT32_MAX, description="Interval of retention and compaction checks."),
    ] = 30_000
    clock_hold_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=INT64_MAX,
            description="How long a jump of the machine's clock must last before the broker "
            "follows it: until then nothing is deleted, expires or is due because of the jump.",
        ),
    ] = 3_600_000
    checkpoint_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=TIB,
            description="Bytes appended to a partition between two records of its flush point; "
            "about as much of each partition is read again after a crash.",
        ),
    ] = 8 * MIB
    unpacked_limit_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=INT32_MAX,
            description="Maximum decompressed size of a batch, if it has to be decompressed.",
        ),
    ] = 64 * MIB


class GroupsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[groups]: consumer groups and their committed offsets."""

    initial_rebalance_delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=INT32_MAX,
            description="Time a new classic group waits for more members before its first assignment.",
        ),
    ] = 200
    session_timeout_ms: Annotated[
        int,
        Meta(
            ge=1000,
            le=INT32_MAX,
            description="Time without a heartbeat after which a member is removed; classic clients set "
            "their own.",
        ),
    ] = 30_000
    heartbeat_interval_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=INT32_MAX,
            description="Heartbeat interval of members with group.protocol=consumer; shorter in small "
            "groups.",
        ),
    ] = 3000
    max_members: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Maximum number of members of a group.")
    ] = 1000
    offsets_retention_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT64_MAX,
            description="Retention of committed offsets after the last member has left.",
        ),
    ] = 7 * DAY_MS


class TransactionsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[transactions]: transactional producers."""

    max_timeout_ms: Annotated[
        int, Meta(ge=1, le=INT32_MAX, description="Longest transaction timeout that a producer may request.")
    ] = 15 * 60_000
    id_expiration_ms: Annotated[
        int,
        Meta(ge=1, le=INT64_MAX, description="Time after which an unused transactional id expires."),
    ] = 7 * DAY_MS


class LoggingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[logging]: log events on standard error."""

    level: Annotated[Level, Meta(description="Least severe level to write.")] = Level.INFO
    format: Annotated[Format, Meta(description="auto is text on a terminal and JSON elsewhere.")] = (
        Format.AUTO
    )


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Complete configuration of a node, by section."""

    node: IdentityConfig = IdentityConfig()
    cluster: ClusterConfig = ClusterConfig()
    kafka: KafkaConfig = KafkaConfig()
    http: HttpConfig = HttpConfig()
    sqs: SqsConfig = SqsConfig()
    registry: RegistryConfig = RegistryConfig()
    grpc: GrpcConfig = GrpcConfig()
    tls: TlsConfig = TlsConfig()
    listeners: Mapping[str, ListenerConfig] = {}
    security: SecurityConfig = SecurityConfig()
    audit: AuditConfig = AuditConfig()
    topics: TopicsConfig = TopicsConfig()
    log: LogConfig = LogConfig()
    groups: GroupsConfig = GroupsConfig()
    transactions: TransactionsConfig = TransactionsConfig()
    queues: QueuesConfig = QueuesConfig()
    delays: DelaysConfig = DelaysConfig()
    tracing: TracingConfig = TracingConfig()
    metrics: MetricsConfig = MetricsConfig()
    logging: LoggingConfig = LoggingConfig()

    def listeners_of(self, api: ListenerApi) -> list[NamedListener]:
        """Return the listeners of an API, the one of its own section first; none if it is disabled."""
        section: KafkaConfig | HttpApiConfig | GrpcConfig
        match api:
            case ListenerApi.KAFKA:
                section = self.kafka
            case ListenerApi.HTTP:
                section = self.http
            case ListenerApi.SQS:
                section = self.sqs
            case ListenerApi.REGISTRY:
                section = self.registry
            case ListenerApi.GRPC:
                section = self.grpc
        if not isinstance(section, KafkaConfig) and not section.enabled:
            return []
        first = ListenerConfig(
            api=api,
            listen=section.listen,
            advertised=None if isinstance(section, HttpApiConfig) else section.advertised,
            tls=section.tls,
            client_certificates=section.client_certificates,
        )
        further = (
            NamedListener(name, f"listeners.{name}", config)
            for name, config in self.listeners.items()
            if config.api is api
        )
        return [NamedListener(api, api, first), *further]

    def all_listeners(self) -> list[NamedListener]:
        """Return the listeners of all enabled APIs."""
        return [listener for api in ListenerApi for listener in self.listeners_of(api)]


# Stands for the names of tables [listeners.NAME], each of which has these options.
LISTENERS = "listeners.NAME"
SECTIONS: Mapping[str, type[msgspec.Struct]] = {
    "node": IdentityConfig,
    "cluster": ClusterConfig,
    "kafka": KafkaConfig,
    "http": HttpConfig,
    "sqs": SqsConfig,
    "registry": RegistryConfig,
    "grpc": GrpcConfig,
    "tls": TlsConfig,
    LISTENERS: ListenerConfig,
    "security": SecurityConfig,
    "audit": AuditConfig,
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
    """Load the configuration: values of the file, overridden by the environment, overridden by `overrides`.

    `overrides` are options from the command line, by dotted key. ConfigError reports the first invalid value.
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
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    for key, value in _leaves(document, ""):
        if (option := _option(key)) is not None:
            yield key, option.read(value, f"{path}: {key}")
        elif key in SECTIONS or key in ("topics.defaults", "listeners"):
            if value != {}:
                raise ConfigError(f"{path}: {key} must be a table, [{key}], not {value!r}")
        else:
            _check_listener_name(key, f"{path}: {key}")
            if key.startswith("listeners.") and value == {}:
                raise ConfigError(f"{path}: {key}.listen is missing")
            raise ConfigError(f"{path}: unknown option {key}{nearest(key, [*OPTIONS, *SECTIONS])}")


def _option(key: str) -> Option | TopicDefault | None:
    """Return the option of a key; that of listeners.NAME for one of a table [listeners.NAME]."""
    table, name, field = (*key.split("."), "", "", "")[:3]
    if table == "listeners" and key.count(".") == 2 and is_listener_name(name):
        return OPTIONS.get(f"{LISTENERS}.{field}")
    return None if key.startswith(f"{LISTENERS}.") else OPTIONS.get(key)


def _check_listener_name(key: str, place: str) -> None:
    table, _, rest = key.partition(".")
    name = rest.partition(".")[0]
    if table == "listeners" and not is_listener_name(name):
        raise ConfigError(
            f"{place}: the name of a listener must be lower case letters, digits and _, and not "
            f"{', '.join(RESERVED_NAMES)}"
        )


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield every value below `table` by dotted key, so that retention.ms may be written bare or quoted."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value and (key not in OPTIONS or _is_prefix(key)):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _is_prefix(key: str) -> bool:
    """Return whether the key is a prefix of another option, as queue.max.in.flight is of …total."""
    return any(option.startswith(f"{key}.") for option in OPTIONS)


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    keys = {variable_of(key): key for key in OPTIONS if not key.startswith(LISTENERS)}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in _CLIENT_VARIABLES:
            continue
        if (key := keys.get(variable)) is not None:
            yield key, OPTIONS[key].read_text(text, variable)
        elif (found := _listener_variable(variable)) is not None:
            key, option = found
            yield key, option.read_text(text, variable)
        elif not _is_service_variable(variable, text):
            raise ConfigError(f"the variable {variable} matches no option{nearest(variable, keys)}")


def _listener_variable(variable: str) -> tuple[str, Option | TopicDefault] | None:
    """Return the key and option of ALPACAMQ_LISTENERS_<NAME>_<KEY>; None if it is none."""
    for option in sorted(_of(LISTENERS), key=lambda each: -len(each.key)):
        field = option.key.rpartition(".")[2]
        name = variable.removeprefix(f"{PREFIX}LISTENERS_").removesuffix(f"_{field.upper()}")
        if variable == f"{PREFIX}LISTENERS_{name}_{field.upper()}" and is_listener_name(name.lower()):
            return f"listeners.{name.lower()}.{field}", option
    return None


def _from_command_line(overrides: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for key, text in overrides.items():
        if (option := _option(key)) is None:
            raise ConfigError(f"unknown option {key}{nearest(key, OPTIONS)}")
        yield key, option.read_text(text, f"{key} on the command line")


def _is_service_variable(variable: str, text: str) -> bool:
    return bool(_SERVICE_VARIABLE.fullmatch(variable.removeprefix(PREFIX)) or _SERVICE_LINK.match(text))


def _assemble(values: Mapping[str, Any]) -> NodeConfig:
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS if name != LISTENERS}
    listeners: dict[str, dict[str, Any]] = {}
    defaults: dict[str, str] = {}
    for key, value in values.items():
        match _option(key):
            case TopicDefault(name=name):
                defaults[name] = value
            case Option():
                section, _, name = key.rpartition(".")
                if section in sections:
                    sections[section][name] = value
                else:
                    listeners.setdefault(section.partition(".")[2], {})[name] = value
    sections["topics"]["defaults"] = defaults
    made: dict[str, Any] = {name: SECTIONS[name](**given) for name, given in sections.items()}
    made["listeners"] = {name: ListenerConfig(**given) for name, given in listeners.items()}
    return NodeConfig(**made)


def _open_listeners(config: NodeConfig) -> Mapping[str, Address]:
    """Return the listeners that need authentication if other machines can reach them, by their settings."""
    has_key = bool(config.sqs.access_key_id or config.sqs.allow_anonymous)
    return {
        f"{listener.section}.listen": listener.address
        for listener in config.all_listeners()
        if not listener.config.must_authenticate(config.security)
        and not (has_key and listener.config.api is ListenerApi.SQS)
    }


def _check_together(config: NodeConfig) -> None:
    """Reject combinations of values that are valid on their own but inconsistent."""
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
    check_cluster(config.cluster, config.node.id)
    check_http("http", config.http)
    check_http("sqs", config.sqs)
    check_http("registry", config.registry)
    check_grpc(config.grpc)
    check_sqs(config.sqs)
    check_security(config.security)
    check_audit(config.audit)
    for name, listener in config.listeners.items():
        if listener.api is not ListenerApi.KAFKA and not config.listeners_of(listener.api):
            raise ConfigError(f"listeners.{name}.api is {listener.api}, and {listener.api}.enabled is false")
    check_tls(config.tls, config.all_listeners())
    check_mechanisms(config.security, config.all_listeners())
    if config.cluster.tls and (config.tls.certificate is None or config.tls.client_ca is None):
        raise ConfigError("cluster.tls is true: set tls.certificate, tls.key and tls.client_ca")
    if config.cluster.tls_optional and not config.cluster.tls:
        raise ConfigError("cluster.tls_optional is true: set cluster.tls = true")
    check_listeners(config.security, _open_listeners(config))
    check_tracing(config.tracing)


_PREFACE = """\
# Configuration of AlpacaMQ, with every option at its default.
# ALPACAMQ_<SECTION>_<KEY> in the environment overrides this file; the command line overrides both.
"""
_COMMENT_WIDTH = 98
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def example() -> str:
    """Return a complete TOML file with all options at their defaults and their descriptions."""
    parts = [_PREFACE]
    for section, struct in SECTIONS.items():
        summary = (struct.__doc__ or "").partition(": ")[2]
        # A table with a name is only an example of one.
        mark = "# " if section == LISTENERS else ""
        parts.append(f"# {summary[:1].upper()}{summary[1:]}\n{mark}[{section}]")
        parts += [f"{_comment(option.doc)}\n{mark}{_assignment(option)}" for option in _of(section)]
        if section == "topics":
            parts.append(_topic_defaults())
    return "\n".join(f"{part.rstrip()}\n" for part in parts)


def options_page() -> str:
    """Return the tables of docs/guide/configuration.md."""
    parts = []
    for section, struct in SECTIONS.items():
        summary = (struct.__doc__ or "").partition(": ")[2]
        rows = [
            f"| `{option.key.rpartition('.')[2]}` | {_default_cell(option)} | "
            f"{option.expected} | {option.doc} |"
            for option in _of(section)
        ]
        parts.append(
            f"### [{section}]\n\n{summary[:1].upper()}{summary[1:]}\n\n"
            "| key | default | value | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(parts)


def topic_settings_page() -> str:
    """Return the table of docs/guide/topics-and-settings.md."""
    rows = [
        f"| `{name}` | {_setting_cell(setting)} | {_bounds(setting)} | {setting.doc} |"
        for name, setting in SETTINGS.items()
    ]
    return "| setting | default | values | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _of(section: str) -> list[Option]:
    return [
        option
        for key, option in OPTIONS.items()
        if isinstance(option, Option) and key.rpartition(".")[0] == section
    ]


def _comment(text: str) -> str:
    return textwrap.fill(text, _COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ")


def _assignment(option: Option) -> str:
    name = option.key.rpartition(".")[2]
    text = option.default_text
    if option.type in {int, bool}:
        return f"{name} = {text}{_size_note(option, '  # ')}"
    if option.is_list:
        return f"{name} = {[str(each) for each in option.default]}"
    return f'{name} = "{text}"'


def _topic_defaults() -> str:
    settings = "\n".join(
        f'# "{name}" = "{setting.text(setting.default)}"' for name, setting in SETTINGS.items()
    )
    return f"# Settings of all topics that do not set them, by Kafka's names.\n[topics.defaults]\n{settings}"


def _default_cell(option: Option) -> str:
    return (f"`{option.default_text}`" if option.default_text else "empty") + _size_note(option, ", ")


def _size_note(option: Option, separator: str) -> str:
    if option.key.endswith("_bytes"):
        for size, unit in _UNITS:
            if option.default >= size and option.default % size == 0:
                return f"{separator}{option.default // size} {unit}"
    return ""


def _setting_cell(setting: Setting) -> str:
    text = setting.text(setting.default)
    return f"`{text}`" if text else "empty"


def _bounds(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind is ConfigKind.BOOLEAN:
        return "true or false"
    return "text" if setting.minimum is None else f"{setting.minimum} to {setting.maximum}"
