"""Parses Protobuf schemas in a process of its own, for `protobuf_compiler`.

protoc is a C++ library that takes texts of strangers: some end it, and some keep it busy. Here that costs one
process. Requests come on the standard input and replies go to the standard output; the process ends with the
input, and so with the broker, however that ends.

protoc opens files. Those of a request are in memory, under the names that the request gives them; no other
name leads to a file, but those of the built-in ones.
"""

import os
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from alpacamq.registry.protobuf.descriptors import (
    CONFLUENT_FILES,
    GOOGLE_FILES,
    ROOT_NAME,
    build_pool,
    builtin,
    read_base64,
    with_builtins,
)
from alpacamq.registry.protobuf.printing import print_file
from alpacamq.registry.protobuf.sources import as_written, with_maps
from alpacamq.registry.schema import InvalidSchema

LENGTH_BYTES: Final = 4
# Of one reply: descriptors of a schema and its dependencies, and two texts.
MAX_REPLY_BYTES: Final = 32 << 20
# Of one schema. The process ends when it exceeds them.
MAX_CPU_SECONDS: Final = 10
MAX_ADDRESS_SPACE_BYTES: Final = 512 << 20
# A process that has grown larger is replaced by a new one.
MAX_RESIDENT_BYTES: Final = 200 << 20

# A name that protoc can look up; `:` and `=` separate names and files in its options.
_NAME: Final = re.compile(r"(?!\.{1,2}(/|$))[^/\\:=,\0\n]+(/(?!\.{1,2}(/|$))[^/\\:=,\0\n]+)*")
_ERROR: Final = re.compile(r"(?:/proc/self/fd/(?P<fd>\d+):(?P<line>\d+):(?P<column>\d+): )?(?P<message>.*)")
MAX_ERRORS: Final = 3
MAX_ERROR_CHARACTERS: Final = 300


class CompileRequest(msgspec.Struct, array_like=True):
    """A schema, as text or as a FileDescriptorProto in base64, and those it imports, by name."""

    text: str
    dependencies: list[tuple[str, str]]


class Compiled(msgspec.Struct, array_like=True, tag=True):
    """A valid schema."""

    serialized: bytes
    dependencies: list[bytes]  # without built-in files
    canonical: str
    normalized: str


class Rejected(msgspec.Struct, array_like=True, tag=True):
    """An invalid schema."""

    message: str


def compile_schema(request: CompileRequest) -> Compiled:
    """Parse a schema. Raises InvalidSchema."""
    texts: dict[str, str] = {}
    for name, text in request.dependencies:
        if len(name) > 1000 or not _NAME.fullmatch(name):
            raise InvalidSchema(f"{name[:100]!r} is not a name that a schema can import")
        texts[name] = _source(name, text, texts)
    root = ROOT_NAME
    while root in texts:
        root = f"_{root}"
    text = _source(root, request.text, texts)
    files = _compile(root, text, texts)
    compiled = files[root]
    parsed = as_written(compiled, text)
    pool = build_pool(files.values())
    dependencies = []
    for name, file in files.items():
        if name in texts:
            file.ClearField("source_code_info")
            dependencies.append(file.SerializeToString())
    return Compiled(
        parsed.linked.SerializeToString(),
        dependencies,
        print_file(parsed.written, pool, option_order=parsed.option_order),
        print_file(parsed.linked, pool, is_normalized=True),
    )


def _source(name: str, text: str, dependencies: Mapping[str, str]) -> str:
    """Return the text of a file that may be a descriptor."""
    if (file := read_base64(text)) is None:
        return with_maps(text)
    file.name = name
    importer = "".join(f'import "{each}";\n' for each in file.dependency if _NAME.fullmatch(each))
    files = _compile("importer", f'syntax = "proto3";\n{importer}', dependencies)
    del files["importer"]
    return print_file(file, build_pool(with_builtins([*files.values(), file])))


def _compile(root: str, text: str, dependencies: Mapping[str, str]) -> dict[str, Any]:
    """Return the descriptors of a text and of all that it imports, each after those it imports."""
    from grpc_tools import _protoc_compiler  # without the rest of the package, which loads gRPC

    with _files({**dependencies, root: text}) as paths, _memory_file() as output:
        arguments = [
            "protoc",
            # The first that fits counts, so a dependency can take the place of a built-in file.
            *(f"--proto_path={name}={path}" for name, path in (*paths.items(), *builtin_files().items())),
            f"--descriptor_set_out={_path(output)}",
            "--include_imports",
            "--include_source_info",
            root,
        ]
        with _standard_error() as errors:
            failed = _protoc_compiler.run_main([argument.encode() for argument in arguments])
            if failed:
                names = {path.rpartition("/")[2]: name for name, path in paths.items()}
                raise InvalidSchema(_reason(_content(errors).decode(errors="replace"), names, root))
        from google.protobuf.descriptor_pb2 import FileDescriptorSet

        return {file.name: file for file in FileDescriptorSet.FromString(_content(output)).file}


@cache
def builtin_files() -> dict[str, str]:
    """Return where the built-in files are: Google's in its packages, the others in memory."""
    import google.type
    import grpc_tools

    directories = Path(grpc_tools.__path__[0]) / "_proto", Path(google.type.__path__[0]).parents[1]
    found = {
        name: str(path)
        for name in GOOGLE_FILES
        for directory in directories
        if (path := directory / name).exists()
    }
    for name in CONFLUENT_FILES:
        found[name] = _path(_write_memory_file(print_file(builtin(name)).encode()))
    return found


def _reason(output: str, names: Mapping[str, str], root: str) -> str:
    """Return the first errors of protoc's output, with line and column."""
    reasons: dict[str, None] = {}
    for line in output.splitlines():
        match = _ERROR.fullmatch(line)
        if (
            match is None
            or match["message"].startswith(("warning:", "WARNING:"))
            or re.match(r"[IW]\d{4} ", line)
        ):
            continue
        reason = match["message"][:MAX_ERROR_CHARACTERS]
        if match["fd"] is not None:
            name = names.get(match["fd"], root)
            place = f"line {match['line']}, column {match['column']}"
            reason = f"{place}: {reason}" if name == root else f"{name}, {place}: {reason}"
        reasons[reason] = None
    # A file that cannot be found is said a second time with its line.
    placed = [reason for reason in reasons if "line " in reason]
    return "; ".join((placed or list(reasons))[:MAX_ERRORS]) or "protoc does not accept the schema"


def _write_memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("schema")
    written = 0
    while written < len(content):
        written += os.write(descriptor, content[written:])
    return descriptor


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


@contextmanager
def _memory_file(content: bytes = b"") -> Iterator[int]:
    descriptor = _write_memory_file(content)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _files(texts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Put texts into memory files; yields their paths."""
    with ExitStack() as stack:
        yield {name: _path(stack.enter_context(_memory_file(text.encode()))) for name, text in texts.items()}


@contextmanager
def _standard_error() -> Iterator[int]:
    """Put what is written to the standard error into a memory file."""
    with _memory_file() as captured:
        before = os.dup(2)
        os.dup2(captured, 2)
        try:
            yield captured
        finally:
            os.dup2(before, 2)
            os.close(before)


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read()


def _allow_cpu() -> None:
    """Let the process use its processor time for one more schema."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + MAX_CPU_SECONDS + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _resident_bytes() -> int:
    """Return the memory of this process. Its peak in getrusage would begin with that of the broker."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    """Answer requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE_BYTES, MAX_ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_REPLY_BYTES, MAX_REPLY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no reply
    while len(header := requests.read(LENGTH_BYTES)) == LENGTH_BYTES:
        request = msgspec.msgpack.decode(requests.read(int.from_bytes(header)), type=CompileRequest)
        _allow_cpu()
        reply: Compiled | Rejected
        try:
            reply = compile_schema(request)
        except InvalidSchema as error:
            reply = Rejected(str(error))
        except OSError as error:  # too many dependencies for the limit of open files
            reply = Rejected(f"the schema is too large: {error.strerror}")
        except (MemoryError, RecursionError):
            reply = Rejected("the schema is too large")
        except Exception as error:  # noqa: BLE001 - descriptors of strangers may break any rule
            reply = Rejected(f"the descriptor is invalid: {error!r}"[:MAX_ERROR_CHARACTERS])
        encoded = msgspec.msgpack.encode(reply)
        if len(encoded) > MAX_REPLY_BYTES:
            encoded = msgspec.msgpack.encode(Rejected("the schema is too large"))
        replies.write(len(encoded).to_bytes(LENGTH_BYTES) + encoded)
        replies.flush()
        if _resident_bytes() > MAX_RESIDENT_BYTES:
            return


if __name__ == "__main__":
    main()
