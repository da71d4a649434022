"""An entry of the registry's route table, and a request with what its handler needs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec

from alpacamq.broker.access import Access, Caller
from alpacamq.broker.broker import Broker
from alpacamq.model.errors import AlpacaError
from alpacamq.registry.errors import ConfigNotFound, InvalidSubject
from alpacamq.registry.messages import GetConfig
from alpacamq.registry.subjects import in_context_of, split_subject
from alpacamq.security.acls import Operation, ResourceType

from .names import Names, topic_of_subject

P = TypeVar("P")
B = TypeVar("B")
T = TypeVar("T")
# After so many names of a list, other requests get a turn.
_SLICE = 500


class Nothing(msgspec.Struct, frozen=True):
    """No parameters, or no body."""


class Right(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on the subject of a request: on its topic, or on the cluster if there is no subject."""

    operation: Operation
    # The operation on the cluster, if it is another one.
    on_cluster: Operation | None = None
    # Raised with the subject if the client may not know of it; otherwise the refusal says what is missing.
    hidden_as: Callable[[str], AlpacaError] | None = None
    # Whether it is about the subjects of all tenants.
    is_global: bool = False

    def __str__(self) -> str:
        if self.is_global:
            return f"{self.operation.name} cluster"
        return f"{self.operation.name} topic of the subject"


class Call(Generic[P, B]):
    """A request with parsed parameters and body."""

    __slots__ = ("access", "body", "broker", "caller", "names", "parameters")

    def __init__(self, broker: Broker, caller: Caller, names: Names, parameters: P, body: B) -> None:
        self.broker = broker
        self.access: Access = broker.access
        self.caller = caller
        self.names = names
        self.parameters = parameters
        self.body = body

    @property
    def sees_all(self) -> bool:
        """Whether the client may do everything, so that lists need not be filtered."""
        return not self.access.limits(self.caller)

    def sees(self, stored: str, operation: Operation = Operation.DESCRIBE) -> bool:
        """Return whether the client may know of a subject."""
        topic = topic_of_subject(stored)
        if topic is None or not self.names.is_own(stored):
            return False
        return self.access.sees(self.caller, operation, ResourceType.TOPIC, topic)

    async def visible(self, found: Iterable[T], name_of: Callable[[T], str]) -> list[T]:
        """Return the subjects, or what belongs to them, that the client may know of."""
        if self.sees_all:
            return list(found)
        kept = []
        for index, each in enumerate(found):
            if index % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if self.sees(name_of(each)):
                kept.append(each)
        return kept

    async def check(self, right: Right, scope: str | None) -> None:
        """Raise an error unless the client has a right to a subject, and to the one it is an alias for."""
        if self.sees_all:
            return
        if right.is_global:
            self.access.check_cluster(self.caller, right.operation)
            return
        topic = None if scope is None else topic_of_subject(scope)
        if scope is None or topic is None:
            self.access.check_whole(self.caller, right.on_cluster or right.operation)
            return
        self._check_topic(right, scope, topic)
        if (target := await self._alias_of(scope)) is not None:
            self._check_topic(right, target, topic_of_subject(target) or "")

    def _check_topic(self, right: Right, subject: str, topic: str) -> None:
        kind = ResourceType.TOPIC
        if self.names.is_own(subject) and self.access.may(self.caller, right.operation, kind, topic):
            return
        if right.hidden_as is not None and not self.sees(subject):
            raise right.hidden_as(subject)
        raise self.access.denial(self.caller, right.operation, kind, topic)

    async def _alias_of(self, subject: str) -> str | None:
        try:
            config = await self.broker.registry.ask(GetConfig(subject=subject))
        except (ConfigNotFound, InvalidSubject):
            return None
        return in_context_of(split_subject(subject), config.alias) if config.alias else None


# Returns a value to send as JSON, or a `str` that is sent as it is.
Handler = Callable[[Call[P, B]], Awaitable[object]]


class Route(msgspec.Struct, Generic[P, B], frozen=True, kw_only=True):
    """A method on a path: its parameters, handler and rights.

    Fields of `parameters` that the path contains are read from there, the others from the query; unknown ones
    are ignored, as Confluent's registry does.
    """

    method: str
    path: str
    summary: str
    handler: Handler[P, B]
    parameters: type[P]
    body: Any = Nothing
    # Checked before the handler runs; None if the handler leaves out what the client may not see.
    right: Right | None = None
    # What the handler checks, for readers.
    in_handler: str = ""
    status: HTTPStatus = HTTPStatus.OK

    @property
    def has_effects(self) -> bool:
        return self.method not in ("GET", "HEAD")

    @property
    def path_names(self) -> tuple[str, ...]:
        """The parameters in the path, in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"


AnyRoute = Route[Any, Any]
