"""Deadlines are kept in a heap that does not grow with what was settled in time."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from alpacamq.queues.chunks import NO_DEADLINE
from alpacamq.queues.deadlines import Deadlines


@dataclass(slots=True, eq=False)
class Lease:
    """Something that ends."""

    due_ms: int


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60), st.integers(0, 60))
def test_what_is_due_comes_by_time_and_what_was_forgotten_never(
    plan: list[tuple[int, bool]], now_ms: int
) -> None:
    deadlines: Deadlines[Lease] = Deadlines()
    leases = [Lease(due_ms) for due_ms, _ in plan]
    for lease in leases:
        deadlines.put(lease)
    for lease, (_, is_settled) in zip(leases, plan, strict=True):
        if is_settled:
            deadlines.forget(lease)
            deadlines.forget(lease)
    kept = [due_ms for due_ms, is_settled in plan if not is_settled]
    assert deadlines.next_ms == min(kept, default=None)
    expected = sorted(
        (lease for lease in leases if NO_DEADLINE < lease.due_ms <= now_ms), key=lambda one: one.due_ms
    )
    assert [*deadlines.take_due(now_ms)] == expected
    assert deadlines.next_ms == min((due_ms for due_ms in kept if due_ms > now_ms), default=None)


def test_the_heap_is_rebuilt_when_most_of_it_is_stale() -> None:
    deadlines: Deadlines[Lease] = Deadlines()
    longest = Lease(10**9)
    deadlines.put(longest)
    for at in range(10_000):
        lease = Lease(at + 1)
        deadlines.put(lease)
        deadlines.forget(lease)
    assert len(deadlines) < 200
    assert [*deadlines.take_due(10**9)] == [longest]
