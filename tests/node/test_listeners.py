"""Sections [tls] and [listeners.NAME]: what is refused, and with which words."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from alpacamq.broker import tls
from alpacamq.model.address import Address
from alpacamq.node.config import ConfigError, NodeConfig, load
from alpacamq.node.listeners import ListenerApi, warn_of_plain_passwords
from alpacamq.node.processes import PORT_STEP, Process
from alpacamq.node.serve import certificates_of
from alpacamq.telemetry.logs import capture_logs
from tests.certificates import Authority, tls_section
from tests.waiting import soon

TLS = "[tls]\ncertificate = 'c.pem'\nkey = 'c.key'\nclient_ca = 'ca.pem'\n"
EXTERNAL = "[listeners.external]\nlisten = '127.0.0.1:9094'\n"


def loaded(tmp_path: Path, text: str) -> NodeConfig:
    path = tmp_path / "alpacamq.toml"
    path.write_text(text)
    return load(path, {}, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("kafka.tls = true", "kafka.tls is true: set tls.certificate and tls.key", id="no pair"),
        pytest.param("tls.key = 'a'", "tls.certificate and tls.key must be set together", id="half a pair"),
        pytest.param(
            "kafka.client_certificates = 'required'", "set kafka.tls = true", id="certificates without TLS"
        ),
        pytest.param(
            "kafka.tls = true\nkafka.client_certificates = 'requested'\ntls.certificate = 'a'\ntls.key = 'b'",
            "kafka.client_certificates is requested: set tls.client_ca",
            id="certificates without an authority",
        ),
        pytest.param("tls.crl = 'a'", "tls.crl is set, and tls.client_ca is not", id="a list without a CA"),
        pytest.param("tls.principal_rules = 'all'", "tls.principal_rules: 'all' is not a rule", id="rules"),
        pytest.param(
            "http.client_certificates = 'maybe'", "one of none, requested, required", id="an unknown mode"
        ),
        pytest.param("tls.min_version = '1.1'", "one of 1.2, 1.3", id="an old version"),
        pytest.param(
            "[listeners.external]\napi = 'http'", "listeners.external.listen is missing", id="where"
        ),
        pytest.param("[listeners.external]", "listeners.external.listen is missing", id="an empty table"),
        pytest.param(
            "[listeners.kafka]\nlisten = '127.0.0.1:9094'", "and not kafka, http, sqs", id="a reserved name"
        ),
        pytest.param("[listeners.Ext]\nlisten = 'a:1'", "lower case letters", id="an invalid name"),
        pytest.param(EXTERNAL + "lissten = 'a'", "unknown option listeners.external.lissten", id="a typo"),
        pytest.param(EXTERNAL + "api = 'amqp'", "one of kafka, http, sqs", id="an unknown API"),
        pytest.param(EXTERNAL + "tls = true", "listeners.external.tls is true", id="no certificate"),
        pytest.param(
            EXTERNAL + "allow = ['10.0.0.1/8']", "listeners.external.allow: 10.0.0.1/8", id="a network"
        ),
        pytest.param(EXTERNAL + "mechanisms = ['NTLM']", "'NTLM' is not one of PLAIN", id="a mechanism"),
        pytest.param(
            EXTERNAL + "api = 'sqs'\nmechanisms = ['PLAIN']", "is for Kafka clients", id="another API"
        ),
        pytest.param(
            EXTERNAL + "api = 'sqs'\n[sqs]\nenabled = false", "and sqs.enabled is false", id="disabled"
        ),
        pytest.param(
            "[listeners.external]\nlisten = '0.0.0.0:9094'",
            "listeners.external.listen (0.0.0.0:9094) is reachable from other machines",
            id="reachable without authentication",
        ),
        pytest.param(
            "cluster.tls = true", "cluster.tls is true: set tls.certificate", id="a cluster without a pair"
        ),
        pytest.param(
            "cluster.tls_optional = true",
            "cluster.tls_optional is true: set cluster.tls",
            id="optional, but off",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_with_its_setting(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert expected in str(refused.value)


def test_required_client_certificates_are_authentication(tmp_path: Path) -> None:
    reachable = "listen = '0.0.0.0:9094'\ntls = true\n"
    loaded(tmp_path, TLS + "[listeners.a]\n" + reachable + "client_certificates = 'required'")
    with pytest.raises(ConfigError, match="reachable from other machines"):
        loaded(tmp_path, TLS + "[listeners.a]\n" + reachable + "client_certificates = 'requested'")


def test_a_listener_may_require_authentication_or_not_whatever_the_others_do(tmp_path: Path) -> None:
    reachable = "[listeners.a]\nlisten = '0.0.0.0:9094'\n"
    loaded(tmp_path, reachable + "authentication = 'required'")
    with pytest.raises(ConfigError, match=r"listeners\.a\.listen .* is reachable from other machines"):
        loaded(tmp_path, reachable + "authentication = 'none'\n[security]\nauthentication = true")


def test_the_listeners_of_an_api_begin_with_that_of_its_section(tmp_path: Path) -> None:
    config = loaded(tmp_path, TLS + EXTERNAL + "[listeners.web]\napi = 'http'\nlisten = '127.0.0.1:1'\n")
    names = {api: [each.name for each in config.listeners_of(api)] for api in ListenerApi}
    assert names == {
        "kafka": ["kafka", "external"],
        "http": ["http", "web"],
        "sqs": ["sqs"],
        "registry": ["registry"],
        "grpc": ["grpc"],
    }
    assert config.listeners_of(ListenerApi.KAFKA)[1].address == Address("127.0.0.1", 9094)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[kafka]\nlisten = '0.0.0.0:9092'", ["kafka"], id="passwords of PLAIN"),
        pytest.param("[http]\nlisten = '0.0.0.0:8080'", ["http"], id="passwords of HTTP"),
        pytest.param(TLS + "[kafka]\nlisten = '0.0.0.0:9092'\ntls = true", [], id="with TLS"),
        pytest.param("", [], id="this machine only"),
        pytest.param(
            "[listeners.a]\nlisten = '0.0.0.0:1'\nmechanisms = ['SCRAM-SHA-256']", [], id="without PLAIN"
        ),
    ],
)
def test_listeners_with_passwords_in_clear_text_are_logged(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    config = loaded(tmp_path, text + "\n[security]\nauthentication = true\n")
    with capture_logs() as logged:
        warn_of_plain_passwords(config.security, config.all_listeners())
    warned = [each["listener"] for each in logged if each["event"] == "passwords_without_tls"]
    assert warned == expected


def test_processes_of_one_machine_have_listeners_of_their_own(tmp_path: Path) -> None:
    config = loaded(tmp_path, EXTERNAL + "advertised = 'broker:9094'\n")
    first, second = (Process(number, config, 3).listeners() for number in range(2))
    assert first["ALPACAMQ_LISTENERS_EXTERNAL_LISTEN"] == "127.0.0.1:9094"
    assert second["ALPACAMQ_LISTENERS_EXTERNAL_LISTEN"] == f"127.0.0.1:{9094 + PORT_STEP}"
    assert second["ALPACAMQ_LISTENERS_EXTERNAL_ADVERTISED"] == f"broker:{9094 + PORT_STEP}"


async def test_certificates_are_loaded_again_on_sighup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "RELOAD_SECONDS", 3600)
    authority = Authority(tmp_path / "authority")
    config = loaded(tmp_path, tls_section(authority, authority.server()))
    loop = asyncio.get_running_loop()
    certificates = certificates_of(config, loop)
    assert certificates is not None
    watching = asyncio.create_task(certificates.run())
    try:
        authority.server()
        os.kill(os.getpid(), signal.SIGHUP)
        await soon(lambda: certificates.reloads == 1)
    finally:
        watching.cancel()
        loop.remove_signal_handler(signal.SIGHUP)
