"""[tracing]: what is kept of the traces of messages, and where else they are sent."""

from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from alpacamq import __version__
from alpacamq.broker.tracing import TracingSettings
from alpacamq.model.topics import DAY_MS, INT64_MAX, MIB
from alpacamq.telemetry.tracing import ExportSettings

from .options import SECRET, ConfigError

TIB = 1 << 40


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
