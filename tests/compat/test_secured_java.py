"""Kafka's Java clients over TLS and by every SASL mechanism; skipped without a JDK and the jars."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tokens
from tests.kafka_tools import JARS

from .secured_java import (
    MECHANISMS,
    NEEDS_JAVA,
    USER,
    Secured,
    allowing,
    bearer,
    certificate,
    compile_java,
    sasl,
    tls,
    write_properties,
)

# Compiling, starting a virtual machine and fifteen clients on a busy machine.
WITHIN_S = 240.0

pytestmark = NEEDS_JAVA


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    try:
        made.broker.start()
        yield made
    finally:
        made.broker.end()


def test_java_clients_write_and_read_by_every_mechanism(secured: Secured, tmp_path: Path) -> None:
    plain, encrypted, mutual = secured.broker.kafka, secured.encrypted, secured.mutual
    trusted, own = tls(secured.certs), certificate(secured.certs, tmp_path)
    token, foreign = tmp_path / "token", tmp_path / "foreign"
    token.write_text(tokens.token(USER))
    foreign.write_text(tokens.token(USER, aud="another"))
    logins = {**{each: sasl(each) for each in MECHANISMS}, "OAUTHBEARER": bearer(token)}
    clients = {
        **{f"plain-{each}": (plain, "SASL_PLAINTEXT", login) for each, login in logins.items()},
        **{f"tls-{each}": (encrypted, "SASL_SSL", {**trusted, **login}) for each, login in logins.items()},
        "mutual": (mutual, "SSL", {**trusted, **own}),
        "mutual-SCRAM-SHA-512": (mutual, "SASL_SSL", {**trusted, **own, **sasl("SCRAM-SHA-512")}),
        "mutual-OAUTHBEARER": (mutual, "SASL_SSL", {**trusted, **own, **bearer(token)}),
        "wrong-password": (encrypted, "SASL_SSL", {**trusted, **sasl("PLAIN", "wrong")}),
        "wrong-audience": (encrypted, "SASL_SSL", {**trusted, **bearer(foreign)}),
        "wrong-authority": (encrypted, "SASL_SSL", {**tls(secured.others), **sasl("PLAIN")}),
        "foreign-certificate": (mutual, "SSL", {**trusted, **certificate(secured.others, tmp_path)}),
    }
    found = run_java(clients, tmp_path, allowing(token, foreign))
    refused = {
        "wrong-password": "SaslAuthenticationException: wrong user name or password",
        "wrong-audience": "another audience",
        "wrong-authority": "CertPath",
        "foreign-certificate": "SSL",
    }
    for name, outcome in found.items():
        assert outcome.startswith("ok") if name not in refused else refused[name] in outcome, (name, outcome)
    assert found.keys() == clients.keys()


def run_java(
    clients: dict[str, tuple[str, str, dict[str, str]]], directory: Path, options: list[str]
) -> dict[str, str]:
    """Run a client with each of these settings; return the outcome of each."""
    files = []
    for name, (address, protocol, settings) in clients.items():
        lines = {"topic": name, "bootstrap.servers": address, "security.protocol": protocol, **settings}
        files.append(str(write_properties(directory / f"{name}.properties", lines)))
    compile_java("SecuredClient", directory)
    ran = subprocess.run(
        ["java", "-Xmx256m", *options, "-cp", f"{directory}:{JARS}/*", "SecuredClient", *files],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return dict(line.split(" ", 1) for line in ran.stdout.splitlines() if line.split(" ", 1)[0] in clients)
