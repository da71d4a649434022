"""A broker under attack, with every listener, and clients of every API that work meanwhile.

The broker is a process of its own, so that its memory, its sockets and its log can be looked at. What a
client waits for is measured in CPU time of the broker's event loop: a busy machine adds nothing to it.
"""

import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import psutil
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.messages.acls import AclCreation, CreateAclsRequest
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from alpacamq.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from tests import tokens
from tests.api.http.serving import Answer, Client
from tests.api.kafka.logins import PLAIN, log_in
from tests.api.kafka.wire import Wire
from tests.brokers import KEPT, Broker
from tests.certificates import Authority
from tests.ports import free_ports
from tests.waiting import eventually

MIB = 1 << 20
ADMIN, BYSTANDER, MALLORY = "admin", "bystander", "mallory"
PASSWORDS = {ADMIN: "correct horse", BYSTANDER: "battery staple", MALLORY: "small user, big plans"}
# Beside them, users that only log in.
VICTIM, VICTIM_PASSWORD = "victim", "unguessable"
CLUSTER_SECRET = b"the secret of the nodes of this cluster"
# Topics: of the bystanders, open to Mallory, and closed to her.
BYSTANDERS, OPEN, CLOSED = "bystanders", "open", "closed"
GROUP = "mallory-group"
REGION = "us-east-1"
TIMEOUT_S = 30.0
MAX_CONNECTIONS = 150
SLOW_MS = 1000
LOGIN_MS = 2000
CONFIG = f"""
{KEPT}
[logging]
format = "json"

[kafka]
max_connections = {MAX_CONNECTIONS}
frame_timeout_ms = {LOGIN_MS}
max_request_bytes = {16 * MIB}
in_flight_bytes = {64 * MIB}

[http]
max_connections = {MAX_CONNECTIONS}
header_timeout_ms = {SLOW_MS}

[sqs]
max_connections = {MAX_CONNECTIONS}
header_timeout_ms = {SLOW_MS}

[registry]
max_connections = {MAX_CONNECTIONS}
header_timeout_ms = {SLOW_MS}

[cluster]
nodes = ["1@127.0.0.1:CLUSTER_PORT"]
listen = "127.0.0.1:CLUSTER_PORT"
secret_file = "DIRECTORY/secret"

[tls]
certificate = "DIRECTORY/certificates/server.pem"
key = "DIRECTORY/certificates/server.key"

[listeners.encrypted]
api = "kafka"
listen = "127.0.0.1:ENCRYPTED_PORT"
tls = true

[security]
authentication = true
acls = true
super_users = ["User:{ADMIN}"]
users_file = "DIRECTORY/users"
session_lifetime_ms = 3600000
jwks_file = "DIRECTORY/keys.json"
jwt_issuer = "{tokens.ISSUER}"
jwt_audience = "{tokens.AUDIENCE}"
"""

# As many connections as a broker accepts without settings.
FULL_SIZE_CONNECTIONS = 2000
FULL_SIZE_CONFIG = CONFIG.replace(
    f"max_connections = {MAX_CONNECTIONS}", f"max_connections = {FULL_SIZE_CONNECTIONS}"
)

# What the broker may spend on its event loop while one request of a bystander waits.
LONGEST_WAIT_MS = 150.0
# What an attack may add to the broker's memory while it lasts, and leave behind.
MOST_GROWTH_BYTES = 160 * MIB
MOST_LEFT_BYTES = 64 * MIB
# Bugs; no request may lead to one.
CRASHES = {
    "answer_not_sent",
    "connection_crashed",
    "library_message",
    "peer_call_crashed",
    "peer_connection_crashed",
    "registry_request_failed",
    "request_failed",
    "sqs_request_failed",
}


class Repeated(Protocol):
    """A client that sends one request again and again."""

    def send(self) -> None: ...
    def close(self) -> None: ...


class Producing:
    """A Kafka client that is logged in, and produces one record after the other."""

    def __init__(self, target: "Target") -> None:
        self._wire = target.kafka(BYSTANDER)
        batch = write_batch([Record(0, 0, None, b"x" * 100)])
        data = [PartitionProduceData(index=0, records=batch)]
        topic = TopicProduceData(name=BYSTANDERS, partition_data=data)
        self._request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])

    def send(self) -> None:
        response = self._wire.ask(self._request, 9)
        assert response.responses[0].partition_responses[0].error_code == 0

    def close(self) -> None:
        self._wire.close()


class Publishing:
    """An HTTP client that publishes one message after the other with an API key."""

    def __init__(self, target: "Target") -> None:
        self._client = Client(target.http)
        self._request = http_request(
            "POST", f"/topics/{BYSTANDERS}/messages", b'{"value": "x"}', target.bearer(BYSTANDER)
        )

    def send(self) -> None:
        self._client.send(self._request)
        answer = self._client.answer()
        assert answer.status in {200, 201}, answer

    def close(self) -> None:
        self._client.socket.close()


class Sending:
    """An SQS client that sends one message after the other, with a signature."""

    def __init__(self, target: "Target") -> None:
        self._client = Client(target.sqs)
        self._request = target.signed("SendMessage", target.message(BYSTANDERS), BYSTANDER)

    def send(self) -> None:
        self._client.send(self._request)
        answer = self._client.answer()
        assert answer.status == 200, answer

    def close(self) -> None:
        self._client.socket.close()


class LookingUp:
    """A serializer that looks up a schema again and again, with an API key."""

    def __init__(self, target: "Target") -> None:
        self._client = Client(target.registry)
        headers = target.bearer(BYSTANDER)
        path = f"/subjects/{BYSTANDERS}-value/versions"
        self._ask(http_request("POST", path, b'{"schema": "\\"string\\""}', headers))
        self._request = http_request("GET", f"{path}/latest", b"", headers)

    def _ask(self, request: bytes) -> None:
        self._client.send(request)
        answer = self._client.answer()
        assert answer.status == 200, answer

    def send(self) -> None:
        self._ask(self._request)

    def close(self) -> None:
        self._client.socket.close()


class Bystander:
    """Sends the request of a client until it is stopped; keeps the longest wait and the last failure."""

    def __init__(self, client: Repeated, work_ms: Callable[[], float]) -> None:
        self._client = client
        self._work_ms = work_ms
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.longest_ms = 0.0
        self.answered = 0
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT_S)
        self._client.close()

    def has_moved(self, answered: int) -> bool:
        """Return whether it has had more answers than these, or has failed."""
        return self.failure is not None or self.answered > answered

    def _run(self) -> None:
        try:
            while not self._stopping.wait(0.002):
                before = self._work_ms()
                self._client.send()
                self.longest_ms = max(self.longest_ms, self._work_ms() - before)
                self.answered += 1
        except BaseException as error:  # noqa: BLE001 - raised by the test that watches it
            self.failure = error


@dataclass(frozen=True)
class Keys:
    """An API key."""

    id: str
    text: str
    aws_secret: str


class Target:
    """A broker with all listeners, authentication and access rules."""

    def __init__(self, directory: Path, config: str = CONFIG) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "users").write_text(
            "".join(f"{name}:{password}\n" for name, password in PASSWORDS.items())
            + f"{VICTIM}:{VICTIM_PASSWORD}\n"
        )
        (directory / "users").chmod(0o600)
        (directory / "secret").write_bytes(CLUSTER_SECRET)
        (directory / "secret").chmod(0o600)
        (directory / "keys.json").write_bytes(tokens.jwks())
        self.authority = Authority(directory / "certificates")
        self.authority.server()
        port, encrypted = free_ports(2)
        self.cluster = ("127.0.0.1", port)
        # A Kafka listener with TLS.
        self.encrypted = ("127.0.0.1", encrypted)
        text = config.replace("DIRECTORY", str(directory))
        text = text.replace("CLUSTER_PORT", str(port)).replace("ENCRYPTED_PORT", str(encrypted))
        self.broker = Broker(directory / "data", config=text)
        self.keys: dict[str, Keys] = {}
        self._log_at = 0

    def start(self) -> None:
        self.broker.start()
        self.process = psutil.Process(self.broker.process.pid)
        # Linux counts there, in nanoseconds, how long the broker's main thread has had a processor.
        self._schedstat = Path(f"/proc/{self.broker.process.pid}/schedstat")
        with self.kafka(ADMIN) as admin:
            topics = [
                CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                for name in (BYSTANDERS, OPEN, CLOSED)
            ]
            assert not any(each.error_code for each in admin.ask(CreateTopicsRequest(topics=topics)).topics)
        every = (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE)
        topic, group = ResourceType.TOPIC, ResourceType.GROUP
        self.allow(*((BYSTANDER, each, topic, BYSTANDERS) for each in every))
        self.allow(*((MALLORY, each, topic, OPEN, PatternType.PREFIXED) for each in every))
        self.allow(
            (MALLORY, Operation.READ, group, GROUP, PatternType.PREFIXED),
            (MALLORY, Operation.READ, group, "queue"),
        )
        for name in (ADMIN, BYSTANDER, MALLORY):
            self.keys[name] = self.new_key(name)

    @property
    def kafka_address(self) -> tuple[str, int]:
        return self.broker.host_and_port

    @property
    def http(self) -> tuple[str, int]:
        return _split(self.broker.http_address)

    @property
    def sqs(self) -> tuple[str, int]:
        return _split(self.broker.sqs_address)

    @property
    def registry(self) -> tuple[str, int]:
        return _split(self.broker.registry_address)

    def kafka(self, name: str) -> "LoggedIn":
        """Return a Kafka connection of a user."""
        wire = LoggedIn(self.kafka_address)
        assert log_in(wire, PLAIN, name, PASSWORDS[name]).error_code == 0
        return wire

    def allow(self, *rules: tuple[Any, ...], permission: Permission = Permission.ALLOW) -> None:
        """Create access rules: user, operation, kind, name and pattern."""
        creations = [
            AclCreation(
                resource_type=kind,
                resource_name=name,
                resource_pattern_type=pattern[0] if pattern else PatternType.LITERAL,
                principal=f"User:{user}",
                host="*",
                operation=operation,
                permission_type=permission,
            )
            for user, operation, kind, name, *pattern in rules
        ]
        with self.kafka(ADMIN) as admin:
            response = admin.ask(CreateAclsRequest(creations=creations))
        assert not any(each.error_code for each in response.results), response

    def allow_cluster(self, user: str, operation: Operation) -> None:
        self.allow((user, operation, ResourceType.CLUSTER, CLUSTER_NAME))

    def new_key(self, name: str, **fields: object) -> Keys:
        answer = self.ask_http("POST", "/keys", json.dumps(fields).encode(), basic(name, PASSWORDS[name]))
        assert answer.status == 201, answer
        made = answer.json
        return Keys(made["id"], made["key"], made["aws_secret_access_key"])

    def bearer(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[name].text}"}

    def ask_http(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        host: str = "",
    ) -> Answer:
        """Return the answer of the HTTP API to one request, from the address `host` if it is given."""
        with Client(self.http, host) as client:
            client.send(http_request(method, path, body, headers or {}))
            return client.answer(to_head=method == "HEAD")

    def ask_sqs(self, request: bytes) -> Answer:
        return _asked(self.sqs, request)

    def ask_registry(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        return _asked(self.registry, http_request(method, path, body, headers))

    def queue_url(self, topic: str) -> str:
        return f"http://{self.broker.sqs_address}/000000000000/{topic}"

    def message(self, topic: str, body: str = "x") -> bytes:
        return json.dumps({"QueueUrl": self.queue_url(topic), "MessageBody": body}).encode()

    def signed(
        self, action: str, body: bytes, name: str, *, region: str = REGION, secret: str | None = None
    ) -> bytes:
        """Return an SQS request as an AWS SDK signs it."""
        key = self.keys[name]
        request = AWSRequest(
            method="POST",
            url=f"http://{self.broker.sqs_address}/",
            data=body,
            headers={"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"},
        )
        SigV4Auth(Credentials(key.id, secret or key.aws_secret), "sqs", region).add_auth(request)
        return http_request("POST", "/", body, dict(request.headers), host=self.broker.sqs_address)

    # What the broker does.

    def work_ms(self) -> float:
        """Return the CPU time of the broker's event loop so far."""
        return int(self._schedstat.read_bytes().split()[0]) / 1e6

    @property
    def resident_bytes(self) -> int:
        return int(self.process.memory_info().rss)

    @property
    def connections(self) -> int:
        """The open connections of the broker's listeners."""
        return self.connections_to(
            self.kafka_address, self.http, self.sqs, self.registry, self.cluster, self.encrypted
        )

    def connections_to(self, *listeners: tuple[str, int]) -> int:
        ports = {port for _, port in listeners}
        return sum(
            each.laddr.port in ports and each.status != psutil.CONN_LISTEN
            for each in self.process.net_connections("tcp")
        )

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the events that the broker has logged since the last call."""
        lines = list(self.broker.errors.lines)
        new, self._log_at = lines[self._log_at :], len(lines)
        return [json.loads(line) for line in new if line.startswith("{")]

    def wait_for_log(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the last event since `log_lines` that matches, which may be yet to come.

        Earlier ones may be of a connection from the same port.
        """

        def found() -> dict[str, Any] | None:
            since = list(self.broker.errors.lines)[self._log_at :]
            lines = [json.loads(line) for line in since if line.startswith("{")]
            return next(filter(is_wanted, reversed(lines)), None)

        event = eventually(found, what="the event in the log")
        assert event is not None
        return event


def _asked(address: tuple[str, int], request: bytes) -> Answer:
    with Client(address) as client:
        client.send(request)
        return client.answer()


class LoggedIn(Wire):
    """A Kafka connection that is closed at the end of a block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Seen:
    """What an attack has cost: the broker's memory, and the other clients' time."""

    before_bytes: int = 0
    most_bytes: int = 0
    after_bytes: int = 0
    # The most CPU time of the event loop in a wait of each of the others, and their answers.
    longest_ms: dict[str, float] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)


class Watched:
    """The bystanders and the broker's resources during the attacks."""

    def __init__(self, target: Target) -> None:
        self._target = target
        kinds = (Producing, Publishing, Sending, LookingUp)
        self._bystanders = {kind.__name__: Bystander(kind(target), target.work_ms) for kind in kinds}
        self._most_bytes = 0
        self._stopping = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        for each in self._bystanders.values():
            each.start()
        self._sampler.start()

    def stop(self) -> None:
        self._stopping.set()
        self._sampler.join(TIMEOUT_S)
        for each in self._bystanders.values():
            each.stop()

    def _sample(self) -> None:
        while not self._stopping.wait(0.01):
            self._most_bytes = max(self._most_bytes, self._target.resident_bytes)

    @contextmanager
    def unharmed(self) -> Iterator[Seen]:
        """Assert that the block harms neither other clients nor the broker; tell what it cost."""
        target = self._target
        target.log_lines()
        connections, resident_bytes = target.connections, target.resident_bytes
        seen = Seen(before_bytes=resident_bytes)
        answered = {}
        for name, each in self._bystanders.items():
            each.longest_ms, answered[name] = 0.0, each.answered
        self._most_bytes = resident_bytes
        yield seen
        seen.most_bytes = self._most_bytes
        grown_bytes = seen.most_bytes - resident_bytes
        assert grown_bytes < MOST_GROWTH_BYTES, f"the broker took {grown_bytes / MIB:.0f} MiB"
        eventually(
            lambda: target.connections <= connections, what=f"{connections} connections as before the attack"
        )
        eventually(
            lambda: target.resident_bytes < resident_bytes + MOST_LEFT_BYTES,
            what=f"memory as before the attack ({resident_bytes / MIB:.0f} MiB)",
        )
        seen.after_bytes = target.resident_bytes
        for name, each in self._bystanders.items():
            eventually(partial(each.has_moved, answered[name]), what=f"an answer to {name}")
            if each.failure is not None:
                raise AssertionError(f"{name} failed: {each.failure!r}") from each.failure
            seen.longest_ms[name], seen.answered[name] = each.longest_ms, each.answered - answered[name]
            assert each.longest_ms < LONGEST_WAIT_MS, f"{name} waited for {each.longest_ms:.0f} ms of work"
        crashes = [line for line in target.log_lines() if line["event"] in CRASHES]
        assert not crashes


@contextmanager
def attacked(directory: Path, config: str = CONFIG) -> Iterator[tuple[Target, Watched]]:
    """A broker to attack, and what tells whether that harms others."""
    target = Target(directory, config)
    with ExitStack() as stack:
        stack.callback(target.broker.end)
        target.start()
        watched = Watched(target)
        stack.callback(watched.stop)
        watched.start()
        yield target, watched


def http_request(
    method: str, path: str, body: bytes, headers: dict[str, str], *, host: str = "localhost"
) -> bytes:
    """Return a request of HTTP/1.1."""
    fields = {"Host": host, **headers}
    if body or method in {"POST", "PUT", "PATCH"}:
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"}


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
