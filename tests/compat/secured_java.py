"""A broker with TLS, passwords, bearer and delegation tokens, and the settings of Java clients for each."""

import subprocess
from pathlib import Path
from shutil import which

import pytest

from alpacamq.cli.main import main as alpacactl
from tests import tokens
from tests.broker_cluster import make_broker
from tests.brokers import Broker
from tests.kafka_tools import JARS
from tests.ports import free_ports

USER, PASSWORD = "alice", "se:cret"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
MECHANISMS = {"PLAIN": PLAIN, "SCRAM-SHA-256": SCRAM, "SCRAM-SHA-512": SCRAM}

NEEDS_JAVA = [
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
users_file = "{files}/users"
jwks_file = "{files}/keys.json"
jwt_issuer = "{issuer}"
jwt_audience = "{audience}"
delegation_token_secret_file = "{files}/secret"
"""


class Secured:
    """A broker with a plain listener, one with TLS, and one that requires client certificates."""

    def __init__(self, directory: Path) -> None:
        self.certs = directory / "certs"
        assert alpacactl(["cert", "dev", "--dir", str(self.certs), "--client", USER]) == 0
        alpacactl(["cert", "dev", "--dir", str(directory / "others"), "--client", USER])
        self.others = directory / "others"
        for name, content in (("users", f"{USER}:{PASSWORD}\n"), ("secret", "a random text for tests")):
            (directory / name).write_text(content)
            (directory / name).chmod(0o600)
        (directory / "keys.json").write_bytes(tokens.jwks())
        ports = free_ports(2)
        self.encrypted, self.mutual = (f"127.0.0.1:{port}" for port in ports)
        config = CONFIG.format(
            certs=self.certs,
            encrypted=ports[0],
            mutual=ports[1],
            files=directory,
            issuer=tokens.ISSUER,
            audience=tokens.AUDIENCE,
        )
        self.broker: Broker = make_broker(directory / "data", 1, config=config)


def sasl(mechanism: str, password: str = PASSWORD, user: str = USER, more: str = "") -> dict[str, str]:
    login = f'{MECHANISMS[mechanism]} required username="{user}" password="{password}"{more};'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def bearer(file: Path) -> dict[str, str]:
    """Return the settings for the token in a file; the virtual machine needs `allowing` for it."""
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTH} required;",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        "sasl.login.callback.handler.class": f"{OAUTH.replace('Module', 'CallbackHandler')}",
    }


def allowing(*files: Path) -> list[str]:
    """Return the options of a virtual machine that let clients read tokens from files."""
    prefix = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    urls = ",".join(file.as_uri() for file in files)
    return [f"{prefix}.urls={urls}", f"{prefix}.files={','.join(map(str, files))}"]


def tls(certs: Path) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certs / "ca.pem")}


def certificate(certs: Path, directory: Path) -> dict[str, str]:
    store = directory / f"{certs.name}.pem"
    store.write_text((certs / f"{USER}.key").read_text() + (certs / f"{USER}.pem").read_text())
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}


def write_properties(path: Path, settings: dict[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def compile_java(name: str, directory: Path) -> None:
    source = Path(__file__).parent / "java" / f"{name}.java"
    subprocess.run(["javac", "-cp", f"{JARS}/*", "-d", str(directory), str(source)], check=True)
