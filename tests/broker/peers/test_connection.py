"""The calling side without a network: frames, queues, limits and withdrawal."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.broker.peers.connection import (
    CALL,
    CANCEL,
    POST,
    REPLY,
    CallConnection,
    FrameSplitter,
    Limits,
    ProtocolViolated,
    frames_of,
    with_length,
)
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.values import Values
from alpacamq.model.errors import PeerFailed, PeerUnavailable, RequestTimedOut
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request


class Ask(Request[int], frozen=True, kw_only=True, tag="ask"):
    data: bytes = b""


class Note(msgspec.Struct, frozen=True, tag="note"):
    data: bytes


VALUES = Values([Ask, Note])
PEER = Peer(BrokerId(2), b"2" * 16, "cluster", 1, "two:9093")


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.data())
def test_frames_are_the_same_however_they_arrive(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(with_length, frames))
    splitter = FrameSplitter(50)
    found: list[bytes] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found += map(bytes, splitter.split(stream[at : at + size]))
        at += size
    assert found == frames
    assert not splitter.is_inside_frame


@pytest.mark.parametrize("length", [0, 51, 1 << 31])
def test_a_length_beyond_the_limit_is_refused_before_its_bytes(length: int) -> None:
    splitter = FrameSplitter(50)
    with pytest.raises(ProtocolViolated, match=f"a frame of {length} bytes"):
        splitter.split(length.to_bytes(4, "big"))


class FakeTransport(asyncio.Transport):
    """Records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.writes = 0
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))
        self.writes += 1

    def writelines(self, pieces: Any) -> None:
        self.written += map(bytes, pieces)
        self.writes += 1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True

    def frames(self) -> Iterator[tuple[int, int]]:
        """Yield kind and request id of each written frame."""
        for frame in FrameSplitter(1 << 30).split(b"".join(self.written)):
            yield frame[0], int.from_bytes(frame[1:5], "big")


def a_connection(**limits: int) -> tuple[CallConnection, FakeTransport]:
    connection = CallConnection(asyncio.get_running_loop(), PEER, VALUES, Limits(**limits))
    transport = FakeTransport()
    connection.connection_made(transport)
    return connection, transport


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def reply(request_id: int, body: bytes = msgspec.msgpack.encode(7)) -> bytes:
    return b"".join(frames_of(REPLY, request_id, body))


async def test_everything_of_one_turn_is_one_write_and_posts_come_first() -> None:
    connection, transport = a_connection()
    calls = [asyncio.create_task(connection.call(Ask(), 5000)) for _ in range(3)]
    await asyncio.sleep(0)
    connection.post(Note(b""))
    await turns()
    assert list(transport.frames()) == [(POST, 0), (CALL, 1), (CALL, 2), (CALL, 3)]
    assert transport.writes == 1
    for request_id in (3, 1, 2):
        connection.data_received(reply(request_id))
    assert await asyncio.gather(*calls) == [7, 7, 7]
    assert (connection.calls_in_flight, connection.queued_bytes) == (0, 0)


async def test_while_the_other_node_does_not_read_the_oldest_posts_are_dropped() -> None:
    connection, transport = a_connection(max_post_bytes=1000)
    connection.pause_writing()
    for number in range(100):
        connection.post(Note(bytes([number]) * 80))
        assert connection.queued_bytes <= 1000
    await turns()
    assert transport.written == []
    connection.resume_writing()
    await turns()
    kept = len(list(transport.frames()))
    assert 0 < kept < 12
    assert connection.dropped_posts == 100 - kept
    assert b"".join(transport.written).endswith(bytes([99]) * 80)


async def test_a_call_that_is_given_up_before_it_is_written_is_never_written() -> None:
    connection, transport = a_connection()
    connection.pause_writing()
    cancelled = asyncio.create_task(connection.call(Ask(), 60_000))
    await turns()
    with pytest.raises(PeerUnavailable, match="could not be sent to node 2 within 1 ms"):
        await connection.call(Ask(), 1)
    cancelled.cancel()
    await turns()
    connection.resume_writing()
    await turns()
    assert transport.written == []
    assert connection.calls_in_flight == 0


async def test_a_call_that_is_given_up_after_it_was_written_is_cancelled() -> None:
    connection, transport = a_connection()
    with pytest.raises(RequestTimedOut):
        await connection.call(Ask(), 1)
    await turns()
    assert list(transport.frames()) == [(CALL, 1), (CANCEL, 1)]
    connection.data_received(reply(1))  # crossed the cancellation


async def test_a_lost_connection_tells_sent_from_unsent_calls() -> None:
    connection, _ = a_connection()
    sent = asyncio.create_task(connection.call(Ask(), 60_000))
    await turns()
    connection.pause_writing()
    unsent = asyncio.create_task(connection.call(Ask(), 60_000))
    await turns()
    connection.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(RequestTimedOut, match="was lost before it answered: reset"):
        await sent
    with pytest.raises(PeerUnavailable, match="was lost: reset"):
        await unsent
    with pytest.raises(PeerUnavailable, match="not connected to node 2: reset"):
        await connection.call(Ask(), 60_000)
    connection.post(Note(b"x"))
    assert connection.dropped_posts == 1


async def test_limits_hold_for_calls_that_wait_and_for_those_given_up() -> None:
    connection, _ = a_connection(max_calls=3, max_call_bytes=10_000)
    connection.pause_writing()
    for _ in range(6):
        with pytest.raises(PeerUnavailable, match="could not be sent"):
            await connection.call(Ask(), 0)
    with pytest.raises(PeerUnavailable, match="too many unanswered"):
        await connection.call(Ask(), 0)
    connection.resume_writing()
    await turns()
    big = asyncio.create_task(connection.call(Ask(data=bytes(20_000)), 60_000))
    await turns()
    with pytest.raises(PeerUnavailable, match="too many unanswered"):
        await connection.call(Ask(), 60_000)
    connection.close("test")
    with pytest.raises(RequestTimedOut):
        await big


async def test_a_large_backlog_is_written_in_parts() -> None:
    connection, transport = a_connection()
    calls = [asyncio.create_task(connection.call(Ask(data=bytes(200_000)), 60_000)) for _ in range(10)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(list(transport.frames())) < 10
    await turns(40)
    assert len(list(transport.frames())) == 10
    connection.close("test")
    await asyncio.gather(*calls, return_exceptions=True)


async def test_request_ids_wrap_around_and_skip_those_in_use() -> None:
    connection, transport = a_connection()
    first = asyncio.create_task(connection.call(Ask(), 60_000))
    await turns()
    connection._last_id = 0xFFFF_FFFF
    others = [asyncio.create_task(connection.call(Ask(), 60_000)) for _ in range(2)]
    await turns()
    assert [request_id for _, request_id in transport.frames()] == [1, 0, 2]
    connection.close("test")
    await asyncio.gather(first, *others, return_exceptions=True)


@pytest.mark.parametrize(
    "frame",
    [b"", b"\4", bytes([CALL]) + bytes(4), bytes([9]) + bytes(4)],
    ids=["empty", "short", "call", "kind"],
)
async def test_a_node_that_breaks_the_protocol_is_disconnected(frame: bytes) -> None:
    connection, transport = a_connection()
    connection.data_received(with_length(frame))
    assert connection.is_closed
    assert transport.is_aborted


async def test_a_reply_that_cannot_be_read_fails_its_call() -> None:
    connection, _ = a_connection()
    call = asyncio.create_task(connection.call(Ask(), 5000))
    await turns()
    connection.data_received(reply(1, b"\xa1x"))
    with pytest.raises(PeerFailed, match="the reply to Ask cannot be read"):
        await call
