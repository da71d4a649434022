"""Where does the broker's time go when it takes a batch and when it serves one?

`python -m benchmarks.profile_paths` drives each path with prebuilt requests, samples the broker with py-spy
meanwhile, and prints for every function its own share of the CPU time the broker used, as µs per request and
per MB. It asks about the code, not about the machine, so it writes no results.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import topics, wire
from .servers import AlpacaMQ, Server, running
from .session import ROOM
from .usage import Meter
from .writers import pipelined

SECONDS = 8
SAMPLES_PER_SECOND = 500
SHOWN = 12
LARGE_RECORDS = 9_000
RECORD_BYTES = 100
TOPIC = "profiled"
EVENT_LOOP = "the event loop"
NAMED_TUPLES = "making named tuples"
# The first pattern that fits a function says what step it is part of.
STEPS = (
    (EVENT_LOOP, "waiting for and receiving bytes (kernel, event loop)"),
    (r"outbox.py. \w*Outbox._(send|join)_", "sending (kernel)"),
    (r"disk.py. SystemDisk.(write|open)", "writing to the log (kernel)"),
    (r"disk.py. SystemDisk.sync", "fsync (kernel)"),
    (r"disk.py. SystemDisk.read", "reading batch headers (kernel)"),
    (r"model/batch.py. checksum", "checksum"),
    (
        r"`(model|log)/|broker/partition/validation.py|broker/partition/leader.py",
        "checking, placing and finding batches",
    ),
    (r"`protocol/", "decoding and encoding"),
    (r"`api/|`broker/|" + NAMED_TUPLES, "passing requests and answers on"),
)
_FRAME = re.compile(r"(?P<function>.+?) \((?P<file>.+?)(:\d+)?\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One way through the broker: a request that is sent over and over."""

    name: str
    request: bytes
    response_bytes: int
    # Bytes of record batches that one request brings or gets.
    record_bytes: int
    connections: int
    depth: int


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="alpacamq-profile-", dir=ROOM) as made:
        for number, path in enumerate(_paths()):
            with running(AlpacaMQ(), Path(made) / str(number)) as server:
                _prepare(server)
                _profile(server, path, Path(made) / "stacks")


def _paths() -> Iterator[Route]:
    small, large = wire.one_record_batch(RECORD_BYTES), wire.batch_of(LARGE_RECORDS, RECORD_BYTES)
    answer = wire.produce_response_bytes(TOPIC)
    for name, batch, connections, depth in (
        (f"Produce, one record of {RECORD_BYTES} B, pipelined on 4 connections", small, 4, 256),
        (f"Produce, one record of {RECORD_BYTES} B, 16 connections that wait", small, 16, 1),
        (f"Produce, {LARGE_RECORDS:,} records of {RECORD_BYTES} B", large, 2, 2),
    ):
        request = wire.produce_request(TOPIC, 0, batch, acks=1)
        yield Route(
            name=name,
            request=request,
            response_bytes=answer,
            record_bytes=len(batch),
            connections=connections,
            depth=depth,
        )
    for name, batch, offset, connections, depth in (
        (f"Fetch, one record of {RECORD_BYTES} B, pipelined on 4 connections", small, 0, 4, 256),
        (f"Fetch, {LARGE_RECORDS:,} records of {RECORD_BYTES} B", large, 1, 2, 2),
    ):
        yield Route(
            name=name,
            request=wire.fetch_request(TOPIC, 0, offset, 1),
            response_bytes=wire.fetch_response_bytes(TOPIC) + len(batch),
            record_bytes=len(batch),
            connections=connections,
            depth=depth,
        )


def _prepare(server: Server) -> None:
    """A log whose first batch is small and whose second is large, for the fetches to find."""
    topics.create(server.address, TOPIC, 1)
    with wire.connect(server.address) as connection:
        for batch in (wire.one_record_batch(RECORD_BYTES), wire.batch_of(LARGE_RECORDS, RECORD_BYTES)):
            connection.sendall(wire.produce_request(TOPIC, 0, batch, acks=1))
            wire.receive(connection)


def _profile(server: Server, path: Route, stacks: Path) -> None:
    with sampled(server.pid, stacks, SECONDS - 1), Meter(server.pid) as meter:
        done = pipelined(
            server.address,
            path.request,
            path.response_bytes,
            connections=path.connections,
            depth=path.depth,
            seconds=SECONDS,
        )
    megabytes = done.requests * path.record_bytes / 1e6
    cpu_us = meter.usage.server_cpu_s * 1e6
    print(f"\n### {path.name}\n")
    print(
        f"{done.per_second:,.0f} requests/s, {megabytes / done.wall_s:,.0f} MB/s, broker at "
        f"{meter.usage.server_cores:.0%} of a core: {cpu_us / done.requests:,.1f} µs a request, "
        f"{cpu_us / megabytes:,.0f} µs a MB.\n"
    )
    own = _own_samples(stacks)
    steps: Counter[str] = Counter()
    for place, count in own.items():
        steps[_step(place)] += count
    for counted in (steps, own):
        print("| share | µs/request | µs/MB | where |\n|---:|---:|---:|---|")
        for place, count in counted.most_common(SHOWN):
            share = count / own.total()
            per_request_us, per_megabyte_us = share * cpu_us / done.requests, share * cpu_us / megabytes
            print(f"| {share:.1%} | {per_request_us:.2f} | {per_megabyte_us:.1f} | {place} |")
        print()


@contextmanager
def sampled(pid: int, stacks: Path, seconds: int) -> Iterator[None]:
    """Sample the process for some seconds, which the block should last."""
    stacks.unlink(missing_ok=True)
    program = str(Path(sys.executable).with_name("py-spy"))
    command = [program, "record", "--pid", str(pid), "--format", "raw", "--output", str(stacks)]
    command += ["--function", "--rate", str(SAMPLES_PER_SECOND), "--duration", str(seconds)]
    sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield
    finally:
        _, said = sampler.communicate(timeout=60)
    if sampler.returncode:
        raise RuntimeError(f"py-spy failed (it needs the right to trace): {said.decode().strip()}")


def _own_samples(stacks: Path) -> Counter[str]:
    """Samples by the innermost Python function, which the C code it calls is counted to."""
    own: Counter[str] = Counter()
    for line in stacks.read_text().splitlines():
        frames, _, count = line.rpartition(" ")
        innermost = frames.rpartition(";")[2]
        if not innermost.startswith("_worker "):  # a thread that waits for work
            own[where(innermost)] += int(count)
    return own


def where(frame: str) -> str:
    """Return a frame as a reader of this repository knows it."""
    parsed = _FRAME.match(frame)
    if parsed is None:
        return frame
    file = parsed["file"]
    if "alpacamq/" in file:
        return f"`{file.rpartition('alpacamq/')[2]}` {parsed['function']}"
    if "asyncio" in file or "uvloop" in file:
        return EVENT_LOOP
    return NAMED_TUPLES if file.startswith("<string>") else frame


def _step(place: str) -> str:
    """The step of a request's way that a function belongs to."""
    return next((step for pattern, step in STEPS if re.search(pattern, place)), "the rest")


if __name__ == "__main__":
    main()
