"""Lag and stalls of the event loop."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from alpacamq.telemetry.event_loop import EventLoopWatch
from alpacamq.telemetry.logs import capture_logs
from tests.waiting import eventually

STALL_S = 0.3


@contextmanager
def running(watch: EventLoopWatch) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that turns in a thread of its own, watched."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(watch.run())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


def hog(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_a_running_loop_has_no_stalls() -> None:
    watch = EventLoopWatch(stall_seconds=60)
    with running(watch):
        eventually(lambda: watch.lag.count >= 3)
    assert watch.stalls == 0
    assert watch.seconds_since_stall() is None


def test_a_stall_is_counted_and_its_cause_is_logged_while_it_lasts() -> None:
    watch = EventLoopWatch(stall_seconds=STALL_S)
    with capture_logs() as logs, running(watch) as loop:
        loop.call_soon_threadsafe(hog, STALL_S * 4)
        eventually(lambda: watch.stalls)
    assert watch.stalls == 1
    assert watch.last_stall_seconds >= STALL_S
    since = watch.seconds_since_stall()
    assert since is not None
    [while_it_lasts] = [line for line in logs if line["event"] == "event_loop_blocked"]
    assert "in hog" in while_it_lasts["stack"]
    [afterwards] = [line for line in logs if line["event"] == "event_loop_stalled"]
    assert logs.index(while_it_lasts) < logs.index(afterwards)
