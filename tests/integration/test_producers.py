"""A hundred concurrent producers: offsets strictly increase, nothing is lost, duplicated or mixed up."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.compat.confluent import Confluent
from tests.conftest import NewBroker
from tests.sealed import seal, unseal
from tests.waiting import eventually

from .traffic import consumer_of

PRODUCERS = 100
EACH = 300


@pytest.mark.parametrize("partitions", [1, 6])
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_a_hundred_producers_write_at_once(new_broker: NewBroker, partitions: int, idempotent: bool) -> None:
    broker = new_broker().start()
    Confluent(broker.address).create_topic("busy", partitions=partitions)

    with ThreadPoolExecutor(PRODUCERS) as pool:
        reports = list(
            pool.map(
                lambda writer: write_all(broker.address, writer, partitions, idempotent), range(PRODUCERS)
            )
        )

    taken: dict[tuple[int, int], int] = {}
    for report in reports:
        last = [-1] * partitions
        for number, partition, offset in report:
            assert offset > last[partition], "a producer's offsets decrease"
            last[partition] = offset
            assert taken.setdefault((partition, offset), number) == number, "two records share an offset"
    assert len(taken) == PRODUCERS * EACH
    assert read_all(broker.address, partitions, PRODUCERS * EACH) == taken


def write_all(address: str, writer: int, partitions: int, idempotent: bool) -> list[tuple[int, int, int]]:
    """Return number, partition and offset of each record in the order of its acknowledgement."""
    reports: list[tuple[int, int, int]] = []

    def note(error: Any, message: Any) -> None:
        assert error is None, error
        reports.append((unseal(message.value()), message.partition(), message.offset()))

    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": idempotent,
            # One request in flight if nothing else keeps the order.
            "max.in.flight": 5 if idempotent else 1,
            # librdkafka spins while an idempotent batch is in flight: fewer of them spare the machine.
            "batch.num.messages": 50 if idempotent else 10,
            "linger.ms": 1,
        }
    )
    for index in range(EACH):
        number = writer * EACH + index
        producer.produce("busy", seal(number), partition=index % partitions, on_delivery=note)
    assert producer.flush(60) == 0
    assert [number for number, _, _ in sorted(reports)] == list(range(writer * EACH, (writer + 1) * EACH))
    return reports


def read_all(address: str, partitions: int, count: int) -> dict[tuple[int, int], int]:
    """Return every record's number by partition and offset."""
    found: dict[tuple[int, int], int] = {}
    with consumer_of(address) as consumer:
        consumer.assign([TopicPartition("busy", partition, 0) for partition in range(partitions)])

        def read_more() -> bool:
            for message in consumer.consume(5000, 0.2):
                assert message.error() is None, message.error()
                place = message.partition(), message.offset()
                assert place not in found, f"{place} was served twice"
                found[place] = unseal(message.value())
            return len(found) >= count

        eventually(read_more, what=f"{count} records are read")
    return found
