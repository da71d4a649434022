"""Principals: who a connection or request acts for."""

from typing import NamedTuple

from alpacamq.model.errors import InvalidPrincipal

USER = "User"
MAX_NAME_LENGTH = 255


class Principal(NamedTuple):
    """A kind and a name, as `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @staticmethod
    def parse(text: str) -> "Principal":
        """Parse `User:alice`. Raises InvalidPrincipal."""
        kind, separator, name = text.partition(":")
        if not (kind and separator and name):
            raise InvalidPrincipal(f"invalid principal {text!r}: must be a type and a name, as in User:alice")
        return Principal(kind, name)


def user(name: str) -> Principal:
    """Return the principal of a user."""
    return Principal(USER, name)


# A client that has not authenticated, where that is allowed.
ANONYMOUS = user("ANONYMOUS")
# In access rules: everyone.
EVERYONE = user("*")


def check_user_name(name: str) -> None:
    """Raise InvalidPrincipal unless `name` can be the name of a user."""
    if not name:
        raise InvalidPrincipal("invalid user name: must not be empty")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidPrincipal(f"invalid user name: at most {MAX_NAME_LENGTH} characters, not {len(name)}")
    if not name.isprintable():
        raise InvalidPrincipal(f"invalid user name {name!r}: control characters are not allowed")
    if name in {ANONYMOUS.name, EVERYONE.name}:
        raise InvalidPrincipal(f"invalid user name: {name} is reserved")
