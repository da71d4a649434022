"""Sections of the APIs and of delays, metrics, queues and tracing, and their checks."""

from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from alpacamq.broker.tls import ClientCertificates
from alpacamq.broker.tracing.tracing import TracingSettings
from alpacamq.model.address import Address
from alpacamq.model.topics import DAY_MS, INT32_MAX, INT64_MAX, MIB
from alpacamq.model.version import VERSION
from alpacamq.queues.messages import EngineLimits
from alpacamq.telemetry.tracing import ExportSettings

from .options import SECRET, ConfigError

KIB = 1 << 10
TIB = 1 << 40


HostName = Annotated[str, Meta(pattern=r"^(\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?)$")]


class HttpApiConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options shared by the APIs that use HTTP."""

    enabled: Annotated[bool, Meta(description="Whether this API is enabled.")] = True
    listen: Annotated[
        Address,
        Meta(description="Address to listen on. 0.0.0.0 is all interfaces; port 0 selects a free port."),
    ] = Address("127.0.0.1", 0)
    tls: Annotated[bool, Meta(description="Whether connections use TLS; needs section [tls].")] = False
    client_certificates: Annotated[
        ClientCertificates,
        Meta(
            description="Whether clients present a certificate, which needs tls.client_ca: it authenticates "
            "them, unless they log in as another user."
        ),
    ] = ClientCertificates.NONE
    hosts: Annotated[
        tuple[HostName, ...],
        Meta(
            title="a list of host names",
            description="Names by which clients address this API, beside IP addresses, localhost, this "
            "machine's host name, the names listened on and kafka.advertised; requests with another "
            "name in their Host header are answered with 421. `*.example.com` matches all names below "
            "example.com, `*` all names, which allows DNS rebinding by pages of other sites.",
        ),
    ] = ()
    max_connections: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Maximum number of open connections. A further one closes the connection that "
            "was idle "
            "longest; if none is idle, the new one is answered with 503 and closed.",
        ),
    ] = 2000
    idle_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="A connection without a request for this long is closed; "
            "so is one that reads nothing of its response for as long.",
        ),
    ] = 60_000
    header_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Time to receive the head of a request after its first byte, and the same again "
            "for its body; a large body gets additional time at 64 KiB/s.",
        ),
    ] = 10_000
    max_body_bytes: Annotated[
        int,
        Meta(ge=KIB, le=INT32_MAX, description="Maximum body size; larger requests are answered with 413."),
    ] = 16 * MIB
    in_flight_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=TIB,
            description="Bytes of requests in progress and unsent responses, of all connections together; "
            "beyond it requests are answered with 503. At least max_body_bytes.",
        ),
    ] = 128 * MIB


class HttpConfig(HttpApiConfig, frozen=True, kw_only=True):
    """[http]: the JSON API for HTTP clients."""

    listen: Annotated[
        Address,
        Meta(description="Address to listen on. 0.0.0.0 is all interfaces; port 0 selects a free port."),
    ] = Address("127.0.0.1", 8080)


class SqsConfig(HttpApiConfig, frozen=True, kw_only=True):
    """[sqs]: the SQS API for AWS SDKs."""

    listen: Annotated[
        Address,
        Meta(
            description="Address to listen on. An address reachable from other machines needs credentials, "
            "security.authentication or allow_anonymous; port 0 selects a free port."
        ),
    ] = Address("127.0.0.1", 9324)
    access_key_id: Annotated[
        str,
        Meta(description="Key id whose signatures are accepted. Empty: signatures are not checked."),
    ] = ""
    secret_access_key: Annotated[str, Meta(description="Secret for access_key_id.", extra=SECRET)] = ""
    allow_anonymous: Annotated[
        bool,
        Meta(
            description="Whether to serve other machines without configured credentials: "
            "anyone who can reach the address may then read and delete everything."
        ),
    ] = False
    region: Annotated[
        str,
        Meta(
            pattern="^[a-z0-9-]{1,64}$",
            title="the name of a region",
            description="AWS region of the API; clients sign their requests for it.",
        ),
    ] = "us-east-1"
    account_id: Annotated[
        str,
        Meta(
            pattern="^[0-9]{12}$",
            title="12 digits",
            description="AWS account of the queues; part of their URLs.",
        ),
    ] = "000000000000"


class RegistryConfig(HttpApiConfig, frozen=True, kw_only=True):
    """[registry]: the schema registry at the root of its own address; the HTTP API has it under /schemas."""

    listen: Annotated[
        Address,
        Meta(description="Address to listen on. 0.0.0.0 is all interfaces; port 0 selects a free port."),
    ] = Address("127.0.0.1", 8081)


class GrpcConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[grpc]: the gRPC API."""

    enabled: Annotated[bool, Meta(description="Whether this API is enabled.")] = True
    listen: Annotated[
        Address,
        Meta(description="Address to listen on. 0.0.0.0 is all interfaces; port 0 selects a free port."),
    ] = Address("127.0.0.1", 9095)
    advertised: Annotated[
        Address | None,
        Meta(
            description="Address that clients connect to, if it differs from the listening address; clients "
            "get it from any node of the cluster."
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
            description="Maximum number of open connections, each with up to 100 calls. A further one closes "
            "the connection that was without calls longest; if none is, the new one is closed.",
        ),
    ] = 2000
    idle_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="A connection without calls for this long is closed; so is one that reads nothing of "
            "its responses for as long.",
        ),
    ] = 300_000
    header_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Time until a connection has begun with HTTP/2, and to receive a message after its "
            "first byte; a large message gets additional time at 64 KiB/s.",
        ),
    ] = 10_000
    max_message_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=INT32_MAX,
            description="Maximum size of a message of a client, decompressed too; larger ones are answered "
            "with RESOURCE_EXHAUSTED.",
        ),
    ] = 4 * MIB
    in_flight_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=TIB,
            description="Bytes of messages in progress and unsent responses, of all connections together; "
            "beyond it calls are answered with RESOURCE_EXHAUSTED. At least max_message_bytes.",
        ),
    ] = 128 * MIB


def check_grpc(config: GrpcConfig) -> None:
    """Reject inconsistent limits."""
    if config.in_flight_bytes < config.max_message_bytes:
        raise ConfigError(
            f"grpc.in_flight_bytes ({config.in_flight_bytes}) must be at least "
            f"grpc.max_message_bytes ({config.max_message_bytes})"
        )


def check_http(section: str, config: HttpApiConfig) -> None:
    """Reject inconsistent limits."""
    if config.in_flight_bytes < config.max_body_bytes:
        raise ConfigError(
            f"{section}.in_flight_bytes ({config.in_flight_bytes}) must be at least "
            f"{section}.max_body_bytes ({config.max_body_bytes})"
        )


def check_sqs(config: SqsConfig) -> None:
    """Reject incomplete credentials."""
    if bool(config.access_key_id) != bool(config.secret_access_key):
        raise ConfigError(
            "sqs.access_key_id and sqs.secret_access_key must be set together: set both or neither"
        )


class DelaysConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[delays]: delayed messages."""

    max_pending: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000_000,
            description="Maximum number of pending messages; further ones are rejected. Each takes "
            "about 20 bytes "
            "of memory if it is due within eight days, less otherwise.",
        ),
    ] = 5_000_000
    max_delay_ms: Annotated[int, Meta(ge=0, le=3650 * DAY_MS, description="Longest delay of a message.")] = (
        366 * DAY_MS
    )


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[metrics]: metrics for Prometheus."""

    enabled: Annotated[
        bool, Meta(description="Whether requests are counted and timed, and `/metrics` is served.")
    ] = True
    max_topics: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Topics with their own series in `/metrics`; the others are summed.",
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
            description="Maximum number of queues (a group and a topic) in each of the 8 shards.",
        ),
    ] = _LIMITS.max_queues
    max_waiting_receives: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Maximum number of waiting receives in each of the 8 shards; more are rejected.",
        ),
    ] = _LIMITS.max_waiting_receives
    max_indexed_runs: Annotated[
        int,
        Meta(
            ge=100,
            le=INT32_MAX,
            description="How far ahead of its consumers a queue indexes the lanes of a partition, "
            "in runs of adjacent messages of one lane.",
        ),
    ] = _LIMITS.max_indexed_runs
    max_blocked_messages: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Messages a queue with key order reads ahead to find keys that are not blocked.",
        ),
    ] = _LIMITS.max_blocked_messages
    cache_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB, le=TIB, description="Memory for cached batches from which queues deliver messages."
        ),
    ] = 32 * MIB


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[tracing]: retention and export of message traces."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether messages are traced. Which ones is determined by the topic settings "
            "trace.enable, trace.headers and trace.sample."
        ),
    ] = True
    log_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=TIB,
            description="Size of the trace log above which its oldest files, of 10 MiB each, are deleted. 0: "
            "no files are written, and only the last 10,000 events are available.",
        ),
    ] = 100 * MIB
    retention_ms: Annotated[
        int, Meta(ge=1, le=INT64_MAX, description="Age above which files of the trace log are deleted.")
    ] = 7 * DAY_MS
    otlp_endpoint: Annotated[
        str,
        Meta(
            title="a URL that begins with http:// or https://, or empty",
            description="Destination of spans, as OpenTelemetry's OTLP over HTTP: the URL of a collector "
            "without /v1/traces. Empty: no export.",
        ),
    ] = ""
    otlp_headers: Annotated[
        str,
        Meta(
            title="NAME=VALUE, several separated by commas, or empty",
            description="Headers to send to the collector with every request, such as API keys.",
            extra=SECRET,
        ),
    ] = ""

    def headers(self) -> dict[str, str]:
        """Parse otlp_headers; ValueError if it is malformed."""
        headers = {}
        for part in filter(None, (part.strip() for part in self.otlp_headers.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not name or not (name + value).isprintable() or not part.isascii():
                raise ValueError("not a list of NAME=VALUE")
            headers[name] = value
        return headers


def check_tracing(config: TracingConfig) -> None:
    """Reject an unusable endpoint or malformed headers."""
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
    """Return the broker's tracing settings; None if tracing is disabled."""
    if not config.enabled:
        return None
    export = None
    if config.otlp_endpoint:
        export = ExportSettings(
            endpoint=config.otlp_endpoint.rstrip("/"),
            headers=config.headers(),
            resource={
                "service.name": "alpacamq",
                "service.version": VERSION,
                "service.instance.id": str(node_id),
            },
        )
    return TracingSettings(log_bytes=config.log_bytes, retention_ms=config.retention_ms, export=export)
