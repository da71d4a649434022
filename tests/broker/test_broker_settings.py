"""Broker settings changed at run time: in effect at once, and after restarts."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.topics import SPARE_CONFIGS
from alpacamq.cluster.broker_config import ALL_BROKERS
from alpacamq.cluster.image import broker_config_change
from alpacamq.model.errors import AlpacaError, InvalidConfig
from alpacamq.model.ids import BrokerId, TopicId, TopicName
from alpacamq.model.topics import Topic, TopicConfig
from alpacamq.telemetry.logs import capture_logs

from .open_brokers import BreakableDisk, running

FILE = {"retention.ms": "1000"}


async def configure(broker: Broker, name: str = "1", /, **overrides: str) -> None:
    """Replace the settings of a broker, written with underscores for dots."""
    settings = {setting.replace("_", "."): text for setting, text in overrides.items()}
    await broker.topics.configure_broker(name, lambda _: settings)


def config(broker: Broker, topic: str) -> TopicConfig:
    """Return the settings that the partitions of a topic use."""
    found = {id(partition.config): partition.config for partition in broker.topics.partitions_of(topic)}
    (only,) = found.values()
    assert only == broker.topics.config_of(broker.topics.image.topic(topic))
    return only


async def test_partitions_without_an_override_use_a_new_default_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, topic_defaults=FILE) as broker:
        await broker.topics.create("plain", partitions=3)
        await broker.topics.create("other", overrides={"segment.bytes": "2048"})
        await broker.topics.create("own", overrides={"retention.ms": "7"})

        await configure(broker, ALL_BROKERS, log_retention_ms="5", log_segment_bytes="4096")
        await broker.topics.create("later")

        kept = {name: config(broker, name).retention_ms for name in ("plain", "other", "own", "later")}
        assert kept == {"plain": 5, "other": 5, "own": 7, "later": 5}
        assert config(broker, "other").segment_bytes == 2048
        assert config(broker, "later").segment_bytes == 4096

        await configure(broker, log_retention_ms="6")
        assert config(broker, "plain").retention_ms == 6
        await configure(broker)
        assert config(broker, "plain").retention_ms == 5
        await configure(broker, ALL_BROKERS)
        assert config(broker, "plain").retention_ms == 1000, "the configuration file again"


async def test_settings_survive_restarts(tmp_path: Path) -> None:
    async with running(tmp_path, topic_defaults=FILE) as broker:
        await broker.topics.create("t")
        await configure(broker, ALL_BROKERS, log_retention_ms="5", log_segment_bytes="4096")
        await configure(broker, log_retention_ms="6")
    async with running(tmp_path, topic_defaults=FILE) as broker:
        assert (config(broker, "t").retention_ms, config(broker, "t").segment_bytes) == (6, 4096)
        await configure(broker)
        await configure(broker, ALL_BROKERS)
    async with running(tmp_path, topic_defaults=FILE) as broker:
        assert (config(broker, "t").retention_ms, config(broker, "t").segment_bytes) == (1000, 64 << 20)


async def test_a_change_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    disk = BreakableDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("t")
        before = broker.topics.defaults
        disk.full = True
        with pytest.raises(AlpacaError):
            await configure(broker, log_retention_ms="5")
        disk.full = False
        assert broker.topics.defaults is before
        assert broker.topics.image.broker_overrides("1") == {}
        assert config(broker, "t").retention_ms != 5


async def test_a_change_without_effect_is_not_written(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await configure(broker, log_retention_ms="5")
        end = broker.metadata.quorum.last_index
        await configure(broker, log_retention_ms="5")
        await broker.topics.configure_broker("1", lambda _: {}, dry_run=True)
        with pytest.raises(InvalidConfig):
            await configure(broker, log_retention_ms="5", log_segment_bytes="1")
        assert broker.metadata.quorum.last_index == end
        assert broker.topics.image.broker_overrides("1") == {"log.retention.ms": "5"}


async def test_a_broker_starts_with_stored_settings_that_it_does_not_know(
    tmp_path: Path,
) -> None:
    stored = {"log.shiny.ms": "1", "log.retention.ms": "soon", "log.segment.bytes": "4096"}
    async with running(tmp_path) as broker:
        await broker.topics.create("t")
        broker.metadata.quorum.propose(msgspec.msgpack.encode([broker_config_change("1", stored)]))
    with capture_logs() as logged:
        broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path / "data"))
        broker.open()
        await broker.close()
    ignored = [each["setting"] for each in logged if each["event"] == "broker_setting_ignored"]
    assert ignored == ["log.retention.ms", "log.shiny.ms"]

    async with running(tmp_path) as broker:
        assert config(broker, "t").segment_bytes == 4096
        assert config(broker, "t").retention_ms == 7 * 24 * 3_600_000

        await broker.topics.configure_broker("1", lambda now: {**now, "log.retention.ms": "5"})

        assert config(broker, "t").retention_ms == 5
        assert broker.topics.image.broker_overrides("1") == {**stored, "log.retention.ms": "5"}


async def test_a_change_yields_to_other_requests_between_topics(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        for number in range(120):
            await broker.topics.create(f"t{number}", partitions=1, overrides={"segment.ms": "5"})
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += int(broker.topics.defaults.of_broker == {"retention.ms": "5"})

        counting = asyncio.create_task(count())
        began_at = time.monotonic()
        await configure(broker, log_retention_ms="5")
        counting.cancel()
        assert turns >= 2, f"{turns} turns in {time.monotonic() - began_at:.3f} s"


async def test_settings_of_deleted_topics_are_not_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topics = broker.topics
        await topics.create("kept", overrides={"retention.ms": "7"})
        kept = topics.config_of(topics.image.topic("kept"))
        for number in range(2 * SPARE_CONFIGS):
            validated = Topic(name=TopicName(f"t-{number}"), id=TopicId(int=number + 1), partitions=1)
            assert topics.config_of(validated) is topics.config_of(validated)
        assert len(topics._configs) <= SPARE_CONFIGS + 2 * len(topics.image.topics) + 1
        assert topics.config_of(topics.image.topic("kept")) is kept
