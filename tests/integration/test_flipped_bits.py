"""One flipped bit in a log file is detected: that batch is not served, the others are."""

import re
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer, TopicPartition

from alpacamq.model.batch import HEADER_BYTES
from tests import stored
from tests.brokers import Broker
from tests.compat.confluent import Confluent
from tests.conftest import NewBroker
from tests.sealed import seal, unseal
from tests.waiting import eventually

from .raw import connected
from .traffic import consumer_of

TOPIC = "flipped"
BATCHES = 6
PER_BATCH = 5
# Every byte of a header, and positions spread over the records behind it.
PLACES = [*range(HEADER_BYTES), *range(HEADER_BYTES, HEADER_BYTES + 500, 29)]


def flip(file: Path, position: int, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1 << bit
    file.write_bytes(data)


def fill(address: str, partitions: int, settings: dict[str, str]) -> None:
    """Write the same batches to every partition."""
    Confluent(address).create_topic(TOPIC, partitions=partitions, settings={"retention.ms": "-1", **settings})
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50})
    for batch in range(BATCHES):
        for partition in range(partitions):
            for number in range(batch * PER_BATCH, (batch + 1) * PER_BATCH):
                producer.produce(
                    TOPIC, seal(number), partition=partition, timestamp=1_700_000_000_000 + number
                )
        assert producer.flush(30) == 0


def damage(data_dir: Path, partition: int, place: int) -> stored.StoredBatch:
    """Flip a bit of the batch that `place` selects; return the original batch."""
    whole = list(stored.batches(data_dir, TOPIC, partition))
    batch = whole[place % len(whole)]
    flip(batch.file, batch.position + place % batch.header.size, place % 8)
    return batch


@pytest.mark.parametrize("segment_bytes", ["67108864", "1024"], ids=["one-segment", "many-segments"])
def test_a_flipped_bit_is_reported_and_everything_but_its_batch_is_served(
    new_broker: NewBroker, segment_bytes: str
) -> None:
    broker = new_broker().start()
    fill(broker.address, len(PLACES), {"segment.bytes": segment_bytes})
    broker.stop()
    damaged = {partition: damage(broker.data_dir, partition, place) for partition, place in enumerate(PLACES)}
    broker.start()

    wrong: list[str] = []
    for partition, batch in damaged.items():
        where = f"byte {PLACES[partition] % batch.header.size} of the batch at {batch.header.base_offset}"
        served, error = read_until_error(broker, partition)
        if served != list(range(batch.header.base_offset)):
            wrong.append(f"{where}: served {served}")
        if not error:
            wrong.append(f"{where}: no error for the client")
        behind, error = read_until_error(broker, partition, batch.header.next_offset)
        if behind != list(range(batch.header.next_offset, BATCHES * PER_BATCH)) or error:
            wrong.append(f"{where}: behind it {behind}, error {error}")
        if not is_reported(broker, batch):
            wrong.append(f"{where}: not in the broker's log")
    assert not wrong, "\n".join(wrong)


def test_a_damaged_partition_takes_writes_and_health_names_the_place(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    fill(broker.address, 1, {})
    broker.stop()
    batch = damage(broker.data_dir, 0, HEADER_BYTES)
    broker.start()
    read_until_error(broker, 0)

    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(TOPIC, seal(BATCHES * PER_BATCH), partition=0)
    assert producer.flush(30) == 0
    start = batch.header.next_offset
    read = Confluent(broker.address).read(TOPIC, start=start, count=BATCHES * PER_BATCH + 1 - start)
    assert unseal(read[-1].value or b"") == BATCHES * PER_BATCH

    health = httpx.get(f"http://{broker.http_address}/healthz", timeout=30)
    assert health.status_code == 503
    detail = health.json()["checks"]["partitions"]["detail"]
    assert f"{TOPIC}-0: {batch.file} is damaged at byte {batch.position}" in detail
    first, last = batch.header.base_offset, batch.header.last_offset
    assert f"offsets {first} to {last} cannot be read" in detail
    metrics = httpx.get(f"http://{broker.http_address}/metrics", timeout=30).text
    assert f'alpacamq_topic_damaged_partitions{{topic="{TOPIC}"}} 1' in metrics


def test_damage_does_not_affect_other_partitions_of_the_topic(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    fill(broker.address, 2, {})
    broker.stop()
    damage(broker.data_dir, 0, HEADER_BYTES)
    broker.start()

    client = Confluent(broker.address)

    assert [unseal(record.value or b"") for record in client.read(TOPIC, partition=1, count=30)] == list(
        range(BATCHES * PER_BATCH)
    )


def test_a_consumer_reads_up_to_the_damage_and_gets_an_error(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    fill(broker.address, 1, {})
    broker.stop()
    batch = list(stored.batches(broker.data_dir, TOPIC))[3]
    flip(batch.file, batch.position + HEADER_BYTES + 10, 4)
    broker.start()

    read: list[int] = []
    errors: list[str] = []
    with consumer_of(broker.address) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])

        def has_error() -> bool:
            for message in consumer.consume(100, 0.1):
                if message.error() is None:
                    read.append(unseal(message.value()))
                else:
                    errors.append(message.error().name())
            return bool(errors)

        eventually(has_error, what="the consumer gets an error")
    assert read == list(range(3 * PER_BATCH))
    assert set(errors) <= {"INVALID_MSG", "CORRUPT_MESSAGE", "KAFKA_STORAGE_ERROR"}


def test_damaged_index_files_are_rebuilt(new_broker: NewBroker) -> None:
    """Only the log files are needed to read by offset and by time."""
    partitions = 24
    broker = new_broker().start()
    fill(broker.address, partitions, {"segment.bytes": "1024"})
    broker.stop()
    for partition in range(partitions):
        directory = stored.segments(broker.data_dir, TOPIC, partition)[0].parent
        for file in sorted(directory.iterdir()):
            size = file.stat().st_size
            if file.suffix != ".log" and size:
                flip(file, partition * 7 % size, partition % 8)
    broker.start()

    client = Confluent(broker.address)
    for partition in range(partitions):
        for start in (0, 13, 29):
            read = client.read(TOPIC, partition=partition, start=start, count=30 - start)
            assert [unseal(record.value or b"") for record in read] == list(range(start, 30))
        assert client.offset_at(TOPIC, 1_700_000_000_017, partition=partition) == 17


def read_until_error(broker: Broker, partition: int, offset: int = 0) -> tuple[list[int], int]:
    """Return the numbers served from an offset on, and the error code that ended the read (0: none)."""
    served: list[int] = []
    with connected(broker.host_and_port) as connection:
        while offset < BATCHES * PER_BATCH:
            (answer,) = connection.fetch(TOPIC, [(partition, offset)])
            if answer.error or not answer.records:
                return served, answer.error
            for batch in stored.split(answer.records, Path()):
                served += [
                    unseal(record.value or b"") for record in batch.records() if record.offset >= offset
                ]
                offset = batch.header.next_offset
    return served, 0


def is_reported(broker: Broker, batch: stored.StoredBatch) -> bool:
    """Return whether the broker's log names the file and the position."""
    file = re.escape(f"{batch.file.parent.name}/{batch.file.name}")
    return broker.errors.has(rf"{file}.*\b{batch.position}\b", within_s=5)
