"""An action of the SQS API: its name, what it is asked with, and who performs it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from .requests import Asked
from .results import Answer


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a request came from, as far as what is done for it depends on that."""

    base_url: str  # of queues, as the client reaches us
    peer: str = ""
    traceparent: bytes | None = None  # of the request as a whole


@dataclass(frozen=True, slots=True)
class Action:
    """One entry of the table of actions. `perform` takes a value of the type `asks`."""

    name: str
    asks: type[Asked]
    perform: Callable[[Any, Caller], Awaitable[Answer]]
