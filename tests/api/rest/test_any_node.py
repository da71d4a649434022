"""Reading and describing topics whose partitions are led by three brokers, through each of them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
import pytest

from alpacamq.api.http.messages import Request
from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.handlers import groups, health, offsets, polling, reading, stats, topics, traces
from alpacamq.api.rest.parameters import OfGroup, OfTopic
from alpacamq.api.rest.route import Call, Nothing
from alpacamq.broker.broker import Broker
from alpacamq.broker.publishing import Message, Published
from alpacamq.broker.tracing.partition import Origin
from alpacamq.broker.tracing.tracing import TracingSettings
from alpacamq.model.errors import LeaderNotAvailable, UnknownTopic
from alpacamq.model.pipelines import PIPELINES_TOPIC, PipelineProgress, PipelineState
from alpacamq.telemetry.history import Measure
from alpacamq.telemetry.tracing import ClientApi
from tests.broker.remote.three_brokers import SOON_SECONDS, ThreeBrokers, three_brokers

R = TypeVar("R")

TOPIC = "orders"
PARTITIONS = 6
ORIGIN = Origin(ClientApi.HTTP, "test")


def call(broker: Broker, parameters: Any, body: Any = None) -> Call[Any, Any]:
    request = cast("Request", SimpleNamespace(peer="test"))
    return Call(Backend(broker, {}), request, parameters, Nothing() if body is None else body)


async def ask(handler: Callable[[Call[Any, Any]], Awaitable[R]], broker: Broker, *arguments: Any) -> R:
    async with asyncio.timeout(SOON_SECONDS):
        return await handler(call(broker, *arguments))


async def publish(broker: Broker, index: int, *values: bytes, **fields: Any) -> None:
    messages = [Message(value=value, partition=index, **fields) for value in values]
    for result in await broker.publisher.publish(TOPIC, messages, origin=ORIGIN):
        assert isinstance(result, Published), result


async def filled(cluster: ThreeBrokers, factor: int) -> None:
    """Create the topic with partitions on every broker, and write two messages to each partition."""
    await cluster.create(TOPIC, partitions=PARTITIONS, replication_factor=factor)
    assert {cluster.leader_id(TOPIC, index) for index in range(PARTITIONS)} == {1, 2, 3}
    for index in range(PARTITIONS):
        await publish(cluster[1], index, b"a%d" % index, b"b%d" % index, key=b"key-%d" % index)


@pytest.mark.parametrize("factor", [1, 3])
async def test_every_broker_shows_the_whole_topic(tmp_path: Path, factor: int) -> None:
    async with three_brokers(tmp_path) as cluster:
        await filled(cluster, factor)
        everything = sorted(f"{letter}{index}" for letter in "ab" for index in range(PARTITIONS))
        for broker in cluster.brokers.values():
            whole = await ask(reading.read_topic, broker, reading.TopicPlace(topic=TOPIC))
            assert sorted(str(each.value) for each in whole.messages) == everything
            assert whole.next_offsets == whole.end_offsets == {str(index): 2 for index in range(PARTITIONS)}
            some = await ask(reading.read_topic, broker, reading.TopicPlace(topic=TOPIC, limit=5))
            assert len(some.messages) == 5
            for index in range(PARTITIONS):
                part = await ask(
                    reading.read_partition,
                    broker,
                    reading.PartitionPlace(topic=TOPIC, partition=index, offset=1),
                )
                assert [each.value for each in part.messages] == [f"b{index}"]
                assert (part.start_offset, part.next_offset, part.end_offset) == (0, 2, 2)
            found = await ask(reading.find_messages, broker, reading.KeyQuery(topic=TOPIC, key="key-3"))
            assert [each.value for each in found.messages] == ["a3", "b3"]


@pytest.mark.parametrize("factor", [1, 3])
async def test_every_broker_describes_all_partitions(tmp_path: Path, factor: int) -> None:
    async with three_brokers(tmp_path) as cluster:
        await filled(cluster, factor)
        for broker in cluster.brokers.values():
            described = await ask(topics.describe_topic, broker, OfTopic(topic=TOPIC))
            assert [each.end_offset for each in described.partitions] == [2] * PARTITIONS
            for part in described.partitions:
                assert part.leader == cluster.leader_id(TOPIC, part.partition)
                assert part.size_bytes
            listed = (await ask(topics.list_partitions, broker, OfTopic(topic=TOPIC))).partitions
            assert [len(each.replicas) for each in listed] == [factor] * PARTITIONS
            assert [each.messages for each in listed] == [2] * PARTITIONS
            (topic,) = (await ask(topics.list_topics, broker, topics.TopicsQuery())).topics
            assert (topic.partitions, topic.messages) == (PARTITIONS, 12)
            assert topic.unavailable_partitions is msgspec.UNSET
            (counted,) = (await ask(stats.topic_stats, broker, stats.TopicStatsQuery())).topics
            assert (counted.partitions, counted.messages, counted.written_total) == (PARTITIONS, 12, 12)
            assert (await ask(health.stats, broker, Nothing())).messages >= 12


async def test_partitions_without_a_leader_are_shown_as_unavailable(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await filled(cluster, 1)
        lost = [index for index in range(PARTITIONS) if cluster.leader_id(TOPIC, index) == 3]
        await cluster.kill(3)
        await cluster.until(lambda: cluster.state(TOPIC, lost[0]).leader is None, "no leader")
        described = await ask(topics.describe_topic, cluster[1], OfTopic(topic=TOPIC))
        assert [each.partition for each in described.partitions if each.end_offset is None] == lost
        assert [each.partition for each in described.partitions if each.leader == -1] == lost
        (topic,) = (await ask(topics.list_topics, cluster[1], topics.TopicsQuery())).topics
        assert topic.unavailable_partitions == len(lost)
        cluster[1].reads._leaders._retry_ms = 50
        with pytest.raises(LeaderNotAvailable):
            await ask(reading.read_topic, cluster[1], reading.TopicPlace(topic=TOPIC))
        others = ",".join(f"{index}:0" for index in range(PARTITIONS) if index not in lost)
        whole = await ask(reading.read_topic, cluster[1], reading.TopicPlace(topic=TOPIC, offsets=others))
        assert len(whole.messages) == 2 * (PARTITIONS - len(lost))


async def test_a_long_poll_is_answered_when_a_message_is_published_through_another_broker(
    tmp_path: Path,
) -> None:
    async with three_brokers(tmp_path) as cluster:
        await filled(cluster, 3)
        latest = reading.TopicPlace(topic=TOPIC, start=reading.Start.LATEST, wait_ms=60_000)
        for index in range(PARTITIONS):
            waiting = asyncio.ensure_future(ask(reading.read_topic, cluster[2], latest))
            leader = await cluster.led(TOPIC, index)
            await cluster.until(lambda: leader._watchers, "a reader that waits")  # noqa: B023
            await publish(cluster[3], index, b"news")
            assert [each.value for each in (await waiting).messages] == ["news"]


async def test_a_long_poll_survives_the_loss_of_a_leader(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await filled(cluster, 3)
        index = next(index for index in range(PARTITIONS) if cluster.leader_id(TOPIC, index) == 3)
        query = reading.PartitionPlace(topic=TOPIC, partition=index, offset=2, wait_ms=60_000)
        waiting = asyncio.ensure_future(ask(reading.read_partition, cluster[1], query))
        leader = await cluster.led(TOPIC, index)
        await cluster.until(lambda: leader._watchers, "a reader that waits")
        await cluster.kill(3)
        await publish(cluster[2], index, b"after")
        assert [each.value for each in (await waiting).messages] == ["after"]


async def test_a_long_poll_ends_with_its_topic(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await filled(cluster, 1)
        latest = reading.TopicPlace(topic=TOPIC, start=reading.Start.LATEST, wait_ms=60_000)
        waiting = asyncio.ensure_future(ask(reading.read_topic, cluster[2], latest))
        leader = await cluster.led(TOPIC, 0)
        await cluster.until(lambda: leader._watchers, "a reader that waits")
        await cluster[1].topics.delete(TOPIC)
        with pytest.raises(UnknownTopic):
            await waiting


async def test_offsets_are_reset_by_time_and_shown_with_lag_on_every_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(TOPIC, partitions=PARTITIONS, replication_factor=1)
        for index in range(PARTITIONS):
            await publish(cluster[1], index, b"old", timestamp_ms=1_000)
            await publish(cluster[1], index, b"new", timestamp_ms=5_000)
        for broker in cluster.brokers.values():
            reset = offsets.Reset(topic=TOPIC, timestamp=2_000)
            changes = offsets.OffsetChanges(reset=[reset])
            done = await ask(offsets.change_offsets, broker, OfGroup(group="g"), changes)
            assert [each.offset for each in done.offsets] == [1] * PARTITIONS
            shown = await ask(offsets.show_offsets, broker, offsets.OffsetsQuery(group="g"))
            assert [each.end_offset for each in shown.offsets] == [2] * PARTITIONS
            assert shown.total_lag == PARTITIONS
            groups = await ask(stats.group_stats, broker, stats.GroupStatsQuery())
            assert [(each.group, each.lag) for each in groups.groups] == [("g", PARTITIONS)]


async def test_progress_of_pipelines_is_read_on_every_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(PIPELINES_TOPIC, partitions=1, replication_factor=1)
        progress = PipelineProgress(
            name="archive", kind="archive", state=PipelineState.RUNNING, started=1, updated=2
        )
        message = Message(value=msgspec.json.encode(progress), key=b"archive")
        await cluster[1].publisher.publish(PIPELINES_TOPIC, [message])
        for broker in cluster.brokers.values():
            backend = Backend(broker, {})
            assert [each.name for each in await backend.pipelines.latest()] == ["archive"]
            assert [each.name for each in await backend.pipelines.latest()] == ["archive"]


async def test_a_member_polls_all_partitions_through_any_broker(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await filled(cluster, 3)
        joined = await ask(groups.join, cluster[1], OfGroup(group="g"), groups.Join(topics=[TOPIC]))
        expected = sorted(f"{letter}{index}" for letter in "ab" for index in range(PARTITIONS))
        polled = await ask(
            polling.poll,
            cluster[2],
            polling.Poll(group="g", member=joined.member_id, max=1000, wait_ms=30_000),
        )
        assert isinstance(polled, polling.MemberPoll)
        assert sorted(str(each.value) for each in polled.messages) == expected
        again = polling.Poll(
            group="g", member=joined.member_id, max=1000, wait_ms=30_000, cursor=polled.cursor, commit=True
        )
        waiting = asyncio.ensure_future(ask(polling.poll, cluster[3], again))
        leader = await cluster.led(TOPIC, 4)
        await cluster.until(lambda: leader._watchers, "a member that waits")
        await publish(cluster[1], 4, b"news")
        answer = await waiting
        assert isinstance(answer, polling.MemberPoll)
        assert [each.value for each in answer.messages] == ["news"]
        shown = await ask(offsets.show_offsets, cluster[2], offsets.OffsetsQuery(group="g"))
        assert [each.offset for each in shown.offsets] == [2] * PARTITIONS


async def test_a_trace_is_shown_by_every_broker(tmp_path: Path) -> None:
    settings = {"trace.sample": "1"}
    async with three_brokers(tmp_path, tracing=TracingSettings()) as cluster:
        await cluster.create(TOPIC, partitions=PARTITIONS, replication_factor=1, overrides=settings)
        await publish(cluster[1], 3, b"traced", key=b"k")
        query = traces.TraceSearch(topic=TOPIC, partition=3, offset=0)
        for broker in cluster.brokers.values():
            (found,) = (await ask(traces.search_traces, broker, query)).traces
            shown = await ask(traces.show_trace, broker, traces.OfTrace(trace_id=found.trace_id))
            assert "publish.persisted" in [each.name for each in shown.events]
            assert shown.missing_nodes is msgspec.UNSET
        other = next(each for each in (1, 2, 3) if each not in (cluster.leader_id(TOPIC, 3), 1))
        await cluster.kill(other)
        shown = await ask(traces.show_trace, cluster[1], traces.OfTrace(trace_id=found.trace_id))
        assert shown.missing_nodes == [other]
        assert shown.events


async def test_the_history_of_a_topic_is_the_sum_over_all_brokers(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        await cluster.create(TOPIC, partitions=PARTITIONS, replication_factor=1)
        for broker in cluster.brokers.values():
            await broker.sampler.sample()
        for index in range(PARTITIONS):
            await publish(cluster[1], index, b"a")
        for broker in cluster.brokers.values():
            await broker.sampler.sample()
        query = stats.HistoryQuery(topic=TOPIC, measure=Measure.PUBLISHED)
        answer = await ask(stats.history, cluster[2], query)
        (series,) = answer.series
        assert max(each or 0 for each in series.values) > 0
        assert answer.missing_nodes is msgspec.UNSET
        await cluster.kill(3)
        assert (await ask(stats.history, cluster[2], query)).missing_nodes == [3]
