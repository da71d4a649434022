"""Consumers and the broker are killed at random; each message ends acknowledged or as a dead letter, once."""

import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.ports import lasting_address
from tests.waiting import eventually

from .processes import Program
from .queue_traffic import (
    GROUP,
    TOPIC,
    Delivered,
    HttpConnection,
    Publisher,
    Refused,
    Settled,
    Settling,
    read_notes,
)

CONSUMERS = 8
PARTITIONS = 3
MAX_DELIVERIES = 4
SETTINGS = {
    "queue.max.deliveries": MAX_DELIVERIES,
    "queue.backoff.initial.ms": 50,
    "queue.backoff.max.ms": 200,
}
DEAD_LETTERS = f"{TOPIC}.dlq"


class Consumers:
    """Consumer processes, each with a new file of notes after every restart."""

    def __init__(self, address: str, directory: Path, dice: random.Random) -> None:
        self._address = address
        self._directory = directory
        self._dice = dice
        self._lives = 0
        self.files: list[Path] = []
        self.members = [self._start_consumer() for _ in range(CONSUMERS)]

    def kill_one(self) -> None:
        place = self._dice.randrange(CONSUMERS)
        self.members[place].kill()
        self.members[place] = self._start_consumer()

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def end(self) -> None:
        for member in self.members:
            member.end()

    def _start_consumer(self) -> Program:
        self._lives += 1
        name = f"consumer-{self._lives}"
        file = self._directory / f"{name}.notes"
        self.files.append(file)
        seed = str(self._dice.randrange(1 << 32))
        return Program(
            "tests.integration.queue_consumer",
            self._address,
            name,
            seed,
            str(file),
            log=self._directory / f"{name}.log",
        ).start()


class DeliveryHistory:
    """The notes of all consumers, by message."""

    def __init__(self, files: list[Path]) -> None:
        self.deliveries: dict[str, list[Delivered]] = defaultdict(list)
        self.settling: dict[str, set[str]] = defaultdict(set)
        self.confirmed: dict[tuple[str, str], int] = {}
        for note in (note for file in files for note in read_notes(file)):
            match note:
                case Delivered():
                    self.deliveries[note.value].append(note)
                case Settling():
                    self.settling[note.value].add(note.action)
                case Settled():
                    self.confirmed[note.value, note.action] = note.count


def dead_letters(api: HttpConnection) -> dict[str, dict[str, str]]:
    """Return the headers of every dead letter by its value; fails on duplicates."""
    found: dict[str, dict[str, str]] = {}
    for partition in range(PARTITIONS):
        offset = 0
        while True:
            page = api.ask(
                "GET", f"/topics/{DEAD_LETTERS}/partitions/{partition}/messages", offset=offset, limit=1000
            )
            for message in page["messages"]:
                assert message["value"] not in found, f"{message} is there twice"
                found[message["value"]] = message["headers"]
            if page["next_offset"] >= page["end_offset"]:
                break
            offset = page["next_offset"]
    return found


def is_drained(api: HttpConnection) -> bool:
    try:
        partitions = api.ask("GET", f"/groups/{GROUP}/queues/{TOPIC}")["partitions"]
    except Refused:
        return False  # on a slow machine, no consumer may have used it yet
    return all(
        each["start_offset"] == each["end_offset"] and not each["dead_lettering"] for each in partitions
    )


def check(history: DeliveryHistory, letters: dict[str, dict[str, str]], publisher: Publisher) -> None:
    for value in publisher.confirmed:
        assert history.settling[value] & {"ack"} or value in letters, (
            f"{value} was lost: {history.deliveries[value]}"
        )
    sent = publisher.confirmed | publisher.unsure
    assert history.deliveries.keys() | letters.keys() <= sent
    for value, deliveries in history.deliveries.items():
        counts = [delivery.count for delivery in deliveries]
        assert len(set(counts)) == len(counts), (
            f"{value} was delivered twice as the same delivery: {deliveries}"
        )
        assert max(counts) <= MAX_DELIVERIES, deliveries
        assert len({(delivery.partition, delivery.offset) for delivery in deliveries}) == 1
        if (acknowledged := history.confirmed.get((value, "ack"))) is not None:
            assert max(counts) <= acknowledged, (
                f"{value} was redelivered after its acknowledgement: {deliveries}"
            )
            assert value not in letters
        if (rejected := history.confirmed.get((value, "reject"))) is not None:
            assert value in letters
            assert letters[value]["alpacamq-delivery-count"] == str(rejected)
        if value in letters:
            count = int(letters[value]["alpacamq-delivery-count"])
            assert max(counts) <= count
            assert count == MAX_DELIVERIES or "reject" in history.settling[value]


def kill_at_random(new_broker: NewBroker, directory: Path, *, seed: int, for_s: float) -> None:
    dice = random.Random(seed)
    addresses = {name: lasting_address() for name in ("kafka", "http", "sqs")}
    broker: Broker = new_broker(**addresses).start()
    api = HttpConnection(broker.http_address)
    api.ask("POST", "/topics", {"name": TOPIC, "partitions": PARTITIONS, "settings": SETTINGS})
    publisher = Publisher(broker.http_address)
    publisher.start()
    crowd = Consumers(broker.http_address, directory, dice)
    try:
        ends = time.monotonic() + for_s
        while time.monotonic() < ends:
            threading.Event().wait(dice.uniform(0.05, 1.2))
            if dice.random() < 0.35:
                broker.kill()
                broker.start()
            else:
                crowd.kill_one()
        publisher.stop()
        api.close()
        eventually(lambda: is_drained(api), within_s=120, what="the queue is drained")
        crowd.stop()
    finally:
        crowd.end()
    history = DeliveryHistory(crowd.files)
    letters = dead_letters(api)
    assert len(publisher.confirmed) > 100
    check(history, letters, publisher)
    assert not broker.errors.find("crashed"), broker.errors.text()


@pytest.mark.timeout(120)
def test_every_message_is_done_once_despite_kills_of_consumers_and_broker(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    # A fixed seed: this test is part of every run.
    kill_at_random(new_broker, tmp_path, seed=5, for_s=6)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_minutes_of_kills_neither_lose_nor_duplicate_messages(new_broker: NewBroker, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    kill_at_random(new_broker, tmp_path, seed=seed, for_s=240)
