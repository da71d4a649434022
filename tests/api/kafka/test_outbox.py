"""How much a connection sends in one turn, and that it arrives as it was put."""

import asyncio
import math
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from alpacamq.api.kafka import outbox as outbox_module
from alpacamq.api.kafka.outbox import SocketOutbox, TransportOutbox
from alpacamq.log.disk import SystemDisk
from alpacamq.log.reader import Slice
from alpacamq.log.storage import FileHandles

if TYPE_CHECKING:
    from alpacamq.log.health import LogHealth
    from alpacamq.log.segment import Segment

TURN_BYTES = 1000
PORTION_BYTES = 256 << 10


def fail(error: OSError) -> None:
    raise error


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([10_500], id="one piece"),
        pytest.param([300, 4000, 1, 999, 1000, 1001, 20], id="several pieces"),
    ],
)
async def test_a_turn_sends_a_part_and_the_rest_follows(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "_TURN_BYTES", TURN_BYTES)
    loop = asyncio.get_running_loop()
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    whole = b"".join(pieces)
    near, far = socket.socketpair()
    far.setblocking(False)
    with closing(near), closing(far):
        drained = asyncio.Event()
        outbox = SocketOutbox(loop, near.fileno(), drained=drained.set, broken=fail)
        outbox.put(pieces)
        outbox.flush()
        assert outbox.sent_bytes == TURN_BYTES
        assert outbox.is_blocked
        await drained.wait()
        received = b""
        while len(received) < len(whole):
            received += await loop.sock_recv(far, 1 << 20)
        assert received == whole
        assert (outbox.queued_bytes, outbox.queued_pieces) == (0, 0)
        outbox.close()


class SlowTransport:
    """Holds what it is given, and calls `blocked` beyond a limit."""

    def __init__(self) -> None:
        self.outbox: TransportOutbox
        self.written: list[bytes] = []
        self.held = 0

    def set_write_buffer_limits(self, high: int) -> None:
        self.limit = high

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        self.held += len(data)
        if self.held > self.limit:
            self.outbox.blocked()

    def take_all(self) -> None:
        """Let the client read what is held."""
        self.held = 0
        self.outbox.writable()


def over_tls(drained: Callable[[], None]) -> tuple[TransportOutbox, SlowTransport]:
    transport = SlowTransport()
    loop = asyncio.get_running_loop()
    outbox = TransportOutbox(loop, cast("asyncio.Transport", transport), drained=drained, broken=fail)
    transport.outbox = outbox
    return outbox, transport


def sliced(path: Path, content: bytes, position: int, length: int) -> tuple[Slice, FileHandles]:
    path.write_bytes(content)
    handles = FileHandles(SystemDisk(), 1)
    segment = cast("Segment", SimpleNamespace(path=path))
    health = cast("LogHealth", SimpleNamespace())
    return Slice(handles.pin(path), segment, position, length, 0, verified=True, health=health), handles


async def test_with_tls_no_more_of_a_file_is_read_than_the_client_takes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 12_000
    drained = asyncio.Event()
    outbox, transport = over_tls(drained.set)
    piece, handles = sliced(tmp_path / "log", content, 100, 3_000_000)
    outbox.put([b"head", b"er", piece, b"tail"])
    outbox.flush()
    assert b"".join(transport.written[:2]) == b"header" + content[100 : 100 + PORTION_BYTES]
    assert len(transport.written) == 2
    assert outbox.is_blocked
    assert outbox.sent_bytes + outbox.queued_bytes == 3_000_010
    steps = 0
    while outbox.is_blocked:
        transport.take_all()
        steps += 1
    assert b"".join(transport.written) == b"header" + content[100:3_000_100] + b"tail"
    assert steps == math.ceil(3_000_000 / PORTION_BYTES)
    assert drained.is_set()
    assert (outbox.queued_bytes, outbox.queued_pieces, outbox.sent_bytes) == (0, 0, 3_000_010)
    assert len(handles) == 1  # idle, and not pinned
    assert piece.handle.pins == 0


async def test_with_tls_a_connection_that_closes_releases_its_files(tmp_path: Path) -> None:
    outbox, _ = over_tls(lambda: None)
    piece, _handles = sliced(tmp_path / "log", b"x" * 2_000_000, 0, 2_000_000)
    outbox.put([piece])
    outbox.flush()
    assert piece.handle.pins == 1
    outbox.close()
    assert piece.handle.pins == 0


async def test_with_tls_a_file_that_is_too_short_breaks_the_connection(tmp_path: Path) -> None:
    outbox, _ = over_tls(lambda: None)
    piece, _handles = sliced(tmp_path / "log", b"x" * 10, 0, 20)
    outbox.put([piece])
    with pytest.raises(OSError, match="ends before byte 20"):
        outbox.flush()
