"""Reading from a broker whose clients must authenticate."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from alpacamq.client.errors import Refused
from tests.brokers import Broker

from .driving import Stream, read, values

USER, PASSWORD = "ann", "of-ann"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    users = tmp_path / "users"
    users.write_text(f"{USER}:{PASSWORD}\n")
    users.chmod(0o600)
    config = f"[security]\nauthentication = true\nusers_file = '{users}'\n"
    broker = Broker(tmp_path / "data", config=config)
    try:
        yield broker.start()
    finally:
        broker.end()


def test_batches_and_streams_are_read_by_a_user(broker: Broker, tmp_path: Path, topic: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
    )
    producer.produce(topic, b"tea")
    assert producer.flush(30) == 0
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    login = {"user": USER, "passwordFile": str(password)}
    assert values(read(broker, subscribe=topic, **login)) == ["tea"]
    assert values(Stream(broker, subscribe=topic, **login).batch()) == ["tea"]
    password.write_text("wrong")
    with pytest.raises(Refused, match="wrong user name or password"):
        read(broker, subscribe=topic, **login)
