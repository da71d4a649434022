"""Long lists a few items at a time, so that other requests get their turn of the event loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from heapq import merge
from itertools import groupby, islice
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 500


async def in_slices(items: Iterable[T], at_once: int = AT_ONCE) -> AsyncIterator[list[T]]:
    """The items in lists of a few, with a turn for others after each."""
    iterator = iter(items)
    while chunk := list(islice(iterator, at_once)):
        yield chunk
        await asyncio.sleep(0)


async def first_names(names: Iterable[str], limit: int, *, prefix: str = "", after: str = "") -> list[str]:
    """The first distinct names in order that begin with `prefix` and come after `after`."""
    runs = [
        sorted(name for name in some if name > after and name.startswith(prefix))
        async for some in in_slices(names)
    ]
    found: list[str] = []
    async for some in in_slices(islice((name for name, _ in groupby(merge(*runs))), limit)):
        found += some
    return found
