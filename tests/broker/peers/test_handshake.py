"""The handshake without a network: who is accepted, who is refused, and why."""

from pathlib import Path

import msgspec
import pytest

from alpacamq.broker.peers import handshake
from alpacamq.broker.peers.handshake import (
    ClientHandshake,
    HandshakeFailed,
    LocalNode,
    Opening,
    Peer,
    Purpose,
    Refusal,
    ServerHandshake,
    check_secret_configured,
    encode_refusal,
    read_secret,
)
from alpacamq.model.address import Address
from alpacamq.model.errors import InvalidConfig
from alpacamq.model.ids import BrokerId

SECRET = b"correct horse battery staple"
CLIENT = LocalNode(BrokerId(1), "cluster", b"1" * 16)
SERVER = LocalNode(BrokerId(2), "cluster", b"2" * 16)


class Exchange:
    """A handshake with every message recorded; `corrupt` changes them on the way."""

    def __init__(
        self,
        client: LocalNode = CLIENT,
        server: LocalNode = SERVER,
        *,
        expected: int | None = 2,
        purpose: Purpose = Purpose.CALLS,
        client_secret: bytes = SECRET,
        server_secret: bytes = SECRET,
    ) -> None:
        self.client = ClientHandshake(
            client, None if expected is None else BrokerId(expected), purpose, client_secret
        )
        self.server = ServerHandshake(server, server_secret)
        self.messages: list[bytes] = []
        self.seen_by_server: Peer | None = None
        self.seen_by_client: Peer | None = None

    def run(self, corrupt_message: int = -1, corrupt_byte: int = 0) -> None:
        """Exchange all messages. Raises HandshakeFailed of the side that fails first."""

        def passed(message: bytes) -> bytes:
            self.messages.append(message)
            if len(self.messages) - 1 != corrupt_message:
                return message
            changed = bytearray(message)
            changed[corrupt_byte % len(changed)] ^= 1
            return bytes(changed)

        challenge, _ = self.server.received(passed(self.client.opening), "client:1")
        proof = self.client.received(passed(challenge), "server:2")
        assert isinstance(proof, bytes)
        accepted, peer = self.server.received(passed(proof), "client:1")
        assert peer is not None
        self.seen_by_server, self.purpose = peer
        result = self.client.received(passed(accepted), "server:2")
        assert isinstance(result, Peer)
        self.seen_by_client = result


def test_both_sides_know_each_other_afterwards() -> None:
    exchange = Exchange(purpose=Purpose.FETCH)
    exchange.run()
    assert exchange.seen_by_server == Peer(BrokerId(1), b"1" * 16, "cluster", 1, "client:1")
    assert exchange.seen_by_client == Peer(BrokerId(2), b"2" * 16, "cluster", 1, "server:2")
    assert exchange.purpose is Purpose.FETCH
    assert all(len(message) < handshake.MAX_FRAME_BYTES / 2 for message in exchange.messages)


@pytest.mark.parametrize(
    ("exchange", "refusal", "text"),
    [
        pytest.param(
            Exchange(client_secret=b"other"),
            Refusal.WRONG_SECRET,
            "node 1 at client:1 has another secret",
            id="secret",
        ),
        pytest.param(
            Exchange(client_secret=b""),
            Refusal.WRONG_SECRET,
            "node 1 at client:1",
            id="no secret at the client",
        ),
        pytest.param(
            Exchange(server_secret=b""),
            Refusal.WRONG_SECRET,
            "node 1 at client:1",
            id="no secret at the server",
        ),
        pytest.param(
            Exchange(CLIENT._replace(cluster_id="other")),
            Refusal.WRONG_CLUSTER,
            "node 1 at client:1 belongs to cluster other, node 2 to cluster",
            id="another cluster",
        ),
        pytest.param(
            Exchange(expected=3),
            Refusal.WRONG_NODE,
            "expected node 3 here, this is node 2",
            id="another node",
        ),
        pytest.param(
            Exchange(CLIENT._replace(node_id=BrokerId(2))),
            Refusal.SAME_NODE,
            "two nodes have the id 2: this one and one at client:1",
            id="the same id",
        ),
        pytest.param(
            Exchange(CLIENT._replace(cluster_id=""), purpose=Purpose.FETCH),
            Refusal.WRONG_CLUSTER,
            "no cluster in common yet",
            id="nothing is replicated before the cluster is known",
        ),
    ],
)
def test_a_node_is_refused(exchange: Exchange, refusal: Refusal, text: str) -> None:
    with pytest.raises(HandshakeFailed, match=text) as failure:
        exchange.run()
    assert failure.value.refusal is refusal
    # The other side learns the same.
    with pytest.raises(HandshakeFailed, match=text) as told:
        exchange.client.received(encode_refusal(failure.value), "server:2")
    assert told.value.refusal is refusal


@pytest.mark.parametrize(("one", "other"), [("", "cluster"), ("cluster", ""), ("", "")])
def test_nodes_that_look_for_a_cluster_may_connect(one: str, other: str) -> None:
    exchange = Exchange(CLIENT._replace(cluster_id=one), SERVER._replace(cluster_id=other), expected=None)
    exchange.run()
    assert exchange.seen_by_server is not None
    assert exchange.seen_by_client is not None
    assert exchange.seen_by_server.cluster_id == exchange.seen_by_client.cluster_id == ""


def test_a_node_may_connect_to_itself() -> None:
    Exchange(SERVER).run()


@pytest.mark.parametrize("versions", [(0, 0), (2, 3)])
def test_a_version_that_is_not_supported_is_refused_before_anything_else(versions: tuple[int, int]) -> None:
    opening = msgspec.msgpack.decode(Exchange().client.opening, type=Opening)
    oldest, newest = versions
    changed = msgspec.structs.replace(opening, oldest_version=oldest, newest_version=newest)
    with pytest.raises(HandshakeFailed, match=f"speaks versions {oldest} to {newest}") as failure:
        ServerHandshake(SERVER, SECRET).received(msgspec.msgpack.encode(changed), "client:1")
    assert failure.value.refusal is Refusal.WRONG_VERSION


def test_a_newer_node_that_still_speaks_this_version_is_accepted() -> None:
    opening = msgspec.msgpack.decode(Exchange().client.opening, type=Opening)
    payload = msgspec.msgpack.encode(msgspec.structs.replace(opening, newest_version=9))
    # A newer version may append fields.
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(payload), "more"])
    for message in (payload, longer):
        answer, _ = ServerHandshake(SERVER, SECRET).received(message, "client:1")
        assert msgspec.msgpack.decode(answer)[1] == 1


def test_a_recorded_handshake_is_worthless() -> None:
    recorded = Exchange()
    recorded.run()
    opening, challenge, proof, accepted = recorded.messages
    server = ServerHandshake(SERVER, SECRET)
    server.received(opening, "client:1")
    with pytest.raises(HandshakeFailed) as failure:
        server.received(proof, "client:1")
    assert failure.value.refusal is Refusal.WRONG_SECRET
    client = ClientHandshake(CLIENT, BrokerId(2), Purpose.CALLS, SECRET)
    client.received(challenge, "server:2")
    with pytest.raises(HandshakeFailed) as failure:
        client.received(accepted, "server:2")
    assert failure.value.refusal is Refusal.WRONG_SECRET


def test_a_server_without_the_secret_cannot_answer_with_the_clients_proof() -> None:
    client = ClientHandshake(CLIENT, BrokerId(2), Purpose.CALLS, SECRET)
    impostor = ServerHandshake(SERVER, b"unknown")
    challenge, _ = impostor.received(client.opening, "client:1")
    proof = client.received(challenge, "server:2")
    assert isinstance(proof, bytes)
    reflected = msgspec.msgpack.encode(["accepted", msgspec.msgpack.decode(proof)[1]])
    with pytest.raises(HandshakeFailed, match="did not prove"):
        client.received(reflected, "server:2")


@pytest.mark.parametrize("message", range(4))
def test_no_byte_can_be_changed_on_the_way(message: int) -> None:
    whole = Exchange()
    whole.run()
    for position in range(len(whole.messages[message])):
        exchange = Exchange()
        with pytest.raises(HandshakeFailed):
            exchange.run(message, position)
        assert exchange.seen_by_client is None


@pytest.mark.parametrize("side", ["client", "server"])
def test_messages_out_of_order_are_refused(side: str) -> None:
    recorded = Exchange()
    recorded.run()
    opening, challenge, proof, accepted = recorded.messages
    if side == "server":
        server = ServerHandshake(SERVER, SECRET)
        with pytest.raises(HandshakeFailed, match="out of order"):
            server.received(proof, "")
        server.received(opening, "")
        with pytest.raises(HandshakeFailed, match="out of order"):
            server.received(opening, "")
    else:
        client = ClientHandshake(CLIENT, BrokerId(2), Purpose.CALLS, SECRET)
        with pytest.raises(HandshakeFailed, match="out of order"):
            client.received(accepted, "")
        client.received(challenge, "")
        with pytest.raises(HandshakeFailed, match="out of order"):
            client.received(challenge, "")


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x90", b"GET / HTTP/1.1\r\n", b"\xff" * 1000])
def test_anything_else_is_malformed(payload: bytes) -> None:
    for side in (
        ServerHandshake(SERVER, SECRET),
        ClientHandshake(CLIENT, BrokerId(2), Purpose.CALLS, SECRET),
    ):
        with pytest.raises(HandshakeFailed) as failure:
            side.received(payload, "x")
        assert failure.value.refusal is Refusal.MALFORMED


def test_the_secret_is_read_without_white_space(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("  0123456789abcdef\n\n")
    assert read_secret(tmp_path / "secret") == b"0123456789abcdef"


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 5000, None])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    with pytest.raises(InvalidConfig, match=r"cluster\.secret_file"):
        read_secret(tmp_path / "secret")


@pytest.mark.parametrize(
    ("listen", "secret_file", "is_allowed"),
    [
        ("127.0.0.1:9093", None, True),
        ("127.0.0.9:9093", None, True),
        ("[::1]:9093", None, True),
        ("localhost:9093", None, True),
        ("0.0.0.0:9093", None, False),
        ("[::]:9093", None, False),
        ("10.0.0.1:9093", None, False),
        ("node1.example:9093", None, False),
        ("0.0.0.0:9093", Path("secret"), True),
    ],
)
def test_only_loopback_is_allowed_without_a_secret(
    listen: str, secret_file: Path | None, is_allowed: bool
) -> None:
    if is_allowed:
        check_secret_configured(Address.parse(listen), secret_file)
    else:
        with pytest.raises(InvalidConfig, match=r"cluster\.secret_file is needed"):
            check_secret_configured(Address.parse(listen), secret_file)
