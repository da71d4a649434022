"""What can go wrong for a client: nobody answers, or the broker answers with an error."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

from alpacamq.model.errors import AlpacaError

# Part of what a refusal says, and so of this module, too.
from alpacamq.protocol.error_codes import ErrorCode as ErrorCode
from alpacamq.protocol.errors import ProtocolError

T = TypeVar("T")

_PASSING = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Unreachable(AlpacaError):
    """No broker answers at an address, or it stopped answering; says what to look at."""


class NotFound(AlpacaError):
    """There is nothing of this name; suggests names that are near."""

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
    def is_passing(self) -> bool:
        """Whether the same request may well succeed in a moment."""
        return self.code in _PASSING


def only(about: str, answers: Sequence[T]) -> T:
    """The answer to a question about one thing; a broker that gives none or several is not to be trusted."""
    if len(answers) != 1:
        raise ProtocolError(f"{about}: {len(answers)} answers where one was expected")
    return answers[0]


def check(about: str, code: int, message: str | None = None) -> None:
    """Raise what the broker says went wrong with `about`, if anything did."""
    if code != ErrorCode.NONE:
        raise Refused(about, code, message)
