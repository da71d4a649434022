"""kill -9 at any time loses nothing that was acknowledged, duplicates nothing and corrupts nothing."""

import random
import threading

import pytest

from tests.brokers import Broker
from tests.compat.confluent import Confluent
from tests.conftest import NewBroker
from tests.ports import lasting_address
from tests.waiting import eventually

from .traffic import Place, Reader, Writer, ends

NEVER_MS = str(2**63 - 1)
DURABILITY = {
    "each-batch": {"flush.messages": "1"},
    "each-second": {"flush.ms": "1000"},
    "system": {"flush.ms": NEVER_MS},
}


@pytest.mark.parametrize("durability", DURABILITY)
def test_ten_thousand_acknowledged_records_survive_a_kill_during_further_writes(
    new_broker: NewBroker, durability: str
) -> None:
    broker = new_broker().start()
    Confluent(broker.address).create_topic("t", partitions=3, settings=DURABILITY[durability])
    places = [("t", partition) for partition in range(3)]
    writer = Writer(broker.address, places)
    writer.start()
    eventually(lambda: writer.total >= 10_000, what="10,000 records are acknowledged", within_s=60)

    broker.kill()
    writer.abandon()
    assert not writer.failures, writer.failures
    broker.start()

    Reader(places).check(broker.address, writer.promised())


def test_an_idempotent_producer_continues_across_kills(
    new_broker: NewBroker,
) -> None:
    # A fixed seed: this test is part of every run.
    kill_again_and_again(new_broker, kills=6, seed=20_000)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_two_hundred_kills_lose_nothing(new_broker: NewBroker) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    kill_again_and_again(new_broker, kills=200, seed=seed)


def test_topics_and_settings_survive_a_kill(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    client = Confluent(broker.address)
    client.create_topic("kept", partitions=4, settings={"retention.ms": "1234567"})
    client.create_topic("deleted")
    client.add_partitions("kept", 6)
    client.change_settings("kept", {"segment.bytes": ("set", "2000000")})
    client.delete_topic("deleted")
    cluster = client.cluster()

    broker.kill()
    broker.start()

    client = Confluent(broker.address)
    assert client.topics() == {"kept"}
    assert client.partition_count("kept") == 6
    assert client.settings("kept")["retention.ms"] == "1234567"
    assert client.settings("kept")["segment.bytes"] == "2000000"
    assert client.cluster().id == cluster.id


def test_deleted_records_stay_deleted_after_a_kill(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    client = Confluent(broker.address)
    client.create_topic("t")
    writer = Writer(broker.address, [("t", 0)])
    writer.start()
    eventually(lambda: writer.total >= 100)
    writer.stop()
    end = writer.total
    client.delete_records("t", before=50)

    broker.kill()
    broker.start()

    assert Confluent(broker.address).ends("t") == (50, end)


def kill_again_and_again(new_broker: NewBroker, *, kills: int, seed: int) -> None:
    """Kill the broker repeatedly under one producer; after each kill, check every acknowledged record."""
    dice = random.Random(seed)
    # Not derived from the seed: two tests with one seed would take the port from each other between kills.
    broker = new_broker(kafka=lasting_address()).start()
    places: list[Place] = []
    for name, settings in DURABILITY.items():
        # Small segments expose rolls, index files and snapshots to the kills as well.
        Confluent(broker.address).create_topic(
            name, partitions=2, settings={**settings, "segment.bytes": "4000000"}
        )
        places += [(name, partition) for partition in range(2)]
    writer = Writer(broker.address, places)
    reader = Reader(places)
    writer.start()
    for number in range(kills):
        wait_for_a_random_time(writer, dice)
        broker.kill()
        promised = writer.promised()
        while dice.random() < 0.2:
            kill_while_starting(broker, dice)
        broker.start()
        assert not writer.failures, f"seed {seed}, kill {number}: {writer.failures}"
        reader.check(broker.address, promised)
        assert not broker.errors.find("damaged"), f"seed {seed}, kill {number}: {broker.errors.text()}"
    writer.stop()
    assert ends(broker.address, places) == writer.promised()
    Reader(places).check(broker.address, writer.promised())


def wait_for_a_random_time(writer: Writer, dice: random.Random) -> None:
    """Wait until some records are acknowledged, and a random time after that."""
    target = writer.total + dice.randrange(1, 4000)
    eventually(
        lambda: writer.total >= target or writer.failures, what="records are acknowledged", within_s=60
    )
    threading.Event().wait(dice.uniform(0, 0.05))


def kill_while_starting(broker: Broker, dice: random.Random) -> None:
    """Kill the broker during its start: recovery must survive a crash as well."""
    broker.spawn()
    threading.Event().wait(dice.uniform(0.1, 0.6))
    broker.kill()
