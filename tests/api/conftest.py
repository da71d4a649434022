"""Event loops of the tests of APIs: asyncio's, or those that a module names in LOOP_FACTORIES."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

_ASYNCIO: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}


def pytest_asyncio_loop_factories(
    item: pytest.Function,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return getattr(item.module, "LOOP_FACTORIES", _ASYNCIO)
