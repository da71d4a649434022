"""The SQS API of a real broker on a loop of its own, with a clock that tests can set."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import boto3
import uvloop
from botocore.config import Config

from alpacamq.api.http.server import HttpListener
from alpacamq.api.sqs.app import SqsApi
from alpacamq.api.sqs.directory import SqsSettings
from alpacamq.broker.access import SecuritySettings
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.clock import SystemClock
from alpacamq.model.ids import BrokerId, TimestampMs

TIMEOUT_S = 30.0
ACCESS_KEY_ID = "AKIDEXAMPLE"
SECRET_ACCESS_KEY = "an example of a secret"  # noqa: S105 - it opens nothing

T = TypeVar("T")
# boto3 has no types of its own.
Client = Any


class SettableClock(SystemClock):
    """The machine's time and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(super().now_ms() + int(self.ahead_s * 1000))

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of the listener."""

    max_connections: int = 1000
    idle_timeout_ms: int = 60_000
    header_timeout_ms: int = 60_000
    max_body_bytes: int = 16 << 20
    in_flight_bytes: int = 64 << 20


class SqsBroker:
    """A broker with nothing but the SQS API."""

    def __init__(self, path: Path, settings: SqsSettings, ahead_s: float, security: SecuritySettings) -> None:
        self._path = path
        self._security = security
        self._settings = settings
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)
        self.clock = SettableClock()
        self.clock.ahead_s = ahead_s
        self.address = ("127.0.0.1", 0)

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def start(self) -> Self:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S), "the broker did not start"
        return self

    def stop(self) -> None:
        """Shut down as the node does."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the broker did not end"

    def ask(self, question: Callable[[Broker], Coroutine[Any, Any, T]]) -> T:
        """Have the broker itself do or say something."""
        return asyncio.run_coroutine_threadsafe(question(self._broker), self._loop).result(TIMEOUT_S)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._broker = broker = Broker(
            # One process runs all tests, some of them with clients that take no descriptor beyond 1,024.
            BrokerSettings(
                node_id=BrokerId(1), data_directory=self._path, open_files=64, security=self._security
            ),
            clock=self.clock,
        )
        broker.open()
        listener = HttpListener(*self.address, Limits())
        self.address = listener.bind()
        tasks = [
            asyncio.create_task(broker.run()),
            asyncio.create_task(listener.run(SqsApi(broker, self._settings))),
        ]
        await listener.listening.wait()
        self._ready.set()
        await self._stopping.wait()
        for task in reversed(tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await broker.close()


@contextmanager
def served(
    path: Path, *, ahead_s: float = 0, security: SecuritySettings | None = None, **settings: str
) -> Iterator[SqsBroker]:
    """A broker for the duration of the block, whose clock is ahead of ours."""
    broker = SqsBroker(path, SqsSettings(**settings), ahead_s, security or SecuritySettings()).start()
    try:
        yield broker
    finally:
        broker.stop()


def client(
    url: str, *, secret: str = SECRET_ACCESS_KEY, key: str = ACCESS_KEY_ID, data_path: Path | None = None
) -> Client:
    """boto3 as it comes, pointed at us; with another description of the service where one is given."""
    session = boto3.Session(aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1")
    if data_path is not None:
        # botocore looks here before it looks into its own package.
        session._session.get_component("data_loader").search_paths.insert(0, str(data_path))
    config = Config(retries={"total_max_attempts": 1}, read_timeout=TIMEOUT_S)
    return session.client("sqs", endpoint_url=url, config=config)
