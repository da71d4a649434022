"""Certificates for tests: an authority, and what it signs."""

import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from alpacamq.cli.cert import issue, new_authority, pem_of_key

HOSTS = ("localhost", "127.0.0.1")


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path
    serial: int


class Authority:
    """A CA whose files are in a directory."""

    def __init__(self, directory: Path, name: str = "Test CA") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._issued = new_authority(name)
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self._issued.certificate.public_bytes(Encoding.PEM))
        self.crl = directory / "crl.pem"
        self.revoke([])

    def server(self, file: str = "server", hosts: Iterable[str] = HOSTS, valid_days: float = 90) -> Pair:
        return self._write(file, "server", hosts, valid_days)

    def client(self, name: str = "alice", valid_days: float = 90) -> Pair:
        return self._write(name, name, (), valid_days)

    def revoke(self, serials: Iterable[int], valid_days: float = 30) -> None:
        """Write a revocation list."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._issued.certificate.subject)
        builder = builder.last_update(now - timedelta(hours=1)).next_update(now + timedelta(days=valid_days))
        for serial in serials:
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            builder = builder.add_revoked_certificate(revoked.build())
        _replace(self.crl, builder.sign(self._issued.key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def _write(self, file: str, name: str, hosts: Iterable[str], valid_days: float) -> Pair:
        certificate, key = issue(self._issued, name, hosts, valid_days)
        pair = Pair(self.directory / f"{file}.pem", self.directory / f"{file}.key", certificate.serial_number)
        _replace(pair.key, pem_of_key(key), 0o600)
        _replace(pair.certificate, certificate.public_bytes(Encoding.PEM))
        return pair


def _replace(path: Path, content: bytes, mode: int = 0o644) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    draft.chmod(mode)
    draft.replace(path)


def client_context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """Return a context that verifies the server, with a client certificate if one is given."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def tls_section(authority: Authority, server: Pair) -> str:
    """Return the section [tls] of a configuration."""
    return (
        f"[tls]\ncertificate = '{server.certificate}'\nkey = '{server.key}'\nclient_ca = '{authority.ca}'\n"
    )
