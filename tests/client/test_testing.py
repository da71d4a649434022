"""alpacamq.testing: a broker for the tests of users."""

import asyncio
from pathlib import Path

import psutil
import pytest

import alpacamq
from alpacamq import aio, testing


def test_a_broker_runs_for_the_block_and_leaves_nothing() -> None:
    with testing.broker() as url:
        assert url.startswith("alpaca://127.0.0.1:")
        with alpacamq.connect(url) as mq:
            mq.topic("orders", value=str).send("espresso")
        assert psutil.pid_exists(url.pid)
        assert set(url.addresses) == {"kafka", "http", "sqs", "registry", "grpc"}
    assert not psutil.pid_exists(url.pid)
    assert not url.data_dir.exists()


async def test_the_event_loop_is_not_blocked_while_a_broker_starts() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    async with testing.async_broker() as url, aio.connect(url) as mq:
        assert turns > 10
        turning.cancel()
        await mq.topic("orders").send(b"espresso")


def test_data_is_kept_in_a_directory_of_the_users(tmp_path: Path) -> None:
    with testing.broker(data_dir=tmp_path / "data") as url, alpacamq.connect(url) as mq:
        mq.topic("orders", value=str).send("espresso")
    with testing.broker(data_dir=tmp_path / "data") as url, alpacamq.connect(url) as mq:
        assert [each.value for each in mq.topic("orders", value=str).read(until="latest")] == ["espresso"]


def test_a_broker_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(testing.NotStarted, match="no_such_section"),
        testing.broker(config="[no_such_section]\n"),
    ):
        pass
