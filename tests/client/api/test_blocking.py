"""The blocking client: the same names, threads, forks, Ctrl-C, and nothing left behind."""

import inspect
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

import alpacamq
from alpacamq import aio
from alpacamq.client import blocking
from alpacamq.client.aio import topic as aio_topic
from tests.waiting import eventually


@dataclass
class Order:
    id: int


@pytest.fixture
def client(url: str) -> Iterator[alpacamq.Client]:
    """A client; the test fails if it leaves a thread behind."""
    before = set(threading.enumerate())
    with alpacamq.connect(url) as mq:
        yield mq
    assert set(threading.enumerate()) <= before


def test_messages_are_sent_and_read(client: alpacamq.Client, topic: str) -> None:
    orders = client.topic(topic, value=Order)
    assert orders.send(Order(0), key="a", partition=0).offset == 0
    with orders.producer() as producer:
        deliveries = [producer.send(Order(number), partition=0) for number in range(1, 300)]
        assert deliveries[-1].result(30).offset == 299
    assert [message.value.id for message in orders.read(until="latest")] == list(range(300))


def test_errors_of_a_producer_are_raised_where_they_belong(client: alpacamq.Client, topic: str) -> None:
    messages = client.topic(topic, value=str)
    with messages.producer() as producer:
        with pytest.raises(alpacamq.InvalidValue):
            producer.send(b"bytes")  # type: ignore[arg-type]
        with pytest.raises(alpacamq.AlpacaError):
            producer.send("nowhere", partition=1000).result(30)
        producer.send("fine").result(30)
    with pytest.raises(alpacamq.Closed):
        producer.send("late")
    with pytest.raises(alpacamq.AlpacaError), messages.producer() as producer:
        producer.send("nowhere", partition=1000)


def test_a_group_reads_and_commits(client: alpacamq.Client, topic: str) -> None:
    messages = client.topic(topic, value=str)
    for number in range(3):
        messages.send(f"m{number}", partition=0)
    with messages.subscribe("billing") as consumer:
        assert next(consumer).value == "m0"
        assert 0 in consumer.assignment
        consumer.commit()
    with messages.subscribe("billing") as consumer:
        assert next(consumer).value == "m1"


def test_a_transaction_commits_messages_and_offsets(client: alpacamq.Client, topic: str) -> None:
    source, target = client.topic(topic, value=str), client.topic(f"{topic}-out", value=str)
    source.send("m0", partition=0)
    with source.subscribe("copier") as consumer, client.transaction(topic) as tx:
        tx.send(target, next(consumer).value)
        tx.commit_offsets(consumer)
    assert [message.value for message in target.read(until="latest")] == ["m0"]


def test_jobs_are_settled_by_their_blocks(client: alpacamq.Client, topic: str) -> None:
    messages = client.topic(topic, value=str)
    for number in range(3):
        messages.send(f"m{number}", partition=0)
    with messages.queue("workers").receive(credit=1) as jobs:
        iterator = iter(jobs)
        with next(iterator) as job:
            assert job.value == "m0"
        with next(iterator) as job:
            job.extend("1m")
            raise alpacamq.Retry(after="1h")
        with pytest.raises(ZeroDivisionError), next(iterator):
            raise ZeroDivisionError
    messages.send("last", partition=0)
    for job in messages.queue("workers").receive():
        with job:
            assert job.value == "last"
        break


def test_threads_share_a_client(client: alpacamq.Client, topic: str) -> None:
    messages = client.topic(topic, value=str)
    with messages.producer() as producer:

        def send(name: int) -> None:
            for number in range(50):
                producer.send(f"{name}-{number}")
            messages.send(f"{name}-last")

        threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
    assert len({message.value for message in messages.read(until="latest")}) == 8 * 51


def test_messages_that_two_threads_hand_over_at_once_are_sent(client: alpacamq.Client, topic: str) -> None:
    messages = client.topic(topic, value=str)

    class InTurns(deque[Any]):
        """While one thread adds a message, another adds one, too."""

        def append(self, item: Any) -> None:
            super().append(item)
            if not others:
                others.append(threading.Thread(target=send_another))
                others[0].start()
                others[0].join()

    others: list[threading.Thread] = []
    deliveries = []
    with messages.producer() as producer:

        def send_another() -> None:
            deliveries.append(producer.send("another"))

        producer._handed_over = InTurns()
        deliveries.append(producer.send("one"))
        eventually(lambda: not producer._handed_over, what="the messages are passed on")
        assert [each.result(30).topic for each in deliveries] == [topic, topic]


def test_a_client_used_before_a_fork_raises_after_it(client: alpacamq.Client, topic: str) -> None:
    messages = client.topic(topic, value=str)
    messages.send("parent")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            messages.send("child")
        except alpacamq.ForkedClient as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 1000) == b"this client was opened before a fork; open one in each process"
    os.close(reading)
    os.waitpid(child, 0)
    messages.send("parent again")


def test_a_client_that_was_not_used_works_after_a_fork(url: str, topic: str) -> None:
    program = (
        "import alpacamq, os\n"
        f"mq = alpacamq.connect({url!r})\n"
        f"messages = mq.topic({topic!r}, value=str)\n"
        "child = os.fork()\n"
        "messages.send('child' if child == 0 else 'parent')\n"
        "mq.close()\n"
        "if child: os.waitpid(child, 0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=90)
    with alpacamq.connect(url) as mq:
        values = {message.value for message in mq.topic(topic, value=str).read(until="latest")}
    assert values == {"child", "parent"}


def test_ctrl_c_ends_a_wait(url: str, topic: str) -> None:
    program = (
        "import alpacamq\n"
        f"with alpacamq.connect({url!r}) as mq:\n"
        f"    messages = mq.topic({topic!r}, value=str)\n"
        "    messages.send('only')\n"
        "    for job in messages.queue('workers').receive(visibility='1h'):\n"
        "        print('received', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"received\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
        assert b"KeyboardInterrupt" in process.stderr.read()
    # Its lease is returned.
    with alpacamq.connect(url) as mq, mq.topic(topic).queue("workers").receive() as jobs:
        assert jobs.take()[0].value == b"only"


def test_a_closed_client_leaves_no_connection_and_refuses_work(url: str, topic: str) -> None:
    with alpacamq.connect(url) as mq:
        messages = mq.topic(topic)
        messages.send(b"")
    port = int(url.rpartition(":")[2])
    eventually(
        lambda: (
            not [
                each
                for each in psutil.Process().net_connections("tcp")
                if each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED
            ]
        )
    )
    with pytest.raises(alpacamq.Closed):
        messages.send(b"late")
    mq.close()


def test_an_unreachable_cluster_raises_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    mq = alpacamq.connect("alpaca://127.0.0.1:1", timeout="100ms")
    with pytest.raises(alpacamq.Unreachable):
        mq.topic("orders").send(b"")
    eventually(lambda: set(threading.enumerate()) <= before)


def test_an_invalid_url_is_refused_at_once() -> None:
    with pytest.raises(alpacamq.InvalidUrl):
        alpacamq.connect("http://localhost")


@pytest.mark.parametrize(
    ("original", "copy"),
    [
        (aio.Client, blocking.Client),
        (aio_topic.Topic, blocking.Topic),
        (aio_topic.TopicProducer, blocking.TopicProducer),
        (aio_topic.TopicReader, blocking.TopicReader),
        (aio_topic.TopicConsumer, blocking.TopicConsumer),
        (aio_topic.TopicTransaction, blocking.TopicTransaction),
    ],
)
def test_both_clients_take_the_same_arguments(original: type, copy: type) -> None:
    """Except callbacks, which are coroutines."""
    for name, method in inspect.getmembers(copy, inspect.isfunction):
        if name.startswith("_") or not hasattr(original, name) or name == "close":
            continue
        mine = inspect.signature(method).parameters
        theirs = inspect.signature(getattr(original, name)).parameters
        assert list(mine) == [each for each in theirs if not each.startswith("on_")], name
        assert method.__doc__, name
        for each in mine:
            assert mine[each].default == theirs[each].default, (name, each)


def test_a_busy_client_is_closed_by_another_thread(url: str, topic: str) -> None:
    mq = alpacamq.connect(url)
    messages = mq.topic(topic, value=str)
    messages.send("only")
    failures: list[BaseException] = []
    receiver = messages.queue("workers").receive(visibility="1h")
    received = threading.Event()

    def work() -> None:
        try:
            for _ in receiver:
                received.set()
        except alpacamq.AlpacaError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert received.wait(60)
    mq.close()
    thread.join(60)
    assert not thread.is_alive()
