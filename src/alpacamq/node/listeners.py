"""Sections [tls] and [listeners.NAME]: the listeners of all APIs, their certificates and their clients."""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from alpacamq.api.kafka.sasl import MECHANISMS, PLAIN
from alpacamq.api.listening import ListenerSettings, Network
from alpacamq.api.tls import Handshakes, ListenerTls
from alpacamq.broker.tls import HTTP2, Certificates, ClientCertificates, TlsSettings, TlsVersion
from alpacamq.model.address import Address
from alpacamq.model.errors import InvalidConfig
from alpacamq.security import oauth
from alpacamq.security.certificates import DEFAULT, PrincipalRules
from alpacamq.telemetry.logs import get_logger

from .options import ConfigError
from .security import SecurityConfig, is_loopback

log = get_logger(__name__)

# Names of the listeners that have sections of their own.
RESERVED_NAMES = ("kafka", "http", "sqs", "registry", "grpc", "cluster")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[tls]: certificates, for every listener with tls = true. Files are read again when they change."""

    certificate: Annotated[
        Path | None,
        Meta(
            title="the path of a file",
            description="Certificate of this node in PEM format, followed by the intermediate ones.",
        ),
    ] = None
    key: Annotated[
        Path | None,
        Meta(
            title="the path of a file",
            description="Private key of the certificate in PEM format. Only its owner and group may be able "
            "to read it.",
        ),
    ] = None
    key_password_file: Annotated[
        Path | None,
        Meta(title="the path of a file", description="File with the password of the key, if it has one."),
    ] = None
    client_ca: Annotated[
        Path | None,
        Meta(
            title="the path of a file",
            description="Certificates of the authorities that sign those of clients, in PEM format.",
        ),
    ] = None
    crl: Annotated[
        Path | None,
        Meta(
            title="the path of a file",
            description="Revocation list of the authority that signs the certificates of clients, in PEM "
            "format. Clients are refused once it has expired.",
        ),
    ] = None
    min_version: Annotated[TlsVersion, Meta(description="Lowest version of TLS that is accepted.")] = (
        TlsVersion.TLS_1_2
    )
    principal_rules: Annotated[
        str,
        Meta(
            title="rules separated by commas",
            description="How the name of a client's certificate becomes a user name, as Kafka's "
            "`ssl.principal.mapping.rules`: DEFAULT is the whole name, as `User:CN=alice,O=Example`; "
            "`RULE:pattern/replacement/` replaces names that match, with L or U behind it in lower or upper "
            "case. The first rule that matches decides; a client that none matches is refused.",
        ),
    ] = DEFAULT


class ListenerApi(StrEnum):
    """The API of a listener."""

    KAFKA = "kafka"
    HTTP = "http"
    SQS = "sqs"
    REGISTRY = "registry"
    GRPC = "grpc"


class ListenerAuthentication(StrEnum):
    """Whether clients of a listener must authenticate."""

    DEFAULT = "default"
    REQUIRED = "required"
    NONE = "none"


_AUTHENTICATION = {
    ListenerAuthentication.DEFAULT: None,
    ListenerAuthentication.REQUIRED: True,
    ListenerAuthentication.NONE: False,
}


class ListenerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[listeners.NAME]: a further listener of an API. Names are lower case letters, digits and `_`."""

    api: Annotated[ListenerApi, Meta(description="The API of the listener.")] = ListenerApi.KAFKA
    listen: Annotated[
        Address | None,
        Meta(description="Address to listen on; required. Port 0 selects a free port."),
    ] = None
    advertised: Annotated[
        Address | None,
        Meta(
            description="Address that clients of this listener connect to, if it differs from the listening "
            "address. Kafka clients get the addresses that all brokers advertise for the listener of this "
            "name; that of kafka.listen from a broker that has none."
        ),
    ] = None
    tls: Annotated[bool, Meta(description="Whether connections use TLS; needs section [tls].")] = False
    client_certificates: Annotated[
        ClientCertificates,
        Meta(
            description="Whether clients present a certificate, which needs tls.client_ca: it authenticates "
            "them, unless they log in as another user."
        ),
    ] = ClientCertificates.NONE
    authentication: Annotated[
        ListenerAuthentication,
        Meta(
            description="Whether clients of this listener must authenticate, if it differs from "
            "security.authentication."
        ),
    ] = ListenerAuthentication.DEFAULT
    mechanisms: Annotated[
        tuple[str, ...],
        Meta(
            title="a list of SASL mechanisms",
            description="SASL mechanisms that Kafka clients may use on this listener. Empty: all.",
        ),
    ] = ()
    allow: Annotated[
        tuple[str, ...],
        Meta(
            title="a list of networks, as 10.0.0.0/8",
            description="Networks whose clients are served; connections from others are closed. Empty: all.",
        ),
    ] = ()

    def must_authenticate(self, security: SecurityConfig) -> bool:
        """Return whether every client authenticates: by credentials, or by a certificate."""
        own = _AUTHENTICATION[self.authentication]
        return self.client_certificates is ClientCertificates.REQUIRED or (
            security.authentication if own is None else own
        )

    def advertised_for(self, bound: Address, host_name: str) -> Address:
        """Return the advertised address of a listener bound to `bound` on the machine `host_name`."""
        if self.advertised is not None:
            return Address(self.advertised.host, self.advertised.port or bound.port)
        assert self.listen is not None, "checked with the configuration"
        return Address(host_name if bound.is_wildcard else self.listen.host, bound.port)


class NamedListener(NamedTuple):
    """A listener, and the section of the configuration that it is in."""

    name: str
    section: str
    config: ListenerConfig

    @property
    def address(self) -> Address:
        assert self.config.listen is not None, "checked with the configuration"
        return self.config.listen


def is_listener_name(name: str) -> bool:
    """Return whether a table [listeners.NAME] may have this name."""
    return _NAME.fullmatch(name) is not None and name not in RESERVED_NAMES


def check_tls(tls: TlsConfig, listeners: Iterable[NamedListener]) -> None:
    """Raise ConfigError for listeners that cannot be opened as configured. Reads no files."""
    if (tls.certificate is None) != (tls.key is None):
        raise ConfigError("tls.certificate and tls.key must be set together")
    if tls.crl is not None and tls.client_ca is None:
        raise ConfigError("tls.crl is set, and tls.client_ca is not")
    try:
        PrincipalRules(tls.principal_rules)
    except InvalidConfig as error:
        raise ConfigError(f"tls.principal_rules: {error}") from None
    for listener in listeners:
        _check_listener(tls, listener.section, listener.config)


def _check_listener(tls: TlsConfig, section: str, config: ListenerConfig) -> None:
    if config.listen is None:
        raise ConfigError(f"{section}.listen is missing")
    if config.tls and tls.certificate is None:
        raise ConfigError(f"{section}.tls is true: set tls.certificate and tls.key")
    if config.client_certificates is not ClientCertificates.NONE:
        setting = f"{section}.client_certificates is {config.client_certificates}"
        if not config.tls:
            raise ConfigError(f"{setting}: set {section}.tls = true")
        if tls.client_ca is None:
            raise ConfigError(f"{setting}: set tls.client_ca")
    if config.mechanisms and config.api is not ListenerApi.KAFKA:
        raise ConfigError(f"{section}.mechanisms is for Kafka clients, and {section}.api is {config.api}")
    for mechanism in config.mechanisms:
        if mechanism not in MECHANISMS:
            raise ConfigError(f"{section}.mechanisms: {mechanism!r} is not one of {', '.join(MECHANISMS)}")
    _networks(section, config)


def check_mechanisms(security: SecurityConfig, listeners: Iterable[NamedListener]) -> None:
    """Raise ConfigError for listeners with OAUTHBEARER without a provider of bearer tokens."""
    if security.has_token_provider:
        return
    for listener in listeners:
        if oauth.MECHANISM in listener.config.mechanisms:
            raise ConfigError(
                f"{listener.section}.mechanisms has {oauth.MECHANISM}: set security.jwks_url or "
                "security.jwks_file"
            )


def _networks(section: str, config: ListenerConfig) -> tuple[Network, ...]:
    try:
        return tuple(map(ip_network, config.allow))
    except ValueError as error:
        raise ConfigError(f"{section}.allow: {error}") from None


def tls_settings(config: TlsConfig) -> TlsSettings | None:
    """Return the files of the section; None if there is no certificate."""
    if config.certificate is None or config.key is None:
        return None
    return TlsSettings(
        certificate=config.certificate,
        key=config.key,
        key_password=config.key_password_file,
        client_ca=config.client_ca,
        crl=config.crl,
        min_version=config.min_version,
        principal_rules=config.principal_rules,
    )


def listener_settings(
    listener: NamedListener, certificates: Certificates | None, handshakes: Handshakes, remedy: str = ""
) -> ListenerSettings:
    """Build the settings of a listener from its section."""
    config = listener.config
    tls = None
    if config.tls:
        assert certificates is not None, "checked with the configuration"
        tls = ListenerTls(
            certificates=certificates,
            handshakes=handshakes,
            client_certificates=config.client_certificates,
            protocol=HTTP2 if config.api is ListenerApi.GRPC else "",
        )
    return ListenerSettings(
        name=listener.name,
        address=listener.address,
        tls=tls,
        allow=_networks(listener.section, config),
        authentication=_AUTHENTICATION[config.authentication],
        mechanisms=config.mechanisms,
        remedy=remedy or f"change {listener.section}.listen",
    )


def warn_of_plain_passwords(security: SecurityConfig, listeners: Sequence[NamedListener]) -> None:
    """Log the listeners on which clients of other machines send passwords or keys in clear text."""
    for listener in listeners:
        config = listener.config
        if _AUTHENTICATION[config.authentication] is False or not config.must_authenticate(security):
            continue
        mechanisms = config.mechanisms or MECHANISMS
        sends_passwords = config.api is not ListenerApi.KAFKA or PLAIN in mechanisms
        if sends_passwords and not config.tls and not is_loopback(listener.address):
            log.warning(
                "passwords_without_tls",
                listener=listener.name,
                address=str(listener.address),
                remedy=f"set {listener.section}.tls = true",
            )
