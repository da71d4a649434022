"""The programs of examples/python work with a real broker."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

import alpacamq
from tests.brokers import Broker
from tests.client.api.conftest import broker as broker  # the fixture
from tests.conftest import NewBroker
from tests.waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
START_S = 60


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def environment(broker: Broker, directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(EXAMPLES),
        "ALPACAMQ_URL": f"alpaca://{broker.grpc_address}",
        "KAFKA": broker.kafka,
        "SQS": broker.sqs_address,
        "DATABASE": str(directory / "shop.sqlite3"),
        "JOURNAL": str(directory / "journal"),
    }


@contextmanager
def running(command: list[str], broker: Broker, directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program; it must end on SIGTERM."""
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=directory,
            env=environment(broker, directory),
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(START_S)
            finally:
                process.kill()
                process.wait()


def run(command: list[str], broker: Broker, directory: Path) -> str:
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env=environment(broker, directory),
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def mq(broker: Broker) -> Iterator[alpacamq.Client]:
    with alpacamq.connect(f"alpaca://{broker.grpc_address}") as client:
        yield client


def test_the_worker_sends_mails_and_rejects_bad_addresses(
    broker: Broker, mq: alpacamq.Client, tmp_path: Path
) -> None:
    mails = mq.topic("emails", value=dict)
    mails.send({"to": "ann@example.com", "subject": "Hello"})
    mails.send({"to": "nowhere", "subject": "Hello"})
    with running(["alpacamq.node.main", "worker", "tasks:app"], broker, tmp_path):
        log = tmp_path / "log"
        eventually(lambda: "to ann@example.com: Hello" in log.read_text(), within_s=START_S)
        eventually(lambda: "'nowhere' is not an address" in log.read_text(), within_s=START_S)


@needs("fastapi")
async def test_fastapi_sends_what_clients_post(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPACAMQ_URL", f"alpaca://{broker.grpc_address}")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from fastapi_app import Order, app, lifespan

    from alpacamq import aio

    async with lifespan(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
            answer = await http.post("/orders", json={"id": 7, "item": "espresso"})
            assert answer.status_code == 202
            assert (await http.post("/orders", json={"id": "x"})).status_code == 422
    async with aio.connect(f"alpaca://{broker.grpc_address}") as mq:
        place = answer.json()
        orders = mq.topic("orders", value=Order)
        async with asyncio.timeout(30):
            async for message in orders.read(
                start={place["partition"]: place["offset"]}, partitions=[place["partition"]]
            ):
                assert message.value == Order(id=7, item="espresso")
                break


@needs("django")
def test_django_sends_after_the_commit_and_processes_in_a_command(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    broker = new_broker()
    broker.start()
    shop = str(EXAMPLES / "django_shop" / "manage.py")
    run([shop, "migrate", "--run-syncdb", "--verbosity", "0"], broker, tmp_path)
    assert run([shop, "order", "espresso"], broker, tmp_path) == "order 1\n"
    assert run([shop, "process_orders", "--once"], broker, tmp_path) == "done 1\n"
    rolled_back = (
        "from django.db import transaction\n"
        "from shop.models import place_order\n"
        "try:\n"
        "    with transaction.atomic():\n"
        "        place_order('tea')\n"
        "        raise ValueError\n"
        "except ValueError:\n"
        "    pass\n"
    )
    run([shop, "shell", "--command", rolled_back], broker, tmp_path)
    with alpacamq.connect(f"alpaca://{broker.grpc_address}") as mq:
        assert [each.value for each in mq.topic("orders", value=dict).read(until="latest")] == [{"id": 1}]


@needs("faststream")
def test_faststream_processes_messages_over_kafkas_protocol(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker()
    broker.start()
    with (
        alpacamq.connect(f"alpaca://{broker.grpc_address}") as mq,
        running(["faststream_app"], broker, tmp_path),
    ):
        mq.topic("orders", value=dict).send({"id": 7, "item": "espresso"})
        drinks = mq.topic("drinks", value=str)

        def brewed() -> list[str]:
            try:
                return [message.value for message in drinks.read(until="latest")]
            except alpacamq.NotFound:
                return []  # FastStream creates it

        assert eventually(brewed, within_s=START_S) == ["espresso for 7"]


@needs("celery")
def test_celery_runs_tasks_over_sqs(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker()
    broker.start()
    worker = [
        "celery",
        "-A",
        "celery_app",
        "worker",
        "--pool",
        "solo",
        "--without-gossip",
        "--without-mingle",
    ]
    with running(worker, broker, tmp_path):
        run(["-c", "import celery_app; celery_app.brew.delay('espresso')"], broker, tmp_path)
        journal = tmp_path / "journal"
        eventually(lambda: journal.exists() and journal.read_text() == "espresso\n", within_s=START_S)
