"""The lines of the broker that serve a request: two requests that run the same ones take the same time.

Wall clocks are too noisy to show that an answer does not depend on what exists; the path to it is exact.
"""

import sys
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from types import FrameType, coroutine
from typing import Any, TypeVar

import pytest

import alpacamq
from alpacamq.model.version import is_compiled

T = TypeVar("T")

_PACKAGE = str(Path(alpacamq.__file__).parent)
# What they do depends on how long a request takes.
_TIMED = (str(Path(_PACKAGE) / "telemetry"), str(Path(_PACKAGE) / "api" / "kafka" / "turns.py"))


class ExecutedLines:
    """Records the lines, in order, without those of other tasks that run meanwhile."""

    def __init__(self) -> None:
        if is_compiled():
            pytest.skip("compiled functions have no lines that can be traced")
        self.lines: list[tuple[str, int]] = []

    def during(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function, and record it."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return function(*arguments)
        finally:
            sys.settrace(before)

    @coroutine
    def awaiting(self, work: Awaitable[T]) -> Generator[Any, Any, T]:
        """Await something, and record what it executes itself."""
        steps = _awaited(work).__await__()
        advance: Callable[..., Any] = steps.__next__
        arguments: tuple[Any, ...] = ()
        while True:
            try:
                waited_for = self.during(advance, *arguments)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                yield waited_for
                advance, arguments = steps.__next__, ()
            except BaseException as raised:  # noqa: BLE001 - for the work to handle
                advance, arguments = steps.throw, (raised,)

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE) or name.startswith(_TIMED):
            return None
        if event == "line":
            self.lines.append((name[len(_PACKAGE) + 1 :], frame.f_lineno))
        return self._trace


async def _awaited(work: Awaitable[T]) -> T:
    """Await what may be a coroutine that is made of a generator."""
    return await work
