"""`alpacactl cert dev`, and commands over TLS."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from alpacamq.broker.clock import SystemClock
from alpacamq.broker.tls import Certificates, TlsSettings
from alpacamq.cli.main import main
from alpacamq.client.connect import Tls
from tests.brokers import Broker

from .command import InProcess


def made(directory: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, str]:
    assert main(["cert", "dev", "--dir", str(directory), "-o", "json", *more]) == 0
    paths: dict[str, str] = json.loads(capsys.readouterr().out)
    return paths


def test_the_certificates_fit_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = made(tmp_path / "certs", capsys, "--hosts", "broker.example.com,10.0.0.5", "--client", "alice")
    settings = TlsSettings(
        certificate=Path(paths["certificate"]), key=Path(paths["key"]), client_ca=Path(paths["ca"])
    )
    Certificates(settings, SystemClock())
    client = Tls(ca=paths["ca"], certificate=paths["client_certificate"], key=paths["client_key"])
    assert client.context().get_ca_certs()
    assert paths["client_certificate"].endswith("alice.pem")
    for key in ("key", "client_key"):
        assert stat.S_IMODE(Path(paths[key]).stat().st_mode) == 0o600


def test_a_second_run_keeps_the_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = made(tmp_path, capsys)
    authority, server = Path(paths["ca"]).read_bytes(), Path(paths["certificate"]).read_bytes()
    again = made(tmp_path, capsys, "--client", "bob")
    assert Path(again["ca"]).read_bytes() == authority
    assert Path(again["certificate"]).read_bytes() != server


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--client", "../x"], "is not a name for a file"),
        (["--client", "server"], "is not a name for a file"),
        (["--hosts", "größe.example"], "--hosts"),
    ],
)
def test_invalid_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(["cert", "dev", "--dir", str(tmp_path), *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_a_broken_authority_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).write_text("mine")
    assert main(["cert", "dev", "--dir", str(tmp_path)]) == 1
    assert "remove them" in capsys.readouterr().err
    assert (tmp_path / "ca.pem").read_text() == "mine"


class Secured:
    """A broker that requires certificates of clients, and commands for it."""

    def __init__(self, root: Path) -> None:
        assert main(["cert", "dev", "--dir", str(root), "-o", "json"]) == 0
        self.ca = ("--ca", str(root / "ca.pem"))
        self.own = ("--cert", str(root / "client.pem"), "--key", str(root / "client.key"))
        api = "tls = true\nclient_certificates = 'required'\n"
        self.broker = Broker(
            root / "data",
            config=f"[tls]\ncertificate = '{root}/server.pem'\nkey = '{root}/server.key'\n"
            f"client_ca = '{root}/ca.pem'\n[kafka]\n{api}[http]\n{api}[sqs]\nenabled = false\n",
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("secured"))
    try:
        secured.broker.start()
        yield secured
    finally:
        secured.broker.end()


def test_commands_use_tls_on_both_apis(secured: Secured) -> None:
    command = InProcess(secured.broker.address, secured.broker.http_address)
    command.ok("topics", "create", "orders", *secured.ca, *secured.own)
    assert "orders" in command.ok("topics", "list", *secured.ca, *secured.own)
    assert "kafka" in command.ok("cluster", "status", *secured.ca, *secured.own)
    https = InProcess(secured.broker.address, f"https://{secured.broker.http_address}")
    https.ok("key", "list", *secured.ca, *secured.own)


def test_a_context_stores_the_files(secured: Secured) -> None:
    command = InProcess("", "")
    addresses = ("--broker", secured.broker.address, "--http", secured.broker.http_address)
    command.ok("config", "set", "cafe", *addresses, *secured.ca, *secured.own)
    assert "orders" in command.ok("topics", "list", "--context", "cafe")
    shown = json.loads(command.ok("config", "show", "--context", "cafe", "-o", "json"))
    assert shown["tls"] == {"value": "yes", "from": "context cafe"}


def test_what_is_wrong_is_said(secured: Secured, tmp_path: Path) -> None:
    command = InProcess(secured.broker.address, secured.broker.http_address)
    assert "if this listener uses TLS, use --tls" in command.fails(3, "topics", "list")
    assert "if this listener uses TLS, use --tls" in command.fails(3, "key", "list")
    untrusted = command.fails(3, "topics", "list", "--tls")
    assert "the certificate of" in untrusted
    assert "--ca FILE" in untrusted
    assert "--cert FILE" in command.fails(3, "topics", "list", *secured.ca)
    missing = str(tmp_path / "missing.pem")
    assert f"{missing} is not a file" in command.fails(1, "topics", "list", "--ca", missing)
    assert "cannot be used" in command.fails(
        1, "topics", "list", *secured.ca, "--cert", secured.ca[1], "--key", secured.own[3]
    )
    assert "--key needs --cert" in command.fails(2, "topics", "list", "--key", secured.own[3])
