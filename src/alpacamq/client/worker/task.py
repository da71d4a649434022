"""Tasks of a worker: a function, the queue whose messages it processes, and what became of them."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from alpacamq.client.messages import Codecs


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A function and the queue whose messages it processes."""

    name: str
    function: Callable[..., Any]
    topic: str
    group: str
    codecs: Codecs[Any]
    concurrency: int
    prefetch: int
    # Deliveries after the first; None for the queue's own limit.
    retries: int | None
    timeout_s: float | None
    visibility_s: float
    start: Literal["earliest", "latest"]
    takes_job: bool

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function; others run in threads."""
        return inspect.iscoroutinefunction(self.function)


@dataclass(slots=True, kw_only=True)
class TaskMetrics:
    """What became of the messages of a task."""

    task: str
    topic: str
    group: str
    running: int = 0
    succeeded: int = 0
    retried: int = 0
    rejected: int = 0
    timed_out: int = 0
    # Given back at a stop.
    released: int = 0
    # Settlements that failed or whose outcome is unknown; the message may be delivered again.
    unsettled: int = 0
    busy_ms: int = 0

    @property
    def processed(self) -> int:
        """The messages that the function has ended with."""
        return self.succeeded + self.retried + self.rejected


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a function has for the value and, perhaps, the job. Raises ValueError."""
    parameters = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    required = [each for each in parameters if each.default is each.empty]
    if not parameters or len(required) > 2:
        raise ValueError(f"{function.__qualname__} must take a value, and may take the job as well")
    return parameters[: max(1, len(required))]


def value_type_of(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> Any:
    """Return the type of a function's first parameter; bytes if it has none."""
    hints = get_type_hints(function)
    return hints.get(parameters[0].name, bytes)
