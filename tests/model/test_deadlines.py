"""Deadline heaps against simple models."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.deadlines import NO_DEADLINE, Deadlines, NamedDeadlines

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 20)), max_size=300)


@dataclass(slots=True, eq=False)
class Lease:
    due_ms: int


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60), st.integers(0, 60))
def test_due_items_are_taken_in_order_and_removed_items_never(
    plan: list[tuple[int, bool]], now_ms: int
) -> None:
    deadlines: Deadlines[Lease] = Deadlines()
    leases = [Lease(due_ms) for due_ms, _ in plan]
    for lease in leases:
        deadlines.put(lease)
    for lease, (_, is_removed) in zip(leases, plan, strict=True):
        if is_removed:
            deadlines.remove(lease)
            deadlines.remove(lease)
    kept = [due_ms for due_ms, is_removed in plan if not is_removed]
    assert deadlines.next_ms == min(kept, default=None)
    expected = sorted(
        (lease for lease in leases if NO_DEADLINE < lease.due_ms <= now_ms), key=lambda one: one.due_ms
    )
    assert [*deadlines.take_due(now_ms)] == expected
    assert deadlines.next_ms == min((due_ms for due_ms in kept if due_ms > now_ms), default=None)


@given(STEPS, st.integers(0, 20))
def test_due_names_are_taken_once_in_order_and_the_others_stay(
    steps: list[tuple[str, int | None]], now_ms: int
) -> None:
    deadlines = NamedDeadlines()
    model: dict[str, int] = {}  # in the order in which deadlines were set
    for name, due_ms in steps:
        deadlines.put(name, due_ms)
        if model.get(name) != due_ms:
            model.pop(name, None)
            if due_ms is not None:
                model[name] = due_ms
    assert deadlines.next_ms == min(model.values(), default=None)
    due = [name for name in sorted(model, key=model.__getitem__) if model[name] <= now_ms]
    assert [*deadlines.take_due(now_ms)] == due
    assert deadlines.next_ms == min((each for each in model.values() if each > now_ms), default=None)


def test_the_heap_is_rebuilt_when_most_of_it_is_stale() -> None:
    deadlines: Deadlines[Lease] = Deadlines()
    longest = Lease(10**9)
    deadlines.put(longest)
    for at in range(10_000):
        lease = Lease(at + 1)
        deadlines.put(lease)
        deadlines.remove(lease)
    assert len(deadlines) < 200
    assert [*deadlines.take_due(10**9)] == [longest]


def test_a_name_whose_deadline_keeps_changing_uses_bounded_memory() -> None:
    deadlines = NamedDeadlines()
    for due_ms in range(10_000):
        deadlines.put("a", due_ms)
    assert len(deadlines) < 100
