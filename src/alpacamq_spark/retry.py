"""Retries requests while a broker restarts or a leader is elected."""

import time
from collections.abc import Callable
from typing import TypeVar

from alpacamq.client.errors import Refused, Unreachable

T = TypeVar("T")

RETRY_TIMEOUT_S = 60.0
# A broker that never answered probably has another address.
FIRST_CONTACT_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


def retry(request: Callable[[], T], timeout_s: float = RETRY_TIMEOUT_S) -> T:
    """Call `request`, and retry while no broker answers or it is not ready."""
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return request()
        except (Unreachable, Refused) as error:
            if isinstance(error, Refused) and not error.retriable:
                raise
            if time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
