"""Celery runs tasks over the SQS API, with a worker process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.waiting import eventually

from . import sqs as boto

WORKER_S = 60
COUNTDOWN_S = 2


class Worker:
    """A Celery worker and the lines its tasks wrote."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.journal = directory / "journal"
        self.log = directory / "log"
        self._environment = {**os.environ, **environment, "JOURNAL": str(self.journal)}
        self.journal.touch()

    def start(self) -> None:
        command = [sys.executable, "-m", "celery", "-A", "tests.compat.celery_app", "worker"]
        command += ["--pool", "solo", "--loglevel", "INFO", "--without-gossip", "--without-mingle"]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def ask(self, statement: str) -> None:
        """Send tasks from another process."""
        code = f"import time; from tests.compat.celery_app import *; {statement}"
        subprocess.run([sys.executable, "-c", code], env=self._environment, check=True, timeout=WORKER_S)

    def wrote(self, line: str) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        return line in self.journal.read_text().splitlines()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(WORKER_S)
        finally:
            self._process.kill()


@pytest.fixture(params=["found by name", pytest.param("predefined", marks=pytest.mark.heavy)])
def worker(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Iterator[Worker]:
    queue = f"celery-{request.param.replace(' ', '-')}"
    environment = {"QUEUE": queue, "BROKER_URL": f"sqs://key:secret@{broker.sqs_address}//"}
    if request.param == "predefined":
        url = boto.client(broker.sqs_address).create_queue(QueueName=queue)["QueueUrl"]
        environment["QUEUE_URL"] = url
    worker = Worker(tmp_path, environment)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def test_tasks_run_are_retried_and_delayed(worker: Worker, broker: Broker) -> None:
    worker.ask(
        "[add.delay(number, 100) for number in range(20)]; stubborn.delay(); "
        f"when.apply_async((time.time(),), countdown={COUNTDOWN_S}); "
        f"add.apply_async((1, 1), delay_seconds={COUNTDOWN_S})"
    )
    for number in range(20):
        eventually(lambda line=f"add {100 + number}": worker.wrote(line), within_s=WORKER_S)  # type: ignore[misc]
    for attempt in range(3):
        eventually(lambda line=f"stubborn {attempt}": worker.wrote(line), within_s=WORKER_S)  # type: ignore[misc]
    eventually(lambda: worker.wrote("add 2"), within_s=WORKER_S)
    eventually(lambda: "when" in worker.journal.read_text(), within_s=WORKER_S)
    lines = worker.journal.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 25, "each task ran the expected number of times"
    (waited,) = [float(line.split()[1]) for line in lines if line.startswith("when")]
    assert waited >= COUNTDOWN_S
    sqs = boto.client(broker.sqs_address)
    url = sqs.get_queue_url(QueueName=worker._environment["QUEUE"])["QueueUrl"]
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

    def is_done() -> bool:
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return set(found.values()) == {"0"}

    eventually(is_done)
