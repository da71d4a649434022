"""Polls for a condition with a deadline; the only place where a test sleeps."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = 0.02


def eventually(probe: Callable[[], T], *, within_s: float = 20, what: str = "") -> T:
    """Return the first truthy result of `probe`, or fail with its last one."""
    deadline = time.monotonic() + within_s
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or probe} did not become true within {within_s} s; last: {answer!r}")
        time.sleep(PAUSE_S)


async def until(probe: Callable[[], bool | Awaitable[bool]], *, within_s: float = 30) -> None:
    """Wait in a coroutine until `probe` returns, or awaits to, True."""
    async with asyncio.timeout(within_s):
        while True:
            answer = probe()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(PAUSE_S)
