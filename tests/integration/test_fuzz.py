"""Mutated requests of real clients: the broker answers or closes the connection, and keeps serving."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.compat.aio import AioKafka
from tests.compat.client import Admin, Record
from tests.compat.confluent import Confluent
from tests.compat.kafka_python import KafkaPython

from .raw import connected, frame
from .recording import Recorder

MIB = 1 << 20
CONFIG = f"""
[kafka]
frame_timeout_ms = 300
max_request_bytes = {4 * MIB}
in_flight_bytes = {16 * MIB}

[topics]
# A changed request may well ask for as many partitions as there may be.
max_partitions = 300
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[list[bytes]]:
    """Record the requests of three clients that use every call."""
    recorder = Recorder()
    broker = Broker(tmp_path / "recorded", config=f'[kafka]\nadvertised = "{recorder.address}"\n')
    try:
        broker.start()
        recorder.forward_to(broker.host_and_port)
        for kind in (Confluent, KafkaPython, AioKafka):
            exercise(kind(recorder.address), f"topic-{kind.name}")
        yield list(recorder.frames)
    finally:
        broker.end()
        recorder.close()


def exercise(client: Admin, topic: str) -> None:
    client.create_topic(topic, partitions=2, settings={"retention.ms": "1000000"})
    client.produce(topic, [Record(key=b"k", value=b"v" * 100, headers=(("h", b"1"),))] * 5, idempotent=True)
    client.produce(topic, [Record(value=b"compressed" * 50)] * 5, compression="gzip")
    client.read(topic, count=10)
    client.offset_at(topic, 0)
    client.ends(topic)
    client.settings(topic)
    client.replace_settings(topic, {"segment.bytes": "1000000"})
    client.add_partitions(topic, 3)
    client.delete_records(topic, before=2)
    client.cluster()
    client.delete_topic(topic)


def test_mutated_requests_do_no_harm(corpus: list[bytes], tmp_path: Path) -> None:
    fuzz(corpus, tmp_path, count=1500, seed=4711)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_fuzz_a_running_broker_for_longer(corpus: list[bytes], tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    fuzz(corpus, tmp_path, count=100_000, seed=seed)


def fuzz(corpus: Sequence[bytes], tmp_path: Path, *, count: int, seed: int) -> None:
    dice = random.Random(seed)
    broker = Broker(tmp_path / "fuzzed", config=CONFIG).start()
    try:
        Confluent(broker.address).create_topic("normal")
        before = broker.resident_bytes
        for number in range(count):
            if not number % 500:
                assert_serves(broker, seed)
            with connected(broker.host_and_port) as connection, contextlib.suppress(OSError):
                connection.socket.settimeout(0.05)
                connection.send(changed(dice.choice(corpus), dice))
                connection.receive()
        assert_serves(broker, seed)
        assert broker.resident_bytes < before + 100 * MIB, f"seed {seed}"
        # An unreadable request is the client's fault; an unexpected exception is ours.
        assert not broker.errors.find("Traceback|crashed"), f"seed {seed}: {broker.errors.text()}"
    finally:
        broker.end()


def changed(whole: bytes, dice: random.Random) -> bytes:
    """Return a frame with a few bytes flipped, cut out, repeated or replaced; usually of the right size."""
    payload = bytearray(whole[4:])
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        at = dice.randrange(len(payload)) if payload else 0
        match dice.randrange(5):
            case 0 if payload:
                payload[at] ^= 1 << dice.randrange(8)
            case 1:
                del payload[at : at + dice.randrange(1, 9)]
            case 2:
                payload[at:at] = payload[at : at + dice.randrange(1, 40)]
            case 3:
                payload[at : at + 4] = dice.choice(
                    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00"]
                )
            case _:
                payload[at : at + 1] = dice.randbytes(1)
    return frame(bytes(payload)) if dice.random() < 0.95 else whole[:4] + bytes(payload)


def assert_serves(broker: Broker, seed: int) -> None:
    assert broker.is_running, f"seed {seed}: {broker.errors.text()}"
    client = Confluent(broker.address)
    offsets = client.produce("normal", [Record(value=b"still here")])
    assert offsets is not None
    (read,) = client.read("normal", start=offsets[0], count=1)
    assert read.value == b"still here", f"seed {seed}"
