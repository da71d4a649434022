"""A partition's directory of Apache Kafka opens here, and ours there. Skipped without Kafka's jars."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.apache_kafka import ApacheKafka
from benchmarks.servers import Server
from confluent_kafka import Producer

from tests import stored
from tests.brokers import Broker
from tests.compat.client import Record
from tests.compat.confluent import Confluent
from tests.conftest import NewBroker
from tests.kafka_tools import JARS, require_kafka

pytestmark = pytest.mark.heavy

TOPIC = "moved"
COUNT = 9000
FIRST_MS = 1_700_000_000_000
SETTINGS = {"segment.bytes": str(1 << 20), "retention.ms": "-1"}

StartKafka = Callable[[], Server]


@pytest.fixture
def start_kafka(tmp_path: Path) -> Iterator[StartKafka]:
    require_kafka()
    servers: list[Server] = []

    def start() -> Server:
        servers.append(ApacheKafka(JARS).start(tmp_path / "kafka"))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def fill(address: str) -> None:
    """Write several segments: plain, compressed and idempotent batches, and two transactions."""
    Confluent(address).create_topic(TOPIC, partitions=1, settings=SETTINGS)
    for part, codec in enumerate(("none", "zstd", "lz4")):
        producer = Producer(
            {
                "bootstrap.servers": address,
                "linger.ms": 5,
                "compression.type": codec,
                "enable.idempotence": codec == "lz4",
            }
        )
        send(producer, range(part * COUNT // 3, (part + 1) * COUNT // 3))
    producer = Producer({"bootstrap.servers": address, "transactional.id": "mover"})
    producer.init_transactions(60)
    for text, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(TOPIC, text, timestamp=FIRST_MS + COUNT)
        assert producer.flush(30) == 0
        end(30)


def send(producer: Producer, numbers: range) -> None:
    for number in numbers:
        # Half of each value does not compress.
        value = b"%08d" % number + bytes((number * n * n) % 251 for n in range(300)) + bytes(300)
        producer.produce(TOPIC, value, key=b"%d" % (number % 100), timestamp=FIRST_MS + number)
        producer.poll(0)
    assert producer.flush(60) == 0


def everything(address: str) -> list[Record]:
    """Return all records of committed transactions and outside of transactions."""
    client = Confluent(address)
    found = client.read(TOPIC, start=0, count=COUNT + 1)
    for number in (0, 1, COUNT // 2 + 7, COUNT - 1):
        assert client.offset_at(TOPIC, FIRST_MS + number) == number
        (record,) = client.read(TOPIC, start=number, count=1)[:1]
        assert record.timestamp_ms == FIRST_MS + number
    return found


def check_same(address: str, expected: list[Record]) -> list[bytes | None]:
    """Check what is there, and produce a record; return what is read behind the rest then."""
    assert everything(address) == expected
    assert len(expected) == COUNT + 1
    producer = Producer({"bootstrap.servers": address})
    producer.produce(TOPIC, b"new", timestamp=FIRST_MS + 2 * COUNT)
    assert producer.flush(60) == 0
    return [record.value for record in Confluent(address).read(TOPIC, start=COUNT, count=2)]


def directory_of(broker: Broker) -> Path:
    return stored.segments(broker.data_dir, TOPIC)[0].parent


def test_a_directory_of_kafka_opens_here(
    tmp_path: Path, new_broker: NewBroker, start_kafka: StartKafka
) -> None:
    kafka = start_kafka()
    fill(kafka.address)
    expected = everything(kafka.address)
    kafka.stop()
    theirs = tmp_path / "kafka" / "data" / f"{TOPIC}-0"
    assert len(list(theirs.glob("*.log"))) >= 3

    broker = new_broker().start()
    Confluent(broker.address).create_topic(TOPIC, partitions=1, settings=SETTINGS)
    broker.stop()
    ours = directory_of(broker)
    shutil.rmtree(ours)
    shutil.copytree(theirs, ours)
    broker.start()
    assert check_same(broker.address, expected) == [b"kept", b"new"]


@pytest.mark.parametrize("start", ["with our indexes", "recovered"])
def test_a_directory_of_ours_opens_in_kafka(
    tmp_path: Path, new_broker: NewBroker, start_kafka: StartKafka, start: str
) -> None:
    broker = new_broker().start()
    fill(broker.address)
    expected = everything(broker.address)
    broker.stop()
    assert len(stored.segments(broker.data_dir, TOPIC)) >= 3

    kafka = start_kafka()
    Confluent(kafka.address).create_topic(TOPIC, partitions=1, settings=SETTINGS)
    kafka.stop()
    data = tmp_path / "kafka" / "data"
    theirs = data / f"{TOPIC}-0"
    for path in theirs.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in directory_of(broker).iterdir():
        if path.suffix in (".log", ".index", ".timeindex"):
            shutil.copy(path, theirs)
    before = written_ns(theirs)
    if start == "recovered":
        (data / ".kafka_cleanshutdown").unlink()
        forget_recovery_point(data / "recovery-point-offset-checkpoint")
    kafka = start_kafka()
    found = check_same(kafka.address, expected)
    if start == "recovered":
        assert found == [b"kept", b"new"]
        assert written_ns(theirs) != before
    else:
        # Kafka's list of aborted transactions is one of the files that only recovery builds.
        assert found == [b"kept", b"dropped"]
        assert written_ns(theirs) == before


def written_ns(directory: Path) -> dict[str, int]:
    """When the indexes of sealed segments were written last."""
    *sealed, _ = sorted(directory.glob("*.log"))
    files = [segment.with_suffix(suffix) for segment in sealed for suffix in (".index", ".timeindex")]
    return {file.name: file.stat().st_mtime_ns for file in files}


def forget_recovery_point(path: Path) -> None:
    """Remove the partition's line, so that Kafka reads all of it."""
    version, _, *lines = path.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{TOPIC} ")]
    path.write_text("\n".join([version, str(len(kept)), *kept, ""]))
