"""`alpacamq backup` of brokers that serve clients, and brokers on what `alpacamq restore` makes of it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from alpacamq.log.data_directory import BACKUP
from alpacamq.node.backup import DATA, MANIFEST, _paused
from tests.brokers import Broker
from tests.cli.command import InProcess
from tests.conftest import NewBroker
from tests.integration.nodes import Nodes
from tests.waiting import eventually

TOPIC, GROUP, WORKERS = "orders", "readers", "workers"
PATIENCE_S = 60
VISIBILITY_MS = 3000


def alpacamq(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "alpacamq.node.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def back_up(data: Path, to: Path) -> Any:
    ran = alpacamq("backup", "--data-dir", data, "--to", to, "-o", "json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def restore(backup: Path, data: Path, *options: str) -> Any:
    ran = alpacamq("restore", "--from", backup, "--data-dir", data, "-o", "json", *options)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def refused(*arguments: str | Path) -> str:
    """Run a command that must fail, and return what it says."""
    ran = alpacamq(*arguments)
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    return ran.stderr


def values(kafka: str, topic: str = TOPIC) -> list[str]:
    """Return all records of a topic with one partition."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "all", "enable.auto.commit": False})
    with closing(consumer):
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[str] = []
        while len(found) < end:
            for message in consumer.consume(end - len(found), timeout=30):
                assert message.error() is None, message.error()
                found.append(message.value().decode())
        return found


@contextmanager
def load(kafka: str) -> Iterator[list[str]]:
    """Produce records until the block ends; yield those that were acknowledged so far."""
    acknowledged: list[str] = []
    stop = threading.Event()
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0, "log_level": 0})

    def produce() -> None:
        number = 0
        while not stop.is_set():
            value = f"record {number}"

            def done(error: Any, _message: Any, value: str = value) -> None:
                if error is None:
                    acknowledged.append(value)

            producer.produce(TOPIC, value, partition=0, on_delivery=done)
            producer.poll(0.001)
            number += 1
        producer.flush(30)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        eventually(lambda: len(acknowledged) > 100, what="records are produced")
        yield acknowledged
    finally:
        stop.set()
        thread.join(PATIENCE_S)


def test_a_backup_under_load_has_every_record_acknowledged_before_it(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    broker = new_broker().start()
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
    with load(broker.address) as acknowledged:
        before = list(acknowledged)
        report = back_up(broker.data_dir, tmp_path / "backup")
        # The broker goes on with all of its clients.
        during = len(acknowledged)
        eventually(lambda: len(acknowledged) > during + 100, what="more records are produced")
    assert values(broker.address) == acknowledged
    assert report["paused_ms"] > 0
    assert not (broker.data_dir / BACKUP).exists()
    restore(tmp_path / "backup", tmp_path / "restored")
    found = values(new_broker("restored").start().address)
    assert found[: len(before)] == before
    assert found == acknowledged[: len(found)]


def test_groups_queues_and_delays_go_on_where_they_were(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker().start()
    http = httpx.Client(base_url=f"http://{broker.http_address}", timeout=30)
    http.post("/topics", json={"name": TOPIC, "partitions": 1}).raise_for_status()
    messages: list[dict[str, Any]] = [{"value": f"job {number}"} for number in range(6)]
    messages += [{"value": "soon", "delay_ms": 5000}, {"value": "tomorrow", "delay_ms": 86_400_000}]
    http.post(f"/topics/{TOPIC}/messages", json={"messages": messages}).raise_for_status()
    leased = http.get(
        f"/groups/{WORKERS}/poll",
        params={"topic": TOPIC, "max": 4, "visibility_ms": VISIBILITY_MS},
    ).json()["messages"]
    done, in_flight = leased[:2], leased[2:]
    http.post("/messages/ack", json={"receipts": [each["receipt"] for each in done]}).raise_for_status()
    _commit(broker.address, 3)

    back_up(broker.data_dir, tmp_path / "backup")
    broker.kill()
    restore(tmp_path / "backup", tmp_path / "restored")

    restored = new_broker("restored").start()
    http = httpx.Client(base_url=f"http://{restored.http_address}", timeout=30)
    assert _committed(restored.address) == 3
    received: list[str] = []

    def receive() -> list[str]:
        polled = http.get(f"/groups/{WORKERS}/poll", params={"topic": TOPIC, "wait_ms": 500}).json()[
            "messages"
        ]
        received.extend(each["value"] for each in polled)
        return polled and received

    # Those that were in flight come back when their leases end, the delayed one when it is due.
    expected = {each["value"] for each in in_flight} | {"job 4", "job 5", "soon"}
    eventually(lambda: receive() is not None and expected <= set(received), what="everything is received")
    assert sorted(received) == sorted(expected)
    assert not {each["value"] for each in done} & set(received)
    delayed = http.get(f"/topics/{TOPIC}/delayed").json()
    assert len(delayed["messages"]) == 1


def _commit(kafka: str, offset: int) -> None:
    with closing(Consumer({"bootstrap.servers": kafka, "group.id": GROUP})) as consumer:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)


def _committed(kafka: str) -> int:
    with closing(Consumer({"bootstrap.servers": kafka, "group.id": GROUP})) as consumer:

        def known() -> int:
            try:
                return int(consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)[0].offset)
            except KafkaException:
                return 0  # the coordinator is loading

        return eventually(known, what="the offset is known")


def test_a_node_of_a_cluster_founds_a_new_one_that_the_others_join_empty(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = Nodes(tmp_path / "old", 3), Nodes(tmp_path / "new", 3)
    try:
        old.start()
        admin = AdminClient({"bootstrap.servers": old.kafka, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(30)
        producer = Producer({"bootstrap.servers": old.kafka, "acks": "all", "log_level": 0})
        for number in range(100):
            producer.produce(TOPIC, f"record {number}", partition=0)
        assert producer.flush(30) == 0
        expected = [f"record {number}" for number in range(100)]
        back_up(old.by_id[1].data, tmp_path / "backup")
        for node in old:
            node.end()

        target = new.by_id[1].data
        said = refused("restore", "--from", tmp_path / "backup", "--data-dir", target)
        assert "--new-cluster" in said
        report = restore(tmp_path / "backup", target, "--new-cluster")
        assert report["former_voters"] == [2, 3]
        former = json.loads((old.by_id[1].data / "identity").read_text())["cluster_id"]
        assert report["cluster_id"] != former

        new.start()
        command = InProcess(new.by_id[1].kafka, new.by_id[1].http)
        admin = AdminClient({"bootstrap.servers": new.kafka, "log_level": 0})

        def in_sync() -> list[int]:
            try:
                found = admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions[0].isrs
            except KafkaException:
                return []
            return sorted(found)

        def is_rebuilt() -> bool:
            # Former leaders may have had more: that this replica is enough is for the operator to say.
            if command.json("cluster", "partitions", "--state", "offline"):
                command("cluster", "elect", "--unclean", "--yes")
            return in_sync() == [1, 2, 3]

        eventually(is_rebuilt, within_s=PATIENCE_S, what="replicas are rebuilt")
        assert values(new.by_id[1].kafka) == expected
        producer = Producer({"bootstrap.servers": new.kafka, "acks": "all", "log_level": 0})
        producer.produce(TOPIC, "another one", partition=0)
        assert producer.flush(30) == 0
        assert values(new.by_id[2].kafka) == [*expected, "another one"]
    finally:
        for node in [*old, *new]:
            node.end()


def test_a_stopped_broker_is_backed_up_without_a_pause(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker().start()
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(TOPIC, "one", partition=0)
    assert producer.flush(30) == 0
    broker.stop()
    report = back_up(broker.data_dir, tmp_path / "backup")
    assert report["paused_ms"] is None
    restore(tmp_path / "backup", tmp_path / "restored")
    assert values(new_broker("restored").start().address) == ["one"]


def test_the_broker_goes_on_if_the_backup_is_killed_while_it_is_paused(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    child = os.fork()
    if child == 0:
        with _paused(broker.process.pid):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    process = psutil.Process(broker.process.pid)
    eventually(lambda: process.status() != psutil.STATUS_STOPPED, what="the broker goes on")
    httpx.get(f"http://{broker.http_address}/readyz", timeout=30).raise_for_status()


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a stopped broker."""
    root = tmp_path_factory.mktemp("backed-up")
    broker = Broker(root / "data")
    try:
        broker.start()
        with httpx.Client(base_url=f"http://{broker.http_address}", timeout=30) as http:
            http.post(f"/topics/{TOPIC}/messages", json={"value": "one"}).raise_for_status()
        broker.stop()
    finally:
        broker.end()
    back_up(root / "data", root / "backup")
    return root / "backup"


def copied(backup: Path, tmp_path: Path) -> Path:
    target = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(backup), str(target)], check=True)
    return target


def test_a_damaged_backup_is_refused_and_its_directory_does_not_start(
    backup: Path, tmp_path: Path, new_broker: NewBroker
) -> None:
    copy = copied(backup, tmp_path)
    file = next(
        each for each in sorted((copy / DATA).rglob("*.log")) if TOPIC in str(each) and each.stat().st_size
    )
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    said = refused("restore", "--from", copy, "--data-dir", tmp_path / "data")
    assert str(file) in said
    assert "damaged" in said
    broker = new_broker()
    broker.spawn()
    assert broker.exit_code() == 1
    assert "interrupted; delete the directory and restore again" in broker.errors.text()


def test_an_interrupted_backup_is_refused(backup: Path, tmp_path: Path) -> None:
    copy = copied(backup, tmp_path)
    (copy / MANIFEST).unlink()
    assert "interrupted" in refused("restore", "--from", copy, "--data-dir", tmp_path / "data")


@pytest.mark.parametrize("field", ["format", "directory_format"])
def test_a_backup_of_a_newer_version_is_refused(backup: Path, tmp_path: Path, field: str) -> None:
    copy = copied(backup, tmp_path)
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest |= {field: 99, "version": "9.9"}
    (copy / MANIFEST).write_text(json.dumps(manifest))
    said = refused("restore", "--from", copy, "--data-dir", tmp_path / "data")
    assert "newer version, 9.9" in said
    assert not (tmp_path / "data").exists()


def test_a_manifest_cannot_name_files_elsewhere(backup: Path, tmp_path: Path) -> None:
    copy = copied(backup, tmp_path)
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["files"][0]["path"] = "../elsewhere"
    (copy / MANIFEST).write_text(json.dumps(manifest))
    assert "'../elsewhere' is outside" in refused("restore", "--from", copy, "--data-dir", tmp_path / "data")
    assert not (tmp_path / "elsewhere").exists()


def test_nothing_is_overwritten(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--data-dir" in refused("restore", "--from", backup, "--data-dir", tmp_path)
    assert "--data-dir" in refused("restore", "--from", backup, "--data-dir", tmp_path / "file")
    data = tmp_path / "data"
    restore(backup, data)
    assert "--to" in refused("backup", "--data-dir", data, "--to", tmp_path)
    assert "--to" in refused("backup", "--data-dir", data, "--to", data / "backup")
    assert "--data-dir" in refused("backup", "--data-dir", tmp_path, "--to", tmp_path / "new")


def test_a_symbolic_link_is_not_missed(backup: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    restore(backup, data)
    (data / "partitions").rename(tmp_path / "elsewhere")
    (data / "partitions").symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in refused("backup", "--data-dir", data, "--to", tmp_path / "new")


def test_damage_in_the_data_directory_fails_the_backup(backup: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    restore(backup, data)
    file = next(each for each in sorted(data.rglob("*.log")) if TOPIC in str(each) and each.stat().st_size)
    content = bytearray(file.read_bytes())
    content[30] ^= 1
    file.write_bytes(content)
    said = refused("backup", "--data-dir", data, "--to", tmp_path / "new")
    assert "damaged at byte 0" in said
    assert "interrupted" in refused("restore", "--from", tmp_path / "new", "--data-dir", tmp_path / "other")
