"""How much a connection sends in one turn, and that it arrives as it was put."""

import asyncio
import socket
from contextlib import closing

import pytest

from alpacamq.api.kafka import outbox as outbox_module
from alpacamq.api.kafka.outbox import Outbox

TURN_BYTES = 1000


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
        outbox = Outbox(loop, near.fileno(), drained=drained.set, broken=fail)
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
