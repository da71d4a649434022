"""The timer wheel against a dictionary of due times."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from alpacamq.timers import wheel as wheel_module
from alpacamq.timers.wheel import (
    LAST_LEVEL,
    LEAD_TICKS,
    SHIFTS,
    TICK_MS,
    Slot,
    TimerWheel,
    due_of,
    pack_timer,
    tick_of,
)

DAY_MS = 86_400_000
# An arbitrary time that is not the start of a slot.
START_MS = 1_790_000_123_457
# Just before, at and behind the ends of the levels, and anything up to a year ahead.
EDGES_MS = [(1 << shift) * TICK_MS for shift in (*SHIFTS, 26)]
DELAYS_MS = st.one_of(
    st.integers(-DAY_MS, 366 * DAY_MS),
    st.builds(lambda edge, around: edge + around, st.sampled_from(EDGES_MS), st.integers(-25, 25)),
    st.integers(0, 3000),
    st.integers(0, 60),
)


def collect(wheel: TimerWheel, now_ms: int) -> list[int]:
    """Return the ids of due messages, in the order of the slots."""
    while not wheel.advance(now_ms):
        pass
    ids: list[int] = []
    while slot := wheel.due(now_ms):
        ids += [id_ for id_, _ in slot]
    return ids


class WheelMachine(RuleBasedStateMachine):
    """Messages are added, removed and fall due while time passes in steps of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.wheel = TimerWheel()
        self.now_ms = START_MS
        self.waiting: dict[int, int] = {}
        self.next_id = 0

    @rule(delay_ms=DELAYS_MS)
    def add(self, delay_ms: int) -> None:
        timer = pack_timer(self.now_ms + delay_ms, target=self.next_id % 7)
        self.wheel.add(self.next_id, timer)
        self.waiting[self.next_id] = timer
        self.next_id += 1

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.wheel.remove(id_, self.waiting[id_])
        assert not self.wheel.remove(id_, self.waiting.pop(id_))

    @rule(
        step_ms=st.one_of(
            st.integers(0, 20), st.integers(0, 60), st.integers(0, 20 * DAY_MS), st.sampled_from(EDGES_MS)
        )
    )
    def pass_time(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.check_due()

    @rule(step_ms=st.integers(1, 2 * DAY_MS))
    def set_the_clock_back(self, step_ms: int) -> None:
        self.now_ms -= step_ms
        self.check_due()

    @rule()
    def cascade_in_part(self) -> None:
        """Advance with room for one message."""
        allowed, wheel_module.MAX_MOVED_PER_CALL = wheel_module.MAX_MOVED_PER_CALL, 1
        try:
            self.wheel.advance(self.now_ms)
        finally:
            wheel_module.MAX_MOVED_PER_CALL = allowed

    @rule()
    def restart(self) -> None:
        fresh = TimerWheel()
        fresh.boundaries = list(self.wheel.boundaries)
        for level, number, slot in self.wheel.slots():
            fresh.slot(level, number).merge(Slot(slot.ids[:], slot.timers[:]))
        self.wheel = fresh

    def check_due(self) -> None:
        """Check that exactly the messages of due slots are returned, in order of slots."""
        expected = {id_ for id_, timer in self.waiting.items() if tick_of(timer) * TICK_MS <= self.now_ms}
        due = collect(self.wheel, self.now_ms)
        assert set(due) == expected
        assert len(due) == len(expected)
        ticks = [tick_of(self.waiting[id_]) for id_ in due]
        assert ticks == sorted(ticks)
        for id_ in due:
            del self.waiting[id_]

    @invariant()
    def counts_pending_messages(self) -> None:
        assert len(self.wheel) == len(self.waiting)

    @invariant()
    def ids_ascend_in_every_slot(self) -> None:
        for _, _, slot in self.wheel.slots():
            assert list(slot.ids) == sorted(slot.ids)

    @invariant()
    def wakes_in_time(self) -> None:
        """Check that the next wake-up is not later than the first due time."""
        next_ms = self.wheel.next_ms()
        if self.waiting:
            assert next_ms is not None
            assert next_ms <= min(tick_of(timer) * TICK_MS for timer in self.waiting.values())
            earliest_ms = self.wheel.earliest_ms()
            assert earliest_ms == min(due_of(timer) for timer in self.waiting.values())
        else:
            assert next_ms is None


TestWheel = WheelMachine.TestCase
TestWheel.settings = settings(max_examples=100, stateful_step_count=40)


@given(st.integers(0, 40 * 365 * DAY_MS))
def test_a_message_is_due_in_its_own_slot_and_never_early(due_ms: int) -> None:
    at_ms = tick_of(pack_timer(START_MS + due_ms, 0)) * TICK_MS
    assert 0 <= at_ms - (START_MS + due_ms) < TICK_MS


def test_a_day_that_is_partly_on_disk_does_not_cascade() -> None:
    wheel = TimerWheel()
    timer = pack_timer(START_MS + 1000, 0)
    wheel.add(0, timer)
    day = tick_of(timer) >> SHIFTS[LAST_LEVEL]
    assert wheel.advance(START_MS + 5000, up_to_day=day)
    assert wheel.due(START_MS + 5000) is None
    assert wheel.next_ms(up_to_day=day) is None
    assert collect(wheel, START_MS + 5000) == [0]


def test_a_slot_with_very_many_messages_cascades_in_steps() -> None:
    wheel = TimerWheel()
    count = 3 * wheel_module.MAX_MOVED_PER_CALL + 1
    due_ms = START_MS + LEAD_TICKS[0] * TICK_MS * 20
    for id_ in range(count):
        wheel.add(id_, pack_timer(due_ms + id_ % 50, 0))
    calls = 1
    while not wheel.advance(due_ms - 1):
        calls += 1
        assert wheel.due(due_ms + 1000) is None
    assert calls >= 4 * 3
    assert wheel.due(due_ms - 1) is None
    assert len(collect(wheel, due_ms + 60)) == count


def test_removed_messages_do_not_stay_in_memory() -> None:
    wheel = TimerWheel()
    for id_ in range(10_000):
        timer = pack_timer(START_MS + DAY_MS, 0)
        wheel.add(id_, timer)
        assert wheel.remove(id_, timer)
    assert len(wheel) == 0
    assert sum(len(slot.ids) for _, _, slot in wheel.slots()) <= 1
