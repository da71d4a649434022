"""Share fetches that something goes wrong with half-way."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from alpacamq.api.kafka import turns as turns_module
from alpacamq.api.kafka.share import fetch as fetch_module
from alpacamq.api.kafka.share.fetch import SharedFetch, Taken
from alpacamq.api.kafka.share.sessions import ShareSession
from alpacamq.api.kafka.turns import Turns, Work
from alpacamq.broker.access import ANONYMOUS_CALLER
from alpacamq.broker.partition.leader import Partition, append
from alpacamq.coordinator.share.config import ShareConfig
from alpacamq.model.errors import DamagedLog, DiskFull
from alpacamq.model.records import Record, write_batch
from alpacamq.model.topics import Topic
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.share import ShareFetchRequest
from alpacamq.queues.messages import QueueId
from tests.broker.open_brokers import running


def share_session(topic: Topic) -> ShareSession:
    session = ShareSession(("group", "member"), lambda _: None)
    session.update([(topic.id, 0)], ())
    return session


def share_fetch(max_wait_ms: int) -> ShareFetchRequest:
    return ShareFetchRequest(
        group_id="group",
        member_id="member",
        share_session_epoch=0,
        max_wait_ms=max_wait_ms,
        min_bytes=1 << 20,
        max_bytes=1 << 20,
        max_records=10,
        batch_size=10,
        topics=[],
        forgotten_topics_data=[],
    )


async def test_records_acquired_before_an_error_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        topic = await broker.topics.create("t", partitions=1)
        await append(broker.topics.partition("t", 0), write_batch([Record(0, 1000, None, b"x")]))
        acquire = broker.queues.acquire
        # The first queue of a broker takes its time.
        await acquire(QueueId("another", "t"), consumer="", partitions=(0,), max_messages=1)

        async def acquire_once(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(broker.queues, "acquire", fail)
            return await acquire(*args, **options)

        async def fail(*_: Any, **__: Any) -> Any:
            raise DiskFull("there is no room for more leases")

        monkeypatch.setattr(broker.queues, "acquire", acquire_once)
        config = ShareConfig(auto_offset_reset="earliest")
        work = Work(Turns(asyncio.get_running_loop()), lambda: True, 100)
        (taken,) = await SharedFetch(
            broker, ANONYMOUS_CALLER, share_session(topic), share_fetch(2000), config, work
        ).run()
        told = taken.shared(10)
        assert [entry.offset for entry in taken.acquired] == [0]
        assert (told.error_code, told.records_bytes) == (0, taken.covering.length)
        taken.covering.release()


@pytest.mark.parametrize(("replicas", "is_discarded"), [((1,), True), ((1, 2, 3), False)])
async def test_damaged_records_are_discarded_only_where_no_other_replica_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: tuple[int, ...], is_discarded: bool
) -> None:
    def damaged(*_: Any, **__: Any) -> Any:
        raise DamagedLog(Path("segment"), 0, "flipped bits", (0, 1))

    async with running(tmp_path) as broker:
        topic = await broker.topics.create("t", partitions=1)
        await append(broker.topics.partition("t", 0), write_batch([Record(0, 1000, None, b"x")]))
        config = ShareConfig(auto_offset_reset="earliest")
        work = Work(Turns(asyncio.get_running_loop()), lambda: True, 100)

        async def fetched() -> list[Taken]:
            session, request = share_session(topic), share_fetch(500)
            return await SharedFetch(broker, ANONYMOUS_CALLER, session, request, config, work).run()

        with monkeypatch.context() as patches:
            patches.setattr(fetch_module, "cover", damaged)
            patches.setattr(Partition, "replicas", replicas)
            answers = [taken.shared(10) for taken in await fetched()]
        refused = [(answer.error_code, list(answer.acquired)) for answer in answers]
        assert refused == ([] if is_discarded else [(ErrorCode.NOT_LEADER_OR_FOLLOWER, [])])
        again = await fetched()
        assert [entry.delivery_count for taken in again for entry in taken.acquired] == [1] * (
            not is_discarded
        )
        for taken in again:
            taken.covering.release()


class Paused(Exception):
    """The fetch has paused."""


async def test_its_slot_is_free_while_it_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(turns_module, "FREE_SLICES", 0)
    monkeypatch.setattr(turns_module, "TINY_REQUEST_BYTES", 0)
    monkeypatch.setattr(turns_module, "MAX_SMALL_REQUESTS", 1)
    pauses: list[bool] = []

    async def pause(_seconds: float) -> None:
        pauses.append(turns.slots(100).locked())
        raise Paused

    async def wait_for_nothing(*_: object) -> None:
        """Be woken for messages that another member takes."""

    async with running(tmp_path) as broker:
        topic = await broker.topics.create("t", partitions=1)
        monkeypatch.setattr(broker.queues, "wait_for_messages", wait_for_nothing)
        turns = Turns(asyncio.get_running_loop())
        work = Work(turns, lambda: True, 100)
        fetch = SharedFetch(
            broker, ANONYMOUS_CALLER, share_session(topic), share_fetch(600_000), ShareConfig(), work
        )
        with monkeypatch.context() as patches:
            # Only where the fetch pauses: other parts of the broker sleep as well.
            patches.setattr(
                "alpacamq.api.kafka.share.fetch.asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": pause})
            )
            with pytest.raises(Paused):
                await fetch.run()
    assert pauses == [False]
