"""Kafka's Java clients over TLS and by every SASL mechanism; skipped without a JDK and the jars."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from alpacamq.cli.main import main as alpacactl
from tests.broker_cluster import make_broker
from tests.brokers import Broker
from tests.integration.nodes import free_ports
from tests.kafka_tools import JARS

SOURCE = Path(__file__).parent / "java" / "SecuredClient.java"
# Compiling, starting a virtual machine and eleven clients on a busy machine.
WITHIN_S = 240.0
USER, PASSWORD = "alice", "se:cret"

pytestmark = [
    pytest.mark.skipif(which("java") is None or which("javac") is None, reason="there is no JDK"),
    pytest.mark.skipif(not JARS.exists(), reason="the jars of Apache Kafka are not in the cache"),
]

CONFIG = """\
[tls]
certificate = "{certs}/server.pem"
key = "{certs}/server.key"
client_ca = "{certs}/ca.pem"
principal_rules = "RULE:^CN=([^,]+).*$/$1/"

[listeners.encrypted]
api = "kafka"
listen = "127.0.0.1:{encrypted}"
tls = true

[listeners.mutual]
api = "kafka"
listen = "127.0.0.1:{mutual}"
tls = true
client_certificates = "required"

[security]
authentication = true
acls = true
super_users = ["User:alice"]
users_file = "{users}"
"""

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
MECHANISMS = {"PLAIN": PLAIN, "SCRAM-SHA-256": SCRAM, "SCRAM-SHA-512": SCRAM}


class Secured:
    """A broker with a plain listener, one with TLS, and one that requires client certificates."""

    def __init__(self, directory: Path) -> None:
        self.certs = directory / "certs"
        assert alpacactl(["cert", "dev", "--dir", str(self.certs), "--client", USER]) == 0
        alpacactl(["cert", "dev", "--dir", str(directory / "others"), "--client", USER])
        self.others = directory / "others"
        users = directory / "users"
        users.write_text(f"{USER}:{PASSWORD}\n")
        users.chmod(0o600)
        self.encrypted, self.mutual = free_ports(2)
        config = CONFIG.format(certs=self.certs, encrypted=self.encrypted, mutual=self.mutual, users=users)
        self.broker: Broker = make_broker(directory / "data", 1, config=config)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    try:
        made.broker.start()
        yield made
    finally:
        made.broker.end()


def sasl(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    module = MECHANISMS[mechanism]
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{USER}" password="{password}";',
    }


def tls(certs: Path) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certs / "ca.pem")}


def certificate(certs: Path, directory: Path) -> dict[str, str]:
    store = directory / f"{certs.name}.pem"
    store.write_text((certs / f"{USER}.key").read_text() + (certs / f"{USER}.pem").read_text())
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}


def test_java_clients_write_and_read_by_every_mechanism(secured: Secured, tmp_path: Path) -> None:
    plain, encrypted = secured.broker.kafka, f"127.0.0.1:{secured.encrypted}"
    mutual = f"127.0.0.1:{secured.mutual}"
    trusted, own = tls(secured.certs), certificate(secured.certs, tmp_path)
    clients = {
        **{f"plain-{each}": (plain, "SASL_PLAINTEXT", sasl(each)) for each in MECHANISMS},
        **{f"tls-{each}": (encrypted, "SASL_SSL", {**trusted, **sasl(each)}) for each in MECHANISMS},
        "mutual": (mutual, "SSL", {**trusted, **own}),
        "mutual-SCRAM-SHA-512": (mutual, "SASL_SSL", {**trusted, **own, **sasl("SCRAM-SHA-512")}),
        "wrong-password": (encrypted, "SASL_SSL", {**trusted, **sasl("PLAIN", "wrong")}),
        "wrong-authority": (encrypted, "SASL_SSL", {**tls(secured.others), **sasl("PLAIN")}),
        "foreign-certificate": (mutual, "SSL", {**trusted, **certificate(secured.others, tmp_path)}),
    }
    found = run_java(clients, tmp_path)
    refused = {
        "wrong-password": "SaslAuthenticationException: wrong user name or password",
        "wrong-authority": "CertPath",
        "foreign-certificate": "SSL",
    }
    for name, outcome in found.items():
        assert outcome.startswith("ok") if name not in refused else refused[name] in outcome, (name, outcome)
    assert found.keys() == clients.keys()


def run_java(clients: dict[str, tuple[str, str, dict[str, str]]], directory: Path) -> dict[str, str]:
    """Run a client with each of these settings; return the outcome of each."""
    files = []
    for name, (address, protocol, settings) in clients.items():
        lines = {"topic": name, "bootstrap.servers": address, "security.protocol": protocol, **settings}
        path = directory / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        files.append(str(path))
    subprocess.run(["javac", "-cp", f"{JARS}/*", "-d", str(directory), str(SOURCE)], check=True)
    ran = subprocess.run(
        ["java", "-Xmx256m", "-cp", f"{directory}:{JARS}/*", "SecuredClient", *files],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return dict(line.split(" ", 1) for line in ran.stdout.splitlines() if line.split(" ", 1)[0] in clients)
