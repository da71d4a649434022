"""Resolves the broker of a command, and its user, from options, environment, contexts and defaults.

There are two addresses, of the HTTP API and of the Kafka API. Each is taken from the source with the
highest precedence. If the HTTP address has a higher precedence than the Kafka address, the Kafka address
must belong to the same broker and is requested over HTTP. The user and the password are taken in the same
order, and so is TLS; those of the current context are used only for the broker of this context.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .contexts import Context, Contexts, file_of, read
from .parsing import UsageError
from .passwords import ask_password, read_password

if TYPE_CHECKING:
    from alpacamq.client.connect import Tls
    from alpacamq.client.kafka.connection import Login

DEFAULT_BROKER = "127.0.0.1:9092"
BROKER_VARIABLE = "ALPACACTL_BROKER"
DEFAULT_HTTP = "127.0.0.1:8080"
HTTP_VARIABLE = "ALPACACTL_HTTP"
ADDRESS_VARIABLE = "ALPACAMQ_ADDRESS"
USER_VARIABLE = "ALPACAMQ_USER"
PASSWORD_VARIABLE = "ALPACAMQ_PASSWORD"  # noqa: S105 - the name of a variable
TLS_VARIABLE = "ALPACAMQ_TLS"
CA_VARIABLE = "ALPACAMQ_CA"
CERT_VARIABLE = "ALPACAMQ_CERT"
KEY_VARIABLE = "ALPACAMQ_KEY"
_YES = ("1", "true", "yes")
_NO = ("", "0", "false", "no")
_HTTPS = "https://"


class Precedence(IntEnum):
    """Precedence of the sources of an address, highest first."""

    OPTION = 0
    CHOSEN_CONTEXT = 1
    VARIABLE = 2
    ADDRESS = 3
    CURRENT_CONTEXT = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressSource:
    """An address and its source."""

    address: str
    precedence: Precedence
    where: str


class Target:
    """The broker that a command uses."""

    def __init__(
        self,
        *,
        broker: str | None,
        http: str | None,
        context: str | None,
        environ: Mapping[str, str],
        user: str | None = None,
        password_file: str | None = None,
        mechanism: str | None = None,
        tls: bool = False,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        self._broker = broker
        self._http = http
        self._chosen = context
        self._environ = environ
        self._user = user
        self._password_file = password_file
        self._mechanism = mechanism
        self._tls = tls
        self._files = {"ca": ca, "cert": cert, "key": key}

    @property
    def file(self) -> Path:
        """Path of the contexts file."""
        return file_of(self._environ)

    @cached_property
    def contexts(self) -> Contexts:
        return read(self.file)

    @cached_property
    def context_name(self) -> str | None:
        """Name of the effective context, if any."""
        name = self._chosen or self.contexts.current
        if name is not None and name not in self.contexts.by_name:
            from alpacamq.client.errors import NotFound

            said = "" if self._chosen else f" (current in {self.file})"
            raise NotFound(f"context{said}", name, self.contexts.by_name)
        return name

    @cached_property
    def http(self) -> AddressSource:
        """Address of the HTTP API."""
        return next(said for said in self._http_sources() if said.address)

    @cached_property
    def broker(self) -> AddressSource | None:
        """Address of the Kafka API; None if it has to be requested over HTTP."""
        found = next(said for said in self._broker_sources() if said.address)
        return None if self.http.precedence < found.precedence else found

    @cached_property
    def user(self) -> str | None:
        """Name of the user, if the command has one."""
        return self.user_source[0]

    @property
    def user_source(self) -> tuple[str | None, str]:
        """Name of the user and its source."""
        if self._user:
            return self._user, "--user"
        of_context = self._login_context.user
        if self._chosen and of_context:
            return of_context, f"context {self.context_name}"
        if said := self._environ.get(USER_VARIABLE):
            return said, f"${USER_VARIABLE}"
        return of_context, f"context {self.context_name}" if of_context else "default"

    @cached_property
    def login(self) -> "Login | None":
        """The user and its password; None if the command has no user."""
        from alpacamq.client.kafka.connection import DEFAULT_MECHANISM, Login

        if self.user is None:
            if self._password_file:
                raise UsageError("--password-file needs --user NAME")
            return None
        mechanism = self._mechanism or self._login_context.mechanism or DEFAULT_MECHANISM
        return Login(user=self.user, password=self._password(self.user), mechanism=mechanism)

    @cached_property
    def tls(self) -> "Tls | None":
        """TLS of the Kafka API, and of the HTTP API unless its URL says http://; None if it is not used."""
        from alpacamq.client.connect import Tls

        files = self._tls_files()
        if files["key"] and not files["cert"]:
            raise UsageError(
                "--key needs --cert FILE: it is the private key of a certificate, not a record's key"
            )
        said = self._environ.get(TLS_VARIABLE, "").lower()
        if said not in _YES + _NO:
            raise UsageError(f"${TLS_VARIABLE} must be true or false, not {said!r}")
        is_wanted = self._tls or any(files.values()) or said in _YES or self._login_context.tls == "true"
        return Tls(ca=files["ca"], certificate=files["cert"], key=files["key"]) if is_wanted else None

    @property
    def http_tls(self) -> "Tls | None":
        """TLS of the HTTP API."""
        if not self.http.address.startswith(_HTTPS):
            return None if self.http.address.startswith("http://") else self.tls
        from alpacamq.client.connect import Tls

        return self.tls or Tls()

    @property
    def tls_source(self) -> str:
        """What decides that TLS is used."""
        if self._tls or any(self._files.values()):
            return "--tls" if self._tls else "--ca or --cert"
        context = self._login_context
        if context.tls or context.ca or context.cert:
            return f"context {self.context_name}"
        names = (TLS_VARIABLE, CA_VARIABLE, CERT_VARIABLE)
        return next((f"${name}" for name in names if self._environ.get(name)), "default")

    def _tls_files(self) -> Mapping[str, str | None]:
        """Return the files of certificates. A certificate and its key come from the same source."""
        context = self._login_context
        stored = {"ca": context.ca, "cert": context.cert, "key": context.key}
        variables = {"ca": CA_VARIABLE, "cert": CERT_VARIABLE, "key": KEY_VARIABLE}
        environ = {name: self._environ.get(variable) for name, variable in variables.items()}
        sources = (self._files, stored, environ) if self._chosen else (self._files, environ, stored)
        own = next((each for each in sources if each["cert"]), self._files)
        return {
            "ca": next((each["ca"] for each in sources if each["ca"]), None),
            "cert": own["cert"] or None,
            "key": own["key"] or None,
        }

    @property
    def password_file(self) -> str | None:
        """Path of the file with the password of the user, if it is in one."""
        context = self._login_context
        return self._password_file or (context.password_file if context.user == self.user else None)

    @property
    def _login_context(self) -> Context:
        """The context whose user and password are used; an empty one if they are of another broker."""
        is_its_broker = (self.broker or self.http).precedence >= Precedence.CURRENT_CONTEXT
        return self._context if self._chosen or is_its_broker else Context()

    def _password(self, user: str) -> str:
        if self._password_file:
            return read_password(self._password_file, "--password-file")
        context = self._login_context
        kept = context.password_file if context.user == user else None
        if kept and self._chosen:
            return read_password(kept, f"context {self.context_name}")
        if said := self._environ.get(PASSWORD_VARIABLE):
            return said
        if kept:
            return read_password(kept, f"context {self.context_name}")
        return ask_password(
            f"Password of {user}: ",
            f"no password for user {user}: use --password-file FILE or ${PASSWORD_VARIABLE}",
        )

    # Lazily: a broken contexts file matters only if it would be used.
    def _http_sources(self) -> Iterator[AddressSource]:
        yield AddressSource(address=self._http or "", precedence=Precedence.OPTION, where="--http")
        if self._chosen:
            yield self._of_context(Precedence.CHOSEN_CONTEXT, "http")
        yield self._variable(Precedence.VARIABLE, HTTP_VARIABLE)
        yield self._variable(Precedence.ADDRESS, ADDRESS_VARIABLE)
        if not self._chosen:
            yield self._of_context(Precedence.CURRENT_CONTEXT, "http")
        yield AddressSource(address=DEFAULT_HTTP, precedence=Precedence.DEFAULT, where="default")

    def _broker_sources(self) -> Iterator[AddressSource]:
        yield AddressSource(address=self._broker or "", precedence=Precedence.OPTION, where="--broker")
        if self._chosen:
            yield self._of_context(Precedence.CHOSEN_CONTEXT, "broker")
        yield self._variable(Precedence.VARIABLE, BROKER_VARIABLE)
        if not self._chosen:
            yield self._of_context(Precedence.CURRENT_CONTEXT, "broker")
        yield AddressSource(address=DEFAULT_BROKER, precedence=Precedence.DEFAULT, where="default")

    @property
    def is_explicit(self) -> bool:
        """Whether the command line itself determines the Kafka address."""
        return (self.broker or self.http).precedence <= Precedence.CHOSEN_CONTEXT

    def _variable(self, precedence: Precedence, name: str) -> AddressSource:
        return AddressSource(address=self._environ.get(name, ""), precedence=precedence, where=f"${name}")

    def _of_context(self, precedence: Precedence, key: str) -> AddressSource:
        address = self._context.http if key == "http" else self._context.broker
        return AddressSource(
            address=address or "", precedence=precedence, where=f"context {self.context_name}"
        )

    @property
    def _context(self) -> Context:
        """The effective context; an empty one if there is none."""
        return Context() if self.context_name is None else self.contexts.by_name[self.context_name]
