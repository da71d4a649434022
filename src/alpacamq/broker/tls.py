"""Certificates of this node: loaded from files, checked, and loaded again when the files change.

A change makes new TLS contexts, which new connections use; open connections keep theirs. Files that
do not fit together are refused: the contexts stay as they are, and the next change is tried again.
"""

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from alpacamq.model.errors import InvalidConfig
from alpacamq.model.ports import Clock
from alpacamq.security.certificates import PrincipalRules
from alpacamq.security.principals import Principal
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

RELOAD_SECONDS = 5.0
# The name by which ALPN offers HTTP/2.
HTTP2 = "h2"
# Before its certificate expires, a node reports it.
EXPIRY_WARNING_MS = 14 * 24 * 3600 * 1000
# Bits of the mode of a key file that let others than its owner and group read it, or others than its owner
# write it.
_EXPOSED = 0o027


class ClientCertificates(StrEnum):
    """Whether clients of a listener present certificates."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class TlsVersion(StrEnum):
    """The lowest version of TLS that is accepted."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


_VERSIONS = {TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3}


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The files of section [tls]."""

    certificate: Path
    key: Path
    key_password: Path | None = None
    client_ca: Path | None = None
    crl: Path | None = None
    min_version: TlsVersion = TlsVersion.TLS_1_2
    principal_rules: str = "DEFAULT"

    @property
    def files(self) -> Mapping[str, Path]:
        """The files that are set, by their settings."""
        named = {
            "tls.certificate": self.certificate,
            "tls.key": self.key,
            "tls.key_password_file": self.key_password,
            "tls.client_ca": self.client_ca,
            "tls.crl": self.crl,
        }
        return {setting: path for setting, path in named.items() if path is not None}


class _Loaded(NamedTuple):
    """Contexts made from one state of the files, and when what is in them expires."""

    # By what clients present, and the protocol that is offered to them.
    servers: Mapping[tuple[ClientCertificates, str], ssl.SSLContext]
    # For connections to other nodes; None without a CA that could have signed their certificates.
    peer: ssl.SSLContext | None
    expires_ms: Mapping[str, int]


class Certificates:
    """The TLS contexts of this node."""

    def __init__(self, settings: TlsSettings, clock: Clock) -> None:
        """Load the files. Raises InvalidConfig that names the setting at fault."""
        self._settings = settings
        self._clock = clock
        try:
            self._rules = PrincipalRules(settings.principal_rules)
        except InvalidConfig as error:
            raise InvalidConfig(f"tls.principal_rules: {error}") from None
        self._stamp = self._stamps()
        self._loaded = _load(settings)
        self._wake = asyncio.Event()
        # For metrics.
        self.reloads = self.failed_reloads = 0
        # Settings whose file was reported as expired since it was loaded.
        self._expired: set[str] = set()
        self._warn()

    def server_context(self, mode: ClientCertificates, protocol: str = "") -> ssl.SSLContext:
        """Return the context for a new connection of a client; `protocol` is offered by ALPN."""
        return self._loaded.servers[mode, protocol]

    def peer_context(self) -> ssl.SSLContext:
        """Return the context for a new connection to another node."""
        assert self._loaded.peer is not None, "checked with the configuration"
        return self._loaded.peer

    def principal(self, certificate: Mapping[str, Any]) -> Principal | None:
        """Return the principal of a verified certificate; None if no rule gives it a name."""
        return self._rules.principal(certificate.get("subject", ()))

    def has_expired(self, certificate: Mapping[str, Any]) -> bool:
        """Return whether a certificate that was verified earlier has expired since."""
        return expiry_ms(certificate) < self._clock.now_ms()

    @property
    def expires_ms(self) -> Mapping[str, int]:
        """When the first certificate in each file expires, by setting; of tls.crl, its next update."""
        return self._loaded.expires_ms

    def reload_soon(self) -> None:
        """Look at the files now."""
        self._stamp = ()
        self._wake.set()

    async def run(self) -> None:
        """Load the files again whenever they have changed, and report what expires, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(RELOAD_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await loop.run_in_executor(None, self.check)

    def check(self) -> None:
        """Load the files again if they have changed; else report what has expired. Blocking."""
        stamp = self._stamps()
        if stamp == self._stamp:
            self._warn_of_expired()
            return
        self._stamp = stamp
        try:
            self._loaded = _load(self._settings)
        except InvalidConfig as error:
            self.failed_reloads += 1
            log.error("certificates_not_reloaded", reason=str(error))
            return
        except Exception:
            # Whatever is in the files: the broker goes on with the contexts that it has.
            self.failed_reloads += 1
            log.exception("certificates_not_reloaded")
            return
        self.reloads += 1
        log.info("certificates_reloaded", **{name: _day(ms) for name, ms in self.expires_ms.items()})
        self._warn()

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_stamp, self._settings.files.values()))

    def _warn(self) -> None:
        self._expired.clear()
        self._warn_of_expired()
        now_ms = self._clock.now_ms()
        for setting, expires_ms in self.expires_ms.items():
            if now_ms < expires_ms < now_ms + EXPIRY_WARNING_MS:
                file = str(self._settings.files[setting])
                log.warning("certificate_expires_soon", setting=setting, file=file, expires=_day(expires_ms))

    def _warn_of_expired(self) -> None:
        """Report each certificate that has expired, once."""
        now_ms = self._clock.now_ms()
        for setting, expires_ms in self.expires_ms.items():
            if expires_ms <= now_ms and setting not in self._expired:
                self._expired.add(setting)
                file = str(self._settings.files[setting])
                log.warning("certificate_expired", setting=setting, file=file, expired=_day(expires_ms))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _day(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d}"


def _load(settings: TlsSettings) -> _Loaded:
    password = None
    if settings.key_password is not None:
        password = _read("tls.key_password_file", settings.key_password).strip(b"\r\n")
        _check_mode("tls.key_password_file", settings.key_password)
    _check_pair(settings, password)
    expires_ms = {"tls.certificate": min(_expiries("tls.certificate", settings.certificate))}
    if settings.client_ca is not None:
        expires_ms["tls.client_ca"] = min(_expiries("tls.client_ca", settings.client_ca))
    if settings.crl is not None and (update_ms := _next_update(settings.crl)) is not None:
        expires_ms["tls.crl"] = update_ms
    modes = [ClientCertificates.NONE]
    if settings.client_ca is not None:
        modes += [ClientCertificates.REQUESTED, ClientCertificates.REQUIRED]
    servers = {
        (mode, protocol): _server(settings, password, mode, protocol)
        for mode in modes
        for protocol in ("", HTTP2)
    }
    peer = None if settings.client_ca is None else _peer(settings, password)
    return _Loaded(servers, peer, expires_ms)


def _server(
    settings: TlsSettings, password: bytes | None, mode: ClientCertificates, protocol: str
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if protocol:
        context.set_alpn_protocols([protocol])
    context.options |= ssl.OP_NO_RENEGOTIATION
    _fill(context, settings, password)
    # OpenSSL's default is two, and each takes a seventh of the time of a handshake.
    context.num_tickets = 1
    if mode is not ClientCertificates.NONE:
        required = mode is ClientCertificates.REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        _trust(context, settings)
        # A resumed session would not look at the certificate again, which may be revoked meanwhile.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def _peer(settings: TlsSettings, password: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _fill(context, settings, password)
    _trust(context, settings)
    return context


def _fill(context: ssl.SSLContext, settings: TlsSettings, password: bytes | None) -> None:
    context.minimum_version = _VERSIONS[settings.min_version]
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(settings.certificate, settings.key, lambda: password or b"-")
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"tls.certificate and tls.key: {error}") from None


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    assert settings.client_ca is not None
    try:
        context.load_verify_locations(settings.client_ca)
    except OSError as error:
        raise InvalidConfig(f"tls.client_ca {settings.client_ca}: {error}") from None
    if settings.crl is not None:
        try:
            context.load_verify_locations(settings.crl)
        except OSError as error:
            raise InvalidConfig(f"tls.crl {settings.crl}: {error}") from None
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidConfig(f"{setting} {path} cannot be read: {error.strerror}") from None


def _check_mode(setting: str, path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidConfig(f"{setting} {path} cannot be read: {error.strerror}") from None
    if mode & _EXPOSED:
        raise InvalidConfig(
            f"{setting} {path} can be read or changed by other users of this machine; run chmod 600 {path}"
        )


def _check_pair(settings: TlsSettings, password: bytes | None) -> None:
    """Raise InvalidConfig unless the key is readable and belongs to the first certificate of the chain."""
    # Imported here: it takes 100 ms, and only brokers with TLS need it.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    name, path = "tls.key", settings.key
    text = _read(name, path)
    _check_mode(name, path)
    try:
        key = load_pem_private_key(text, password)
    except TypeError:
        has = (
            "has no password, and tls.key_password_file is set" if password else "needs tls.key_password_file"
        )
        raise InvalidConfig(f"{name} {path} {has}") from None
    except ValueError:
        reason = "is not a private key in PEM format"
        if password is not None and b"ENCRYPTED" in text:
            reason = "cannot be decrypted with the password in tls.key_password_file"
        raise InvalidConfig(f"{name} {path} {reason}") from None
    except UnsupportedAlgorithm as error:
        raise InvalidConfig(f"{name} {path} has an algorithm that is not supported: {error}") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    certificate = _certificates("tls.certificate", settings.certificate)[0]
    try:
        certified = certificate.public_key().public_bytes(*form)
    except (UnsupportedAlgorithm, ValueError) as error:
        raise InvalidConfig(
            f"tls.certificate {settings.certificate} has a public key that is not supported: {error}"
        ) from None
    if certified != key.public_key().public_bytes(*form):
        raise InvalidConfig(
            f"tls.key {path} does not belong to the first certificate in "
            f"tls.certificate {settings.certificate}"
        )


def _certificates(setting: str, path: Path) -> list[Any]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(_read(setting, path))
    except ValueError:
        raise InvalidConfig(f"{setting} {path} contains no certificate in PEM format") from None


def _expiries(setting: str, path: Path) -> Iterator[int]:
    for certificate in _certificates(setting, path):
        yield int(certificate.not_valid_after_utc.timestamp() * 1000)


def _next_update(path: Path) -> int | None:
    from cryptography import x509

    try:
        found = x509.load_pem_x509_crl(_read("tls.crl", path)).next_update_utc
    except ValueError:
        raise InvalidConfig(f"tls.crl {path} is not a revocation list in PEM format") from None
    return None if found is None else int(found.timestamp() * 1000)


def expiry_ms(certificate: Mapping[str, Any]) -> int:
    """Return when a verified certificate expires."""
    return ssl.cert_time_to_seconds(certificate["notAfter"]) * 1000
