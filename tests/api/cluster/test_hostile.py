"""What strangers and broken nodes can do to the cluster listener: cost themselves their connection."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.broker.peers import handshake
from alpacamq.broker.peers.connection import CALL, CANCEL, FAILURE, POST, REPLY, Limits, with_length
from alpacamq.broker.peers.handshake import HandshakeFailed, LocalNode, Peer, Purpose, Refusal
from alpacamq.broker.peers.link import Peers
from alpacamq.broker.peers.values import error_from_bytes
from alpacamq.model.errors import InconsistentClusterId, PeerFailed, PeerUnavailable
from alpacamq.model.ids import BrokerId
from alpacamq.telemetry.logs import capture_logs

from .nodes import SECRET, VALUES, Hold, Note, Numbers, Ping, Pong, a_node, local, peers_of, running, until
from .raw import CALL_HEAD, HEAD, Raw

TWO = BrokerId(2)


async def answers(peers: Peers) -> bool:
    return await peers.call(TWO, Ping(text="well"), 10_000) == Pong("well", 2)


def refusal_of(frame: bytes) -> str:
    tag, refusal, _ = msgspec.msgpack.decode(frame)
    assert tag == "refused"
    return str(refusal)


def refused(logs: list[Any]) -> list[str]:
    return [entry["refusal"] for entry in logs if entry["event"] == "peer_refused"]


@pytest.mark.parametrize(
    ("this", "target", "secret", "refusal"),
    [
        pytest.param(local(1), 2, b"the secret of another cluster", Refusal.WRONG_SECRET, id="secret"),
        pytest.param(local(1, cluster_id="other"), 2, SECRET, Refusal.WRONG_CLUSTER, id="cluster"),
        pytest.param(local(1), 3, SECRET, Refusal.WRONG_NODE, id="node"),
        pytest.param(local(2, incarnation=9), 3, SECRET, Refusal.WRONG_NODE, id="node and the same id"),
    ],
)
async def test_a_refused_node_is_named_once_in_both_logs(
    this: LocalNode, target: int, secret: bytes, refusal: Refusal
) -> None:
    async with a_node(2) as node:
        peers = peers_of(this, secret=secret)
        peers.update({BrokerId(target): node.address})
        with capture_logs() as logs:
            async with running(peers.run):
                for _ in range(3):
                    with pytest.raises(PeerUnavailable):
                        await peers.call(BrokerId(target), Ping(text=""), 60_000)
        assert [entry["refusal"] for entry in logs if entry["event"] == "peer_handshake_failed"] == [refusal]
        assert refused(logs) == [refusal]


async def test_another_process_with_the_id_of_the_listener_is_named() -> None:
    async with a_node(2) as node:
        with capture_logs() as logs, pytest.raises(HandshakeFailed) as failure:
            await Raw.authenticated(node, local(2, incarnation=9))
        assert failure.value.refusal is Refusal.SAME_NODE
        assert refused(logs) == [Refusal.SAME_NODE]


async def test_a_recorded_handshake_is_refused() -> None:
    async with a_node(2) as node:
        recorded = await Raw.authenticated(node)
        replayed = await Raw.connect(node)
        for payload in recorded.sent:
            replayed.send(payload)
        await replayed.frame()
        assert refusal_of(await replayed.frame()) == Refusal.WRONG_SECRET
        assert await replayed.is_closed()
        recorded.close()


async def test_calls_before_the_proof_are_refused() -> None:
    async with a_node(2) as node:
        raw = await Raw.connect(node)
        raw.call(1, VALUES.encode(Ping(text="")))
        assert refusal_of(await raw.frame()) == Refusal.MALFORMED
        assert await raw.is_closed()
        assert node.callers == []


async def test_bytes_sent_together_with_the_proof_are_refused() -> None:
    async with a_node(2) as node:
        raw = await Raw.connect(node)
        client = handshake.ClientHandshake(local(1), None, Purpose.CALLS, SECRET)
        raw.send(client.opening)
        proof = client.received(await raw.frame(), "")
        assert isinstance(proof, bytes)
        call = CALL_HEAD.pack(CALL, 1, 1000) + VALUES.encode(Ping(text=""))
        raw.writer.write(with_length(proof) + with_length(call))
        assert await raw.is_closed()
        assert node.callers == []
        assert node.listener.peers == []


@pytest.mark.parametrize("length", [0, 1025, 1 << 20, (1 << 32) - 1])
async def test_before_the_proof_a_frame_has_at_most_a_kibibyte(length: int) -> None:
    async with a_node(2) as node:
        raw = await Raw.connect(node)
        raw.writer.write(length.to_bytes(4, "big"))
        assert refusal_of(await raw.frame()) == Refusal.MALFORMED
        assert await raw.is_closed()
        await until(lambda: node.listener.unauthenticated == 0)


@pytest.mark.parametrize("sent", [b"", b"\0", b"\0\0\3\xe8" + b"x" * 100])
async def test_who_does_not_finish_the_handshake_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "TIMEOUT_SECONDS", 0.05)
    async with a_node(2) as node:
        raw = await Raw.connect(node)
        raw.writer.write(sent)
        assert refusal_of(await raw.frame()) == Refusal.TIMED_OUT
        assert await raw.is_closed()
        await until(lambda: node.listener.unauthenticated == 0)


async def test_a_flood_of_connections_does_not_keep_nodes_out() -> None:
    async with a_node(2, max_unauthenticated=8) as node:
        flood = [await Raw.connect(node) for _ in range(100)]
        assert node.listener.unauthenticated <= 8
        peers = peers_of(local(1), node)
        async with running(peers.run):
            assert await answers(peers)
            assert node.listener.unauthenticated <= 8
            # The oldest had to go.
            assert await flood[0].is_closed()
        for raw in flood:
            raw.close()


async def test_a_connection_for_fetches_is_handed_over() -> None:
    class Echo(asyncio.BufferedProtocol):
        """As Kafka's connections: a buffered protocol."""

        def __init__(self) -> None:
            self._buffer = bytearray(100)

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
            self._transport: Any = transport

        def get_buffer(self, sizehint: int) -> bytearray:
            return self._buffer

        def buffer_updated(self, nbytes: int) -> None:
            self._transport.write(bytes(self._buffer[:nbytes]))

    handed_over: list[Peer] = []

    def on_fetch(transport: asyncio.Transport, peer: Peer) -> None:
        handed_over.append(peer)
        echo = Echo()
        transport.set_protocol(echo)
        echo.connection_made(transport)

    class Client(asyncio.Protocol):
        def __init__(self) -> None:
            self.received = b""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def data_received(self, data: bytes) -> None:
            self.received += data

    async with a_node(2, on_fetch=on_fetch) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            client = await peers.open_fetch(TWO, lambda _peer: Client())
            client.transport.write(b"a fetch request")
            await until(lambda: client.received == b"a fetch request")
            client.transport.write(b", another")
            await until(lambda: client.received == b"a fetch request, another")
            assert [peer.node_id for peer in handed_over] == [1]
            client.transport.abort()


async def test_no_connection_for_fetches_without_a_cluster() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1, cluster_id=""), node)
        with pytest.raises(PeerUnavailable, match="no cluster in common"):
            await peers.open_fetch(TWO, lambda _peer: asyncio.Protocol())
        assert node.handed_over == []


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\1", id="no request id"),
        pytest.param(HEAD.pack(CALL, 1), id="a call without its time"),
        pytest.param(HEAD.pack(REPLY, 1), id="a reply to no call"),
        pytest.param(HEAD.pack(99, 1), id="an unknown kind"),
    ],
)
async def test_a_frame_that_breaks_the_protocol_costs_its_connection(payload: bytes) -> None:
    async with a_node(2) as node:
        peers = peers_of(local(3), node)
        async with running(peers.run):
            assert await answers(peers)
            raw = await Raw.authenticated(node)
            raw.send(payload)
            assert await raw.is_closed()
            assert await answers(peers)
            assert [peer.node_id for peer in node.listener.peers] == [3]


async def test_an_oversize_frame_is_refused_by_its_length() -> None:
    async with a_node(2, limits=Limits(max_frame_bytes=1000)) as node:
        raw = await Raw.authenticated(node)
        raw.writer.write((1001).to_bytes(4, "big"))
        assert await raw.is_closed()


async def test_a_request_id_in_use_is_refused() -> None:
    async with a_node(2) as node:
        raw = await Raw.authenticated(node)
        body = VALUES.encode(Hold(name="x"))
        raw.call(1, body)
        raw.call(1, body)
        assert await raw.is_closed()
        # The task of the first call may have been cancelled before it began.
        await until(lambda: not node.held or node.cancelled == ["x"])


async def test_a_frame_cut_by_the_end_of_the_connection_has_no_effect() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(3), node)
        async with running(peers.run):
            whole = with_length(HEAD.pack(POST, 0) + VALUES.encode(Note(data=b"cut")))
            for cut in range(len(whole)):
                raw = await Raw.authenticated(node)
                raw.writer.write(whole[:cut])
                raw.writer.close()
            await until(lambda: node.listener.peers == [])
            assert node.notes == []
            assert await answers(peers)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\xc1", id="no msgpack"),
        pytest.param(msgspec.msgpack.encode({"type": "future"}), id="an unknown type"),
        pytest.param(msgspec.msgpack.encode({"type": "ping", "text": 1}), id="a wrong field"),
        pytest.param(b"\x81\xa4type" + b"\x91" * 5000, id="deep nesting"),
    ],
)
async def test_a_value_that_cannot_be_read_fails_its_call_only(body: bytes) -> None:
    """A newer node may call what this version does not know."""
    async with a_node(2) as node:
        raw = await Raw.authenticated(node)
        raw.send(HEAD.pack(POST, 0) + body)
        raw.call(5, body)
        kind, request_id, failure = await raw.reply()
        assert (kind, request_id) == (FAILURE, 5)
        error = error_from_bytes(failure)
        assert isinstance(error, PeerFailed)
        assert "do the nodes run different versions?" in str(error)
        raw.call(6, VALUES.encode(Ping(text="on")))
        assert (await raw.reply())[:2] == (REPLY, 6)
        raw.close()


async def test_the_listener_takes_only_bootstrap_values_from_a_node_without_a_cluster() -> None:
    async with a_node(2) as node:
        raw = await Raw.authenticated(node, local(1, cluster_id=""))
        raw.call(1, VALUES.encode(Ping(text="")))
        kind, _, failure = await raw.reply()
        assert kind == FAILURE
        assert isinstance(error_from_bytes(failure), InconsistentClusterId)
        raw.send(HEAD.pack(POST, 0) + VALUES.encode(Note(data=b"x")))
        raw.call(2, VALUES.encode(Numbers(count=1)))
        assert (await raw.reply())[:2] == (REPLY, 2)
        assert node.notes == []
        raw.close()


async def test_cancelling_calls_that_do_not_exist_is_ignored() -> None:
    async with a_node(2) as node:
        raw = await Raw.authenticated(node)
        for request_id in range(100):
            raw.send(HEAD.pack(CANCEL, request_id))
        raw.call(1, VALUES.encode(Ping(text="")))
        assert (await raw.reply())[:2] == (REPLY, 1)
        raw.close()


async def test_the_listener_stops_reading_at_its_limit_of_calls_and_goes_on() -> None:
    async with a_node(2, limits=Limits(max_calls=2)) as node:
        raw = await Raw.authenticated(node)
        for number in range(4):
            raw.call(number, VALUES.encode(Hold(name=str(number))))
        await until(lambda: len(node.held) == 4)
        raw.call(9, VALUES.encode(Ping(text="late")))
        await raw.writer.drain()
        (served,) = node.listener._served
        assert served._is_reading_paused
        assert node.callers == []
        node.held["0"].set_result("done")
        replies = [await raw.reply() for _ in range(2)]
        assert [request_id for _, request_id, _ in replies] == [0, 9]
        raw.close()


async def test_a_node_that_does_not_read_its_replies_is_not_read_from() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(3), node)
        async with running(peers.run):
            raw = await Raw.authenticated(node)
            raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
            body = VALUES.encode(Note(data=bytes(1 << 20)))
            for number in range(64):
                raw.call(number, body)
            served = next(one for one in node.listener._served if one.peer.node_id == 1)
            await until(lambda: served._is_reading_paused)
            assert served._reply_bytes < 16 << 20
            assert await answers(peers)
            raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
            replies = {(await raw.reply())[1] for _ in range(64)}
            assert replies == set(range(64))
            raw.close()


async def test_a_call_whose_cancellation_never_comes_is_ended_after_its_time() -> None:
    async with a_node(2) as node:
        raw = await Raw.authenticated(node)
        raw.call(1, VALUES.encode(Hold(name="x")), timeout_ms=10)
        await until(lambda: "x" in node.held)
        (served,) = node.listener._served
        now = asyncio.get_running_loop().time()
        served.cancel_overdue(now + 1)
        assert not node.cancelled
        served.cancel_overdue(now + 10)
        await until(lambda: node.cancelled == ["x"])
        raw.close()


async def test_a_node_that_opens_ever_more_connections_loses_the_oldest() -> None:
    async with a_node(2) as node:
        raws = [await Raw.authenticated(node) for _ in range(40)]
        assert len(node.listener.peers) == 32
        assert await raws[0].is_closed()
        for raw in raws:
            raw.close()


async def test_two_processes_with_the_same_id_are_pointed_out() -> None:
    async with a_node(2) as node:
        first = await Raw.authenticated(node, local(1))
        with capture_logs() as logs:
            second = await Raw.authenticated(node, local(1, incarnation=7))
        assert [entry["node"] for entry in logs if entry["event"] == "peer_connected_again"] == [1]
        first.close()
        second.close()


FRAMES = st.one_of(
    st.binary(max_size=64),
    st.builds(with_length, st.binary(max_size=64)),
    st.builds(
        lambda kind, number, body: with_length(HEAD.pack(kind, number) + body),
        st.integers(0, 7),
        st.integers(0, 3),
        st.binary(max_size=40),
    ),
    st.builds(
        lambda number, timeout, text: with_length(
            CALL_HEAD.pack(CALL, number, timeout) + VALUES.encode(Hold(name=text))
        ),
        st.integers(0, 3),
        st.integers(0, 5),
        st.text(max_size=3),
    ),
    st.builds(lambda data: with_length(HEAD.pack(POST, 0) + VALUES.encode(Note(data=data))), st.binary()),
)


@settings(max_examples=60)
@given(chunks=st.lists(FRAMES, max_size=12), is_authenticated=st.booleans())
def test_arbitrary_frames_disturb_nobody_else(chunks: list[bytes], is_authenticated: bool) -> None:
    async def story() -> None:
        connect: Callable[..., Any] = Raw.authenticated if is_authenticated else Raw.connect
        async with a_node(2) as node:
            peers = peers_of(local(3), node)
            async with running(peers.run):
                raw = await connect(node)
                for chunk in chunks:
                    raw.writer.write(chunk)
                    await asyncio.sleep(0)
                assert await answers(peers)
                raw.close()
                await until(lambda: len(node.listener.peers) == 1 and not node.listener.unauthenticated)
                await until(
                    lambda: len(node.held) == len(node.cancelled) or all(f.done() for f in node.held.values())
                )

    with capture_logs() as logs:
        asyncio.run(story())
    assert not [entry for entry in logs if "crashed" in entry["event"]]
