"""The delay machine on a log in memory: delivery times, cancellation, crashes and spilling."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from alpacamq.model.errors import UnknownDelayed, UnknownTopic
from alpacamq.timers import due_batches, spill
from alpacamq.timers.machine import PLANNED_MS, SHORT_NOTICE_MS
from alpacamq.timers.messages import (
    BatchesDelivered,
    Deliver,
    FirstSeen,
    ProducerBatch,
    ReadBlock,
    Schedule,
    TopicsDeleted,
    ToSchedule,
)
from alpacamq.timers.wheel import TICK_MS, reach_ms

from .delay_log import DelayLog, name

DAY_MS = 86_400_000
# Far beyond the range of the wheel.
FAR_MS = 40 * DAY_MS


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spill blocks of four messages."""
    monkeypatch.setattr(spill, "BLOCK_MESSAGES", 4)


def test_messages_are_delivered_by_time_then_by_id() -> None:
    log = DelayLog()
    a, b, c, d = log.schedule(500, 100, 500, 103)
    log.pass_time(50)
    assert log.effects == []
    log.pass_time(600)
    log.deliver()
    assert log.arrived == {name(): [b, d, a, c]}
    assert log.machine.pending == 0


def test_an_intent_is_stored_shortly_before_it_is_due() -> None:
    log = DelayLog()
    log.schedule(1000)
    log.pass_time(1000 - PLANNED_MS - 1)
    assert log.effects == []
    log.pass_time(TICK_MS)
    [batch] = log.effects
    assert isinstance(batch, Deliver)


def test_messages_at_short_notice_do_not_wait_for_planned_batches() -> None:
    log = DelayLog()
    [planned] = log.schedule(1000)
    log.pass_time(1000 - PLANNED_MS + TICK_MS)
    [short] = log.schedule(50)
    log.pass_time(50 - SHORT_NOTICE_MS + TICK_MS)
    first, second = log.effects
    assert isinstance(first, Deliver)
    assert isinstance(second, Deliver)
    assert (list(first.ids), list(second.ids)) == ([planned], [short])
    # Neither waits for the other: they are batches of different producers.
    assert first.producer_id != second.producer_id
    log.deliver()
    assert sorted(log.arrived[name()]) == [planned, short]


def test_many_due_messages_are_sent_in_batches_of_bounded_size() -> None:
    log = DelayLog()
    count = due_batches.BATCH_MESSAGES * 3 + 7
    ids = log.schedule(*[100] * count)
    log.pass_time(1000)
    sizes = [len(effect.ids) for effect in log.effects if isinstance(effect, Deliver)]
    assert sum(sizes) == count
    assert max(sizes) <= due_batches.BATCH_MESSAGES
    log.deliver()
    assert log.arrived[name()] == ids


def test_a_cancelled_message_is_not_delivered_and_cannot_be_cancelled_twice() -> None:
    log = DelayLog()
    first, second = log.schedule(100, 100)
    assert log.cancel(first) is None
    assert isinstance(log.cancel(first), UnknownDelayed)
    log.start()
    assert isinstance(log.cancel(first), UnknownDelayed)
    log.pass_time(200)
    assert isinstance(log.cancel(second), UnknownDelayed)
    log.deliver()
    assert log.arrived == {name(): [second]}


def test_cancelling_requires_the_partition_of_the_message() -> None:
    log = DelayLog()
    [id_] = log.schedule(100)
    log.schedule(100, target=name("orders", 1))
    assert isinstance(log.cancel(id_, name("orders", 1)), UnknownDelayed)
    assert isinstance(log.cancel(id_, name("other", 0)), UnknownDelayed)
    assert log.cancel(id_) is None


@pytest.mark.parametrize("snapshot", ["none", "before", "amid"])
@pytest.mark.parametrize("crash", ["waiting", "intent", "append", "done"])
def test_a_crash_at_any_step_loses_nothing_and_repeats_nothing(crash: str, snapshot: str) -> None:
    log = DelayLog()
    ids = log.schedule(*range(300, 2000, 100))
    if snapshot == "before":
        log.take_snapshot()
    if crash != "waiting":
        log.pass_time(2000)
    if crash in ("append", "done"):
        log.deliver(crash_after=crash)
    if snapshot == "amid":
        log.take_snapshot()
    for _ in range(2):
        log.start()
        log.pass_time(5000)
        log.deliver()
        assert log.arrived == {name(): ids}
    assert log.machine.pending == 0


def test_sequence_numbers_are_not_used_again_if_a_later_batch_was_done_first() -> None:
    """As when the target has got another leader between two batches, whose disk is faster."""
    log = DelayLog()
    ids = log.schedule(300, 1000)
    log.pass_time(1000)
    batches = [effect for effect in log.effects if isinstance(effect, Deliver)]
    assert len(batches) == 2
    for batch in batches:
        log._append(batch)
    log.handle(BatchesDelivered(intents=[batches[1].intent]))
    log.take_snapshot()
    log.start()
    ids += log.schedule(300)
    log.pass_time(1000)
    log.deliver()
    assert log.arrived == {name(): ids}


def test_delivery_is_exactly_once_wherever_the_log_was_cut() -> None:
    whole = DelayLog()
    ids = whole.schedule(*[1000] * 3, 1200)
    scheduled = len(whole.records)
    whole.pass_time(950)
    whole.deliver()
    whole.pass_time(1000)
    whole.deliver()
    for cut in range(scheduled, len(whole.records) + 1):
        log = DelayLog(records=whole.records[:cut], now_ms=whole.now_ms)
        # The targets have every batch whose intent was stored.
        sent = [record for record in whole.records[:cut] if record.key[:1] == b"i" and record.value]
        log.arrived = {name(): ids[: 3 * (len(sent) > 0) + (len(sent) > 1)]}
        log.last_sequence = dict.fromkeys(whole.last_sequence, len(log.arrived[name()]) - 1)
        log.pass_time(1000)
        log.deliver()
        assert log.arrived == {name(): ids}, cut


def test_messages_due_while_the_broker_was_down_are_delivered_at_once_in_order() -> None:
    log = DelayLog()
    ids = log.schedule(3000, 1000, 2000)
    log.now_ms += DAY_MS
    log.start()
    log.pass_time(10)
    log.deliver()
    assert log.arrived == {name(): [ids[1], ids[2], ids[0]]}


def test_messages_of_a_deleted_topic_are_dropped_and_not_given_to_a_topic_of_the_same_name() -> None:
    log = DelayLog()
    log.schedule(1000, 20 * DAY_MS, target=name("gone"))
    [kept] = log.schedule(1000)
    log.deleted.add(name("gone").topic_id)
    log.handle(TopicsDeleted())
    log.pass_time(100)
    assert (log.dropped, log.machine.pending) == (2, 1)
    log.pass_time(30 * DAY_MS)
    log.deliver()
    assert log.arrived == {name(): [kept]}


def test_a_topic_deleted_while_a_batch_is_in_flight_is_forgotten() -> None:
    log = DelayLog()
    log.schedule(100)
    log.pass_time(1000)
    log.deleted.add(name().topic_id)
    log.handle(TopicsDeleted())
    log.deliver()
    log.start()
    assert log.effects == []
    assert log.machine.pending == 0


def test_a_repeated_producer_batch_is_scheduled_once() -> None:
    log = DelayLog()
    source = ProducerBatch(
        producer_id=5, epoch=0, first_sequence=0, last_sequence=9, first_seen_ms=log.now_ms
    )
    assert log.handle(FirstSeen(target=name(), source=source)) == [None]
    ids = log.schedule(100, 200, source=source)
    assert len(ids) == 2
    assert log.handle(FirstSeen(target=name(), source=source)) == [log.now_ms]
    assert log.schedule(100, 200, source=source) == ids
    log.start()
    assert log.schedule(100, 200, source=source) == ids
    assert log.machine.pending == 2
    later = ProducerBatch(
        producer_id=5, epoch=0, first_sequence=10, last_sequence=10, first_seen_ms=log.now_ms
    )
    [id_] = log.schedule(100, source=later)
    log.take_snapshot()
    log.start()
    assert log.schedule(100, source=later) == [id_]
    assert len(log.schedule(100, target=name("other"), source=later)) == 1
    assert len(log.schedule(100, source=later._replace(epoch=1))) == 1


def test_a_large_producer_batch_is_scheduled_in_portions() -> None:
    log = DelayLog()
    source = ProducerBatch(
        producer_id=5, epoch=0, first_sequence=0, last_sequence=9, first_seen_ms=log.now_ms
    )
    [first] = log.schedule(100, source=source)
    log.start()  # a crash before the second portion: the batch is sent again
    assert log.schedule(100, source=source) == [first]
    [second] = log.schedule(200, source=source._replace(portion=1))
    assert log.schedule(200, source=source._replace(portion=1)) == [second]
    assert log.schedule(100, source=source) == []  # only the ids of the last portion are known
    assert log.machine.pending == 2


def test_messages_of_several_targets_have_consecutive_ids() -> None:
    log = DelayLog()
    source = ProducerBatch(
        producer_id=5, epoch=0, first_sequence=0, last_sequence=0, first_seen_ms=log.now_ms
    )
    messages = [ToSchedule(name(partition=index), log.now_ms + 100, b"e") for index in (0, 1, 0, 2)]
    [ids] = log.handle(Schedule(messages=messages, source=source))
    assert ids == list(range(ids[0], ids[0] + 4))
    log.start()
    assert log.handle(Schedule(messages=messages, source=source)) == [ids]
    assert log.machine.pending == 4


def test_messages_for_a_topic_that_is_not_known_are_refused() -> None:
    log = DelayLog()
    log.deleted.add(name("gone").topic_id)
    messages = [ToSchedule(each, log.now_ms + 100, b"e") for each in (name(), name("gone"))]
    [refusal] = log.handle(Schedule(messages=messages))
    assert isinstance(refusal, UnknownTopic)
    assert log.machine.pending == 0
    assert log.records == []


@pytest.mark.usefixtures("small_blocks")
def test_distant_messages_are_spilled_and_loaded_in_time() -> None:
    log = DelayLog()
    ids = log.schedule(*[FAR_MS + at for at in range(10)])
    log.pass_time(100)
    wheel = log.machine._state.wheel
    assert len(wheel) == 2
    assert log.machine.pending == 10
    log.pass_time(20 * DAY_MS)
    assert len(wheel) == 2
    log.start()
    assert len(log.machine._state.wheel) == 2
    log.pass_time(13 * DAY_MS)
    assert len(log.machine._state.wheel) == 10
    log.pass_time(FAR_MS)
    log.deliver()
    assert log.arrived == {name(): ids}


@pytest.mark.usefixtures("small_blocks")
def test_spilled_messages_that_were_cancelled_are_not_delivered() -> None:
    log = DelayLog()
    ids = log.schedule(*[FAR_MS] * 8)
    log.pass_time(100)
    for id_ in ids[:3]:
        assert log.cancel(id_) is None
        assert isinstance(log.cancel(id_), UnknownDelayed)
    log.start()
    assert isinstance(log.cancel(ids[0]), UnknownDelayed)
    log.pass_time(100)  # the block is written again without them
    assert log.machine.pending == 5
    assert not any(block.removed for block in log.machine._state.blocks)
    log.start()
    assert isinstance(log.cancel(ids[1]), UnknownDelayed)
    log.pass_time(2 * FAR_MS)
    log.deliver()
    assert log.arrived == {name(): ids[3:]}


@pytest.mark.usefixtures("small_blocks")
def test_messages_that_are_spilled_again_because_the_clock_was_set_back_can_be_cancelled() -> None:
    log = DelayLog()
    ids = log.schedule(*[FAR_MS] * 8)
    due_ms = log.now_ms + FAR_MS
    log.pass_time(100)
    blocks = log.machine._state.blocks
    assert blocks.first_day is not None
    log.now_ms = reach_ms(blocks.first_day)
    log.carry_out(log.machine.tick(log.now_ms))
    log.read_blocks()
    assert [block.is_loaded for block in blocks] == [False, True]
    log.now_ms -= DAY_MS
    ids += log.schedule(due_ms - log.now_ms)
    log.pass_time(100)
    assert [block.is_loaded for block in blocks] == [False, True, False]
    assert [log.cancel(id_) for id_ in ids] == [None] * 9
    assert log.machine.pending == 0


@pytest.mark.usefixtures("small_blocks")
def test_blocks_are_deleted_when_their_day_is_over() -> None:
    log = DelayLog()
    log.schedule(*[FAR_MS] * 8)
    log.pass_time(FAR_MS + DAY_MS)
    log.deliver()
    log.schedule(10 * DAY_MS)
    log.pass_time(10 * DAY_MS)
    log.deliver()
    assert list(log.machine._state.blocks) == []
    log.compact()
    log.start()
    assert log.machine.pending == 0
    kept = {change.key[:1] for at, change in enumerate(log.records) if at not in log.removed}
    assert kept == {b"p", b"t"}


@pytest.mark.usefixtures("small_blocks")
def test_spilled_messages_of_a_deleted_topic_are_dropped() -> None:
    log = DelayLog()
    log.schedule(*[FAR_MS] * 9, target=name("gone"))
    log.schedule(*[FAR_MS] * 3)
    log.pass_time(100)
    log.deleted.add(name("gone").topic_id)
    log.handle(TopicsDeleted())
    log.pass_time(1000)
    assert (log.dropped, log.machine.pending) == (9, 3)


class DelayMachineModel(RuleBasedStateMachine):
    """Arbitrary steps with crashes at every point: each message is delivered once and not too early."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = spill.BLOCK_MESSAGES
        spill.BLOCK_MESSAGES = 4
        self.log = DelayLog()
        self.waiting: dict[int, tuple[int, int]] = {}
        self.due: dict[int, tuple[int, int]] = {}
        self.seen: set[int] = set()

    def teardown(self) -> None:
        spill.BLOCK_MESSAGES = self.blocks

    @rule(
        delays_ms=st.lists(
            st.one_of(
                st.integers(0, 600),
                st.integers(0, 400 * DAY_MS),
                st.integers(7 * DAY_MS, 10 * DAY_MS),
            ),
            min_size=1,
            max_size=6,
        ),
        partition=st.integers(0, 1),
    )
    def schedule(self, delays_ms: list[int], partition: int) -> None:
        ids = self.log.schedule(*delays_ms, target=name("orders", partition))
        for id_, delay_ms in zip(ids, delays_ms, strict=True):
            self.waiting[id_] = (self.log.now_ms + delay_ms, partition)
        self.due |= self.waiting

    @rule(count=st.integers(4, 12), days=st.integers(9, 12), partition=st.integers(0, 1))
    def schedule_on_one_far_day(self, count: int, days: int, partition: int) -> None:
        self.schedule([days * DAY_MS + at for at in range(count)], partition)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.waiting)))
        due_ms, partition = self.waiting[id_]
        answer = self.log.cancel(id_, name("orders", partition))
        if due_ms > self.log.now_ms + PLANNED_MS + TICK_MS:
            assert answer is None
        if answer is None:
            del self.waiting[id_]

    @rule(
        step_ms=st.one_of(st.integers(0, 100), st.integers(0, 3 * DAY_MS), st.integers(0, 40 * DAY_MS)),
        crash=st.sampled_from(["", "", "intent", "append"]),
    )
    def pass_time(self, step_ms: int, crash: str) -> None:
        self.log.pass_time(step_ms)
        if crash != "intent":
            self.log.deliver(crash_after=crash)
        if crash:
            self.log.start()

    @rule(down_ms=st.one_of(st.just(0), st.integers(0, 30 * DAY_MS)))
    def restart(self, down_ms: int) -> None:
        self.log.deliver()
        self.log.now_ms += down_ms
        self.log.start()

    @rule()
    def take_snapshot(self) -> None:
        self.log.take_snapshot()

    @rule()
    def compact(self) -> None:
        self.log.deliver()
        self.log.compact()

    @invariant()
    def each_is_delivered_once_and_not_too_early(self) -> None:
        log = self.log
        for target, ids in log.arrived.items():
            assert len(ids) == len(set(ids))
            for id_ in set(ids) - self.seen:
                due_ms, partition = self.due[id_]
                assert partition == target.partition
                assert log.now_ms >= due_ms - PLANNED_MS - TICK_MS
                assert id_ in self.waiting, "it was cancelled"
                del self.waiting[id_]
                self.seen.add(id_)
        assert not any(isinstance(effect, ReadBlock) for effect in log.effects)
        in_flight = {id_ for effect in log.effects if isinstance(effect, Deliver) for id_ in effect.ids}
        in_flight -= self.seen
        assert log.machine.pending + len(in_flight) == len(self.waiting)
        deadline_ms = log.machine.next_deadline_ms
        for id_, (due_ms, _) in self.waiting.items():
            if id_ not in in_flight:
                assert deadline_ms is not None
                assert deadline_ms <= due_ms + TICK_MS


TestDelayMachine = DelayMachineModel.TestCase
TestDelayMachine.settings = settings(max_examples=60, stateful_step_count=30)
