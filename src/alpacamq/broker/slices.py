"""Iterates over long lists in slices, and yields to the event loop between them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from heapq import merge
from itertools import groupby, islice
from typing import TypeVar

T = TypeVar("T")

SLICE_ITEMS = 500


async def in_slices(items: Iterable[T], size: int = SLICE_ITEMS) -> AsyncIterator[list[T]]:
    """Yield the items in lists of `size`, with a turn of the event loop after each."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
        await asyncio.sleep(0)


async def first_names(names: Iterable[str], limit: int, *, prefix: str = "", after: str = "") -> list[str]:
    """Return the first distinct names in order that begin with `prefix` and sort after `after`."""
    runs = [
        sorted(name for name in some if name > after and name.startswith(prefix))
        async for some in in_slices(names)
    ]
    found: list[str] = []
    async for some in in_slices(islice((name for name, _ in groupby(merge(*runs))), limit)):
        found += some
    return found
