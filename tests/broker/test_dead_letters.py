"""Dead letters and redrive: each message is moved exactly once, whenever a crash happens."""

import asyncio
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.dlq import redrive
from alpacamq.broker.dlq import writer as moves
from alpacamq.broker.queue.service import FailureCause, RedriveTask
from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.model.dead_letters import dead_letter_topic
from alpacamq.model.errors import InvalidRequest, RequestTimedOut, UnknownTopic
from alpacamq.model.headers import DEAD_LETTER_HEADERS, LANE
from alpacamq.model.lanes import Lane
from alpacamq.model.ports import Buffer
from alpacamq.model.records import Header, Record
from alpacamq.model.topics import MAX_NAME_LENGTH
from alpacamq.queues.engine import QueueEngine
from alpacamq.queues.messages import (
    Action,
    Move,
    QueueId,
    ReceiveReply,
    ReceiveRequest,
    RecordsArrived,
    SettleRequest,
)
from tests.waiting import soon

from .open_brokers import BreakableDisk, SettableClock, running, sent, stored
from .queue_steps import ORDERS, acknowledge, made, settle, values

DEAD = QueueId("queue", "orders.dlq")


async def reject(broker: Broker, count: int = 10) -> None:
    """Receive up to `count` messages and reject them."""
    received = await broker.queues.receive(ORDERS, max_messages=count, wait_ms=5000)
    assert await settle(broker, Action.REJECT, *received) == [None] * len(received)


async def settled_all(broker: Broker, queue: QueueId = ORDERS) -> bool:
    stats = await broker.queues.describe(queue)
    return not any(each.dead_lettering for each in stats.partitions)


def letters(broker: Broker, topic: str = "orders.dlq") -> list[Record]:
    partitions = range(len(broker.topics.partitions_of(topic)))
    return [record for index in partitions for record in stored(broker, topic, index)]


async def test_a_dead_letter_keeps_its_content_and_records_its_origin(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=2, overrides={"retention.ms": "-1"})
        kept = (Header("colour", b"red"), Header("none", None))
        await sent(broker, "orders", b"value", key=b"key", headers=kept, partition=1, lane=Lane.HIGH)
        (delivery,) = await broker.queues.receive(ORDERS)
        assert await settle(broker, Action.REJECT, delivery) == [None]
        await soon(lambda: made(broker, "orders.dlq"))
        await soon(lambda: settled_all(broker))
        (letter,) = stored(broker, "orders.dlq", 1)
        assert (letter.key, letter.value) == (b"key", b"value")
        assert letter.headers[:2] == kept
        headers = dict(letter.headers)
        assert headers.keys() >= DEAD_LETTER_HEADERS
        assert headers["alpacamq-origin-topic"] == b"orders"
        assert headers["alpacamq-origin-partition"] == b"1"
        assert headers["alpacamq-origin-offset"] == b"0"
        assert headers["alpacamq-origin-group"] == b"workers"
        assert headers["alpacamq-origin-timestamp"] == str(delivery.record.timestamp_ms).encode()
        assert headers["alpacamq-delivery-count"] == b"1"
        assert headers["alpacamq-dead-letter-reason"] == b"rejected"
        made_topic = broker.topics.image.topic("orders.dlq")
        assert made_topic.partitions == 2
        config = broker.topics.config_of(made_topic)
        assert (config.retention_ms, config.queue_max_deliveries) == (-1, 0)
        (stats, _) = (await broker.queues.describe(ORDERS)).partitions
        assert stats.start_offset == stats.end_offset


async def test_a_message_over_its_delivery_limit_becomes_a_dead_letter(tmp_path: Path) -> None:
    clock = SettableClock()
    async with running(tmp_path, clock=clock) as broker:
        overrides = {"queue.max.deliveries": "3", "queue.dead.letter.topic": "morgue"}
        await broker.topics.create("orders", partitions=1, overrides=overrides)
        await sent(broker, "orders", b"poison", b"fine")
        for attempt in range(1, 4):
            received = await broker.queues.receive(ORDERS)
            assert received[0].delivery_count == attempt
            await acknowledge(broker, *received[1:])
            if attempt < 3:
                await settle(broker, Action.NACK, received[0])
                clock.ahead_ms += 5000
        clock.ahead_ms += 60_000  # the last lease expires
        assert await broker.queues.receive(ORDERS) == []
        await soon(lambda: made(broker, "morgue"))
        await soon(lambda: settled_all(broker))
        (letter,) = letters(broker, "morgue")
        assert dict(letter.headers)["alpacamq-delivery-count"] == b"3"
        # In the dead-letter queue there is no delivery limit.
        morgue = QueueId("queue", "morgue")
        for _ in range(6):
            (delivery,) = await broker.queues.receive(morgue, visibility_ms=1000)
            clock.ahead_ms += 1001
        assert delivery.delivery_count == 6


async def test_a_move_repeated_after_a_crash_is_not_duplicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=2)
        await broker.topics.create("orders.dlq", partitions=1)  # both partitions go into one
        await sent(broker, "orders", *(b"%d" % number for number in range(20)), partition=0)
        await sent(broker, "orders", *(b"%d" % number for number in range(20, 40)), partition=1)
        with monkeypatch.context() as patch:
            patch.setattr(moves, "MovesDone", lambda moves: RecordsArrived(topic="", partition=0))  # noqa: ARG005
            patch.setattr(moves, "MAX_BATCH_MOVES", 3)  # after the crash they are batched differently
            await reject(broker, count=25)
            await soon(lambda: arrived(broker, 25))
    async with running(tmp_path) as broker:
        await soon(lambda: settled_all(broker))
        assert len(letters(broker)) == 25
        await reject(broker, count=100)
        await soon(lambda: settled_all(broker))
        assert sorted(int(record.value or b"") for record in letters(broker)) == list(range(40))


async def arrived(broker: Broker, count: int, topic: str = "orders.dlq") -> bool:
    return len(letters(broker, topic)) == count


async def test_leases_that_expire_while_the_broker_is_down_become_dead_letters_on_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producer ids for dead letters are reserved before queues are loaded."""
    failures: list[object] = []
    monkeypatch.setattr(StateMachineHost, "_fail", lambda _self, error: failures.append(error))
    clock = SettableClock()
    async with running(tmp_path, clock=clock) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"queue.max.deliveries": "1"})
        await sent(broker, "orders", b"a", b"b", b"c")
        assert len(await broker.queues.receive(ORDERS, max_messages=3, wait_ms=5000)) == 3
    clock.ahead_ms += 3_600_000
    async with running(tmp_path, clock=clock) as broker:
        await soon(lambda: made(broker, "orders.dlq"))
        await soon(lambda: arrived(broker, 3))
    assert failures == []


async def test_a_move_interrupted_by_a_crash_is_completed_after_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(
        _self: moves.DlqWriter, _moves: Sequence[Move], _host: StateMachineHost[QueueEngine]
    ) -> int:
        await asyncio.Event().wait()
        return 0

    async with running(tmp_path) as broker:
        await sent(broker, "orders", b"a", b"b", b"c")
        with monkeypatch.context() as patch:
            patch.setattr(moves.DlqWriter, "_move", never)
            await reject(broker)
    async with running(tmp_path) as broker:
        await soon(lambda: settled_all(broker))
        assert sorted(record.value or b"" for record in letters(broker)) == [b"a", b"b", b"c"]
        assert await broker.queues.receive(ORDERS) == []


class RefusingDisk(BreakableDisk):
    """A disk that can refuse writes to the files of one topic."""

    refused = "nothing"

    def __init__(self) -> None:
        super().__init__()
        self._paths: dict[int, str] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        descriptor = super().open(path, create=create)
        self._paths[descriptor] = str(path)
        return descriptor

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        if self.refused in self._paths.get(descriptor, ""):
            raise OSError(28, "No space left on device")
        super().write(descriptor, buffers, position)


async def test_a_full_disk_delays_dead_letters_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "RETRY_SECONDS", 0.01)
    disk = RefusingDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("orders.dlq", partitions=1)
        await sent(broker, "orders", b"a", b"b", b"c")
        disk.refused = "orders.dlq"
        await reject(broker)
        assert not await settled_all(broker)
        disk.refused = "nothing"
        await soon(lambda: settled_all(broker))
        assert len(letters(broker)) == 3


async def test_a_dead_letter_may_be_larger_than_a_message(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"max.message.bytes": "1000"})
        await broker.topics.create("orders.dlq", partitions=1, overrides={"max.message.bytes": "1000"})
        await sent(broker, "orders", b"x" * 900)
        await reject(broker)
        await soon(lambda: settled_all(broker))
        assert [record.value for record in letters(broker)] == [b"x" * 900]


async def test_a_compacted_dead_letter_topic_keeps_messages_without_a_key(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders", partitions=1)
        await broker.topics.create("orders.dlq", partitions=1, overrides={"cleanup.policy": "compact"})
        await sent(broker, "orders", b"a", b"b")
        await reject(broker)
        await soon(lambda: settled_all(broker))
        assert [record.key for record in letters(broker)] == [b"orders-0-0", b"orders-0-1"]


def test_long_names_are_truncated_and_stay_distinct() -> None:
    one, two = "x" * MAX_NAME_LENGTH, "x" * (MAX_NAME_LENGTH - 1) + "y"
    names = {dead_letter_topic(one, ""), dead_letter_topic(two, "")}
    assert len(names) == 2
    assert all(name and len(name) <= MAX_NAME_LENGTH and name.endswith(".dlq") for name in names)


@pytest.mark.parametrize(
    ("topic", "configured", "expected"),
    [
        pytest.param("orders", "", "orders.dlq", id="default"),
        pytest.param("orders", "failed", "failed", id="configured"),
        pytest.param("orders", "__consumer_offsets", "orders.dlq", id="an internal topic is ignored"),
        pytest.param("orders", "orders", None, id="a topic that names itself"),
        pytest.param("orders.dlq", "", None, id="a dead-letter topic has none"),
    ],
)
def test_the_name_of_a_dead_letter_topic(topic: str, configured: str, expected: str | None) -> None:
    assert dead_letter_topic(topic, configured) == expected


@pytest.mark.parametrize(
    ("topic", "overrides"),
    [
        pytest.param("orders", {"queue.dead.letter.topic": "failed"}, id="override of the group"),
        pytest.param("x" * MAX_NAME_LENGTH, {}, id="longest topic name"),
    ],
)
async def test_engine_and_descriptions_agree_on_the_dead_letter_topic(
    tmp_path: Path, topic: str, overrides: dict[str, str]
) -> None:
    queue = QueueId("workers", topic)
    async with running(tmp_path) as broker:
        await broker.topics.create(topic, partitions=1)
        await sent(broker, topic, b"a")
        if overrides:
            await broker.queues.configure(queue, overrides)
        (delivery,) = await broker.queues.receive(queue)
        assert await settle(broker, Action.REJECT, delivery) == [None]
        target = (await broker.queues.describe(queue)).dead_letter_topic
        assert target is not None

        async def arrived() -> bool:
            return bool(broker.topics.partitions_of(target)) and len(letters(broker, target)) == 1

        await soon(arrived)
        assert await broker.queues.dead_letter_sources(target) == {topic}


async def ended(broker: Broker, task: RedriveTask) -> RedriveTask:
    async def is_over() -> RedriveTask | None:
        (found,) = [each for each in await broker.queues.redrives("orders.dlq") if each.id == task.id]
        return None if found.state in ("running", "cancelling") else found

    found = await soon(is_over)
    assert isinstance(found, RedriveTask)
    return found


async def with_dead_letters(broker: Broker, count: int = 3) -> None:
    await broker.topics.create("orders", partitions=2)
    for number in range(count):
        await sent(broker, "orders", b"%d" % number, key=b"k%d" % number, headers=(Header("h", b"1"),))
    await reject(broker, count=count)
    await soon(lambda: made(broker, "orders.dlq"))
    await soon(lambda: settled_all(broker))


async def test_redrive_restores_messages_unchanged(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await with_dead_letters(broker)
        before = {record.value: record for record in letters(broker, "orders")}
        task = await broker.queues.start_redrive("orders.dlq")
        assert (task.state, task.to_move) == ("running", 3)
        done = await ended(broker, task)
        assert (done.state, done.moved, done.failure) == ("completed", 3, "")
        received = await broker.queues.receive(ORDERS, wait_ms=5000)
        while len(received) < 3:
            received += await broker.queues.receive(ORDERS, wait_ms=5000)
        for delivery in received:
            record, former = delivery.record, before[delivery.record.value]
            assert (record.key, record.value, record.headers) == (former.key, former.value, former.headers)
            assert delivery.delivery_count == 1
        assert await broker.queues.receive(DEAD) == []


async def test_redrive_to_a_target_skips_messages_that_arrive_after_its_start(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await with_dead_letters(broker, count=10)
        await broker.topics.create("elsewhere", partitions=1)
        task = await broker.queues.start_redrive("orders.dlq", target="elsewhere", messages_per_second=100)
        await sent(broker, "orders.dlq", b"later", partition=0)
        done = await ended(broker, task)
        assert (done.state, done.moved) == ("completed", 10)
        assert len(letters(broker, "elsewhere")) == 10
        assert values(await broker.queues.receive(DEAD, wait_ms=5000)) == [b"later"]


async def test_redrive_leaves_messages_without_a_recorded_origin(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await with_dead_letters(broker)
        await sent(broker, "orders.dlq", b"foundling")
        done = await ended(broker, await broker.queues.start_redrive("orders.dlq"))
        assert (done.state, done.moved, done.to_move) == ("failed", 3, 4)
        assert (done.cause, "1 messages were not moved" in done.failure) == (
            FailureCause.ORIGIN_UNKNOWN,
            True,
        )
        (foundling,) = await broker.queues.receive(DEAD, wait_ms=5000)
        assert (foundling.record.value, foundling.delivery_count) == (b"foundling", 1)


async def test_dead_letters_stay_in_their_topic_if_the_redrive_target_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move, may_continue = moves.DlqWriter._move, asyncio.Event()

    async def move_late(
        mover: moves.DlqWriter, wanted: Sequence[Move], host: StateMachineHost[QueueEngine]
    ) -> int:
        await may_continue.wait()
        return await move(mover, wanted, host)

    async def are_moving() -> bool:
        return sum(each.dead_lettering for each in (await broker.queues.describe(DEAD)).partitions) == 3

    async with running(tmp_path) as broker:
        await with_dead_letters(broker)
        await broker.topics.create("elsewhere", partitions=1)
        monkeypatch.setattr(moves.DlqWriter, "_move", move_late)
        task = await broker.queues.start_redrive("orders.dlq", target="elsewhere")
        await soon(are_moving)
        await broker.topics.delete("elsewhere")
        may_continue.set()
        done = await ended(broker, task)
        assert (done.state, done.moved, done.to_move) == ("failed", 0, 3)
        assert done.failure == "3 messages were not moved: topic 'elsewhere' has been deleted"
        await soon(lambda: settled_all(broker, DEAD))
        received = await broker.queues.receive(DEAD, wait_ms=5000)
        assert [delivery.delivery_count for delivery in received] == [1, 1, 1]
        await settle(broker, Action.RELEASE, *received)
        assert (await ended(broker, await broker.queues.start_redrive("orders.dlq"))).moved == 3


async def test_redrive_fails_and_says_how_many_were_moved_if_its_target_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await with_dead_letters(broker, count=8)
        await broker.topics.create("elsewhere", partitions=1)
        task = await broker.queues.start_redrive("orders.dlq", target="elsewhere", messages_per_second=10)

        async def has_moved() -> bool:
            return (await broker.queues.redrives())[0].moved > 1

        await soon(has_moved)
        await broker.topics.delete("elsewhere")
        done = await ended(broker, task)
        assert (done.state, done.cause) == ("failed", FailureCause.TARGET_MISSING)
        assert 1 < done.moved < 8
        assert f"{8 - done.moved} messages were not moved" in done.failure
        left = 0
        while received := await broker.queues.receive(DEAD, wait_ms=500):
            left += len(received)
        assert left == 8 - done.moved


async def test_redrive_moves_what_it_can_if_one_of_the_original_topics_was_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("others", overrides={"queue.dead.letter.topic": "orders.dlq"})
        await with_dead_letters(broker)
        await sent(broker, "others", b"orphan")
        others = QueueId("queue", "others")
        (orphan,) = await broker.queues.receive(others, wait_ms=5000)
        await settle(broker, Action.REJECT, orphan)
        await soon(lambda: settled_all(broker, others))
        await broker.topics.delete("others")
        done = await ended(broker, await broker.queues.start_redrive("orders.dlq"))
        assert (done.state, done.moved, done.to_move) == ("failed", 3, 4)
        assert done.failure == (
            "1 messages were not moved: topic 'others', which they came from, does not exist"
        )


@pytest.mark.parametrize("takes_effect", [True, False])
async def test_redrive_moves_each_message_once_if_the_outcome_of_a_request_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_effect: bool
) -> None:
    async with running(tmp_path) as broker:
        await with_dead_letters(broker, count=6)
        ask = broker.queues._host.ask
        failures = iter([True])

        async def unreliable(request: Any) -> Any:
            if isinstance(request, SettleRequest) and next(failures, False):
                if takes_effect:
                    await ask(request)
                raise RequestTimedOut("the reply is lost")
            return await ask(request)

        monkeypatch.setattr(broker.queues._host, "ask", unreliable)
        done = await ended(broker, await broker.queues.start_redrive("orders.dlq"))
        assert (done.state, done.moved, done.failure) == ("completed", 6, "")
        assert sorted(record.value or b"" for record in letters(broker, "orders")) == sorted(
            2 * [b"%d" % number for number in range(6)]
        )


@pytest.mark.parametrize("repeated", [SettleRequest, ReceiveRequest])
async def test_redrive_moves_each_message_once_if_a_request_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeated: type[Any]
) -> None:
    """As when the broker of the queue dies before it replies: the next one has its state."""
    async with running(tmp_path) as broker:
        await with_dead_letters(broker, count=12)
        ask = broker.queues._host.ask

        async def twice(request: Any) -> Any:
            # Not the first receive, which is of no messages.
            is_first = isinstance(request, ReceiveRequest) and not request.max_messages
            if isinstance(request, repeated) and not is_first:
                monkeypatch.setattr(broker.queues._host, "ask", ask)
                await ask(request)
            return await ask(request)

        monkeypatch.setattr(broker.queues._host, "ask", twice)
        started = await broker.queues.start_redrive("orders.dlq", messages_per_second=50)
        done = await ended(broker, started)
        assert (done.state, done.moved, done.failure) == ("completed", 12, "")
        assert len(letters(broker, "orders")) == 24


async def test_redrive_is_not_over_when_newer_messages_are_received_first(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await with_dead_letters(broker, count=5)
        # One at a time.
        started = await broker.queues.start_redrive("orders.dlq", messages_per_second=5)
        for _ in range(3):
            await sent(broker, "orders.dlq", b"newer", partition=0, headers=(Header(LANE, b"critical"),))
        done = await ended(broker, started)
        assert (done.state, done.moved, done.failure) == ("completed", 5, "")
        assert values(await broker.queues.receive(DEAD, wait_ms=5000)) == [b"newer"] * 3


@pytest.mark.parametrize("is_delivered", [True, False])
async def test_redrive_waits_for_messages_that_its_queue_still_has_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_delivered: bool
) -> None:
    monkeypatch.setattr(redrive, "DELIVERY_SECONDS", 10.0 if is_delivered else 0.1)
    async with running(tmp_path) as broker:
        await with_dead_letters(broker, count=6)
        lease = broker.queues._host.lease
        late = iter([True] * 3) if is_delivered else repeat(True)

        async def slow(request: ReceiveRequest) -> ReceiveReply:
            # As after a wait that was too short for the disk, or for another broker.
            return ReceiveReply() if request.max_messages and next(late, False) else await lease(request)

        monkeypatch.setattr(broker.queues._host, "lease", slow)
        done = await ended(broker, await broker.queues.start_redrive("orders.dlq"))
        if is_delivered:
            assert (done.state, done.moved, done.failure) == ("completed", 6, "")
        else:
            assert (done.state, done.moved) == ("failed", 0)
            assert done.failure.startswith("6 messages were not moved: their queue has delivered none for ")


async def test_redrive_can_be_cancelled_and_limited(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await with_dead_letters(broker, count=6)
        task = await broker.queues.start_redrive("orders.dlq", messages_per_second=1)
        assert (await broker.queues.cancel_redrive(task.id)).state == "cancelling"
        assert (await ended(broker, task)).state == "cancelled"
        task = await broker.queues.start_redrive("orders.dlq", max_messages=2)
        assert (await ended(broker, task)).moved == 2
        assert (await broker.queues.redrives())[0].id == task.id
        with pytest.raises(InvalidRequest):
            await broker.queues.cancel_redrive("unknown")


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        pytest.param("unknown", None, UnknownTopic, id="no such source"),
        pytest.param("orders.dlq", "unknown", UnknownTopic, id="no such target"),
        pytest.param("orders.dlq", "orders.dlq", InvalidRequest, id="into itself"),
    ],
)
async def test_invalid_redrives_are_refused(
    tmp_path: Path, source: str, target: str | None, error: type[Exception]
) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("orders.dlq")
        with pytest.raises(error):
            await broker.queues.start_redrive(source, target=target)
