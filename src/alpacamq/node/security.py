"""Sections [security] and [audit], and the users file."""

import os
import secrets
import stat
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.broker.access import SecuritySettings
from alpacamq.broker.audit import AuditSettings
from alpacamq.broker.bearer_tokens import KeySource, TokenSettings, check_key_url, read_key_set
from alpacamq.broker.delegation_tokens import DelegationSettings
from alpacamq.model.address import Address
from alpacamq.model.errors import InvalidPrincipal
from alpacamq.model.topics import DAY_MS, INT32_MAX, INT64_MAX, MIB
from alpacamq.security.delegation_tokens import MIN_SECRET_BYTES
from alpacamq.security.oauth import InvalidKeySet, KeySet, TokenRules
from alpacamq.security.principals import Principal, check_user_name
from alpacamq.security.scram import (
    DEFAULT_ITERATIONS,
    MAX_PASSWORD_BYTES,
    SALT_BYTES,
    Mechanism,
    credential_of,
    salted_password,
)
from alpacamq.security.users import FileUser, User

from .options import ConfigError

# Bits of a file's mode that let other users of the machine read it.
_READABLE_BY_OTHERS = 0o077
ROOT = 0


class SecurityConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[security]: authentication of clients, and access rules."""

    authentication: Annotated[
        bool,
        Meta(
            description="Whether clients of every API must authenticate: Kafka clients by SASL, others by "
            "a password or an API key."
        ),
    ] = False
    allow_anonymous: Annotated[
        bool,
        Meta(
            description="Whether listeners that other machines can reach may serve clients that do not "
            "authenticate: anyone who can reach them may then read and delete everything."
        ),
    ] = False
    acls: Annotated[
        bool,
        Meta(
            description="Whether access rules decide what a client may do. Only super_users may do anything "
            "until rules are created."
        ),
    ] = False
    super_users: Annotated[
        tuple[str, ...],
        Meta(
            title="a list of principals, as User:admin",
            description="Principals that may do everything, whatever the access rules say.",
        ),
    ] = ()
    users_file: Annotated[
        Path | None,
        Meta(
            title="the path of a file",
            description="File with a line NAME:PASSWORD for each user that exists before any was created, "
            "such as the first administrator. Only its owner may be able to read it.",
        ),
    ] = None
    session_lifetime_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=2**31 - 1,
            description="How long a Kafka connection is served after its client has authenticated. Then the "
            "client has to authenticate again, on the same connection or a new one. 0: without limit.",
        ),
    ] = 0
    console_idle_ms: Annotated[
        int,
        Meta(
            ge=1000,
            le=2**31 - 1,
            description="A login of the console ends when no page was open for this long.",
        ),
    ] = 30 * 60_000
    console_lifetime_ms: Annotated[
        int, Meta(ge=1000, le=2**31 - 1, description="A login of the console ends after this time.")
    ] = 12 * 3_600_000
    jwks_url: Annotated[
        str,
        Meta(
            title="a URL, https://HOST/PATH",
            description="Where an OAuth provider publishes its keys (JWKS). Bearer tokens (JWT) that they "
            "have signed are accepted by SASL OAUTHBEARER and by the HTTP API. https, with a certificate "
            "that this machine trusts; http only on this machine.",
        ),
    ] = ""
    jwks_file: Annotated[
        Path | None,
        Meta(
            title="the path of a file",
            description="File with the keys, instead of jwks_url. Loaded again when it changes.",
        ),
    ] = None
    jwks_refresh_ms: Annotated[
        int,
        Meta(
            ge=10_000,
            le=INT32_MAX,
            description="How often the keys are read from jwks_url. A token with an unknown key makes them "
            "be read earlier, at most once a minute.",
        ),
    ] = 3_600_000
    jwt_issuer: Annotated[
        str, Meta(title="a string", description="The issuer (iss) of accepted bearer tokens.")
    ] = ""
    jwt_audience: Annotated[
        str,
        Meta(
            title="a string",
            description="The audience (aud) of accepted bearer tokens: the name of this cluster at the "
            "provider. Tokens for other services are refused.",
        ),
    ] = ""
    jwt_principal_claim: Annotated[
        str, Meta(title="a string", description="The claim of a bearer token that names the user.")
    ] = "sub"
    delegation_token_secret_file: Annotated[
        Path | None,
        Meta(
            title="the path of a file",
            description="File with a random text, the same on every node, by which delegation tokens are "
            "made. Only its owner may be able to read it. Without it there are no delegation tokens; "
            "another text ends all of them.",
        ),
    ] = None
    delegation_token_max_lifetime_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT64_MAX >> 1,
            description="How long a delegation token is valid at most, however often it is renewed.",
        ),
    ] = 7 * DAY_MS
    delegation_token_expiry_time_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT64_MAX >> 1,
            description="How long a delegation token is valid after its creation, and after each renewal.",
        ),
    ] = DAY_MS

    @property
    def has_token_provider(self) -> bool:
        """Whether bearer tokens are accepted."""
        return bool(self.jwks_url) or self.jwks_file is not None


class AuditConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[audit]: a log of logins, denied requests and administrative changes."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether logins, denied requests and changes by administrators are recorded, "
            "without message contents or secrets."
        ),
    ] = False
    topic: Annotated[
        bool,
        Meta(description="Whether events are written to the internal topic __audit, for `alpacactl audit`."),
    ] = True
    retention_ms: Annotated[
        int,
        Meta(
            ge=60_000,
            le=2**63 - 1,
            description="Retention of the topic, if the broker creates it.",
        ),
    ] = 90 * DAY_MS
    file: Annotated[
        Path | None,
        Meta(
            title="the path of a file",
            description="File to append events to as lines of JSON. Empty: none. Only its owner can read it.",
        ),
    ] = None
    file_bytes: Annotated[
        int,
        Meta(
            ge=4096,
            le=2**40,
            description="Size from which the file is renamed to NAME.1 and a new one begun.",
        ),
    ] = 10 * MIB
    files: Annotated[
        int, Meta(ge=1, le=1000, description="How many files to keep, the one that is written to included.")
    ] = 10
    reads_and_writes: Annotated[
        bool,
        Meta(
            description="Whether allowed reads and writes of topics and groups are recorded as well: the "
            "first of a client and resource at once, others as their number, once a minute."
        ),
    ] = False


def audit_settings(config: AuditConfig) -> AuditSettings | None:
    """Build the settings from the section; None if nothing is audited."""
    if not config.enabled:
        return None
    return AuditSettings(
        topic=config.topic,
        retention_ms=config.retention_ms,
        file=config.file,
        file_bytes=config.file_bytes,
        files=config.files,
        reads_and_writes=config.reads_and_writes,
    )


def check_audit(config: AuditConfig) -> None:
    """Raise ConfigError if events would be written nowhere."""
    if config.enabled and not config.topic and config.file is None:
        raise ConfigError("audit.enabled is true, and neither audit.topic nor audit.file is set")


def check_security(config: SecurityConfig) -> None:
    """Raise ConfigError for values that do not fit together."""
    for text in config.super_users:
        try:
            Principal.parse(text)
        except InvalidPrincipal as error:
            raise ConfigError(f"security.super_users: {error}") from None
    if config.acls and not config.super_users:
        raise ConfigError(
            "security.acls is true, and security.super_users is empty: no principal could create access rules"
        )
    _check_tokens(config)


def _check_tokens(config: SecurityConfig) -> None:
    if config.jwks_url and config.jwks_file is not None:
        raise ConfigError("security.jwks_url and security.jwks_file are both set; the keys have one source")
    if config.jwks_url:
        try:
            check_key_url(config.jwks_url)
        except ValueError as error:
            raise ConfigError(f"security.jwks_url {config.jwks_url!r}: {error}") from None
    if not config.has_token_provider:
        if config.jwt_issuer or config.jwt_audience:
            raise ConfigError(
                "security.jwt_issuer and security.jwt_audience need security.jwks_url or security.jwks_file"
            )
        return
    for name, value in (
        ("jwt_issuer", config.jwt_issuer),
        ("jwt_audience", config.jwt_audience),
        ("jwt_principal_claim", config.jwt_principal_claim),
    ):
        if not value:
            raise ConfigError(
                f"security.{name} is empty; security.jwks_url and security.jwks_file need it, so that tokens "
                "for other services are not accepted"
            )


def check_listeners(config: SecurityConfig, listeners: Mapping[str, Address]) -> None:
    """Raise ConfigError if other machines can reach one of these listeners, which need no authentication."""
    if config.allow_anonymous:
        return
    for setting, address in listeners.items():
        if not is_loopback(address):
            raise ConfigError(
                f"{setting} ({address}) is reachable from other machines without authentication: set "
                "security.authentication = true and create users with security.users_file, "
                "or set security.allow_anonymous = true"
            )


def is_loopback(address: Address) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ip_address(address.host).is_loopback
    except ValueError:
        return address.host.lower() == "localhost"


def security_settings(config: SecurityConfig) -> SecuritySettings:
    """Build the settings from the section; reads the files that it names."""
    return SecuritySettings(
        authentication=config.authentication,
        acls=config.acls,
        super_users=tuple(map(Principal.parse, config.super_users)),
        users={} if config.users_file is None else read_users(config.users_file),
        session_lifetime_ms=config.session_lifetime_ms,
        console_idle_ms=config.console_idle_ms,
        console_lifetime_ms=config.console_lifetime_ms,
        tokens=_token_settings(config),
        delegation=_delegation_settings(config),
    )


def _token_settings(config: SecurityConfig) -> TokenSettings | None:
    if not config.has_token_provider:
        return None
    if config.jwks_file is not None:
        # Read again when the broker runs; a mistake is better found before.
        try:
            KeySet.parse(read_key_set(config.jwks_file))
        except OSError as error:
            raise ConfigError(
                f"security.jwks_file {config.jwks_file} cannot be read: {error.strerror}"
            ) from None
        except InvalidKeySet as error:
            raise ConfigError(f"security.jwks_file {config.jwks_file}: {error}") from None
    return TokenSettings(
        rules=TokenRules(
            issuer=config.jwt_issuer,
            audience=config.jwt_audience,
            principal_claim=config.jwt_principal_claim,
        ),
        keys=KeySource(file=config.jwks_file, url=config.jwks_url, refresh_ms=config.jwks_refresh_ms),
    )


def _delegation_settings(config: SecurityConfig) -> DelegationSettings | None:
    path = config.delegation_token_secret_file
    if path is None:
        return None
    secret = _read_private(path, "security.delegation_token_secret_file").strip().encode()
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"security.delegation_token_secret_file {path} has {len(secret)} bytes; a secret has at least "
            f"{MIN_SECRET_BYTES} (for example: openssl rand -base64 32 > {path})"
        )
    return DelegationSettings(
        secret=secret,
        max_lifetime_ms=config.delegation_token_max_lifetime_ms,
        expiry_time_ms=config.delegation_token_expiry_time_ms,
    )


def _read_private(path: Path, setting: str) -> str:
    """Read a file that other users must not be able to read. Raises ConfigError."""
    try:
        status = path.stat()
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{setting} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{setting} {path} is not UTF-8 text") from None
    if status.st_mode & _READABLE_BY_OTHERS & ~_may_read(status.st_uid, os.geteuid()):
        raise ConfigError(
            f"{setting} {path} can be read by other users of this machine; run chmod 600 {path}"
        )
    return text


def _may_read(owner: int, own: int) -> int:
    """Return the bits that may be set: files of root may be read as their group, as in Kubernetes."""
    return stat.S_IRGRP if owner == ROOT != own else 0


def read_users(path: Path) -> Mapping[str, User]:
    """Read a users file. Raises ConfigError."""
    text = _read_private(path, "security.users_file")
    users: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        # Errors name the line and not its text, which holds a password.
        place = f"security.users_file {path}, line {number}"
        name, separator, password = line.partition(":")
        if not separator or not password or len(password.encode()) > MAX_PASSWORD_BYTES:
            raise ConfigError(f"{place}: must be NAME:PASSWORD")
        try:
            check_user_name(name)
        except InvalidPrincipal as error:
            raise ConfigError(f"{place}: {error}") from None
        if name in users:
            raise ConfigError(f"{place}: user {name} has a line already")
        users[name] = _user(name, password)
    return users


def _user(name: str, password: str) -> User:
    salt = secrets.token_bytes(SALT_BYTES)
    return FileUser(
        name=name,
        password_hash=salted_password(
            Mechanism.SHA_256, password, f"alpacamq-session/{name}".encode(), DEFAULT_ITERATIONS
        ),
        credentials={
            mechanism: credential_of(
                mechanism,
                salted_password(mechanism, password, salt, DEFAULT_ITERATIONS),
                salt,
                DEFAULT_ITERATIONS,
            )
            for mechanism in Mechanism
        },
    )
