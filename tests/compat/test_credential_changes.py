"""Passwords and API keys that change while unmodified clients write and read: no message is lost."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import boto3
import httpx
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

from tests.brokers import Broker
from tests.certificates import Authority, client_context, tls_section
from tests.ports import lasting_address
from tests.waiting import eventually

from . import round_trips
from .round_trips import DEADLINE_S

ADMIN, ADMINS_PASSWORD = "admin", "an administrator"
# Of the users whose passwords change.
OLD, NEW = "the old password", "the new password"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
# Messages that show that a client goes on.
MORE = 20


class Secured:
    """A broker with TLS whose clients must authenticate."""

    def __init__(self, directory: Path, *security: str) -> None:
        directory.mkdir(parents=True)
        self.authority = Authority(directory / "certificates")
        users = directory / "users"
        users.write_text(f"{ADMIN}:{ADMINS_PASSWORD}\n")
        users.chmod(0o600)
        config = tls_section(self.authority, self.authority.server())
        config += "".join(f"[{api}]\ntls = true\n" for api in ("kafka", "http", "sqs"))
        config += "\n".join(["[security]", "authentication = true", f"users_file = '{users}'", *security])
        self.broker = Broker(directory / "data", config=config, kafka=lasting_address())

    def __enter__(self) -> Self:
        self.broker.start()
        self.admin = AdminClient(self.librdkafka("PLAIN", ADMIN, ADMINS_PASSWORD))
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.end()

    def librdkafka(self, mechanism: str, user: str, password: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.broker.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def others(self, user: str, password: str) -> dict[str, Any]:
        """The settings of the clients written in Python."""
        return {
            "bootstrap_servers": self.broker.address,
            "security_protocol": "SASL_SSL",
            "ssl_context": client_context(self.authority),
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }

    def set_password(self, user: str, password: str) -> None:
        """Create a user, or change its password, for every mechanism."""
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion(user, info, password=password.encode())
            self.admin.alter_user_scram_credentials([change])[user].result(DEADLINE_S)

    def create_topic(self, name: str) -> None:
        self.admin.create_topics([NewTopic(name, 1)])[name].result(DEADLINE_S)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("changes") / "broker") as secured:
        yield secured


class Load:
    """A producer and a consumer of one user that work until they are stopped."""

    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        self._topic = topic
        self._producer = Producer({**settings, "enable.idempotence": True, "linger.ms": 1})
        reading = {"group.id": topic, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**settings, **reading})
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._write, self._read)]
        self._change: tuple[str, str] | None = None
        self.written: list[int] = []
        self.failures: list[KafkaError] = []
        self.read: list[int] = []

    def start(self) -> None:
        self._consumer.subscribe([self._topic])
        for thread in self._threads:
            thread.start()

    def set_password(self, user: str, password: str) -> None:
        """Have the clients use another password from their next login on."""
        self._producer.set_sasl_credentials(user, password)
        # By the thread that reads: in another, the call of confluent-kafka does not return.
        self._change = (user, password)
        eventually(lambda: self._change is None)

    def goes_on(self) -> None:
        """Wait until more messages are written and read."""
        written, read = len(self.written), len(self.read)
        eventually(
            lambda: len(self.written) >= written + MORE and len(self.read) >= read + MORE,
            within_s=DEADLINE_S,
            what=f"more messages in {self._topic}",
        )

    def stop(self) -> None:
        """Stop writing, and read everything that was written."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        eventually(self._has_read_all, within_s=DEADLINE_S, what="the end of what was written")
        self._consumer.close()

    def _write(self) -> None:
        number = 0
        while not self._stopping.is_set():
            self._producer.produce(self._topic, str(number).encode(), on_delivery=self._note)
            number += 1
            self._producer.poll(0.005)
        self._producer.flush(DEADLINE_S)

    def _note(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.written.append(int(message.value()))
        else:
            self.failures.append(error)

    def _read(self) -> None:
        while not self._stopping.is_set():
            if self._change is not None:
                self._consumer.set_sasl_credentials(*self._change)
                self._change = None
            self._consume()

    def _consume(self) -> None:
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is None:
                self.read.append(int(message.value()))

    def _has_read_all(self) -> bool:
        self._consume()
        return len(self.read) >= len(self.written)


@contextmanager
def under_load(secured: Secured, topic: str, mechanisms: list[str], user: str) -> Iterator[list[Load]]:
    """Clients at work; in the end, every message was written and read exactly once."""
    loads = []
    with ExitStack() as stack:
        for mechanism in mechanisms:
            name = f"{topic}-{mechanism}"
            secured.create_topic(name)
            load = Load(secured.librdkafka(mechanism, user, OLD), name)
            load.start()
            stack.callback(load.stop)
            loads.append(load)
        for load in loads:
            load.goes_on()
        yield loads
    for load in loads:
        assert load.failures == []
        assert load.written == list(range(len(load.written)))
        assert load.read == load.written


def is_refused(secured: Secured, mechanism: str, user: str, password: str, topic: str) -> bool:
    try:
        round_trips.confluent(secured.librdkafka(mechanism, user, password), topic)
    except KafkaException as refusal:
        return bool(refusal.args[0].code() == KafkaError._AUTHENTICATION)
    return False


def test_a_password_changes_under_load_and_clients_reconnect_with_the_new_one(tmp_path: Path) -> None:
    user = "app"
    with Secured(tmp_path / "broker") as secured:
        secured.set_password(user, OLD)
        with under_load(secured, "orders", MECHANISMS, user) as loads:
            secured.set_password(user, NEW)
            for mechanism in MECHANISMS:
                assert is_refused(secured, mechanism, user, OLD, "other")
                assert (
                    round_trips.confluent(secured.librdkafka(mechanism, user, NEW), f"new-{mechanism}")
                    == b"tea"
                )
            # The connections that are open go on.
            for load in loads:
                load.goes_on()
                load.set_password(user, NEW)
            secured.broker.restart(kill=False)
            for load in loads:
                load.goes_on()


def test_a_password_changes_under_load_while_clients_authenticate_again_and_again(tmp_path: Path) -> None:
    user = "app"
    with Secured(tmp_path / "broker", "session_lifetime_ms = 1500") as secured:
        secured.set_password(user, OLD)
        with under_load(secured, "orders", ["SCRAM-SHA-256"], user) as (load,):
            secured.set_password(user, NEW)
            # On a connection that was open, at the end of its session.
            secured.broker.errors.wait_for(
                "authentication_failed.*wrong user name or password", within_s=DEADLINE_S
            )
            load.set_password(user, NEW)
            load.goes_on()


def send_with_aiokafka(settings: dict[str, Any], topic: str, change: Callable[[], None]) -> None:
    async def run() -> None:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"before")
            await asyncio.to_thread(change)
            await producer.send_and_wait(topic, b"after")

    asyncio.run(run())


def send_with_kafka_python(settings: dict[str, Any], topic: str, change: Callable[[], None]) -> None:
    producer = KafkaProducer(**settings)
    try:
        producer.send(topic, b"before").get(DEADLINE_S)
        change()
        producer.send(topic, b"after").get(DEADLINE_S)
    finally:
        producer.close(timeout=5)


@pytest.mark.parametrize(
    ("send", "round_trip"),
    [
        (send_with_aiokafka, round_trips.aiokafka),
        (send_with_kafka_python, round_trips.kafka_python),
    ],
)
def test_an_open_connection_outlives_the_password_of_its_login(
    secured: Secured,
    topic: str,
    send: Callable[[dict[str, Any], str, Callable[[], None]], None],
    round_trip: Callable[[dict[str, Any], str], bytes],
) -> None:
    user = f"user-of-{topic}"
    secured.set_password(user, OLD)
    secured.create_topic(topic)
    send(secured.others(user, OLD), topic, lambda: secured.set_password(user, NEW))
    with pytest.raises((AioError, KafkaPythonError)):
        round_trip(secured.others(user, OLD), topic)
    assert round_trip(secured.others(user, NEW), topic) == b"before"


class Sender(Protocol):
    """Sends a message with an API key."""

    def send(self, key: dict[str, str], body: str) -> None: ...


class OverHttp:
    def __init__(self, secured: Secured, topic: str) -> None:
        self._client = httpx.Client(verify=client_context(secured.authority))
        self._url = f"https://{secured.broker.http_address}/topics/{topic}/messages"

    def send(self, key: dict[str, str], body: str) -> None:
        headers = {"Authorization": f"Bearer {key['key']}"}
        self._client.post(self._url, json={"value": body}, headers=headers).raise_for_status()


class OverSqs:
    def __init__(self, secured: Secured, topic: str) -> None:
        self._secured = secured
        self._topic = topic
        # A client of an AWS SDK has one key.
        self._clients: dict[str, Any] = {}

    def send(self, key: dict[str, str], body: str) -> None:
        if key["id"] not in self._clients:
            self._clients[key["id"]] = self.client(key)
        sqs = self._clients[key["id"]]
        url = sqs.get_queue_url(QueueName=self._topic)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=body)

    def client(self, key: dict[str, str]) -> Any:
        return boto3.client(
            "sqs",
            endpoint_url=f"https://{self._secured.broker.sqs_address}",
            region_name="us-east-1",
            aws_access_key_id=key["id"],
            aws_secret_access_key=key["aws_secret_access_key"],
            verify=str(self._secured.authority.ca),
        )


class Sending:
    """Sends numbered messages with a key that can be changed, until it is stopped."""

    def __init__(self, sender: Sender, key: dict[str, str]) -> None:
        self._sender = sender
        self.key = key
        self._stopping = threading.Event()
        self.sent = 0
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def goes_on(self) -> None:
        wanted = self.sent + MORE
        eventually(lambda: self.failure or self.sent >= wanted, within_s=DEADLINE_S)
        assert self.failure is None, self.failure

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._sender.send(self.key, str(self.sent))
                self.sent += 1
        except Exception as error:  # noqa: BLE001 - raised by the test
            self.failure = error


def test_an_api_key_is_rotated_under_load_over_http_and_sqs(secured: Secured, topic: str) -> None:
    names = [f"{topic}-http", f"{topic}-sqs"]
    for name in names:
        secured.create_topic(name)
    with httpx.Client(
        verify=client_context(secured.authority),
        base_url=f"https://{secured.broker.http_address}",
        auth=(ADMIN, ADMINS_PASSWORD),
    ) as admin:
        old = admin.post("/keys", json={}).json()
        senders: list[Sender] = [OverHttp(secured, names[0]), OverSqs(secured, names[1])]
        loads = [Sending(sender, old) for sender in senders]
        try:
            for load in loads:
                load.goes_on()
            new = admin.post(f"/keys/{old['id']}/rotate", json={"overlap_ms": 600_000}).json()
            # Both are valid; clients change to the new one.
            for load in loads:
                load.goes_on()
                load.key = new
                load.goes_on()
            assert admin.delete(f"/keys/{old['id']}").is_success
            for load in loads:
                load.goes_on()
        finally:
            for load in loads:
                load.stop()
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            senders[0].send(old, "forged")
        with pytest.raises(Exception, match="security token"):
            senders[1].send(old, "forged")
        for name, load in zip(names, loads, strict=True):
            assert read_all(secured, name) == [str(number) for number in range(load.sent)]


def read_all(secured: Secured, topic: str) -> list[str]:
    """Return the values of a topic up to its end."""
    settings = secured.librdkafka("PLAIN", ADMIN, ADMINS_PASSWORD)
    consumer = Consumer(
        {**settings, "group.id": topic, "auto.offset.reset": "earliest", "enable.partition.eof": True}
    )
    consumer.subscribe([topic])
    found: list[str] = []

    def is_at_end() -> bool:
        for message in consumer.consume(1000, 0.1):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                return True
            value = message.value()
            found.append(value.decode().strip('"'))
        return False

    try:
        eventually(is_at_end, within_s=DEADLINE_S)
    finally:
        consumer.close()
    return found
