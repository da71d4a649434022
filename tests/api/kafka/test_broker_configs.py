"""Changing and describing broker settings at run time."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from alpacamq.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tests.brokers import KEPT, Broker

from .wire import Wire, versions

TOPIC, BROKER = 2, 4
OF_TOPIC, OF_BROKER, OF_ALL_BROKERS, OF_FILE, DEFAULT = 1, 2, 3, 4, 5
SET, DELETE, APPEND, SUBTRACT = range(4)
RESOURCES = ("1", "")

CONFIG = f"""{KEPT}
[topics.defaults]
"segment.ms" = 1000000
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of these tests only: its settings would change other tests."""
    broker = Broker(tmp_path_factory.mktemp("settings") / "data", config=CONFIG)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(autouse=True)
def no_settings(wire: Wire) -> None:
    """Begin without settings of earlier tests."""
    for name in RESOURCES:
        assert replace(wire, name, {}) == (0, None)


def replace(
    wire: Wire,
    name: str,
    settings: Mapping[str, str | None],
    *,
    version: int | None = None,
    dry: bool = False,
) -> tuple[int, str | None]:
    configs = [AlterableConfig(name=key, value=value) for key, value in settings.items()]
    resource = AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=configs)
    (result,) = wire.ask(AlterConfigsRequest(resources=[resource], validate_only=dry), version).responses
    assert (result.resource_type, result.resource_name) == (BROKER, name)
    return result.error_code, result.error_message


def change(
    wire: Wire,
    name: str,
    *changes: tuple[str, int, str | None],
    version: int | None = None,
    dry: bool = False,
    kind: int = BROKER,
) -> tuple[int, str | None]:
    configs = [
        IncrementallyAlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    asked = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry)
    (result,) = wire.ask(asked, version).responses
    return result.error_code, result.error_message


def describe(wire: Wire, kind: int, name: str, *, version: int | None = None) -> dict[str, Any]:
    asked = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name)],
        include_synonyms=True,
        include_documentation=True,
    )
    (result,) = wire.ask(asked, version).results
    assert result.error_code == 0, result.error_message
    return {entry.name: entry for entry in result.configs}


def values(wire: Wire, kind: int, name: str, setting: str) -> tuple[str, int]:
    entry = describe(wire, kind, name)[setting]
    return entry.value, entry.config_source


def synonyms(entry: Any) -> list[tuple[str, str, int]]:
    return [(each.name, each.value, each.source) for each in entry.synonyms]


@pytest.mark.parametrize("version", versions(IncrementalAlterConfigsRequest))
def test_a_topic_without_an_override_follows_its_broker(wire: Wire, made: str, version: int) -> None:
    assert change(wire, "1", ("log.retention.ms", SET, "5000"), version=version) == (0, None)

    assert values(wire, BROKER, "1", "log.retention.ms") == ("5000", OF_BROKER)
    assert values(wire, TOPIC, made, "retention.ms") == ("5000", OF_BROKER)

    assert change(wire, "1", ("log.retention.ms", DELETE, None), version=version) == (0, None)
    assert values(wire, BROKER, "1", "log.retention.ms") == ("604800000", DEFAULT)
    assert values(wire, TOPIC, made, "retention.ms") == ("604800000", DEFAULT)


@pytest.mark.parametrize("version", versions(AlterConfigsRequest))
@pytest.mark.parametrize("name", RESOURCES)
def test_a_replacement_removes_what_it_does_not_name(wire: Wire, name: str, version: int) -> None:
    change(wire, name, ("log.retention.ms", SET, "5000"), ("log.segment.bytes", SET, "2048"))

    assert replace(wire, name, {"log.segment.bytes": "4096"}, version=version) == (0, None)

    assert values(wire, BROKER, "1", "log.segment.bytes")[0] == "4096"
    assert values(wire, BROKER, "1", "log.retention.ms") == ("604800000", DEFAULT)


@pytest.mark.parametrize("version", versions(DescribeConfigsRequest))
def test_the_broker_precedes_all_brokers_and_a_topic_precedes_both(
    wire: Wire, topic: str, version: int
) -> None:
    new = CreatableTopic(
        name=topic,
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="retention.ms", value="7")],
    )
    assert wire.ask(CreateTopicsRequest(topics=[new])).topics[0].error_code == 0
    change(wire, "", ("log.retention.ms", SET, "6"), ("log.roll.ms", SET, "60"))
    change(wire, "1", ("log.retention.ms", SET, "5"))

    of_broker = describe(wire, BROKER, "1", version=version)
    assert synonyms(of_broker["log.retention.ms"]) == [
        ("log.retention.ms", "5", OF_BROKER),
        ("log.retention.ms", "6", OF_ALL_BROKERS),
        ("log.retention.ms", "604800000", DEFAULT),
    ]
    assert (of_broker["log.roll.ms"].value, of_broker["log.roll.ms"].config_source) == ("60", OF_ALL_BROKERS)
    assert not of_broker["log.roll.ms"].read_only
    assert of_broker["broker.id"].read_only

    of_topic = describe(wire, TOPIC, topic, version=version)
    assert synonyms(of_topic["retention.ms"])[:2] == [
        ("retention.ms", "7", OF_TOPIC),
        ("log.retention.ms", "5", OF_BROKER),
    ]
    assert of_topic["retention.ms"].value == "7"
    assert synonyms(of_topic["segment.ms"]) == [
        ("log.roll.ms", "60", OF_ALL_BROKERS),
        ("log.roll.ms", "1000000", OF_FILE),
        ("log.roll.ms", "604800000", DEFAULT),
    ]

    of_all = describe(wire, BROKER, "", version=version)
    assert {key: (entry.value, entry.config_source) for key, entry in of_all.items()} == {
        "log.retention.ms": ("6", OF_ALL_BROKERS),
        "log.roll.ms": ("60", OF_ALL_BROKERS),
    }


def test_a_new_topic_is_created_with_the_defaults_in_force(wire: Wire, topic: str) -> None:
    change(wire, "", ("message.max.bytes", SET, "1500"))
    new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    (created,) = wire.ask(CreateTopicsRequest(topics=[new])).topics
    found = {each.name: (each.value, each.config_source) for each in created.configs}
    assert found["max.message.bytes"] == ("1500", OF_ALL_BROKERS)


@pytest.mark.parametrize("name", RESOURCES)
def test_a_list_grows_and_shrinks_from_the_default_below_it(wire: Wire, made: str, name: str) -> None:
    assert change(wire, name, ("log.cleanup.policy", APPEND, "compact")) == (0, None)
    assert values(wire, TOPIC, made, "cleanup.policy")[0] == "compact,delete"
    assert change(wire, name, ("log.cleanup.policy", SUBTRACT, "delete")) == (0, None)
    assert values(wire, TOPIC, made, "cleanup.policy")[0] == "compact"
    code, message = change(wire, name, ("log.cleanup.policy", SUBTRACT, "compact"))
    assert (code, message) == (ErrorCode.INVALID_CONFIG, "log.cleanup.policy cannot be empty")
    code, message = change(wire, name, ("message.max.bytes", APPEND, "5"))
    assert code == ErrorCode.INVALID_CONFIG
    assert "message.max.bytes" in (message or "")


def test_a_list_of_a_topic_grows_from_the_default_in_force(wire: Wire, made: str) -> None:
    change(wire, "1", ("log.cleanup.policy", SET, "compact"))
    assert change(wire, made, ("cleanup.policy", APPEND, "delete"), kind=TOPIC) == (0, None)
    assert values(wire, TOPIC, made, "cleanup.policy") == ("compact,delete", OF_TOPIC)


@pytest.mark.parametrize(
    ("setting", "value", "code", "words"),
    [
        pytest.param("broker.id", "2", ErrorCode.INVALID_REQUEST, "broker.id", id="the id"),
        pytest.param("num.partitions", "2", ErrorCode.INVALID_REQUEST, "num.partitions", id="a static one"),
        pytest.param("no.such.setting", "2", ErrorCode.INVALID_CONFIG, "no.such.setting", id="unknown"),
        pytest.param(
            "retention.ms", "2", ErrorCode.INVALID_CONFIG, "mean log.retention.ms", id="a topic's name for it"
        ),
        pytest.param("log.retention.ms", "soon", ErrorCode.INVALID_CONFIG, "'soon'", id="not a number"),
        pytest.param("log.retention.ms", "-2", ErrorCode.INVALID_CONFIG, "minimum", id="too small"),
    ],
)
@pytest.mark.parametrize("name", RESOURCES)
def test_an_invalid_change_is_refused_and_changes_nothing(
    wire: Wire, name: str, setting: str, value: str, code: ErrorCode, words: str
) -> None:
    change(wire, name, ("log.segment.bytes", SET, "2048"))
    before = describe(wire, BROKER, "1"), describe(wire, BROKER, "")

    told = change(wire, name, ("log.segment.bytes", SET, "4096"), (setting, SET, value))
    assert told[0] == code
    assert words in (told[1] or "")
    assert replace(wire, name, {"log.segment.bytes": "4096", setting: value}) == told

    assert (describe(wire, BROKER, "1"), describe(wire, BROKER, "")) == before


def test_every_described_setting_that_is_read_only_is_refused(wire: Wire) -> None:
    described = describe(wire, BROKER, "1")
    read_only = {name for name, entry in described.items() if entry.read_only}
    assert "log.dirs" in read_only
    for name in read_only:
        assert change(wire, "1", (name, SET, described[name].value))[0] == ErrorCode.INVALID_REQUEST
        assert change(wire, "1", (name, DELETE, None)) == (0, None), "as in Kafka"


def test_every_other_described_setting_can_be_set_to_its_value(wire: Wire) -> None:
    described = describe(wire, BROKER, "1")
    settings = {name: entry.value for name, entry in described.items() if not entry.read_only}
    assert all(entry.documentation for name, entry in described.items() if not entry.read_only)
    assert replace(wire, "1", settings) == (0, None)
    after = describe(wire, BROKER, "1")
    assert after.pop("min.insync.replicas").read_only, "it is set for all brokers"
    assert {entry.config_source for entry in after.values()} == {OF_BROKER, OF_FILE}


@pytest.mark.parametrize("name", RESOURCES)
def test_validation_alone_changes_nothing(wire: Wire, made: str, name: str) -> None:
    assert change(wire, name, ("log.retention.ms", SET, "5"), dry=True) == (0, None)
    assert replace(wire, name, {"log.retention.ms": "5"}, dry=True) == (0, None)
    assert change(wire, name, ("log.retention.ms", SET, "-5"), dry=True)[0] == ErrorCode.INVALID_CONFIG
    assert values(wire, BROKER, "1", "log.retention.ms") == ("604800000", DEFAULT)
    assert values(wire, TOPIC, made, "retention.ms") == ("604800000", DEFAULT)


@pytest.mark.parametrize("name", ["2", "one", "01"])
def test_another_broker_is_refused(wire: Wire, name: str) -> None:
    code, message = change(wire, name, ("log.retention.ms", SET, "5"))
    assert code == ErrorCode.INVALID_REQUEST
    assert name in (message or "")
    assert replace(wire, name, {})[0] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("operation", [SET, APPEND, SUBTRACT])
def test_a_change_without_a_value_is_refused(wire: Wire, operation: int) -> None:
    assert change(wire, "1", ("log.cleanup.policy", operation, None))[0] == ErrorCode.INVALID_CONFIG
    assert change(wire, "1", ("log.cleanup.policy", 9, "delete"))[0] == ErrorCode.INVALID_REQUEST
