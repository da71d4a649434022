"""Errors of the clients: no broker answers, or the broker answers with an error."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

from alpacamq.model.errors import AlpacaError

# Re-exported as part of Refused.
from alpacamq.protocol.error_codes import ErrorCode as ErrorCode
from alpacamq.protocol.errors import ProtocolError

T = TypeVar("T")

_PASSING = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        # A new leader does not know yet how far its followers are.
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        # Brokers of the cluster are missing, or do not answer the one that was asked.
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class UnusableCertificate(AlpacaError):
    """A file of certificates or keys of this client cannot be used."""


class Unreachable(AlpacaError):
    """No broker answers at an address, or it stopped answering; the message says what to check."""


class NotFound(AlpacaError):
    """An object does not exist; the message suggests similar names."""

    def __init__(self, kind: str, name: str, known: Iterable[str] = ()) -> None:
        near = get_close_matches(name, list(known), n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        super().__init__(f"there is no {kind} {name!r}{hint}")


class Refused(AlpacaError):
    """The broker answered with an error."""

    def __init__(self, about: str, code: int, message: str | None = None) -> None:
        try:
            self.code = ErrorCode(code)
            self.name = self.code.name
        except ValueError:
            self.code = ErrorCode.UNKNOWN_SERVER_ERROR
            self.name = f"error {code}"
        super().__init__(f"{about}: {self.name}{f': {message}' if message else ''}")

    @property
    def is_transient(self) -> bool:
        """Whether the error is transient and the request can be retried."""
        return self.code in _PASSING


def only(about: str, answers: Sequence[T]) -> T:
    """Return the single result of a response; ProtocolError if there are none or several."""
    if len(answers) != 1:
        raise ProtocolError(f"{about}: expected one result, got {len(answers)}")
    return answers[0]


def check(about: str, code: int, message: str | None = None) -> None:
    """Raise Refused if the error code is not 0; `about` is the operation."""
    if code != ErrorCode.NONE:
        raise Refused(about, code, message)
