"""Workers: tasks, retries, dead letters, timeouts, stops, and the command."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest

import alpacamq
from alpacamq import aio
from alpacamq.client.aio.queue import Job
from alpacamq.client.worker.app import exposition
from alpacamq.client.worker.command import NoApplication, load
from alpacamq.client.worker.task import TaskMetrics
from tests.ports import free_ports
from tests.waiting import eventually, soon


class Mail(msgspec.Struct):
    to: str


async def send(mq: aio.Client, topic: str, *values: bytes) -> None:
    async with mq.topic(topic).producer() as producer:
        for each in values:
            producer.send(each, partition=0)


async def dead_letters(mq: aio.Client, topic: str, count: int) -> dict[bytes | None, bytes | None]:
    """Wait for so many dead letters of a topic; return reasons by value."""

    async def exists() -> bool:
        return f"{topic}.dlq" in await (await mq.cluster()).topic_names()

    is_there: bool = await soon(exists, what="the dead-letter topic")
    assert is_there
    found: dict[bytes | None, bytes | None] = {}
    async with asyncio.timeout(60):
        async for letter in mq.topic(f"{topic}.dlq").read():
            found[letter.raw_value] = letter.headers["alpacamq-dead-letter-reason"]
            if len(found) == count:
                break
    return found


async def stopped_after(app: alpacamq.Worker, condition: Callable[[], bool]) -> TaskMetrics:
    """Run an application until a condition holds; return the metrics of its task."""
    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        group.create_task(app.run_async())
        await soon(condition, within_s=80)
        app.stop()
    (metrics,) = app.metrics.values()
    return metrics


async def test_a_task_gets_values_of_its_parameters_type(mq: aio.Client, url: str, topic: str) -> None:
    await send(mq, topic, b'{"to":"ann"}', b'{"to":"bob"}')
    app = alpacamq.Worker(url)
    seen: list[Mail] = []

    @app.task(topic, group="mailer", concurrency=2, timeout="30s")
    async def send_mail(mail: Mail) -> None:
        seen.append(mail)

    metrics = await stopped_after(app, lambda: len(seen) == 2)
    assert sorted(each.to for each in seen) == ["ann", "bob"]
    assert (metrics.succeeded, metrics.unsettled, metrics.running) == (2, 0, 0)
    # They are done for this group.
    await send(mq, topic, b"last")
    async with mq.topic(topic).queue("mailer").receive() as jobs:
        assert (await jobs.next()).value == b"last"


async def test_plain_functions_run_in_threads_at_a_time(mq: aio.Client, url: str, topic: str) -> None:
    await send(mq, topic, b"a", b"b", b"c")
    app = alpacamq.Worker(url)
    together = threading.Barrier(3)  # passes only if three run at once
    threads: list[int] = []

    @app.task(topic, group="blocking", concurrency=3)
    def work(value: bytes) -> None:
        together.wait(60)
        threads.append(threading.get_ident())

    await stopped_after(app, lambda: len(threads) == 3)
    assert threading.get_ident() not in threads


async def test_a_failing_task_is_retried_and_then_dead_lettered(mq: aio.Client, url: str, topic: str) -> None:
    await send(mq, topic, b"bad")
    queue = mq.topic(topic).queue("workers")
    await queue.configure({"queue.backoff.initial.ms": "1", "queue.backoff.max.ms": "1"})
    app = alpacamq.Worker(url)
    deliveries: list[int] = []

    # More than the queue's own limit, which is four deliveries.
    @app.task(topic, group="workers", retries=5)
    async def work(value: bytes, job: Job[bytes]) -> None:
        deliveries.append(job.delivery_count)
        raise KeyError("no such customer")

    metrics = await stopped_after(app, lambda: len(deliveries) == 6)
    assert deliveries == [1, 2, 3, 4, 5, 6]
    assert (metrics.retried, metrics.rejected) == (5, 1)
    assert await dead_letters(mq, topic, 1) == {b"bad": b"KeyError: 'no such customer'"}


async def test_rejected_and_undecodable_messages_become_dead_letters(
    mq: aio.Client, url: str, topic: str
) -> None:
    await send(mq, topic, b'{"to":"nobody"}', b"not JSON", b'{"to":1}')
    app = alpacamq.Worker(url)

    @app.task(topic, group="mailer", retries=5)
    async def send_mail(mail: Mail) -> None:
        raise alpacamq.Reject("no such address")

    metrics = app.metrics[next(iter(app.metrics))]
    await stopped_after(app, lambda: metrics.rejected == 3)
    letters = await dead_letters(mq, topic, 3)
    assert letters[b'{"to":"nobody"}'] == b"no such address"
    assert b"invalid value" in (letters[b"not JSON"] or b"")
    assert b"Expected `str`, got `int`" in (letters[b'{"to":1}'] or b"")


async def test_retry_says_when_the_message_is_delivered_again(mq: aio.Client, url: str, topic: str) -> None:
    await send(mq, topic, b"later")
    app = alpacamq.Worker(url)
    deliveries: list[int] = []

    @app.task(topic, group="workers")
    async def work(value: bytes, job: Job[bytes]) -> None:
        deliveries.append(job.delivery_count)
        if job.delivery_count == 1:
            raise alpacamq.Retry("rate limit", after="1ms")

    await stopped_after(app, lambda: len(deliveries) == 2)
    assert deliveries == [1, 2]


async def test_a_task_that_takes_too_long_is_cancelled_and_retried(
    mq: aio.Client, url: str, topic: str
) -> None:
    await send(mq, topic, b"slow")
    app = alpacamq.Worker(url)
    cancelled: list[bool] = []

    @app.task(topic, group="workers", timeout="10ms", retries=0)
    async def work(value: bytes) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    metrics = await stopped_after(app, lambda: bool(cancelled))
    assert metrics.timed_out == 1
    assert await dead_letters(mq, topic, 1) == {b"slow": b"not done within 0.01 s"}


async def test_a_function_that_runs_on_after_its_time_holds_up_messages_and_does_not_fail_them(
    mq: aio.Client, url: str, topic: str
) -> None:
    await send(mq, topic, b"slow", b"next")
    app = alpacamq.Worker(url)
    ran: list[bytes] = []
    may_end = threading.Event()

    @app.task(topic, group="workers", concurrency=1, timeout="50ms", visibility="1h")
    def work(value: bytes) -> None:
        ran.append(value)
        may_end.wait(60)

    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        group.create_task(app.run_async())
        await soon(lambda: any(each.timed_out for each in app.metrics.values()))
        # A few times the limit: nothing can take the other message meanwhile.
        await asyncio.sleep(0.3)
        assert ran == [b"slow"]
        (metrics,) = app.metrics.values()
        assert (metrics.timed_out, metrics.retried, metrics.rejected) == (1, 1, 0)
        may_end.set()
        await soon(lambda: metrics.succeeded == 2)
        app.stop()
    assert sorted(ran) == [b"next", b"slow", b"slow"]


@pytest.mark.parametrize("is_coroutine", [True, False], ids=["coroutine", "function"])
async def test_what_would_end_the_worker_fails_the_message_only(
    mq: aio.Client, url: str, topic: str, is_coroutine: bool
) -> None:
    await send(mq, topic, b"a")
    await mq.topic(topic).queue("workers").configure({"queue.backoff.initial.ms": "1"})
    app = alpacamq.Worker(url)
    deliveries: list[int] = []

    async def cancelled(value: bytes, job: Job[bytes]) -> None:
        deliveries.append(job.delivery_count)
        if job.delivery_count == 1:
            raise asyncio.CancelledError  # of something that it has awaited

    def exits(value: bytes, job: Job[bytes]) -> None:
        deliveries.append(job.delivery_count)
        if job.delivery_count == 1:
            sys.exit(3)

    app.task(topic, group="workers", visibility="1h")(cancelled if is_coroutine else exits)
    metrics = await stopped_after(app, lambda: len(deliveries) == 2)
    assert (metrics.retried, metrics.succeeded) == (1, 1)


async def test_leases_are_extended_while_a_task_runs(mq: aio.Client, url: str, topic: str) -> None:
    await send(mq, topic, b"long")
    app = alpacamq.Worker(url)
    deliveries: list[int] = []

    @app.task(topic, group="workers", concurrency=2, visibility="600ms")
    async def work(value: bytes, job: Job[bytes]) -> None:
        deliveries.append(job.delivery_count)
        # Several leases long.
        until_ms = job.deadline_ms + 3000
        await soon(lambda: time.time() * 1000 > until_ms)

    metrics = app.metrics[next(iter(app.metrics))]
    await stopped_after(app, lambda: metrics.succeeded == 1)
    assert deliveries == [1]
    assert metrics.unsettled == 0


async def test_a_stop_lets_running_tasks_end_and_releases_the_others(
    mq: aio.Client, url: str, topic: str
) -> None:
    await send(mq, topic, *(b"%d" % number for number in range(10)))
    app = alpacamq.Worker(url)
    ended: list[bytes] = []
    started = asyncio.Event()
    finish = asyncio.Event()

    @app.task(topic, group="workers", concurrency=2, prefetch=5, visibility="1h")
    async def work(value: bytes) -> None:
        started.set()
        await finish.wait()
        ended.append(value)

    running = asyncio.create_task(app.run_async())
    await started.wait()
    app.stop()
    async with mq.topic(topic).queue("workers").receive(credit=10) as others:
        # While two tasks still run, the rest is delivered to others at once.
        rest = [(await asyncio.wait_for(others.next(), 30)).value for _ in range(8)]
        finish.set()
        await asyncio.wait_for(running, 30)
    assert len(ended) == 2
    assert sorted([*ended, *rest]) == [b"%d" % number for number in range(10)]


async def test_a_task_that_does_not_end_within_the_grace_gives_its_message_back(
    mq: aio.Client, url: str, topic: str
) -> None:
    await send(mq, topic, b"endless")
    app = alpacamq.Worker(url, grace="10ms")
    started = asyncio.Event()

    @app.task(topic, group="workers", visibility="1h")
    async def work(value: bytes) -> None:
        started.set()
        await asyncio.Event().wait()

    metrics = await stopped_after(app, started.is_set)
    assert metrics.released == 1
    async with mq.topic(topic).queue("workers").receive() as jobs:
        assert (await asyncio.wait_for(jobs.next(), 30)).value == b"endless"


def test_a_task_needs_a_parameter_and_one_name() -> None:
    app = alpacamq.Worker()
    with pytest.raises(ValueError, match="must take a value"):
        app.task("emails", group="mailer")(lambda: None)
    with pytest.raises(ValueError, match="retries"):
        app.task("emails", group="mailer", retries=-1)

    @app.task("emails", group="mailer")
    async def send_mail(mail: Mail) -> None: ...

    with pytest.raises(ValueError, match="defined twice"):
        app.task("emails", group="other")(send_mail)


def test_metrics_are_plain_integers_in_prometheus_format() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    metrics = {"send": TaskMetrics(task="send", topic="emails", group="mailer", succeeded=3, running=1)}
    families = {each.name: each for each in parser.text_string_to_metric_families(exposition(metrics))}
    samples = families["alpacamq_worker_messages"].samples
    assert {each.labels["outcome"]: each.value for each in samples}["succeeded"] == 3
    assert families["alpacamq_worker_running"].samples[0].value == 1


# The command.

APP = """
import pathlib
import alpacamq

app = alpacamq.Worker({url!r})

@app.task({topic!r}, group="command", concurrency=4)
async def work(value: bytes) -> None:
    with pathlib.Path("seen").open("a") as seen:
        seen.write(value.decode() + {suffix!r} + "\\n")
"""


def write_app(directory: Path, url: str, topic: str, suffix: str = "") -> None:
    (directory / "tasks.py").write_text(APP.format(url=url, topic=topic, suffix=suffix))


def start(directory: Path, *options: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "alpacamq.node.main", "worker", "tasks:app", *options],
        cwd=directory,
        stderr=(directory / "log").open("wb"),
    )


def seen(directory: Path) -> list[str]:
    file = directory / "seen"
    return sorted(file.read_text().split()) if file.exists() else []


async def test_the_command_runs_an_application_until_sigterm(
    mq: aio.Client, url: str, topic: str, tmp_path: Path
) -> None:
    await send(mq, topic, b"a", b"b")
    write_app(tmp_path, url, topic)
    (port,) = free_ports(1)
    process = await asyncio.to_thread(start, tmp_path, "--metrics", f"127.0.0.1:{port}")
    try:
        await soon(lambda: seen(tmp_path) == ["a", "b"], within_s=60)
        async with httpx.AsyncClient() as http:
            metrics = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
        assert 'outcome="succeeded"} 2' in metrics
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()


async def test_the_command_runs_several_processes_and_replaces_one_that_is_killed(
    mq: aio.Client, url: str, topic: str, tmp_path: Path
) -> None:
    psutil = pytest.importorskip("psutil")
    await send(mq, topic, b"a")
    write_app(tmp_path, url, topic)
    process = await asyncio.to_thread(start, tmp_path, "--processes", "2")
    try:
        parent = psutil.Process(process.pid)
        await soon(lambda: len(parent.children()) == 2 and seen(tmp_path) == ["a"], within_s=60)
        victim = parent.children()[0].pid
        os.kill(victim, signal.SIGKILL)
        await soon(
            lambda: len(parent.children()) == 2 and victim not in {each.pid for each in parent.children()},
            within_s=60,
        )
        children = parent.children()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
        assert not any(each.is_running() for each in children)
    finally:
        process.kill()
        process.wait()


async def test_the_command_reloads_changed_sources(
    mq: aio.Client, url: str, topic: str, tmp_path: Path
) -> None:
    write_app(tmp_path, url, topic)
    process = await asyncio.to_thread(start, tmp_path, "--reload")
    try:
        await send(mq, topic, b"a")
        await soon(lambda: seen(tmp_path) == ["a"], within_s=60)
        write_app(tmp_path, url, topic, suffix="-changed")
        eventually(lambda: "sources have changed" in (tmp_path / "log").read_text())
        await send(mq, topic, b"b")
        await soon(lambda: bool({"b", "b-changed"} & set(seen(tmp_path))), within_s=60)
        await send(mq, topic, b"c")
        await soon(lambda: "c-changed" in seen(tmp_path), within_s=60)
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 60)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:app", "there is no module"),
        ("json:dumps", "not an alpacamq.Worker"),
        (":app", "no module"),
    ],
)
def test_a_wrong_application_is_explained(name: str, reason: str) -> None:
    with pytest.raises(NoApplication, match=reason):
        load(name)
