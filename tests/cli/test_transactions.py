"""`alpacactl transactions`."""

from confluent_kafka import Producer

from tests.brokers import Broker

from .command import Command


def test_an_open_transaction_shows_what_it_holds_up(alpacactl: Command, broker: Broker, topic: str) -> None:
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


def test_near_names_of_an_unknown_transactional_id_are_suggested(
    alpacactl: Command, broker: Broker, topic: str
) -> None:
    Producer({"bootstrap.servers": broker.address, "transactional.id": topic}).init_transactions(30)
    ran = alpacactl("transactions", "describe", topic + "s")
    assert ran.code == 4
    assert f"did you mean '{topic}'" in ran.errors
