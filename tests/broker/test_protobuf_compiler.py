"""The process that parses Protobuf schemas: what it refuses, its limits, its end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import psutil
import pytest

from alpacamq.broker.protobuf_compiler import ProtobufCompiler
from alpacamq.model.errors import CoordinatorUnavailable
from alpacamq.registry.errors import IncompatibleSchema
from alpacamq.registry.messages import Draft, GetById, Register, Source
from alpacamq.registry.protobuf import ProtobufSchema
from alpacamq.registry.protobuf.descriptors import CONFLUENT_FILES, GOOGLE_FILES
from alpacamq.registry.schema import MAX_SCHEMA_BYTES, Dependency, InvalidSchema, SchemaType
from tests.waiting import soon

from .open_brokers import running

SMALL = 'syntax = "proto3"; message A { int32 a = 1; }'
LARGE = "".join(f"message M{number} {{ optional M{number} again = 1; }}\n" for number in range(2000))
# A recursive option, written deeper than protoc's stack.
CRASHING = (
    'import "google/protobuf/descriptor.proto"; message R { optional R r = 1; } '
    "extend google.protobuf.FileOptions { optional R deep = 50000; } "
    f"option (deep) = {{ {'r {' * 100_000} {'}' * 100_000} }};"
)


@pytest.fixture
async def compiler() -> AsyncIterator[ProtobufCompiler]:
    compiler = ProtobufCompiler()
    yield compiler
    await compiler.close()


def workers() -> list[psutil.Process]:
    """Return the processes of this test's compilers."""
    children = psutil.Process().children()
    return [child for child in children if "alpacamq.broker.protobuf_worker" in child.cmdline()]


async def parse(
    compiler: ProtobufCompiler, text: str, dependencies: Sequence[tuple[str, str]] = ()
) -> ProtobufSchema:
    needed = tuple(Dependency(*each) for each in dependencies)
    return await compiler.parse(Source(SchemaType.PROTOBUF, text, needed))


async def test_the_process_of_a_large_broker_stays(compiler: ProtobufCompiler) -> None:
    memory = bytearray(os.urandom(1 << 20)) * 300  # of the test, in which the process is started
    await parse(compiler, SMALL)
    pid = compiler.pid
    for number in range(3):
        await parse(compiler, f"message M{number} {{}}")
    assert compiler.pid == pid
    del memory


async def test_the_process_starts_with_the_first_schema_and_stays(compiler: ProtobufCompiler) -> None:
    assert compiler.pid is None
    schema = await parse(compiler, SMALL)
    assert schema.record_name(b"\0") == "A"
    pid = compiler.pid
    assert pid is not None
    await asyncio.gather(*(parse(compiler, f"message M{number} {{}}") for number in range(20)))
    assert compiler.pid == pid
    await compiler.close()
    assert not psutil.pid_exists(pid)
    with pytest.raises(CoordinatorUnavailable):
        await parse(compiler, SMALL)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("message {", "line 1, column 9: Expected message name", id="syntax"),
        pytest.param("message A { optional B b = 1; }", 'line 1, column 22: "B" is not defined', id="type"),
        pytest.param("message A {}\n\tmessage A {}", 'line 2, column 17: "A" is already defined', id="twice"),
        pytest.param(
            'import "/etc/passwd";', 'line 1, column 1: Import "/etc/passwd" was not found', id="file"
        ),
        pytest.param(
            'import "../x.proto";', 'line 1, column 1: Import "../x.proto" was not found', id="parent"
        ),
        pytest.param('import "/proc/self/fd/0";', "was not found", id="its own input"),
        pytest.param('import "default.proto";', "recursively imports itself", id="itself"),
        pytest.param("message A{" * 3000 + "}" * 3000, "maximum recursion limit", id="3,000 nested messages"),
        pytest.param("message A{" * 100_000, "maximum recursion limit", id="100,000 nested messages"),
        pytest.param("option a = " + "{" * MAX_SCHEMA_BYTES, "line 1, column", id="1 MiB of braces"),
        pytest.param("x" * MAX_SCHEMA_BYTES, "line 1, column 1: Expected top-level", id="1 MiB of a name"),
        pytest.param('"' + "a" * MAX_SCHEMA_BYTES, "line 1, column", id="1 MiB of a string"),
        pytest.param("/*" * (MAX_SCHEMA_BYTES // 2), "line 1, column", id="1 MiB of comments"),
        pytest.param(
            " " * MAX_SCHEMA_BYTES + "!", "line 1, column 1048577", id="1 MiB of white space and no base64"
        ),
        pytest.param("\0\0", "line 1, column 1: Invalid control characters", id="NUL"),
        pytest.param(
            "map_entry message { [ } ] option {", "line 1, column", id="map_entry without a message"
        ),
        pytest.param("AAAA", "invalid descriptor|line 1", id="base64 of something else"),
    ],
)
async def test_a_bad_schema_is_refused_with_its_place(
    compiler: ProtobufCompiler, text: str, reason: str
) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        await parse(compiler, text)
    assert await parse(compiler, SMALL)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a//b", "a/./b", "a=b", "a:b", "", ".", "x\0", "a" * 5000]
)
async def test_a_name_that_leads_elsewhere_is_refused(compiler: ProtobufCompiler, name: str) -> None:
    with pytest.raises(InvalidSchema, match="is not a name that a schema can import"):
        await parse(compiler, SMALL, [(name, "message X {}")])


async def test_imports_lead_to_dependencies_and_builtin_files_only(
    compiler: ProtobufCompiler, tmp_path: Path
) -> None:
    (tmp_path / "present.proto").write_text("message X {}")
    for name in (f"{tmp_path}/present.proto", "present.proto", "google/protobuf/unittest.proto"):
        with pytest.raises(InvalidSchema, match="was not found"):
            await parse(compiler, f'import "{name}";')
    schema = await parse(
        compiler,
        'import "a/b.proto"; import "google/protobuf/any.proto"; import "confluent/type/decimal.proto"; '
        "message A { optional X x = 1; optional google.protobuf.Any y = 2; "
        "optional confluent.type.Decimal z = 3; }",
        [("a/b.proto", "message X {}")],
    )
    assert list(schema.imports) == ["a/b.proto", "google/protobuf/any.proto", "confluent/type/decimal.proto"]


async def test_an_error_in_a_dependency_names_it(compiler: ProtobufCompiler) -> None:
    with pytest.raises(InvalidSchema, match=r"x\.proto, line 1, column 9: Expected message name"):
        await parse(compiler, 'import "x.proto";', [("x.proto", "message }")])
    cycle = [("a.proto", 'import "b.proto";'), ("b.proto", 'import "a.proto";')]
    with pytest.raises(InvalidSchema, match="recursively imports itself"):
        await parse(compiler, 'import "a.proto";', cycle)


async def test_many_options_are_only_slow(compiler: ProtobufCompiler) -> None:
    text = (
        'import "google/protobuf/descriptor.proto"; '
        "extend google.protobuf.FileOptions { repeated int32 o = 50000; }"
    )
    schema = await parse(compiler, text + "option (o) = 1;" * 5000)
    assert schema.canonical.count("option (o) = 1;") == 5000


async def test_a_schema_that_ends_the_compiler_is_invalid(compiler: ProtobufCompiler) -> None:
    assert await parse(compiler, SMALL)
    with pytest.raises(InvalidSchema, match="ends the Protobuf compiler"):
        await parse(compiler, CRASHING)
    assert await parse(compiler, SMALL)


async def test_a_process_that_was_killed_is_replaced(compiler: ProtobufCompiler) -> None:
    await parse(compiler, SMALL)
    first = compiler.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await parse(compiler, "message B {}")
    assert compiler.pid != first


async def test_a_cancelled_request_does_not_disturb_the_next(compiler: ProtobufCompiler) -> None:
    await parse(compiler, SMALL)
    assert compiler.pid is not None
    os.kill(compiler.pid, signal.SIGSTOP)
    waiting = asyncio.create_task(parse(compiler, "message Cancelled {}"))
    await asyncio.sleep(0)  # the request is sent
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await parse(compiler, SMALL)).record_name(b"\0") == "A"


async def test_a_process_that_does_not_answer_is_replaced() -> None:
    compiler = ProtobufCompiler(timeout_s=0.001)  # less than an interpreter takes to start
    try:
        with pytest.raises(CoordinatorUnavailable, match="does not answer"):
            await parse(compiler, SMALL)
        assert compiler.pid is None
    finally:
        await compiler.close()


def test_the_process_ends_with_a_broker_that_is_killed() -> None:
    program = f"""
import asyncio
from alpacamq.broker.protobuf_compiler import ProtobufCompiler
from alpacamq.registry.messages import Source

async def main():
    compiler = ProtobufCompiler()
    await compiler.parse(Source("PROTOBUF", {SMALL!r}))
    print(compiler.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        process = psutil.Process(int(broker.stdout.readline()))
        assert process.is_running()
        broker.kill()
        process.wait(timeout=60)
    assert not process.is_running()


async def test_a_large_schema_is_made_ready(compiler: ProtobufCompiler) -> None:
    schema = await parse(compiler, LARGE)
    assert schema.record_name(b"\2\x9e\x1f") == "M1999"


async def test_small_schemas_do_not_wait_for_a_large_one(compiler: ProtobufCompiler) -> None:
    await parse(compiler, SMALL)
    large = asyncio.create_task(parse(compiler, LARGE))

    async def others() -> list[psutil.Process]:
        return [child for child in workers() if child.pid != compiler.pid]

    (process,) = await soon(others)
    process.suspend()
    await parse(compiler, "message B {}")
    assert not large.done()
    process.resume()
    assert (await large).record_name(b"\0") == "M0"
    assert not process.is_running()


@pytest.mark.parametrize(
    "name", [*GOOGLE_FILES, *CONFLUENT_FILES], ids=lambda name: name.removesuffix(".proto").replace("/", ".")
)
async def test_a_builtin_file_can_be_imported(compiler: ProtobufCompiler, name: str) -> None:
    schema = await parse(compiler, f'syntax = "proto3"; import "{name}"; message A {{}}')
    assert list(schema.imports) == [name]
    assert schema.mismatch(b"\0") is None


async def test_a_text_that_is_no_unicode_is_refused(compiler: ProtobufCompiler) -> None:
    with pytest.raises(InvalidSchema, match="Unicode"):
        await parse(compiler, "// \ud800")


def test_a_broker_loads_protobuf_with_the_first_schema() -> None:
    program = """
import sys
import alpacamq.node.main, alpacamq.broker.broker, alpacamq.api.registry.subjects
assert not any(name.startswith(("google.protobuf", "grpc")) for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_grpc_is_not_loaded() -> None:
    program = f"""
import sys
from alpacamq.broker.protobuf_worker import CompileRequest, compile_schema
compile_schema(CompileRequest({SMALL!r}, []))
assert "grpc" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_a_broker_registers_and_compares_protobuf_schemas(tmp_path: Path) -> None:
    def draft(text: str) -> Draft:
        return Draft(text=text, schema_type=SchemaType.PROTOBUF)

    async with running(tmp_path) as broker:
        first = await broker.registry.register(Register(subject="a", draft=draft(SMALL)))
        changed = SMALL.replace("int32", "string")
        with pytest.raises(IncompatibleSchema):
            await broker.registry.register(Register(subject="a", draft=draft(changed)))
        with pytest.raises(InvalidSchema, match="line 1, column 9"):
            await broker.registry.register(Register(subject="a", draft=draft("message {")))
        same = await broker.registry.register(Register(subject="a", draft=draft(SMALL + "\n// again")))
        assert same == first
        parsed = await broker.registry.schema(first.id)
        assert parsed.mismatch(b"\0\x08\x01") is None
        children = workers()
        assert await broker.registry.ask(GetById(id=first.id)) == first
    assert children
    assert not any(child.is_running() for child in children)
