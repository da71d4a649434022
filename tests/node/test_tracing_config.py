"""[tracing]: valid values and the resulting settings."""

from pathlib import Path

import pytest

from alpacamq.node.config import ConfigError, NodeConfig, load
from alpacamq.node.sections import tracing_settings


def loaded(**options: str) -> NodeConfig:
    return load(None, {}, {f"tracing.{name}": text for name, text in options.items()})


def test_spans_are_sent_to_the_configured_endpoint() -> None:
    config = loaded(
        otlp_endpoint="https://traces.example:4318/tenant/", otlp_headers="x-key=a=b, x-team = tea"
    )
    settings = tracing_settings(config.tracing, 7)
    assert settings is not None
    assert settings.export is not None
    assert settings.export.endpoint == "https://traces.example:4318/tenant"
    assert settings.export.headers == {"x-key": "a=b", "x-team": "tea"}
    assert settings.export.resource["service.instance.id"] == "7"


def test_nothing_is_exported_by_default() -> None:
    settings = tracing_settings(loaded().tracing, 1)
    assert settings is not None
    assert settings.export is None
    assert tracing_settings(loaded(enabled="false").tracing, 1) is None


@pytest.mark.parametrize(
    "endpoint",
    [
        "collector:4318",
        "ftp://collector",
        "http://",
        "http://collector:port",
        "http://collector:99999",
        "tea",
    ],
)
def test_an_invalid_endpoint_is_rejected_by_name(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"tracing\.otlp_endpoint must be a URL"):
        loaded(otlp_endpoint=endpoint)


@pytest.mark.parametrize("headers", ["secret", "=secret", "a=b,secret", "a=b\nc=secret", "sécret=1"])
def test_invalid_headers_are_rejected_without_being_shown(headers: str) -> None:
    with pytest.raises(ConfigError, match=r"tracing\.otlp_headers must be NAME=VALUE") as refused:
        loaded(otlp_headers=headers)
    assert "secret" not in str(refused.value)


def test_tracing_is_configured_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "alpacamq.toml"
    file.write_text("[tracing]\nlog_bytes = 0\nretention_ms = 1000\n")
    settings = tracing_settings(load(file, {}, {}).tracing, 1)
    assert settings is not None
    assert (settings.log_bytes, settings.retention_ms) == (0, 1000)
