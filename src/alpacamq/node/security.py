"""Section [security], and the users file."""

import secrets
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.broker.access import SecuritySettings
from alpacamq.model.address import Address
from alpacamq.model.errors import InvalidPrincipal
from alpacamq.security.principals import Principal, check_user_name
from alpacamq.security.scram import (
    DEFAULT_ITERATIONS,
    MAX_PASSWORD_BYTES,
    SALT_BYTES,
    Mechanism,
    credential_of,
    salted_password,
)
from alpacamq.security.users import User

from .options import ConfigError

# Bits of a file's mode that let other users of the machine read it.
_READABLE_BY_OTHERS = 0o077


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


def check_listeners(config: SecurityConfig, listeners: Mapping[str, Address]) -> None:
    """Raise ConfigError if other machines can reach a listener without authentication."""
    if config.authentication or config.allow_anonymous:
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
    """Build the settings from the section; reads the users file."""
    return SecuritySettings(
        authentication=config.authentication,
        acls=config.acls,
        super_users=tuple(map(Principal.parse, config.super_users)),
        users={} if config.users_file is None else read_users(config.users_file),
        session_lifetime_ms=config.session_lifetime_ms,
    )


def read_users(path: Path) -> Mapping[str, User]:
    """Read a users file. Raises ConfigError."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"security.users_file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"security.users_file {path} is not UTF-8 text") from None
    if mode & _READABLE_BY_OTHERS:
        raise ConfigError(
            f"security.users_file {path} can be read by other users of this machine; run chmod 600 {path}"
        )
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
    return User(
        name=name,
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
