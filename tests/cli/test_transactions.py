"""`alpacactl transactions`."""

import json
import shutil
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.waiting import eventually

from .command import Command


def test_an_open_transaction_shows_its_partitions(alpacactl: Command, broker: Broker, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "2")
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": topic, "transaction.timeout.ms": 45_000}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value="x", partition=1)
    producer.flush()
    described = alpacactl.json("transactions", "describe", topic)
    listed = {each["id"]: each for each in alpacactl.json("transactions", "list")}
    shown = alpacactl.ok("transactions", "describe", topic)
    producer.abort_transaction(30)
    assert described["state"] == "Ongoing"
    assert described["timeout_ms"] == 45_000
    assert described["started_at"] is not None
    assert described["partitions"] == [{"topic": topic, "partition": 1}]
    assert listed[topic] == {"id": topic, "state": "Ongoing", "producer_id": described["producer_id"]}
    assert any(line.split() == [topic, "1"] for line in shown.splitlines())


def test_an_unknown_transactional_id_gets_suggestions(alpacactl: Command, broker: Broker, topic: str) -> None:
    Producer({"bootstrap.servers": broker.address, "transactional.id": topic}).init_transactions(30)
    ran = alpacactl("transactions", "describe", topic + "s")
    assert ran.code == 4
    assert f"did you mean '{topic}'" in ran.errors


def test_aborting_a_transactional_id_fences_its_producer(
    alpacactl: Command, broker: Broker, topic: str
) -> None:
    alpacactl.ok("topics", "create", topic)
    producer = opened_transaction(broker, topic)
    alpacactl.ok("transactions", "abort", topic)
    assert alpacactl.json("transactions", "describe", topic)["state"] in ("Empty", "CompleteAbort")
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(30)
    assert raised.value.args[0].fatal()


def test_an_abort_needs_an_id_or_a_position(alpacactl: Command) -> None:
    assert alpacactl("transactions", "abort").code == 2
    assert alpacactl("transactions", "abort", "till-7", "--topic", "payments").code == 2


def test_aborting_without_an_open_transaction_fails(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic)
    place = ("--topic", topic, "--partition", "0", "--start-offset", "0")
    ran = alpacactl("transactions", "abort", *place)
    assert ran.code != 0
    assert f"no open transaction starts at offset 0 of {topic}-0" in ran.errors


def test_a_hanging_transaction_is_reported_and_can_be_aborted(new_broker: NewBroker) -> None:
    """Its coordinator's partition was lost, so it would never end."""
    broker = new_broker().start()
    command = Command(broker.address, broker.http_address)
    command.ok("topics", "create", "payments")
    opened_transaction(broker, "payments")
    broker.kill()
    for directory in (broker.data_dir / "partitions").glob("__transaction_state-*"):
        shutil.rmtree(directory)
    broker.start()
    health = eventually(lambda: unhealthy(broker))
    assert health is not None
    assert "a transaction hangs: producer" in health["checks"]["transactions"]["detail"]
    assert metric(broker, "alpacamq_hanging_transactions") == 1
    (found,) = command.json("transactions", "find-hanging")
    assert (found["topic"], found["partition"], found["start_offset"]) == ("payments", 0, 0)
    place = ("--topic", "payments", "--partition", "0", "--start-offset", "0")
    command.ok("transactions", "abort", *place)
    assert command.json("transactions", "find-hanging") == []
    eventually(lambda: not unhealthy(broker))
    assert metric(broker, "alpacamq_hanging_transactions") == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("payments", 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.error().code() == KafkaError._PARTITION_EOF


def opened_transaction(broker: Broker, topic: str) -> Producer:
    """A producer with a record in an open transaction, under an id that is the topic's name."""
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value="x", partition=0)
    producer.flush()
    return producer


def unhealthy(broker: Broker) -> dict[str, Any] | None:
    """What /healthz says where a check fails."""
    try:
        urlopen(f"http://{broker.http_address}/healthz", timeout=30).close()
    except HTTPError as error:
        found: dict[str, Any] = json.load(error)
        return found
    return None


def metric(broker: Broker, name: str) -> float:
    with urlopen(f"http://{broker.http_address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name} ")]
    return float(line.split()[1])
