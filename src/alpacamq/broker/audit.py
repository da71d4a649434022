"""Writes audit events to the topic `__audit` and to a file.

Recording an event never waits and never fails: events wait in bounded queues, one for each destination, and
are counted as dropped if a destination does not keep up.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from alpacamq.model.errors import AlpacaError
from alpacamq.model.ports import Clock
from alpacamq.model.topics import AUDIT_TOPIC, DAY_MS, MIB
from alpacamq.security.acls import Operation, ResourceType
from alpacamq.security.audit import (
    ADMINISTRATIVE,
    READS_AND_WRITES,
    AuditEvent,
    AuditKind,
    Repeats,
)
from alpacamq.security.callers import Caller
from alpacamq.telemetry.logs import get_logger

from .publishing import Message, Publisher
from .topics import Topics

log = get_logger(__name__)

MAX_QUEUED = 10_000
MAX_BATCH = 500
# Events of this time are written together.
LINGER_SECONDS = 0.05
WINDOW_SECONDS = 60.0
# How long a node that stops waits until its last events are written.
CLOSE_SECONDS = 3.0
RETRY_SECONDS = 1.0
# What clients say of themselves is not stored in any length.
MAX_TEXT = 255
# A rule with names of the greatest length fits.
MAX_DETAIL = 4000


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is audited, and where to."""

    topic: bool = True
    retention_ms: int = 90 * DAY_MS
    file: Path | None = None
    file_bytes: int = 10 * MIB
    files: int = 10
    reads_and_writes: bool = False


class AuditedRequest(NamedTuple):
    """The request that is being served."""

    api: str
    name: str
    client_id: str
    request_id: str | int
    caller: Caller


# Of the task, or of the callback that serves a request at once.
_REQUEST: ContextVar[AuditedRequest | None] = ContextVar("audited_request", default=None)


class Audit:
    """Records events; `run` writes them."""

    def __init__(
        self,
        settings: AuditSettings,
        *,
        node_id: int,
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._node_id = node_id
        self._settings = settings
        self._clock = clock
        self._executor = executor
        self._logged = ADMINISTRATIVE | (READS_AND_WRITES if settings.reads_and_writes else frozenset())
        self._repeats = Repeats()
        self._queues: list[_Queue] = []
        if settings.file is not None:
            file = AuditFile(settings.file, settings.file_bytes, settings.files)
            self._queues.append(_Queue("file", self._in_thread(file)))

    def write_topic(self, topics: Topics, publisher: Publisher) -> None:
        """Write to the topic as well, if the settings say so."""
        if self._settings.topic:
            topic = AuditTopic(topics, publisher, self._settings.retention_ms)
            self._queues.append(_Queue("topic", topic.write))

    def _in_thread(self, file: "AuditFile") -> "Write":
        async def write(lines: Sequence[bytes]) -> None:
            await asyncio.get_running_loop().run_in_executor(self._executor, file.write, lines)

        return write

    @property
    def events(self) -> int:
        """Events recorded, for metrics."""
        return max((queue.events for queue in self._queues), default=0)

    @property
    def dropped(self) -> int:
        """Events that were not written to a destination."""
        return sum(queue.dropped for queue in self._queues)

    # Recording.

    def enter(self, api: str, name: str, client_id: str, request_id: str | int, caller: Caller) -> None:
        """Attribute the decisions that follow in this task to a request."""
        _REQUEST.set(AuditedRequest(api, name, client_id, request_id, caller))

    def records_allowed(self, operation: Operation) -> bool:
        """Return whether an operation is recorded even if it is allowed."""
        return operation in self._logged

    def decided(
        self, caller: Caller, operation: Operation, kind: ResourceType, name: str, *, allowed: bool
    ) -> None:
        """Record whether a client may do something to a resource."""
        if allowed and operation not in self._logged:
            return
        name = name[:MAX_TEXT]
        key = (caller.name, caller.host, operation, kind, name, allowed)
        # What administrators do is recorded each time: two requests about the cluster may change two things.
        is_change = allowed and operation in ADMINISTRATIVE
        if is_change or not self._repeats.count(key):
            event = self._event(
                AuditKind.AUTHORIZATION,
                caller.name,
                caller.host,
                allowed=allowed,
                key=caller.key_id,
                request=_request_of(caller),
                operation=operation.name,
                resource_type=kind.name.lower(),
                resource=name,
            )
            if is_change:
                self._put(event)
            else:
                self._first(key, event)

    def login(self, principal: str, host: str, how: str, failure: str = "", key: str = "") -> None:
        """Record a login, or why it failed."""
        name = principal[:MAX_TEXT]
        about = (AuditKind.AUTHENTICATION, name, host, how, failure)
        if not self._repeats.count(about):
            detail = f"{how}: {failure}" if failure else how
            event = self._event(
                AuditKind.AUTHENTICATION, name, host, allowed=not failure, key=key, detail=detail
            )
            self._first(about, event)

    def changed(self, operation: Operation, kind: str, name: str, detail: str, failure: str = "") -> None:
        """Record a change of users, rules, keys, tokens, quotas or tenants by the request that is served."""
        request = _REQUEST.get()
        self._put(
            self._event(
                AuditKind.CHANGE,
                "" if request is None else request.caller.name,
                "" if request is None else request.caller.host,
                allowed=not failure,
                key="" if request is None else request.caller.key_id,
                request=request,
                operation=operation.name,
                resource_type=kind,
                resource=name[:MAX_TEXT],
                detail=(f"{detail}: {failure}" if failure else detail)[:MAX_DETAIL],
            )
        )

    def _event(
        self,
        kind: AuditKind,
        principal: str,
        host: str,
        *,
        allowed: bool,
        key: str,
        request: AuditedRequest | None = None,
        **fields: Any,
    ) -> AuditEvent:
        if request is not None:
            fields |= {
                "api": request.api,
                "request": request.name,
                "client_id": request.client_id[:MAX_TEXT],
                "request_id": str(request.request_id)[:MAX_TEXT],
            }
        return AuditEvent(
            time=self._time(),
            node=self._node_id,
            kind=kind,
            principal=principal,
            address=host,
            allowed=allowed,
            key=key,
            **fields,
        )

    def _time(self) -> str:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _first(self, key: tuple[object, ...], event: AuditEvent) -> None:
        if self._repeats.is_full:
            self._end_window()
        self._repeats.add(key, event)
        self._put(event)

    def _end_window(self) -> None:
        for event in self._repeats.end_window(self._time()):
            self._put(event)

    def _put(self, event: AuditEvent) -> None:
        line = msgspec.json.encode(event)
        for queue in self._queues:
            queue.put(line)

    # Writing.

    async def run(self) -> None:
        """Write events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for queue in self._queues:
                tasks.create_task(queue.run())
            while True:
                await asyncio.sleep(WINDOW_SECONDS)
                self._end_window()

    async def close(self) -> None:
        """Write the last events, if that does not take long."""
        self._end_window()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                for queue in self._queues:
                    await queue.drain()


def _request_of(caller: Caller) -> AuditedRequest | None:
    """Return the request of a client that is being served; None if this is work for another one."""
    request = _REQUEST.get()
    return request if request is not None and request.caller is caller else None


# Writes lines. Raises OSError or AlpacaError.
Write = Callable[[Sequence[bytes]], Awaitable[None]]


class _Queue:
    """Events that wait to be written to one destination."""

    def __init__(self, name: str, write: Write) -> None:
        self._name = name
        self._write = write
        self._lines: deque[bytes] = deque()
        self._is_wanted = asyncio.Event()
        self.events = self.dropped = 0
        self._reported = 0

    def put(self, line: bytes) -> None:
        self.events += 1
        if len(self._lines) >= MAX_QUEUED:
            self.dropped += 1
            return
        self._lines.append(line)
        self._is_wanted.set()

    async def run(self) -> None:
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            await asyncio.sleep(LINGER_SECONDS)
            while self._lines:
                if not await self._write_some():
                    await asyncio.sleep(RETRY_SECONDS)

    async def drain(self) -> None:
        """Write what is left; give up at the first failure."""
        while self._lines and await self._write_some():
            pass

    async def _write_some(self) -> bool:
        """Write a batch; return whether that succeeded. What failed is not written again."""
        taken = [self._lines.popleft() for _ in range(min(MAX_BATCH, len(self._lines)))]
        reason = "the queue is full"
        is_written = False
        try:
            await self._write(taken)
            is_written = True
        except (OSError, AlpacaError) as error:
            self.dropped += len(taken)
            reason = str(error)
        if self.dropped > self._reported:
            log.warning(
                "audit_events_dropped",
                destination=self._name,
                events=self.dropped - self._reported,
                reason=reason,
            )
            self._reported = self.dropped
        return is_written


class AuditTopic:
    """The destination `__audit`."""

    def __init__(self, topics: Topics, publisher: Publisher, retention_ms: int) -> None:
        self._topics = topics
        self._publisher = publisher
        self._overrides = {"retention.ms": str(retention_ms), "cleanup.policy": "delete"}

    async def write(self, lines: Sequence[bytes]) -> None:
        """Append lines as messages. Raises AlpacaError."""
        await self._topics.create_internal(AUDIT_TOPIC, partitions=1, overrides=self._overrides)
        messages = [Message(value=line) for line in lines]
        for result in await self._publisher.append(AUDIT_TOPIC, messages):
            if isinstance(result, AlpacaError):
                raise result


class AuditFile:
    """A file of JSON lines, and the older ones: NAME.1 is the last of them. Blocking."""

    def __init__(self, path: Path, max_bytes: int, max_files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files

    def write(self, lines: Sequence[bytes]) -> None:
        """Append lines. The file is opened for each batch, so that others may move it. Raises OSError."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
            size = file.tell()
        if size >= self._max_bytes:
            self._rotate()

    def _rotate(self) -> None:
        if self._max_files == 1:
            self._path.unlink()
            return
        for number in range(self._max_files - 1, 1, -1):
            with suppress(FileNotFoundError):
                self._numbered(number - 1).replace(self._numbered(number))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
