"""What a Python worker of Spark keeps from one task to the next."""

import gc
from collections.abc import Iterator

import pytest

from alpacamq_spark import worker


@pytest.fixture
def collector() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_garbage_collections_skip_what_is_loaded() -> None:
    worker.skip_modules_in_collections()
    frozen = gc.get_freeze_count()
    assert frozen > 10 * len(gc.get_objects())


@pytest.mark.usefixtures("collector")
def test_what_a_task_leaves_is_still_collected() -> None:
    worker.skip_modules_in_collections()
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    worker.skip_modules_in_collections()
    assert gc.collect() >= 1
