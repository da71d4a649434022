"""Offset commits that a coordinator on this broker takes at once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from alpacamq.api.kafka.commits import _Commit
from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.protocol.error_codes import ErrorCode
from tests.broker.open_brokers import running

from .served import served
from .test_committed_offsets import commit


async def test_a_commit_whose_coordinator_is_discarded_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_to = StateMachineHost.submit_to
    commits: list[_Commit] = []

    def discarded(host: StateMachineHost[Any], reply: Any, request: Any) -> None:
        submit_to(host, reply, request)
        if isinstance(reply, _Commit):
            commits.append(reply)
            host.reload("a test")

    async with running(tmp_path) as broker, served(broker) as (wire, _):
        await broker.topics.create("orders", partitions=1)
        assert await asyncio.to_thread(commit, wire, "tills", "orders", 1) == 0  # creates the coordinator
        monkeypatch.setattr(StateMachineHost, "submit_to", discarded)
        answered = await asyncio.to_thread(commit, wire, "tills", "orders", 2)
        assert answered == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        (refused,) = commits
        connection = refused._answer._connection
        assert connection._answered_bytes == 0, "what is counted is what waits to be sent"
