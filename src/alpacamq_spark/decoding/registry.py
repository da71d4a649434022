"""The schema registry of a job: waits while it restarts, and knows which schemas do not exist."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from alpacamq.client.connect import Tls
from alpacamq.client.errors import NotFound, Unreachable
from alpacamq.client.http.connection import Credentials, Problem
from alpacamq.client.http.schemas import (
    LATEST,
    ResolvedSchema,
    SchemaCodec,
    SchemaRegistry,
    SchemaText,
    registry_at,
)
from alpacamq.client.kafka.connection import Login
from alpacamq.model.errors import AlpacaError
from alpacamq.registry.framing import SchemaName
from alpacamq.registry.schema import ParsedSchema
from alpacamq_spark.errors import InvalidOption
from alpacamq_spark.retry import RETRY_TIMEOUT_S, retry

T = TypeVar("T")

_MAX_ID = (1 << 31) - 1
# The answer of older registries, which have no GUIDs.
_UNKNOWN_PATH = "404"
_INCOMPATIBLE = "409"


class RegistryRefused(AlpacaError):
    """A registry answers with an error, or the address is not that of a registry."""


class SchemaRefused(AlpacaError):
    """A registry lacks the schema that values are to be written with, or does not take a new version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAccess:
    """The address of a registry, the user and TLS."""

    url: str
    login: Login | None = field(default=None, repr=False)
    tls: Tls | None = None

    def client(self) -> SchemaRegistry:
        """Return a client, which connects on first use. Raises InvalidOption if the address is no URL."""
        login = self.login
        credentials = None if login is None else Credentials(user=login.user, password=login.password)
        try:
            return registry_at(self.url, self.tls, credentials)
        except ValueError as error:
            raise InvalidOption(f"registry: {error}") from None


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """A version of a subject, and the id of its schema."""

    subject: str
    version: int
    id: int

    def __str__(self) -> str:
        return f"version {self.version} of subject {self.subject}"


class Registry:
    """A schema registry: that of a broker, or any other with Confluent's API."""

    def __init__(self, access: RegistryAccess, timeout_s: float = RETRY_TIMEOUT_S) -> None:
        self._url = access.url
        self._timeout_s = timeout_s
        self._client = access.client()
        self._codec = SchemaCodec(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.__exit__(kind, error, trace)

    def version(self, subject: str, version: int | None = None) -> RegisteredVersion | None:
        """Return a version of a subject, the latest by default; None if it does not exist."""
        found = self._ask(lambda: self._client.version(subject, LATEST if version is None else version))
        if found is None:
            return None
        if found.version is None or found.id is None:
            raise self._refused("a version has no number or id")
        return RegisteredVersion(subject, found.version, found.id)

    def schema(self, name: SchemaName) -> ParsedSchema | None:
        """Return a schema by its id or GUID; None if it, or what it refers to, does not exist.

        Raises InvalidSchema.
        """
        if isinstance(name, int) and name > _MAX_ID:
            return None
        return self._ask(lambda: self._codec.of(name), _UNKNOWN_PATH)

    def resolved(self, schema_id: int) -> ResolvedSchema | None:
        """Return a schema with the texts that it refers to; None if one of them does not exist."""
        return self._ask(lambda: self._codec.resolved(schema_id), _UNKNOWN_PATH)

    def register(self, subject: str, text: SchemaText) -> int:
        """Register a schema, if the subject does not have it yet, and return its id. Raises SchemaRefused."""
        try:
            found = self._ask(lambda: self._client.register(subject, text))
        except RegistryRefused as error:
            problem = error.__cause__
            if not isinstance(problem, Problem):
                raise
            raise SchemaRefused(self._reasons(subject, text, problem)) from None
        if found is None:
            raise SchemaRefused(f"the schema registry does not know subject {subject}")
        return found

    def _reasons(self, subject: str, text: SchemaText, problem: Problem) -> str:
        """Return why a schema was not registered."""
        said = f"the schema registry does not register the schema of the columns for subject {subject}: "
        if not problem.kind.startswith(_INCOMPATIBLE):
            return f"{said}{problem}"
        answer = self._ask(lambda: self._client.check(subject, text))
        reasons = () if answer is None else answer.messages
        return said + (" ".join(" ".join(reasons).split()) or str(problem))

    def _ask(self, request: Callable[[], T], missing: str | None = None) -> T | None:
        """Send a request; None if what it names, or by the code `missing` its path, does not exist."""

        def attempt() -> T | None:
            try:
                return request()
            except NotFound:
                return None
            except Problem as problem:
                if problem.kind == missing:
                    return None
                if problem.kind.startswith("5"):
                    raise Unreachable(f"the schema registry at {self._url} fails: {problem}") from problem
                raise self._refused(str(problem)) from problem

        return retry(attempt, self._timeout_s)

    def _refused(self, reason: str) -> RegistryRefused:
        return RegistryRefused(
            f"the schema registry at {self._url} answers: {reason}. The registry of a broker is at "
            "http://HOST:8080/schemas, or on its listener [registry]"
        )
