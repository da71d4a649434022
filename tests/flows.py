"""Runs each main flow through a broker in this process and lists the modules it passes."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from alpacamq.api.http.server import HttpListener
from alpacamq.api.kafka.call import Backend
from alpacamq.api.kafka.listener import Listener
from alpacamq.api.kafka.requests import KafkaRequests
from alpacamq.api.rest.app import RestApi
from alpacamq.api.sqs.app import SqsApi
from alpacamq.api.sqs.directory import SqsSettings
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.model.ids import BrokerId
from alpacamq.node.config import KafkaConfig, NodeConfig

SOURCE = Path(__file__).parent.parent / "src"
TIMEOUT_S = 60
# Background work that is independent of clients.
BACKGROUND = (
    "alpacamq.telemetry.event_loop",
    "alpacamq.broker.sampling",
    "alpacamq.telemetry.history",
    "alpacamq.api.listening",
)


class Flow:
    """The modules in the order of their first call, on the traced threads."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self._names: dict[str, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call":
            return
        path = frame.f_code.co_filename
        if path not in self._names:
            self._names[path] = _module(path)
        if (name := self._names[path]) is not None and name not in self.modules:
            self.modules[name] = None


def _module(path: str) -> str | None:
    if not path.startswith(str(SOURCE)):
        return None
    name = ".".join(Path(path).relative_to(SOURCE).with_suffix("").parts)
    return None if name in BACKGROUND else name


class TracedBroker:
    """A broker with all of its APIs on the event loop of its own thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.addresses: dict[str, str] = {}

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S), "the broker did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(TIMEOUT_S)

    @contextmanager
    def traced(self) -> Iterator[Flow]:
        """Trace the event loop for the duration of the block."""
        flow = Flow()
        self._on_loop(lambda: sys.setprofile(flow))
        try:
            yield flow
        finally:
            self._on_loop(lambda: sys.setprofile(None))

    def delivered_messages(self) -> int:
        """Return the number of delayed messages that were delivered."""
        return self.broker.delays.late_seconds.count

    def _on_loop(self, call: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(TIMEOUT_S)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.broker = broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=self._path))
        broker.open()
        kafka = Listener("127.0.0.1", 0, KafkaConfig())
        config = NodeConfig()
        http = HttpListener("127.0.0.1", 0, config.http)
        sqs = HttpListener("127.0.0.1", 0, config.sqs)
        addresses = {
            name: listener.bind() for name, listener in (("kafka", kafka), ("http", http), ("sqs", sqs))
        }
        self.addresses = {name: f"{host}:{port}" for name, (host, port) in addresses.items()}
        host, port = addresses["kafka"]
        tasks: Sequence[asyncio.Task[None]] = [
            asyncio.create_task(broker.run()),
            asyncio.create_task(kafka.run(KafkaRequests(Backend(broker=broker, host=host, port=port)))),
            asyncio.create_task(http.run(RestApi(broker, {}))),
            asyncio.create_task(sqs.run(SqsApi(broker, SqsSettings()))),
        ]
        for listener in (kafka, http, sqs):
            await listener.listening.wait()
        self._ready.set()
        await self._stopping.wait()
        for task in reversed(tasks):
            task.cancel()
        await asyncio.wait(tasks)
        await broker.close()
