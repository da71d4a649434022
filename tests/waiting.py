"""Polls for a condition with a deadline; the only place where a test sleeps."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

PAUSE_S = 0.02


def eventually(probe: Callable[[], T], *, within_s: float = 60, what: str = "") -> T:
    """Return the first truthy result of `probe`, or fail with its last one."""
    deadline = time.monotonic() + within_s
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or probe} did not become true within {within_s} s; last: {answer!r}")
        time.sleep(PAUSE_S)


@overload
async def soon(probe: Callable[[], Awaitable[T | None]], *, within_s: float = 60, what: str = "") -> T: ...


@overload
async def soon(probe: Callable[[], T], *, within_s: float = 60, what: str = "") -> T: ...


async def soon(probe: Callable[[], Any], *, within_s: float = 60, what: str = "") -> Any:
    """Return the first truthy result of `probe`, while other tasks run; or fail with its last one."""
    deadline = time.monotonic() + within_s
    while True:
        found = probe()
        answer = await found if isinstance(found, Awaitable) else found
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or probe} did not become true within {within_s} s; last: {answer!r}")
        await asyncio.sleep(PAUSE_S)
