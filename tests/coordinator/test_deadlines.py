"""Deadlines against a dictionary of them."""

from hypothesis import given
from hypothesis import strategies as st

from alpacamq.coordinator.deadlines import Deadlines

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 20)), max_size=300)


@given(STEPS, st.integers(0, 20))
def test_what_is_due_comes_once_in_order_and_the_rest_stays(
    steps: list[tuple[str, int | None]], now_ms: int
) -> None:
    deadlines = Deadlines()
    model: dict[str, int | None] = {}
    for name, due_ms in steps:
        deadlines.put(name, due_ms)
        model[name] = due_ms
    left = {name: due_ms for name, due_ms in model.items() if due_ms is not None}
    assert deadlines.next_ms == min(left.values(), default=None)
    taken = [*deadlines.take_due(now_ms)]
    due = sorted((due_ms, name) for name, due_ms in left.items() if due_ms <= now_ms)
    assert taken == [name for _, name in due]
    assert deadlines.next_ms == min((each for each in left.values() if each > now_ms), default=None)


def test_a_deadline_that_keeps_moving_costs_bounded_memory() -> None:
    deadlines = Deadlines()
    for due_ms in range(10_000):
        deadlines.put("a", due_ms)
    assert len(deadlines._heap) < 100
