"""How the stream of bytes a client sends becomes frames."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.api.kafka.inbox import LARGE_BYTES, SCRATCH_BYTES, Buffers, Inbox
from alpacamq.protocol.errors import ProtocolError

MAX_FRAME_BYTES = 1 << 20
STEP_BYTES = 50_000


def framed(*bodies: bytes) -> bytes:
    return b"".join(pack(">i", len(body)) + body for body in bodies)


def receive(inbox: Inbox, buffers: Buffers, data: bytes) -> list[bytes]:
    """One turn: put `data` where the inbox wants it and take out every whole frame."""
    frames: list[bytes] = []
    while data:
        room = inbox.buffer()
        part, data = data[: len(room)], data[len(room) :]
        room[: len(part)] = part
        inbox.received(len(part))
        while (frame := inbox.next_frame()) is not None:
            frames.append(bytes(frame))
        if inbox.wanted_bytes is not None:
            inbox.receive_into(buffers.take(inbox.wanted_bytes), inbox.begun_bytes + STEP_BYTES)
        inbox.park()
        if inbox.is_full:
            inbox.extend(STEP_BYTES)
    return frames


@given(
    bodies=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.integers(LARGE_BYTES - 2, LARGE_BYTES * 5).map(lambda size: b"x" * size),
        ),
        max_size=5,
    ),
    cuts=st.lists(st.integers(1, 100_000), max_size=8),
)
def test_frames_come_out_whole_wherever_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    inbox = Inbox(bytearray(SCRATCH_BYTES), MAX_FRAME_BYTES)
    buffers = Buffers()
    stream = framed(*bodies)
    frames: list[bytes] = []
    for cut in cuts:
        part, stream = stream[:cut], stream[cut:]
        frames += receive(inbox, buffers, part)
    frames += receive(inbox, buffers, stream)
    assert frames == bodies


def test_partial_frames_survive_turns_of_other_connections() -> None:
    scratch = bytearray(SCRATCH_BYTES)
    one, other = Inbox(scratch, MAX_FRAME_BYTES), Inbox(scratch, MAX_FRAME_BYTES)
    buffers = Buffers()
    assert receive(one, buffers, framed(b"first")[:6]) == []
    assert receive(other, buffers, framed(b"second")) == [b"second"]
    assert receive(one, buffers, framed(b"first")[6:]) == [b"first"]


def test_parked_frames_are_kept_until_the_connection_continues() -> None:
    inbox = Inbox(bytearray(SCRATCH_BYTES), MAX_FRAME_BYTES)
    data = framed(b"one", b"two", b"three")
    inbox.buffer()[: len(data)] = data
    inbox.received(len(data))
    assert bytes(inbox.next_frame() or b"") == b"one"
    inbox.park()
    inbox.reopen()
    assert [bytes(inbox.next_frame() or b""), bytes(inbox.next_frame() or b"")] == [b"two", b"three"]


@pytest.mark.parametrize("size", [-1, -(2**31), MAX_FRAME_BYTES + 1, 2**31 - 1])
def test_a_frame_of_impossible_size_is_refused_before_anything_is_allocated(size: int) -> None:
    inbox = Inbox(bytearray(SCRATCH_BYTES), MAX_FRAME_BYTES)
    data = pack(">i", size)
    inbox.buffer()[:4] = data
    inbox.received(4)
    with pytest.raises(ProtocolError, match="max_request_bytes"):
        inbox.next_frame()


def test_released_buffers_are_reused() -> None:
    buffers = Buffers()
    first = buffers.take(100_000)
    buffers.give(first)
    assert buffers.take(90_000) is first


def test_few_buffers_are_kept() -> None:
    buffers = Buffers()
    given_back = [buffers.take(1 << 20) for _ in range(100)]
    for buffer in given_back:
        buffers.give(buffer)
    kept = [buffers.take(1 << 20) for _ in range(100)]
    assert sum(any(buffer is former for former in given_back) for buffer in kept) <= 8
