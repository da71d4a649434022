"""A peer for queue mode: RabbitMQ as Debian packages it, with durable classic queues and quorum queues.

The client speaks AMQP 0-9-1 itself: a Python client library would be the limit.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from struct import Struct

from .dialogue import Dialogue, Finished, Turns, together
from .jars import Unavailable, free_port
from .servers import Server, started

# Not the command on PATH, which drops the environment and runs in the system's directories.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_LIBRARIES = Path("/usr/lib/rabbitmq/lib")
_FRAME = Struct(">BHI")
_FRAME_END = b"\xce"
METHOD, HEADER, BODY = 1, 2, 3
PERSISTENT = b"\x02"

_METHOD = Struct(">HH")
START_OK, TUNE_OK, OPEN, OPEN_OK = (10, 11), (10, 31), (10, 40), (10, 41)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
DECLARE, DECLARE_OK = (50, 10), (50, 11)
QOS, QOS_OK, CONSUME, CONSUME_OK = (60, 10), (60, 11), (60, 20), (60, 21)
PUBLISH, DELIVER, ACK = (60, 40), (60, 60), (60, 80)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)
START, TUNE = (10, 10), (10, 30)


class RabbitMQ:
    """rabbitmq-server on loopback, in directories of its own."""

    def __init__(self, version: str, queue_type: str) -> None:
        self.queue_type = queue_type
        self.name = f"RabbitMQ {version}, {queue_type} queue"

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        port, names = free_port(), free_port()
        (directory / "enabled_plugins").write_text("[].\n")
        (directory / "rabbitmq.conf").write_text("")
        environment = {
            **os.environ,
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # Otherwise a shell script remains as its parent.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_NODENAME": f"bench-{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
        }
        log = directory / "server.log"
        with log.open("ab") as output:
            # In the foreground, so that it can be stopped: the server would leave one in the background.
            epmd = subprocess.Popen(
                ["epmd", "-port", str(names), "-address", "127.0.0.1"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
            began_at = time.monotonic()
            process = subprocess.Popen(
                [PROGRAM], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
        return started(self.name, process, port, log, began_at, helper=epmd)


def rabbitmq(queue_type: str) -> RabbitMQ:
    """Return the peer, if it is installed. Raises Unavailable."""
    found = sorted(_LIBRARIES.glob("rabbitmq_server-*"))
    if not PROGRAM.exists() or not found or shutil.which("epmd") is None:
        raise Unavailable("rabbitmq-server is not installed (Debian: apt-get install rabbitmq-server)")
    return RabbitMQ(found[-1].name.partition("-")[2], queue_type)


def create(address: str, queue: str, queue_type: str) -> None:
    """Declare a durable queue."""

    def declare() -> Dialogue:
        yield from _opened()
        name, value = b"x-queue-type", queue_type.encode()
        table = _short(name) + b"S" + _long(value)
        yield from _call(DECLARE, b"\0\0" + _short(queue.encode()) + b"\x02" + _long(table), DECLARE_OK)

    together(address, [declare()])


def publish(address: str, queue: str, turns: Turns, body: bytes, *, connections: int, batch: int) -> None:
    """Publish persistent messages, `batch` together, and wait for their confirmations."""
    header = (60).to_bytes(2, "big") + bytes(2) + len(body).to_bytes(8, "big") + b"\x10\x00" + PERSISTENT
    request = b"".join(
        [
            _method(PUBLISH, b"\0\0" + _short(b"") + _short(queue.encode()) + b"\0"),
            _frame(HEADER, header),
            _frame(BODY, body),
        ]
    )

    def send() -> Dialogue:
        yield from _opened()
        yield from _call(CONFIRM_SELECT, b"\0", CONFIRM_SELECT_OK)
        sent = confirmed = 0
        data = b""
        for _ in turns:
            sent += batch
            data += yield request * batch
            while True:
                data, tags = _tags(data, ACK)
                # Tags count on a channel; one confirmation may stand for all up to its own.
                for tag, is_multiple in tags:
                    confirmed = tag if is_multiple else confirmed + 1
                if confirmed >= sent:
                    break
                data += yield b""

    together(address, [send() for _ in range(connections)])


def drain(address: str, queue: str, messages: int, consumers: int, prefetch: int, batch: int) -> None:
    """Receive and acknowledge `messages`, the whole queue.

    Each consumer holds up to `prefetch`, and acknowledges at least `batch` together.
    """
    unread = unsettled = messages
    passive = b"\0\0" + _short(queue.encode()) + b"\x01" + bytes(4)

    def consume() -> Dialogue:
        nonlocal unread, unsettled
        yield from _opened()
        yield from _call(QOS, bytes(4) + prefetch.to_bytes(2, "big") + b"\0", QOS_OK)
        consumer = b"\0\0" + _short(queue.encode()) + _short(b"c") + b"\0" + bytes(4)
        data = yield from _call(CONSUME, consumer, CONSUME_OK)
        pending = last = 0
        while True:
            data, tags = _deliveries(data)
            reply = b""
            if tags:
                pending += len(tags)
                unread -= len(tags)
                last = tags[-1]
                # Near the end there may be no whole batch for everyone.
                if pending >= batch or unread < 2 * consumers * prefetch:
                    reply = _method(ACK, last.to_bytes(8, "big") + b"\x01")
                    unsettled -= pending
                    pending = 0
            if unsettled <= 0:
                # A channel is served in order: this is answered after the acknowledgement.
                yield from _call(DECLARE, passive, DECLARE_OK, reply)
                raise Finished
            data += yield reply

    together(address, [consume() for _ in range(consumers)])
    assert unsettled == 0, f"{-unsettled} messages more than were sent"


def _opened() -> Generator[bytes, bytes, None]:
    """Open a connection and its channel 1."""
    yield from _answered(b"AMQP\0\0\x09\x01", START)
    properties = bytes(4)
    login = properties + _short(b"PLAIN") + _long(b"\0guest\0guest") + _short(b"en_US")
    yield from _answered(_method(START_OK, login, channel=0), TUNE)
    tune = (1).to_bytes(2, "big") + (131_072).to_bytes(4, "big") + bytes(2)
    opened = _method(OPEN, _short(b"/") + _short(b"") + b"\0", channel=0)
    yield from _answered(_method(TUNE_OK, tune, channel=0) + opened, OPEN_OK)
    yield from _call(CHANNEL_OPEN, _short(b""), CHANNEL_OPEN_OK)


def _call(
    method: tuple[int, int], arguments: bytes, answer: tuple[int, int], before: bytes = b""
) -> Generator[bytes, bytes, bytes]:
    return (yield from _answered(before + _method(method, arguments), answer))


def _answered(request: bytes, answer: tuple[int, int]) -> Generator[bytes, bytes, bytes]:
    """Send a request; return what has arrived after its answer."""
    data = yield request
    while True:
        for kind, at, end in _frames(data):
            method = _METHOD.unpack_from(data, at)
            if kind == METHOD and method == answer:
                return data[end:]
            assert method != DELIVER or answer == DECLARE_OK, method
        data += yield b""


def _frames(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Find whole frames: their type, where their payload begins, and where they end."""
    at, size = 0, len(data)
    while at + 7 < size:
        kind, _, length = _FRAME.unpack_from(data, at)
        end = at + 8 + length
        if end > size:
            return
        yield kind, at + 7, end
        at = end


def _tags(data: bytes, method: tuple[int, int]) -> tuple[bytes, list[tuple[int, bool]]]:
    """Return the rest of the data, and the delivery tags of acknowledgements."""
    done = 0
    tags = []
    for _, at, end in _frames(data):
        assert _METHOD.unpack_from(data, at) == method, data[at:end]
        tags.append((int.from_bytes(data[at + 4 : at + 12], "big"), bool(data[at + 12] & 1)))
        done = end
    return data[done:], tags


def _deliveries(data: bytes) -> tuple[bytes, list[int]]:
    """Return the rest of the data, and the delivery tag of every whole message."""
    done = tag = 0
    found = []
    for kind, at, end in _frames(data):
        if kind == BODY:
            found.append(tag)
            done = end
        elif kind == METHOD:
            assert _METHOD.unpack_from(data, at) == DELIVER, data[at:end]
            first = at + 5 + data[at + 4]
            tag = int.from_bytes(data[first : first + 8], "big")
    return data[done:], found


def _frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _FRAME_END


def _method(method: tuple[int, int], arguments: bytes, channel: int = 1) -> bytes:
    return _frame(METHOD, _METHOD.pack(*method) + arguments, channel)


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _long(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content
