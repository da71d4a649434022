"""The client of a request, as it was authenticated."""

from typing import Final

from .api_keys import ApiKey
from .principals import ANONYMOUS, Principal
from .sessions import Session


class Caller:
    """The client of a request: its principal, its address, and how it has authenticated. Does not change."""

    __slots__ = ("host", "is_delegate", "key", "name", "principal", "remaining_ms", "session")

    def __init__(
        self,
        principal: Principal,
        host: str,
        key: ApiKey | None = None,
        session: Session | None = None,
        *,
        remaining_ms: int | None = None,
        is_delegate: bool = False,
    ) -> None:
        self.principal: Final = principal
        self.host: Final = host
        # The API key that it used.
        self.key: Final = key
        # The login of a browser that it belongs to.
        self.session: Final = session
        # The principal as access rules name it.
        self.name: Final = str(principal)
        # How long its token or certificate is still valid; None if it used neither.
        self.remaining_ms: Final = remaining_ms
        # Whether it has authenticated with a delegation token.
        self.is_delegate: Final = is_delegate

    @property
    def key_id(self) -> str:
        """The id of the API key; empty without one."""
        return "" if self.key is None else self.key.id


# A client that has not authenticated, where access rules are not in force and its address does not matter.
ANONYMOUS_CALLER = Caller(ANONYMOUS, "")
