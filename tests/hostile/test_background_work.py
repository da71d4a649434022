"""Background work of the broker does not block requests, however much state there is."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.rest.app import RestApi
from alpacamq.broker.broker import Broker
from alpacamq.broker.statemachine import host as host_module
from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import CommitRequest, OffsetToCommit
from alpacamq.telemetry.metrics import Metrics
from tests.broker.open_brokers import running

from .loop_holds import loop_holds

# Many times what a slice takes, and a fraction of what the whole would.
MAX_HOLD_SECONDS = 0.03
GROUPS = 20_000
KEYS_OF_GROUP = 1000
KEYS = 100_000


async def commit(broker: Broker, group: str, partitions: int) -> None:
    offsets = tuple(
        OffsetToCommit(topic="t", partition=partition, offset=0) for partition in range(partitions)
    )
    request = CommitRequest(group=group, offsets=offsets)
    await broker.groups.ask(request)


async def shard_of(broker: Broker, group: str) -> StateMachineHost[GroupCoordinator]:
    return await broker.groups._machines.host_of(group)


@pytest.fixture
async def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """A broker with many committed offsets in one shard, of which no snapshot has been taken."""
    monkeypatch.setattr(host_module, "SNAPSHOT_RECORDS", 10 * KEYS)
    async with running(tmp_path) as broker:
        await broker.topics.create("t", partitions=1)
        first = await shard_of(broker, "group-0")
        number = keys = 0
        while keys < KEYS:
            if await shard_of(broker, f"group-{number}") is first:
                await commit(broker, f"group-{number}", KEYS_OF_GROUP)
                keys += KEYS_OF_GROUP
            number += 1
        yield broker


async def test_a_snapshot_of_many_keys_is_taken_in_slices(
    filled: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await shard_of(filled, "group-0")
    served = 0
    async with loop_holds() as holds:
        monkeypatch.setattr(host_module, "SNAPSHOT_RECORDS", 1)
        shard.wake()
        while not shard.is_taking_snapshot:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        monkeypatch.setattr(host_module, "SNAPSHOT_RECORDS", 10 * KEYS)
        while shard.is_taking_snapshot:
            await commit(filled, "group-0", 1)  # others are served meanwhile
            await asyncio.sleep(0)
            served += 1

    assert holds.longest_seconds < MAX_HOLD_SECONDS
    assert served > 20


async def test_the_offsets_of_a_deleted_topic_are_dropped_in_slices(filled: Broker) -> None:
    async with loop_holds() as holds:
        await filled.topics.delete("t")

    assert holds.longest_seconds < MAX_HOLD_SECONDS
    assert holds.turns > KEYS / 1000
    assert not [*(await (await shard_of(filled, "group-0")).loaded()).groups_with_offsets()]


@pytest.fixture
async def many_groups(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path, metrics=Metrics()) as broker:
        await broker.topics.create("t", partitions=1)
        for first in range(0, GROUPS, 500):
            await asyncio.gather(*(commit(broker, f"g{number}", 1) for number in range(first, first + 500)))
        yield broker


async def test_watching_many_groups_does_not_hold_up_requests(many_groups: Broker) -> None:
    api = RestApi(many_groups, {})

    async def get(path: str, query: str = "") -> Response:
        answer = api(Request("GET", path, query, {}, b"", "test"))
        return answer if isinstance(answer, Response) else await answer

    for look in (
        lambda: get("/groups"),
        lambda: get("/groups", "limit=10000"),
        lambda: get("/stats/groups"),
        lambda: get("/metrics"),
        many_groups.sampler.sample,
    ):
        async with loop_holds() as holds:
            answer = await look()

        assert answer is None or answer.status == 200
        assert holds.longest_seconds < MAX_HOLD_SECONDS
        assert holds.turns > GROUPS / 1000


@pytest.mark.parametrize("generation", [1, 2])
def test_state_that_lasts_is_not_looked_at_again_by_the_garbage_collector(generation: int) -> None:
    script = f"""
import gc
from alpacamq.node.serve import keep_collections_short
keep_collections_short()
gc.disable()  # a collection in between would freeze a part of it, and leave one too short to freeze the rest
state = [[[]] for _ in range(300_000)]
gc.enable()
gc.collect({generation})
assert gc.get_freeze_count() > 300_000
gc.collect()
assert len(gc.get_objects()) < 50_000
"""
    subprocess.run([sys.executable, "-c", script], check=True)
