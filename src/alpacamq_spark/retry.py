"""Asking a broker that may be away for a while: a restart or an election is waited for, not failed on."""

import time
from collections.abc import Callable
from typing import TypeVar

from alpacamq.client.errors import Refused, Unreachable

T = TypeVar("T")

PATIENCE_S = 60.0
# Whoever never answered is more likely to have another address.
FIRST_CONTACT_S = 5.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


def persistently(ask: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """What `ask` brings, asked again for a while when no broker answers or it is not ready."""
    deadline = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return ask()
        except (Unreachable, Refused) as error:
            if isinstance(error, Refused) and not error.is_passing:
                raise
            if time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
