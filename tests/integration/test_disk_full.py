"""Failing disks: writes fail with a clear error, reads continue, and writes resume where possible."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from tests.brokers import Broker
from tests.compat.confluent import Confluent
from tests.sealed import seal, unseal
from tests.waiting import eventually

from .disks import Ext4, Tmpfs, ext4, tmpfs

TOPIC = "t"
VALUE_BYTES = 4000
STORAGE_ERROR = "KAFKA_STORAGE_ERROR"


class Ledger:
    """Writes numbered records one by one and records which were acknowledged."""

    def __init__(self, broker: Broker) -> None:
        self.acknowledged: list[int] = []
        self._tried = 0
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                # No retries: each refusal must be visible.
                "retries": 0,
                "message.timeout.ms": 20_000,
                "batch.num.messages": 1,
                "linger.ms": 0,
                "log_level": 0,
            }
        )

    def write(self, count: int = 1) -> str | None:
        """Write until one is refused; return the name of the error, or None if all `count` were accepted."""
        refusals: list[str] = []

        def note(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged.append(unseal(message.value()))
            else:
                refusals.append(error.name())

        for _ in range(count):
            self._producer.produce(TOPIC, seal(self._tried, VALUE_BYTES), partition=0, on_delivery=note)
            self._tried += 1
            assert self._producer.flush(30) == 0
            if refusals:
                return refusals[0]
        return None

    def check(self, broker: Broker) -> None:
        """Check that all acknowledged records are there, in order, and no refused ones."""
        count = len(self.acknowledged)
        client = Confluent(broker.address)
        assert client.ends(TOPIC) == (0, count)
        read = client.read(TOPIC, count=count)
        assert [unseal(record.value or b"") for record in read] == self.acknowledged


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Tmpfs]:
    with tmpfs(tmp_path / "disk", size_kib=4000) as disk:
        yield disk


@pytest.fixture
def breakable_disk(tmp_path: Path) -> Iterator[Ext4]:
    with ext4(tmp_path / "disk", tmp_path / "image", size_mib=32) as disk:
        yield disk


def started(data_dir: Path, **settings: str) -> Broker:
    broker = Broker(data_dir).start()
    try:
        Confluent(broker.address).create_topic(TOPIC, settings=settings)
    except BaseException:
        broker.end()
        raise
    return broker


@pytest.fixture
def broker_on_small_disk(small_disk: Tmpfs) -> Iterator[Broker]:
    broker = started(small_disk.path / "data")
    yield broker
    broker.end()


@pytest.fixture
def broker_on_breakable_disk(breakable_disk: Ext4) -> Iterator[Broker]:
    broker = started(breakable_disk.path / "data", **{"flush.messages": "1"})
    yield broker
    broker.end()


def test_a_full_disk_refuses_writes_serves_reads_and_resumes_by_itself(
    small_disk: Tmpfs, broker_on_small_disk: Broker
) -> None:
    broker = broker_on_small_disk
    ledger = Ledger(broker)

    assert ledger.write(2000) == STORAGE_ERROR
    assert ledger.acknowledged
    assert ledger.write() == STORAGE_ERROR
    ledger.check(broker)
    broker.errors.wait_for(r"(?i)no room|no space|full", within_s=10)

    small_disk.resize(64_000)
    eventually(lambda: ledger.write() is None, what="writes resume")

    assert ledger.write(100) is None
    ledger.check(broker)
    broker.stop()
    broker.start()
    ledger.check(broker)


def test_a_broker_killed_on_a_full_disk_restarts(small_disk: Tmpfs, broker_on_small_disk: Broker) -> None:
    broker = broker_on_small_disk
    ledger = Ledger(broker)
    assert ledger.write(2000) == STORAGE_ERROR
    broker.kill()

    broker.start()

    ledger.check(broker)
    small_disk.resize(64_000)
    ledger_after = Ledger(broker)
    eventually(lambda: ledger_after.write() is None, what="writes resume")


def test_retention_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", size_kib=4000) as disk:
        broker = Broker(disk.path / "data", config="[log]\nretention_check_ms = 200\n").start()
        try:
            client = Confluent(broker.address)
            client.create_topic(TOPIC, settings={"segment.bytes": "500000"})
            ledger = Ledger(broker)
            assert ledger.write(2000) == STORAGE_ERROR

            client.change_settings(TOPIC, {"retention.bytes": ("set", "1000000")})

            eventually(lambda: ledger.write() is None, what="writes resume")
            start, end = client.ends(TOPIC)
            assert 0 < start < end
        finally:
            broker.end()


def test_a_write_refused_by_the_system_affects_no_other_write(tmp_path: Path) -> None:
    broker = started(tmp_path / "data")
    try:
        ledger = Ledger(broker)
        assert ledger.write(50) is None
        process = psutil.Process(broker.process.pid)
        unlimited = process.rlimit(psutil.RLIMIT_FSIZE)
        # A limit inside the next batch: the system writes half of it and refuses the rest.
        process.rlimit(psutil.RLIMIT_FSIZE, (50 * VALUE_BYTES + VALUE_BYTES, unlimited[1]))

        assert ledger.write(10) == STORAGE_ERROR
        ledger.check(broker)

        process.rlimit(psutil.RLIMIT_FSIZE, unlimited)
        eventually(lambda: ledger.write() is None, what="writes resume")
        ledger.check(broker)
        broker.kill()
        broker.start()
        ledger.check(broker)
    finally:
        broker.end()


def test_a_file_system_that_turns_read_only_refuses_writes_and_serves_reads(
    breakable_disk: Ext4, broker_on_breakable_disk: Broker
) -> None:
    broker = broker_on_breakable_disk
    ledger = Ledger(broker)
    assert ledger.write(100) is None

    breakable_disk.turn_read_only()

    assert ledger.write() == STORAGE_ERROR
    ledger.check(broker)
    broker.errors.wait_for(r"(?i)read-only", within_s=10)

    broker.end()
    breakable_disk.repair()
    broker.start()
    ledger.check(broker)
    assert Ledger(broker).write() is None


def test_after_a_failed_fsync_a_partition_refuses_writes_until_restart(tmp_path: Path) -> None:
    # The disk below the image is too small for it: the kernel accepts writes and fails to store them.
    with (
        tmpfs(tmp_path / "small", size_kib=12_000) as small,
        ext4(tmp_path / "disk", small.path / "image", size_mib=64) as disk,
    ):
        broker = started(disk.path / "data", **{"flush.messages": "1"})
        try:
            ledger = Ledger(broker)
            assert ledger.write(8000) == STORAGE_ERROR
            assert ledger.acknowledged

            small.resize(100_000)
            assert ledger.write() == STORAGE_ERROR

            broker.end()
            disk.repair()
            broker.start()
            # The block that could not be written may hold the end of the last acknowledged record, too.
            certain = ledger.acknowledged[:-1]
            read = Confluent(broker.address).read(TOPIC, count=len(certain))
            assert [unseal(record.value or b"") for record in read] == certain
        finally:
            broker.end()


def test_the_error_names_a_data_directory_that_cannot_be_created(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", size_kib=64) as disk:
        (disk.path / "filling").write_bytes(b"x" * (shutil.disk_usage(disk.path).free))
        broker = Broker(disk.path)

        broker.spawn()

        assert broker.exit_code() != 0
        assert str(disk.path) in broker.errors.text()
        assert "Traceback" not in broker.errors.text()
