"""Names of another tenant: every method treats them as unknown ones, on the same path."""

import asyncio
import contextvars
import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from alpacamq.api.grpc import connection, dispatch
from alpacamq.api.grpc.services import TRANSCODED
from alpacamq.api.grpc.transcoding import TranscodedMethod
from alpacamq.model.names import id_of, topic_of
from alpacamq.queues.messages import QueueId
from alpacamq.security.tenants import TenantLimits
from alpacamq.v1 import log_pb2, messages_pb2, producer_pb2, queue_pb2
from tests.executed_lines import ExecutedLines
from tests.waiting import soon

from .client import TIMEOUT_S, Client, connected
from .serving import Metadata, served

RED, BLUE = "crimson", "azure"
# Only anna, of the first tenant, has names that begin so.
SECRET, UNKNOWN = "zebra", "other"
_V1 = "/alpacamq.v1."
# What they do depends on when the requests of a stream arrive.
WAITING = ("api/grpc/stream.py", "api/http/throttling.py")
MOST_PATHS = 5
# A stream that stays open has at least as many tasks, besides its own.
STREAM_TASKS = 3
MEMBER_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Request = Callable[[str], Any]
_record = messages_pb2.NewRecord(value=b"x")
_begin = messages_pb2.START_EARLIEST
# Methods of the gRPC API alone: whether both sides stream, the response, and the first request about a name.
OWN_METHODS: dict[str, tuple[bool, Any, Request]] = {
    "Queue/Work": (
        True,
        queue_pb2.WorkResponse,
        lambda name: queue_pb2.WorkRequest(open=queue_pb2.WorkOpen(topic=name, group=name, credit=1)),
    ),
    "Queue/Receive": (
        False,
        queue_pb2.ReceiveResponse,
        lambda name: queue_pb2.ReceiveRequest(topic=name, group=name),
    ),
    "Queue/Settle": (
        False,
        queue_pb2.SettleResponse,
        lambda name: queue_pb2.SettleRequest(
            settlements=[queue_pb2.Settlement(receipt=name, action=queue_pb2.Settlement.ACTION_ACK)]
        ),
    ),
    "Log/Read": (
        True,
        log_pb2.ReadResponse,
        lambda name: log_pb2.ReadRequest(topic=name, until=log_pb2.Until(current_end=True)),
    ),
    "Log/Subscribe": (
        True,
        log_pb2.SubscribeResponse,
        lambda name: log_pb2.SubscribeRequest(
            open=log_pb2.SubscribeOpen(group=name, topics=[name], start=_begin)
        ),
    ),
    "Producer/Send": (
        False,
        producer_pb2.SendResponse,
        lambda name: producer_pb2.SendRequest(
            topic=name, records=[_record], producer=producer_pb2.ProducerState(transactional_id=name)
        ),
    ),
    "Producer/Produce": (
        True,
        producer_pb2.ProduceResponse,
        lambda name: producer_pb2.ProduceRequest(
            topic=name, records=[_record], producer=producer_pb2.ProducerState(transactional_id=name)
        ),
    ),
}


def transcoded() -> Iterator[tuple[str, Any, Request]]:
    for service in TRANSCODED:
        for descriptor in service.methods:
            method = TranscodedMethod(descriptor)
            names = [
                name
                for name in {each for binding in method.bindings for each in binding.path_names}
                if descriptor.input_type.fields_by_name[name].type == 9  # text
            ]
            if names:
                yield method.path, method.response_type, _naming(method, names)


def _naming(method: TranscodedMethod, fields: list[str]) -> Request:
    return lambda name: method.request_type(**dict.fromkeys(fields, name))


class Recorder:
    """Records what a call executes: of each of its tasks the lines, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._current: contextvars.ContextVar[list[ExecutedLines]] = contextvars.ContextVar("recorded")
        self.of_last: list[ExecutedLines] = []
        self._serve = dispatch.serve_call
        monkeypatch.setattr(connection, "serve_call", self._recorded)
        factory: Any = self._task
        asyncio.get_running_loop().set_task_factory(factory)

    def lines(self, *, is_stream: bool) -> Any:
        """Return the lines of the last call; of a stream, whose tasks wait for each other, in no order."""
        if not is_stream:
            return [each.lines for each in self.of_last]
        return {line for each in self.of_last for line in each.lines if line[0] not in WAITING}

    async def _recorded(self, *arguments: Any) -> Any:
        self.of_last = [lines := ExecutedLines()]
        self._current.set(self.of_last)
        return await lines.awaiting(self._serve(*arguments))

    def _task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> "asyncio.Task[Any]":
        tasks = self._current.get(None)
        if tasks is not None:
            tasks.append(lines := ExecutedLines())
            return asyncio.Task(_awaited(lines, work), loop=loop, **options)
        return asyncio.Task(work, loop=loop, **options)


async def _awaited(lines: ExecutedLines, work: Coroutine[Any, Any, Any]) -> Any:
    return await lines.awaiting(work)


async def answer(
    recorder: Recorder, client: Client, path: str, is_stream: bool, response: Any, request: Any, key: Metadata
) -> str:
    """Return the responses to one request, or the error."""
    recorder.of_last = []
    kind = type(request)
    try:
        if not is_stream:
            return str(await client.unary(path, kind, response)(request, metadata=key, timeout=TIMEOUT_S))
        call = client.channel.stream_stream(
            path, request_serializer=kind.SerializeToString, response_deserializer=response.FromString
        )(metadata=key, timeout=TIMEOUT_S)
        await call.write(request)
        # Whether the call waits for the end of the requests is not to depend on when that arrives.
        await soon(lambda: call.done() or len(recorder.of_last) > STREAM_TASKS)
        await call.done_writing()
        found = []
        while (each := await call.read()) is not grpc.aio.EOF:
            found.append(str(each))
        return f"{found} {await call.code()} {await call.details()}"
    except grpc.aio.AioRpcError as error:
        return f"{error.code()} {error.details()} {error.trailing_metadata()}"


async def test_a_name_of_another_tenant_is_looked_up_as_an_unknown_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = [(f"{_V1}{name}", *rest) for name, rest in OWN_METHODS.items()]
    methods += [(path, False, response, request) for path, response, request in transcoded()]
    assert len(methods) > 40
    differences = []
    found: dict[str, tuple[str, Any]] = {}
    async with served(tmp_path / "data") as broker, connected(broker.address) as client:
        for name, tenant in (("anna", RED), ("boris", BLUE)):
            await broker.broker.access.create_tenant(tenant, description="", limits=TenantLimits())
            await broker.broker.access.add_member(tenant, f"User:{name}", is_admin=True)
        key = await broker.key_of("boris")
        for index in range(len(methods)):
            name = f"{SECRET}-{index}"
            await broker.publish(topic_of(RED, name), ["x"])
            queue = QueueId(id_of(RED, name), topic_of(RED, name))
            await broker.broker.queues.receive(queue, consumer="c", max_messages=1)
        recorder = Recorder(monkeypatch)
        for index, (path, is_stream, response, request) in enumerate(methods):
            seen: dict[str, list[Any]] = {kind: [] for kind in ("early", SECRET, UNKNOWN)}
            # A call may have to wait, for a state that is being loaded or a charge that is due: then it takes
            # another path, whatever the name. What can be seen of both names has to be the same.
            while not any(each in seen[UNKNOWN] for each in seen[SECRET]) and len(seen[SECRET]) < MOST_PATHS:
                for kind in seen:  # what is made once is there after the first
                    name = f"{kind}-{index}"
                    text = await answer(recorder, client, path, is_stream, response, request(name), key)
                    text = MEMBER_ID.sub("MEMBER", text.replace(name, "NAME"))
                    found[kind] = text, recorder.lines(is_stream=is_stream)
                    seen[kind].append(found[kind])
                assert recorder.of_last[0].lines, path
                assert found[SECRET][0] == found[UNKNOWN][0], path
                assert RED not in found[SECRET][0]
            if not any(each in seen[UNKNOWN] for each in seen[SECRET]):
                differences.append((path, found[SECRET][0], found[UNKNOWN][0]))
        assert differences == []
        # A name that exists takes another path.
        path, is_stream, response, request = methods[0]
        await answer(
            recorder, client, path, is_stream, response, request(f"{SECRET}-0"), await broker.key_of("anna")
        )
        assert recorder.lines(is_stream=is_stream) != found[SECRET][1]
