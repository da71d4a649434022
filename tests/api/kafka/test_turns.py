"""How requests that take long share the event loop."""

import asyncio
from collections.abc import Generator

import pytest

from alpacamq.api.kafka import turns as turns_module
from alpacamq.api.kafka.turns import (
    FREE_SLICES,
    MAX_LARGE_REQUESTS,
    MAX_SMALL_REQUESTS,
    SHORT_REQUEST_BYTES,
    SMALL_REQUEST_BYTES,
    TINY_REQUEST_BYTES,
    Abandoned,
    Turns,
    Work,
)

LARGE = SMALL_REQUEST_BYTES + 1
SMALL = TINY_REQUEST_BYTES + 1


@pytest.fixture(autouse=True)
def every_stop_ends_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "SLICE_SECONDS", 0.0)


def wanted() -> bool:
    return True


async def test_one_slice_of_one_request_runs_each_time_round_the_loop() -> None:
    turns = Turns(asyncio.get_running_loop())
    slices = rounds = most = 0

    async def request() -> None:
        nonlocal slices
        work = Work(turns, wanted, SMALL)
        for _ in range(10):
            await work.pause()
            slices += 1
        work.leave()

    async def everybody_else() -> None:
        nonlocal rounds, most
        while slices < 50:
            before = slices
            await asyncio.sleep(0)
            most = max(most, slices - before)
            rounds += 1

    await asyncio.gather(everybody_else(), *(request() for _ in range(5)))
    assert most == 1
    assert rounds >= 50


async def test_requests_take_turns() -> None:
    turns = Turns(asyncio.get_running_loop())
    order: list[str] = []

    async def request(name: str) -> None:
        work = Work(turns, wanted, SMALL)
        for _ in range(3):
            await work.pause()
            order.append(name)

    await asyncio.gather(request("a"), request("b"))
    assert order == ["a", "b"] * 3


async def test_few_large_requests_are_under_way_at_once_and_small_ones_do_not_wait_for_them() -> None:
    turns = Turns(asyncio.get_running_loop())
    large = [Work(turns, wanted, LARGE) for _ in range(MAX_LARGE_REQUESTS + 1)]
    for work in large[:-1]:
        await work.pause()
    last = asyncio.ensure_future(large[-1].pause())
    small = Work(turns, wanted, SMALL)
    for _ in range(20):
        await small.pause()
    assert not last.done()
    large[0].leave()
    await last


async def test_few_small_requests_are_under_way_at_once_and_short_ones_do_not_wait_for_them() -> None:
    """Else only the number of connections would limit the memory that decoded requests take."""
    turns = Turns(asyncio.get_running_loop())
    small = [Work(turns, wanted, SHORT_REQUEST_BYTES + 1) for _ in range(MAX_SMALL_REQUESTS + 1)]
    for work in small[:-1]:
        await work.pause()
    last = asyncio.ensure_future(small[-1].pause())
    short = Work(turns, wanted, SHORT_REQUEST_BYTES)
    for _ in range(FREE_SLICES):
        await short.pause()
    assert not last.done()
    small[0].leave()
    await last


async def test_work_for_a_disconnected_client_is_abandoned() -> None:
    turns = Turns(asyncio.get_running_loop())
    is_there = True
    work = Work(turns, lambda: is_there, SMALL)
    await work.pause()
    is_there = False
    with pytest.raises(Abandoned):
        await work.pause()


async def test_a_generator_is_driven_to_its_result_with_stops() -> None:
    turns = Turns(asyncio.get_running_loop())
    others = 0

    async def count() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    def slices() -> Generator[None, None, str]:
        for _ in range(10):
            yield
        return "done"

    counting = asyncio.ensure_future(count())
    assert await Work(turns, wanted, SMALL).run(slices()) == "done"
    counting.cancel()
    assert others >= 10


async def test_work_within_a_slice_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "SLICE_SECONDS", 3600.0)
    work = Work(Turns(asyncio.get_running_loop()), wanted, SMALL)
    assert not work.is_over
    coroutine = work.pause()
    with pytest.raises(StopIteration):
        coroutine.send(None)


async def without_slots() -> Turns:
    """Return Turns whose slots are all in use."""
    turns = Turns(asyncio.get_running_loop())
    for _ in range(MAX_SMALL_REQUESTS):
        await turns.slots(0).acquire()
    for _ in range(MAX_LARGE_REQUESTS):
        await turns.slots(LARGE).acquire()
    return turns


async def rounds(count: int) -> None:
    """Let the event loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_wait_for_others_is_no_part_of_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(turns_module, "SLICE_SECONDS", 1.0)
    monkeypatch.setattr(turns_module, "monotonic", lambda: now)
    work = Work(await without_slots(), wanted, LARGE)
    reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def request() -> str:
        nonlocal now
        now += 0.5
        found = await reply
        await work.pause()
        now += 0.5
        assert work.is_over  # what it did before and after the wait is one slice
        return found

    task = asyncio.ensure_future(work.drive(request()))
    await rounds(2)
    now += 3600
    reply.set_result("found")
    await rounds(3)
    assert task.done()
    assert await task == "found"


async def test_a_request_that_waits_can_be_cancelled() -> None:
    work = Work(Turns(asyncio.get_running_loop()), wanted, SMALL)
    ended: list[str] = []

    async def request() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # it may have to wait while it ends
            ended.append("cancelled")
            raise

    task = asyncio.ensure_future(work.drive(request()))
    await rounds(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


async def test_a_small_request_needs_a_slot_only_after_a_few_slices() -> None:
    turns = await without_slots()
    work = Work(turns, wanted, SMALL)
    for _ in range(FREE_SLICES):
        await work.pause()
    last = asyncio.ensure_future(work.pause())
    await rounds(10)
    assert not last.done()
    turns.slots(0).release()
    await last


async def test_a_large_request_needs_a_slot_after_its_first_slice() -> None:
    turns = await without_slots()
    work = Work(turns, wanted, LARGE)
    await work.begin()
    second = asyncio.ensure_future(work.pause())
    await rounds(10)
    assert not second.done()
    turns.slots(LARGE).release()
    await second


async def test_every_second_slice_is_for_requests_that_have_just_begun() -> None:
    turns = Turns(asyncio.get_running_loop())
    order: list[str] = []

    async def long(work: Work) -> None:
        for _ in range(3):
            await work.pause()
            order.append("long")

    async def begun() -> None:
        await Work(turns, wanted, SMALL).begin()
        order.append("begun")

    works = [Work(turns, wanted, LARGE) for _ in range(MAX_LARGE_REQUESTS)]
    for work in works:
        await work.pause()
    await asyncio.gather(*(long(work) for work in works), *(begun() for _ in range(3)))
    assert order.index("begun") <= 2
    assert [index for index, name in enumerate(order) if name == "begun"][-1] <= 6


async def test_requests_that_arrive_at_once_begin_one_after_the_other() -> None:
    turns = Turns(asyncio.get_running_loop())
    begun = most = 0

    async def request() -> None:
        nonlocal begun
        await Work(turns, wanted, LARGE).begin()
        begun += 1

    requests = asyncio.gather(*(request() for _ in range(50)))
    while not requests.done():
        before = begun
        await asyncio.sleep(0)
        most = max(most, begun - before)
    assert most == 1


async def test_a_tiny_request_continues_once_without_a_turn() -> None:
    turns = Turns(asyncio.get_running_loop())
    work = Work(turns, wanted, TINY_REQUEST_BYTES)
    coroutine = work.pause()
    with pytest.raises(StopIteration):
        coroutine.send(None)
    second = asyncio.ensure_future(work.pause())
    await asyncio.sleep(0)
    assert not second.done()
    await second
