"""[delays]: how many messages may wait for their time, and for how long."""

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from alpacamq import __version__
from alpacamq.broker.tracing.tracing import TracingSettings
from alpacamq.model.address import Address
from alpacamq.model.topics import DAY_MS, INT32_MAX, INT64_MAX, MIB
from alpacamq.queues.messages import EngineLimits
from alpacamq.telemetry.tracing import ExportSettings

from .options import SECRET, ConfigError

KIB = 1 << 10
TIB = 1 << 40


HostName = Annotated[str, Meta(pattern=r"^(\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?)$")]


class HttpApiConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What every one of them has."""

    enabled: Annotated[bool, Meta(description="Whether this API is open at all.")] = True
    listen: Annotated[
        Address,
        Meta(description="Address to listen on. 0.0.0.0 is every interface; port 0 takes a free port."),
    ] = Address("127.0.0.1", 0)
    hosts: Annotated[
        tuple[HostName, ...],
        Meta(
            title="a list of host names",
            description="Names by which clients address this API, beside IP addresses, localhost, this "
            "machine's host name, the names listened on and kafka.advertised; requests with another "
            "name in their Host header are answered 421. `*.example.com` is every name below "
            "example.com, `*` every name there is, which lets pages of other sites in (DNS rebinding).",
        ),
    ] = ()
    max_connections: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Connections open at once. For a further one the connection idle for longest is "
            "closed; where none is idle, the new one is answered 503 and closed.",
        ),
    ] = 2000
    idle_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="A connection without a request for this long is closed; "
            "so is one that takes nothing of its answer for as long.",
        ),
    ] = 60_000
    header_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Time for the head of a request to arrive whole once its first byte has, and again "
            "for its body; a large body gets as much more as it needs at 64 KiB/s.",
        ),
    ] = 10_000
    max_body_bytes: Annotated[
        int,
        Meta(
            ge=KIB, le=INT32_MAX, description="The largest body; a request with a larger one is answered 413."
        ),
    ] = 16 * MIB
    in_flight_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=TIB,
            description="Bytes of requests under way and of answers not taken, of all connections together; "
            "beyond it requests are answered 503. At least max_body_bytes.",
        ),
    ] = 128 * MIB


class HttpConfig(HttpApiConfig, frozen=True, kw_only=True):
    """[http]: the API for HTTP clients, with JSON."""

    listen: Annotated[
        Address,
        Meta(description="Address to listen on. 0.0.0.0 is every interface; port 0 takes a free port."),
    ] = Address("127.0.0.1", 8080)


class SqsConfig(HttpApiConfig, frozen=True, kw_only=True):
    """[sqs]: the API for AWS SDKs that speak SQS."""

    listen: Annotated[
        Address,
        Meta(
            description="Address to listen on. One that other machines reach needs credentials, "
            "or allow_anonymous; port 0 takes a free port."
        ),
    ] = Address("127.0.0.1", 9324)
    access_key_id: Annotated[
        str,
        Meta(description="The key id whose signatures are accepted. Empty: signatures are not checked."),
    ] = ""
    secret_access_key: Annotated[
        str, Meta(description="The secret that belongs to access_key_id.", extra=SECRET)
    ] = ""
    allow_anonymous: Annotated[
        bool,
        Meta(
            description="Whether other machines are served without credentials being configured: "
            "whoever reaches the address may then read and delete everything."
        ),
    ] = False
    region: Annotated[
        str,
        Meta(
            pattern="^[a-z0-9-]{1,64}$",
            title="the name of a region",
            description="The AWS region the API says it is in; clients sign for it.",
        ),
    ] = "us-east-1"
    account_id: Annotated[
        str,
        Meta(
            pattern="^[0-9]{12}$",
            title="12 digits",
            description="The AWS account that its queues belong to; part of their addresses.",
        ),
    ] = "000000000000"


def check_http(section: str, config: HttpApiConfig) -> None:
    """Refuse limits that cannot be kept together."""
    if config.in_flight_bytes < config.max_body_bytes:
        raise ConfigError(
            f"{section}.in_flight_bytes ({config.in_flight_bytes}) must be at least "
            f"{section}.max_body_bytes ({config.max_body_bytes})"
        )


def check_sqs(config: SqsConfig) -> None:
    """Refuse half a pair of credentials, and an API that stands open to everyone unless that is meant."""
    if bool(config.access_key_id) != bool(config.secret_access_key):
        raise ConfigError("sqs.access_key_id and sqs.secret_access_key go together: set both or neither")
    if config.enabled and not (config.access_key_id or config.allow_anonymous or _is_loopback(config.listen)):
        raise ConfigError(
            f"sqs.listen ({config.listen}) is reached by other machines, and nothing says who may use it: "
            "set sqs.access_key_id and sqs.secret_access_key, or sqs.allow_anonymous = true"
        )


def _is_loopback(address: Address) -> bool:
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return address.host.lower() == "localhost"


class DelaysConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[delays]: messages that wait for their time."""

    max_pending: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000_000,
            description="Messages that may wait at once; further ones are refused. Each takes about 20 bytes "
            "of memory while it is due within eight days, and less before.",
        ),
    ] = 5_000_000
    max_delay_ms: Annotated[
        int, Meta(ge=0, le=3650 * DAY_MS, description="How far ahead a message may be due.")
    ] = 366 * DAY_MS


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[metrics]: figures for Prometheus."""

    enabled: Annotated[
        bool, Meta(description="Whether requests are counted and timed, and `/metrics` is served.")
    ] = True
    max_topics: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Topics with figures of their own in `/metrics`; those of the others are added up.",
        ),
    ] = 1000
    max_groups: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="The same for consumer groups, and for queues (a group and a topic).",
        ),
    ] = 1000


_LIMITS = EngineLimits()


class QueuesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[queues]: topics used as queues."""

    max_queues: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Groups that use topics as queues, in each of the 8 parts they are spread over.",
        ),
    ] = _LIMITS.max_queues
    max_waiting_receives: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Receives that wait for messages at once, in each of the 8 parts; more are refused.",
        ),
    ] = _LIMITS.max_waiting_receives
    max_indexed_runs: Annotated[
        int,
        Meta(
            ge=100,
            le=INT32_MAX,
            description="How far ahead of its consumers a queue knows the lanes of a partition: "
            "runs of neighbouring messages of one lane.",
        ),
    ] = _LIMITS.max_indexed_runs
    max_blocked_messages: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="How many messages a queue in key order reads ahead to find keys that are free.",
        ),
    ] = _LIMITS.max_blocked_messages
    cache_bytes: Annotated[
        int,
        Meta(ge=64 * KIB, le=TIB, description="Memory for the batches that queues deliver messages from."),
    ] = 32 * MIB


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[tracing]: what is kept of the traces of messages, and where else they are sent."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether messages are traced at all. Which of them are is said by the topic settings "
            "trace.enable, trace.headers and trace.sample."
        ),
    ] = True
    log_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=TIB,
            description="Size of the trace log above which its oldest files, of 10 MiB each, are deleted. 0: "
            "none is written, and only the last 10,000 events are known.",
        ),
    ] = 100 * MIB
    retention_ms: Annotated[
        int, Meta(ge=1, le=INT64_MAX, description="Age above which files of the trace log are deleted.")
    ] = 7 * DAY_MS
    otlp_endpoint: Annotated[
        str,
        Meta(
            title="a URL that begins with http:// or https://, or empty",
            description="Where spans are sent as OpenTelemetry's OTLP over HTTP: the URL of a collector "
            "without /v1/traces. Empty: nowhere.",
        ),
    ] = ""
    otlp_headers: Annotated[
        str,
        Meta(
            title="NAME=VALUE, several separated by commas, or empty",
            description="Headers that the collector wants with every request, such as keys.",
            extra=SECRET,
        ),
    ] = ""

    def headers(self) -> dict[str, str]:
        """The headers by name; ValueError if they are not written as they should be."""
        headers = {}
        for part in filter(None, (part.strip() for part in self.otlp_headers.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not name or not (name + value).isprintable() or not part.isascii():
                raise ValueError("not a list of NAME=VALUE")
            headers[name] = value
        return headers


def check_tracing(config: TracingConfig) -> None:
    """Refuse what could not be sent to."""
    if config.otlp_endpoint:
        try:
            url = urlsplit(config.otlp_endpoint)
            is_usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
            is_usable = is_usable and not (url.username or url.query or url.fragment)
        except ValueError:
            is_usable = False
        if not is_usable:
            raise ConfigError(
                "tracing.otlp_endpoint must be a URL such as http://localhost:4318, without a user or a query"
            )
    try:
        config.headers()
    except ValueError:
        raise ConfigError("tracing.otlp_headers must be NAME=VALUE, several separated by commas") from None


def tracing_settings(config: TracingConfig, node_id: int) -> TracingSettings | None:
    """The broker's share of the section; None where tracing is switched off."""
    if not config.enabled:
        return None
    export = None
    if config.otlp_endpoint:
        export = ExportSettings(
            endpoint=config.otlp_endpoint.rstrip("/"),
            headers=config.headers(),
            resource={
                "service.name": "alpacamq",
                "service.version": __version__,
                "service.instance.id": str(node_id),
            },
        )
    return TracingSettings(log_bytes=config.log_bytes, retention_ms=config.retention_ms, export=export)
