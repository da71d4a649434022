"""Calls and posts between nodes, over real connections."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from alpacamq.api.cluster.listener import ServedConnection, Service
from alpacamq.broker.peers.connection import (
    CALL,
    CANCEL,
    KIND_AND_ID,
    KIND_ID_TIMEOUT,
    Limits,
    ask,
    with_length,
)
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.link import Events, LinkState
from alpacamq.model.address import Address
from alpacamq.model.errors import (
    AlpacaError,
    DamagedLog,
    InconsistentClusterId,
    InvalidRequest,
    NotLeader,
    PeerFailed,
    PeerUnavailable,
    RequestTimedOut,
    UnknownBroker,
)
from alpacamq.model.ids import BrokerId

from .nodes import (
    SECRET,
    SOON_S,
    VALUES,
    Hold,
    Note,
    Numbers,
    Ping,
    Pong,
    Unregistered,
    a_node,
    local,
    peers_of,
    running,
    until,
)

TWO = BrokerId(2)


async def test_a_call_is_answered_by_the_other_node() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            assert await peers.call(TWO, Ping(text="a"), 5000) == Pong("a", 2)
            assert await peers.call(TWO, Numbers(count=3), 5000) == [0, 1, 2]
            assert await peers.call(TWO, Note(data=b"x"), 5000) == Note(data=b"x")
        (caller,) = node.callers
        assert (caller.node_id, caller.cluster_id) == (1, "cluster-of-the-tests")
        assert caller.deadline is not None


async def test_a_node_can_be_asked_by_address_before_its_id_is_known() -> None:
    async with a_node(2) as node:
        peer, reply = await ask(node.address, local(1), SECRET, VALUES, Ping(text="a"))
        assert (peer.node_id, reply) == (2, Pong("a", 2))


async def test_replies_come_in_any_order() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            slow = asyncio.create_task(peers.call(TWO, Hold(name="slow"), 60_000))
            await until(lambda: "slow" in node.held)
            assert await peers.call(TWO, Ping(text="quick"), 5000) == Pong("quick", 2)
            node.held["slow"].set_result("done")
            assert await slow == "done"


async def test_many_calls_at_once_share_a_connection() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            replies = await asyncio.gather(*(peers.call(TWO, Ping(text=str(n)), 10_000) for n in range(500)))
            assert replies == [Pong(str(n), 2) for n in range(500)]
            assert len(node.listener.peers) == 1


async def test_a_large_value_passes_in_both_directions() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            data = bytes(5 << 20)
            assert await peers.call(TWO, Note(data=data), 20_000) == Note(data=data)


@pytest.mark.parametrize(
    ("raised", "attribute", "expected"),
    [
        pytest.param(NotLeader("elsewhere", leader=7), "leader", 7, id="attributes survive"),
        pytest.param(DamagedLog(Path("/a"), 3, "bad", (5, 6)), "offsets", (5, 6), id="also tuples"),
        pytest.param(InvalidRequest("no"), "record_errors", (), id="without attributes"),
    ],
)
async def test_an_error_of_the_handler_is_raised_at_the_caller(
    raised: AlpacaError, attribute: str, expected: object
) -> None:
    async def fail(_value: Ping, _peer: Peer) -> Pong:
        raise raised

    async with a_node(2, handlers={Ping: fail}) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            with pytest.raises(type(raised)) as caught:
                await peers.call(TWO, Ping(text=""), 5000)
            assert str(caught.value) == str(raised)
            assert getattr(caught.value, attribute) == expected


@pytest.mark.parametrize("crash", [KeyError("bug"), asyncio.CancelledError()])
async def test_a_handler_that_crashes_fails_one_call(crash: BaseException) -> None:
    async def fail(value: Ping, _peer: Peer) -> Pong:
        if value.text == "crash":
            raise crash
        return Pong(value.text, 2)

    async with a_node(2, handlers={Ping: fail}) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            with pytest.raises(PeerFailed, match="Ping"):
                await peers.call(TWO, Ping(text="crash"), 5000)
            assert await peers.call(TWO, Ping(text="on"), 5000) == Pong("on", 2)


async def test_a_cancelled_call_cancels_its_handler() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            call = asyncio.create_task(peers.call(TWO, Hold(name="poll"), 60_000))
            await until(lambda: "poll" in node.held)
            call.cancel()
            await until(lambda: node.cancelled == ["poll"])
            assert peers.link(TWO).status().calls_in_flight == 0


async def test_a_reply_that_crosses_the_cancellation_of_its_call_is_not_lost() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            late: list[str] = []
            call = asyncio.create_task(peers.call(TWO, Hold(name="poll"), 60_000, late.append))
            cancelled = asyncio.create_task(peers.call(TWO, Hold(name="other"), 60_000, late.append))
            await until(lambda: {"poll", "other"} <= node.held.keys())
            node.held["poll"].set_result("message")
            call.cancel()
            cancelled.cancel()
            await until(lambda: late == ["message"])
            await until(lambda: node.cancelled == ["other"])
            assert await peers.call(TWO, Ping(text=""), 5000) == Pong("", 2)
            assert late == ["message"]


async def test_a_call_whose_time_is_up_has_an_unknown_result_and_ends_its_handler() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            await peers.call(TWO, Ping(text=""), 5000)
            with pytest.raises(RequestTimedOut, match="node 2 did not answer Hold within 50 ms"):
                await peers.call(TWO, Hold(name="slow"), 50)
            await until(lambda: node.cancelled == ["slow"])


async def test_a_lost_connection_leaves_the_result_of_a_sent_call_unknown() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            call = asyncio.create_task(peers.call(TWO, Hold(name="poll"), 60_000))
            await until(lambda: "poll" in node.held)
            for connection in list(node.listener._served):
                connection.close("test")
            with pytest.raises(RequestTimedOut, match="was lost before it answered"):
                await call
            await until(lambda: node.cancelled == ["poll"])
            # The link is opened again by itself.
            assert await peers.call(TWO, Ping(text="again"), 5000) == Pong("again", 2)


async def test_a_call_that_was_never_sent_may_be_retried() -> None:
    async with a_node(2) as node:
        address = node.address
    peers = peers_of(local(1))
    peers.update({TWO: address})
    async with running(peers.run):
        with pytest.raises(PeerUnavailable, match=r"node 2 at .* cannot be reached: .*[Cc]onnect"):
            await peers.call(TWO, Ping(text=""), 60_000)
        peers.post(TWO, Note(data=b"lost"))
        assert peers.link(TWO).status().dropped_posts == 1
        with pytest.raises(UnknownBroker, match="no address is known for node 3"):
            await peers.call(BrokerId(3), Ping(text=""), 1000)


async def test_a_call_made_while_the_link_is_down_waits_for_the_next_attempt() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        call = asyncio.create_task(peers.call(TWO, Ping(text="early"), 10_000))
        async with running(peers.run):
            assert await call == Pong("early", 2)


async def test_posts_arrive_in_order() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            peers.link(TWO).connect()
            await until(lambda: peers.link(TWO).is_connected)
            for number in range(100):
                peers.post(TWO, Note(data=bytes([number])))
            await until(lambda: len(node.notes) == 100)
            assert node.notes == [bytes([number]) for number in range(100)]


async def test_the_owner_is_told_of_a_lost_connection_and_of_a_refused_probe() -> None:
    told: list[Any] = []
    events = Events(
        on_lost=lambda node_id, refused: told.append((node_id, refused)),
        on_connected=lambda peer: told.append(peer.node_id),
    )
    async with a_node(2) as node:
        peers = peers_of(local(1), node, events=events)
        task = asyncio.create_task(peers.run())
        await peers.call(TWO, Ping(text=""), 5000)
        assert told == [2]
        for connection in list(node.listener._served):
            connection.close("test")
        await until(lambda: told == [2, (2, False), 2])
    # Its listener is closed now, as after the end of its process.
    await until(lambda: told == [2, (2, False), 2, (2, False), (2, True)])
    assert peers.link(TWO).status().is_refused
    async with a_node(2, port=node.address.port):
        await until(lambda: told[-1] == 2)
        assert peers.link(TWO).state is LinkState.CONNECTED
        assert not peers.link(TWO).status().is_refused
        task.cancel()
        await asyncio.wait([task])
    assert peers.link(TWO).state is LinkState.CLOSED


async def test_a_node_that_has_ended_stays_so_when_its_name_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a container goes soon after its process."""
    told: list[Any] = []
    async with a_node(2) as node:
        peers = peers_of(local(1), node, events=Events(on_lost=lambda *what: told.append(what)))
        task = asyncio.create_task(peers.run())
        await peers.call(TWO, Ping(text=""), 5000)
    await until(lambda: told == [(2, False), (2, True)])
    asked: list[str] = []

    async def unknown(host: str, *_: object, **__: object) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    await until(lambda: len(asked) > 1)
    assert peers.link(TWO).status().is_refused
    assert told == [(2, False), (2, True)]
    task.cancel()
    await asyncio.wait([task])


async def test_a_refused_attempt_without_a_connection_before_says_nothing() -> None:
    told: list[Any] = []
    async with a_node(2) as node:
        address = node.address
    peers = peers_of(local(1), events=Events(on_lost=lambda *what: told.append(what)))
    peers.update({TWO: address})
    async with running(peers.run):
        for _ in range(3):
            with pytest.raises(PeerUnavailable):
                await peers.call(TWO, Ping(text=""), 60_000)
    assert told == []


async def test_links_follow_the_addresses_of_the_image() -> None:
    async with a_node(2) as old, a_node(2) as new, a_node(3) as other:
        peers = peers_of(local(1), old, other)
        async with running(peers.run):
            await peers.call(TWO, Ping(text="a"), 5000)
            await peers.call(BrokerId(3), Ping(text="a"), 5000)
            peers.update({TWO: new.address, BrokerId(1): Address("127.0.0.1", 1)})
            await peers.call(TWO, Ping(text="b"), 5000)
            assert len(new.callers) == 1
            await until(lambda: not old.listener.peers and not other.listener.peers)
            assert [status.node_id for status in peers.statuses()] == [2]


async def test_calls_beyond_the_limit_of_a_link_are_not_sent() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node, limits=Limits(max_calls=2))
        async with running(peers.run):
            first = [asyncio.create_task(peers.call(TWO, Hold(name=str(n)), 60_000)) for n in range(2)]
            await until(lambda: len(node.held) == 2)
            with pytest.raises(PeerUnavailable, match="too many unanswered requests"):
                await peers.call(TWO, Ping(text=""), 5000)
            node.held["0"].set_result("done")
            assert await first[0] == "done"
            assert await peers.call(TWO, Ping(text="on"), 5000) == Pong("on", 2)
            first[1].cancel()


async def test_a_request_larger_than_a_frame_is_refused_before_it_is_sent() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node, limits=Limits(max_frame_bytes=1000))
        async with running(peers.run):
            with pytest.raises(InvalidRequest, match="the limit is 1000"):
                await peers.call(TWO, Ping(text="x" * 1000), 5000)
            peers.post(TWO, Note(data=bytes(1000)))
            assert await peers.call(TWO, Ping(text="on"), 5000) == Pong("on", 2)


async def test_a_reply_larger_than_a_frame_fails_its_call_only() -> None:
    async with a_node(2, limits=Limits(max_frame_bytes=1000)) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            with pytest.raises(PeerFailed, match="the reply to Numbers has"):
                await peers.call(TWO, Numbers(count=5000), 5000)
            assert await peers.call(TWO, Ping(text="on"), 5000) == Pong("on", 2)


async def test_only_registered_values_are_sent() -> None:
    async with a_node(2) as node:
        peers = peers_of(local(1), node)
        async with running(peers.run):
            with pytest.raises(TypeError, match="Unregistered is not registered"):
                await peers.call(TWO, Unregistered(), 5000)


async def test_before_both_know_their_cluster_only_values_of_the_bootstrap_pass() -> None:
    async with a_node(2) as node:
        this = local(1, cluster_id="")
        peers = peers_of(lambda: this, node)
        async with running(peers.run):
            assert await peers.call(TWO, Numbers(count=1), 5000) == [0]
            with pytest.raises(InconsistentClusterId, match="Ping may not be sent to node 2"):
                await peers.call(TWO, Ping(text=""), 5000)
            this = local(1)
            peers.identity_changed()
            assert await peers.call(TWO, Ping(text="a"), 5000) == Pong("a", 2)


async def test_the_listener_closes_connections_of_the_time_before_its_cluster() -> None:
    async with a_node(2) as node:
        node.local = local(2, cluster_id="")
        peers = peers_of(local(1), node)
        async with running(peers.run):
            await peers.call(TWO, Numbers(count=1), 5000)
            node.local = local(2)
            node.listener.identity_changed()
            await until(lambda: not peers.link(TWO).is_connected or node.listener.peers)
            async with asyncio.timeout(SOON_S):
                while True:
                    try:
                        assert await peers.call(TWO, Ping(text="a"), 5000) == Pong("a", 2)
                        break
                    except (PeerUnavailable, InconsistentClusterId):
                        continue


async def test_a_link_that_this_side_closed_is_not_lost() -> None:
    """A new address may be wrong: that it refuses does not mean that the node has ended."""
    told: list[Any] = []
    async with a_node(3) as ended:
        refusing = ended.address
    async with a_node(2) as node:
        peers = peers_of(local(1), node, events=Events(on_lost=lambda *what: told.append(what)))
        async with running(peers.run):
            await peers.call(TWO, Ping(text=""), 5000)
            peers.update({TWO: refusing})
            for _ in range(3):
                with pytest.raises(PeerUnavailable):
                    await peers.call(TWO, Ping(text=""), 60_000)
            peers.update({TWO: node.address})
            assert await peers.call(TWO, Ping(text="back"), 5000) == Pong("back", 2)
            assert told == []


async def test_a_host_whose_every_address_refuses_is_refused() -> None:
    async with a_node(2) as node:
        port = node.address.port
    with pytest.raises(ConnectionRefusedError):
        await ask(Address("localhost", port), local(1), SECRET, VALUES, Ping(text=""))


async def test_a_call_that_is_cancelled_before_it_begins_leaves_nothing_behind() -> None:
    """Both frames come in one read, after a pause of this node."""
    async with asyncio.TaskGroup() as tasks:
        peer = Peer(BrokerId(1), b"", "c", 1, "127.0.0.1:1")
        service = Service(VALUES, {Ping: fail_if_called}, {}, lambda *_: None)
        served = ServedConnection(asyncio.get_running_loop(), peer, service, tasks, lambda _: None)
        call = KIND_ID_TIMEOUT.pack(CALL, 7, 1000) + VALUES.encode(Ping(text="a"))
        served.data_received(with_length(call) + with_length(KIND_AND_ID.pack(CANCEL, 7)))
        assert served.calls == 1
        await until(lambda: served.calls == 0)
        assert served.call_bytes == 0


async def fail_if_called(_value: object, _peer: Peer) -> None:
    raise AssertionError("it was cancelled")
