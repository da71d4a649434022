"""`alpacactl cert`: certificates for development and tests."""

import argparse
import os
import re
import socket
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .commands import add_verb, verbs_of
from .output import Output, Table
from .parsing import CommandError, UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

VALID_DAYS = 365
AUTHORITY = "AlpacaMQ development CA"
# Clocks of machines differ.
_BACKDATED = timedelta(hours=1)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_RESERVED = ("ca", "server")


class Issued(NamedTuple):
    """A certificate with its key."""

    certificate: "x509.Certificate"
    key: "EllipticCurvePrivateKey"


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    dev = add_verb(
        verbs, common, "dev", "create a CA, a server and a client certificate for development", _dev,
        [
            "alpacactl cert dev",
            "alpacactl cert dev --dir certs --hosts broker1.example.com,10.0.0.5 --client alice",
        ],
    )  # fmt: skip
    dev.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        default=Path("certs"),
        help="where to write them (certs); a CA that is there already signs the new ones",
    )
    dev.add_argument(
        "--hosts",
        metavar="HOST,…",
        default="",
        help="names and addresses of the broker, beside localhost and this machine's name",
    )
    dev.add_argument("--client", metavar="NAME", default="client", help="name of the client (client)")


class DevFiles(NamedTuple):
    """The files for development."""

    ca: Path
    certificate: Path
    key: Path
    client_certificate: Path
    client_key: Path


def _dev(parsed: argparse.Namespace, output: Output) -> None:
    if not _NAME.fullmatch(parsed.client) or parsed.client in _RESERVED:
        raise UsageError(f"--client {parsed.client!r} is not a name for a file")
    directory: Path = parsed.dir.absolute()
    hosts = tuple(filter(None, (host.strip() for host in parsed.hosts.split(","))))
    try:
        files = write_dev(directory, hosts, parsed.client)
    except OSError as error:
        raise CommandError(f"cannot write {error.filename or directory}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--hosts: {error}") from None
    paths = {name: str(path) for name, path in files._asdict().items()}
    output.show(dict(paths), Table(["file", "path"], [[name, path] for name, path in paths.items()]))
    if output.form == "table":
        print(_GUIDE.format(**paths))


def write_dev(directory: Path, hosts: Sequence[str], client: str) -> DevFiles:
    """Write a CA unless there is one, and certificates that it signs for this machine and a client."""
    names = dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1", socket.gethostname()])
    directory.mkdir(parents=True, exist_ok=True)
    authority = _authority(directory)
    _write(directory, "server", issue(authority, next(iter(names)), names))
    _write(directory, client, issue(authority, client))
    files = ("ca.pem", "server.pem", "server.key", f"{client}.pem", f"{client}.key")
    return DevFiles(*(directory / name for name in files))


_GUIDE = """
Configuration of the broker (certificates of clients are optional):

[tls]
certificate = "{certificate}"
key = "{key}"
client_ca = "{ca}"

[kafka]
tls = true
client_certificates = "requested"

[http]
tls = true

Kafka clients (librdkafka):

security.protocol=SSL
ssl.ca.location={ca}
ssl.certificate.location={client_certificate}
ssl.key.location={client_key}

alpacactl:

export ALPACAMQ_CA={ca}
export ALPACAMQ_CERT={client_certificate}
export ALPACAMQ_KEY={client_key}

These certificates are for development: the key of their CA is in the same directory."""


def _authority(directory: Path) -> Issued:
    """Return the CA of a directory; create one if there is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate, key = directory / "ca.pem", directory / "ca.key"
    if certificate.exists() and key.exists():
        try:
            loaded = load_pem_private_key(key.read_bytes(), None)
            if isinstance(loaded, EllipticCurvePrivateKey):
                return Issued(x509.load_pem_x509_certificate(certificate.read_bytes()), loaded)
        except (ValueError, TypeError):
            pass
        raise CommandError(f"{certificate} and {key} are not a CA that this command has made; remove them")
    made = new_authority(AUTHORITY)
    _write(directory, "ca", made)
    return made


def new_authority(name: str) -> Issued:
    """Create a CA."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, key)
    builder = builder.issuer_name(_name(name))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = builder.add_extension(usage, critical=True)
    return Issued(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Issued, name: str, hosts: Iterable[str] = (), valid_days: float = VALID_DAYS) -> Issued:
    """Create a certificate signed by a CA: of a server if it has hosts, else of a client."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, key, valid_days).issuer_name(authority.certificate.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    # Nodes of a cluster are clients of each other.
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    names = [_host(host) for host in hosts]
    if names:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return Issued(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    name: str, key: "EllipticCurvePrivateKey", valid_days: float = VALID_DAYS
) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.now(UTC)
    end = now + timedelta(days=valid_days)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - _BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def pem_of_key(key: "EllipticCurvePrivateKey") -> bytes:
    """Return a private key in PEM format, without a password."""
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(directory: Path, name: str, issued: Issued) -> None:
    """Write a certificate and its key; only the owner can read the key."""
    from cryptography.hazmat.primitives.serialization import Encoding

    _replace(directory / f"{name}.key", pem_of_key(issued.key), 0o600)
    _replace(directory / f"{name}.pem", issued.certificate.public_bytes(Encoding.PEM), 0o644)


def _replace(path: Path, content: bytes, mode: int) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)
