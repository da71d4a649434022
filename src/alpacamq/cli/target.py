"""Which broker is meant, and how we know: options, the environment, contexts, defaults.

There are two addresses, that of the HTTP API and that of the API for Kafka clients. Each is taken
from where it is said most explicitly. Where the HTTP address is said more explicitly than the other,
the other has to be that of the same broker, and is asked for over HTTP.
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


class Rank(IntEnum):
    """How explicitly something was said; what is first counts."""

    OPTION = 0
    CHOSEN_CONTEXT = 1
    VARIABLE = 2
    ADDRESS = 3
    CURRENT_CONTEXT = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An address as it was written, and where."""

    address: str
    rank: Rank
    where: str


class Target:
    """The broker that a command is about."""

    def __init__(
        self, *, broker: str | None, http: str | None, context: str | None, environ: Mapping[str, str]
    ) -> None:
        self._broker = broker
        self._http = http
        self._chosen = context
        self._environ = environ

    @property
    def file(self) -> Path:
        """Where the contexts are kept."""
        return file_of(self._environ)

    @cached_property
    def contexts(self) -> Contexts:
        return read(self.file)

    @cached_property
    def context_name(self) -> str | None:
        """The context that counts, if any."""
        name = self._chosen or self.contexts.current
        if name is not None and name not in self.contexts.by_name:
            from alpacamq.client.errors import NotFound

            said = "" if self._chosen else f" that {self.file} calls the current one,"
            raise NotFound(f"context{said}", name, self.contexts.by_name)
        return name

    @cached_property
    def http(self) -> Said:
        """Where HTTP is spoken."""
        return next(said for said in self._http_said() if said.address)

    @cached_property
    def broker(self) -> Said | None:
        """Where Kafka's protocol is spoken; None if the HTTP API has to be asked."""
        found = next(said for said in self._broker_said() if said.address)
        return None if self.http.rank < found.rank else found

    # Step by step: a file of contexts that is broken matters only where it would count.
    def _http_said(self) -> Iterator[Said]:
        yield Said(address=self._http or "", rank=Rank.OPTION, where="--http")
        if self._chosen:
            yield self._of_context(Rank.CHOSEN_CONTEXT, "http")
        yield self._variable(Rank.VARIABLE, HTTP_VARIABLE)
        yield self._variable(Rank.ADDRESS, ADDRESS_VARIABLE)
        if not self._chosen:
            yield self._of_context(Rank.CURRENT_CONTEXT, "http")
        yield Said(address=DEFAULT_HTTP, rank=Rank.DEFAULT, where="default")

    def _broker_said(self) -> Iterator[Said]:
        yield Said(address=self._broker or "", rank=Rank.OPTION, where="--broker")
        if self._chosen:
            yield self._of_context(Rank.CHOSEN_CONTEXT, "broker")
        yield self._variable(Rank.VARIABLE, BROKER_VARIABLE)
        if not self._chosen:
            yield self._of_context(Rank.CURRENT_CONTEXT, "broker")
        yield Said(address=DEFAULT_BROKER, rank=Rank.DEFAULT, where="default")

    @property
    def is_explicit(self) -> bool:
        """Whether the command line itself says where Kafka's protocol is spoken."""
        return (self.broker or self.http).rank <= Rank.CHOSEN_CONTEXT

    def _variable(self, rank: Rank, name: str) -> Said:
        return Said(address=self._environ.get(name, ""), rank=rank, where=f"${name}")

    def _of_context(self, rank: Rank, key: str) -> Said:
        name = self.context_name
        context = Context() if name is None else self.contexts.by_name[name]
        address = context.http if key == "http" else context.broker
        return Said(address=address or "", rank=rank, where=f"context {name}")
