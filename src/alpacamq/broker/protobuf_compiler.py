"""Owns the processes that parse Protobuf schemas.

One for small schemas starts with the first of them and stays. A large schema, which can take seconds, gets a
process of its own, one at a time, so that small ones do not wait for it. A process that ended is started
again; a schema that ends it twice is invalid, as the first end may have had another cause.
"""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from concurrent.futures import Executor
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec

from alpacamq.model.errors import CoordinatorUnavailable
from alpacamq.registry.messages import Source
from alpacamq.registry.schema import InvalidSchema
from alpacamq.telemetry.logs import get_logger

if TYPE_CHECKING:
    from alpacamq.registry.protobuf import ProtobufSchema

log = get_logger(__name__)

# The processor time of the process is limited; this is for one that waits, on a machine without time for it.
TIMEOUT_SECONDS: Final = 60.0
MAX_ATTEMPTS: Final = 2
# A schema with more, those it imports included, is large. In less, protoc finds 0.1 s of work at most.
LARGE_BYTES: Final = 32 << 10


class _Ended(Exception):
    """The process ended before it replied."""

    def __init__(self, status: int) -> None:
        self.status = status


class ProtobufCompiler:
    """Parses Protobuf schemas, in other processes."""

    def __init__(self, executor: Executor | None = None, timeout_s: float = TIMEOUT_SECONDS) -> None:
        self._executor = executor
        self._small = CompilerProcess(timeout_s)
        self._large = CompilerProcess(timeout_s)

    @property
    def pid(self) -> int | None:
        """Return the id of the process for small schemas, if it runs."""
        return self._small.pid

    async def parse(self, source: Source) -> "ProtobufSchema":
        """Return a parsed schema. Raises InvalidSchema."""
        # The protobuf runtime is loaded with the first schema; that takes too long for the event loop.
        if (worker := "alpacamq.broker.protobuf_worker") not in sys.modules:
            await asyncio.get_running_loop().run_in_executor(self._executor, import_module, worker)
        from alpacamq.registry.protobuf import ProtobufSchema

        from .protobuf_worker import Compiled, CompileRequest, Rejected

        try:
            request = msgspec.msgpack.encode(CompileRequest(source.text, list(source.dependencies)))
        except UnicodeEncodeError:
            raise InvalidSchema("the text is no valid Unicode") from None
        is_large = len(request) > LARGE_BYTES
        replied = await (self._large.ask(request, ends=True) if is_large else self._small.ask(request))
        reply = msgspec.msgpack.decode(replied, type=Compiled | Rejected)
        if isinstance(reply, Rejected):
            raise InvalidSchema(reply.message)
        schema = ProtobufSchema(reply.serialized, reply.dependencies, reply.canonical, reply.normalized)
        if is_large:  # that of others takes too little time for a thread
            await asyncio.get_running_loop().run_in_executor(self._executor, schema.prepare)
        return schema

    async def close(self) -> None:
        """End the processes, and start no others."""
        await self._small.close()
        await self._large.close()


class CompilerProcess:
    """A process that parses one schema at a time."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Return the id of the process, if it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def ask(self, request: bytes, *, ends: bool = False) -> bytes:
        """Return the reply to a request, after which the process ends if wanted. Raises InvalidSchema."""
        async with self._turn:
            try:
                return await self._ask(request)
            finally:
                if ends:
                    await self._end()

    async def close(self) -> None:
        """End the process, and start no other."""
        self._is_closed = True
        await self._end()

    async def _ask(self, request: bytes) -> bytes:
        status = 0
        for _ in range(MAX_ATTEMPTS):
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._exchange(request)
            except _Ended as ended:
                status = ended.status
                log.warning("protobuf_compiler_ended", status=status)
            except TimeoutError:
                await self._end()
                raise CoordinatorUnavailable("the Protobuf compiler does not answer; try again") from None
            except asyncio.CancelledError:
                # The reply would be taken for that to the next request.
                await self._end()
                raise
            if status == -signal.SIGXCPU:
                raise InvalidSchema("the schema takes too long to parse")
        raise InvalidSchema(f"the schema ends the Protobuf compiler (status {status})")

    async def _exchange(self, request: bytes) -> bytes:
        from .protobuf_worker import LENGTH_BYTES

        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(len(request).to_bytes(LENGTH_BYTES) + request)
            await process.stdin.drain()
            length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
            return await process.stdout.readexactly(length)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise _Ended(await process.wait()) from None

    async def _started(self) -> Process:
        if self._is_closed:
            raise CoordinatorUnavailable("the broker stops")
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "alpacamq.broker.protobuf_worker"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for the broker, which ends the process
            )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
