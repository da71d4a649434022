"""Resolves the broker of a command from options, environment, contexts and defaults.

There are two addresses, of the HTTP API and of the Kafka API. Each is taken from the source with the
highest precedence. If the HTTP address has a higher precedence than the Kafka address, the Kafka address
must belong to the same broker and is requested over HTTP.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path

from .contexts import Context, Contexts, file_of, read

DEFAULT_BROKER = "127.0.0.1:9092"
BROKER_VARIABLE = "ALPACACTL_BROKER"
DEFAULT_HTTP = "127.0.0.1:8080"
HTTP_VARIABLE = "ALPACACTL_HTTP"
ADDRESS_VARIABLE = "ALPACAMQ_ADDRESS"


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
        self, *, broker: str | None, http: str | None, context: str | None, environ: Mapping[str, str]
    ) -> None:
        self._broker = broker
        self._http = http
        self._chosen = context
        self._environ = environ

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
        name = self.context_name
        context = Context() if name is None else self.contexts.by_name[name]
        address = context.http if key == "http" else context.broker
        return AddressSource(address=address or "", precedence=precedence, where=f"context {name}")
