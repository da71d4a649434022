"""The handshake between two nodes: mutual proof of a shared secret, without I/O.

    client → server   Opening     versions, cluster id, node ids, purpose, incarnation, nonce
    server → client   Challenge   version, cluster id, node id, incarnation, nonce
    client → server   Proof       HMAC-SHA256(secret, "client", Opening, Challenge)
    server → client   Accepted    HMAC-SHA256(secret, "server", Opening, Challenge), or Refused

The client proves itself first, so that a stranger who connects learns nothing that depends on the secret.
Each proof covers every byte of both messages before it, and so binds versions, cluster id, node ids, purpose
and both nonces; a recorded handshake is worthless because the other side's nonce is new each time, and a
reflected one because the roles differ.

It protects against nodes without the secret, nodes of another cluster, wrong addresses and version mismatch.
It does not protect the bytes after it: frames carry no MAC and are not encrypted, so an attacker who can
change packets on the path can take over an established connection. Use a private network, or TLS.
"""

import hmac
import secrets
from collections.abc import Callable
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from alpacamq.model.address import Address
from alpacamq.model.errors import InvalidConfig
from alpacamq.model.ids import BrokerId

# Versions of the protocol between nodes that this program speaks.
OLDEST_VERSION: Final = 1
NEWEST_VERSION: Final = 1
# Nothing larger is accepted before both sides have proved themselves, and nothing later.
MAX_FRAME_BYTES: Final = 1024
TIMEOUT_SECONDS: Final = 5.0
MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 4096
NONCE_BYTES: Final = 32
_ANY_NODE: Final = -1

_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Mac = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Incarnation = Annotated[bytes, Meta(min_length=16, max_length=16)]
_NodeId = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF)]
_ClusterId = Annotated[str, Meta(max_length=64)]


class Purpose(StrEnum):
    """What a connection is for, declared by the node that opens it."""

    CALLS = "calls"  # requests, replies and posts; see connection.py
    FETCH = "fetch"  # Kafka's protocol for replica fetches


class Refusal(StrEnum):
    """Why a handshake failed."""

    WRONG_SECRET = "wrong_secret"  # noqa: S105 - names the error
    WRONG_CLUSTER = "wrong_cluster_id"
    WRONG_NODE = "wrong_node_id"
    SAME_NODE = "duplicate_node_id"
    WRONG_VERSION = "unsupported_version"
    MALFORMED = "malformed_handshake"
    TIMED_OUT = "handshake_timed_out"


class HandshakeFailed(Exception):
    """The handshake failed; the text is fit for the log."""

    def __init__(self, refusal: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.refusal = refusal


class LocalNode(NamedTuple):
    """This node, as it presents itself. The cluster id is empty while bootstrapping.

    The incarnation is 16 random bytes, drawn at each start of the process.
    """

    node_id: BrokerId
    cluster_id: str
    incarnation: bytes


LocalNodeProvider = Callable[[], LocalNode]


class Peer(NamedTuple):
    """The node at the other end of a connection.

    `cluster_id` is what both sides agreed on: empty if one of them was still bootstrapping. `deadline` is
    the loop time at which the caller gives up; None for posts and outside calls.
    """

    node_id: BrokerId
    incarnation: bytes
    cluster_id: str
    version: int
    address: str
    deadline: float | None = None


class Opening(msgspec.Struct, frozen=True, array_like=True, tag="opening"):
    """The first message of a connection. Newer versions may append fields."""

    oldest_version: int
    newest_version: int
    cluster_id: _ClusterId
    node_id: _NodeId
    expected_node_id: Annotated[int, Meta(ge=_ANY_NODE, le=0x7FFF_FFFF)]
    purpose: str
    incarnation: _Incarnation
    nonce: _Nonce


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag="challenge"):
    """The server's identity and nonce."""

    version: int
    cluster_id: _ClusterId
    node_id: _NodeId
    incarnation: _Incarnation
    nonce: _Nonce


class Proof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    """The client's proof that it knows the secret."""

    mac: _Mac


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """The server's proof; the connection may be used for its purpose."""

    mac: _Mac


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The end of a failed handshake."""

    refusal: str
    reason: str


# msgspec lets the interpreter's own errors pass for texts that are not UTF-8, and for deep nesting.
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)
_encode = msgspec.msgpack.Encoder().encode
_from_client = msgspec.msgpack.Decoder(Opening | Proof)
_from_server = msgspec.msgpack.Decoder(Challenge | Accepted | Refused)


class ClientHandshake:
    """The side that connects. `expected` is the node that should answer, None if any may."""

    def __init__(self, local: LocalNode, expected: BrokerId | None, purpose: Purpose, secret: bytes) -> None:
        self._local = local
        self._expected = expected
        self._secret = secret
        self._challenge: Challenge | None = None
        self._challenge_bytes = b""
        self.opening = _encode(
            Opening(
                oldest_version=OLDEST_VERSION,
                newest_version=NEWEST_VERSION,
                cluster_id=local.cluster_id,
                node_id=local.node_id,
                expected_node_id=_ANY_NODE if expected is None else expected,
                purpose=purpose,
                incarnation=local.incarnation,
                nonce=secrets.token_bytes(NONCE_BYTES),
            )
        )

    def received(self, payload: bytes, address: str) -> bytes | Peer:
        """Return the next message to send, or the peer once it is accepted. Raises HandshakeFailed."""
        try:
            message = _from_server.decode(payload)
        except _DECODE_ERRORS as error:
            raise HandshakeFailed(Refusal.MALFORMED, f"{address} is no cluster listener: {error}") from error
        match message:
            case Refused():
                raise HandshakeFailed(_refusal(message.refusal), f"refused: {message.reason}")
            case Challenge() if self._challenge is None:
                if not is_version_supported(message.version, message.version):
                    raise HandshakeFailed(Refusal.WRONG_VERSION, _versions(message.version, message.version))
                self._challenge, self._challenge_bytes = message, payload
                return _encode(Proof(prove(self._secret, b"client", self.opening, payload)))
            case Accepted() if self._challenge is not None:
                expected = prove(self._secret, b"server", self.opening, self._challenge_bytes)
                if not is_proof_valid(expected, message.mac):
                    raise HandshakeFailed(
                        Refusal.WRONG_SECRET, f"{address} did not prove the cluster's secret"
                    )
                return self._accept(self._challenge, address)
        raise HandshakeFailed(Refusal.MALFORMED, f"{address} sent a message out of order")

    def _accept(self, server: Challenge, address: str) -> Peer:
        # The server checks the same; this is for a server that is wrong about itself.
        local = self._local
        if not are_clusters_compatible(local.cluster_id, server.cluster_id):
            raise HandshakeFailed(Refusal.WRONG_CLUSTER, _clusters(server, address, local))
        if not is_expected_node(self._expected, server.node_id):
            raise HandshakeFailed(
                Refusal.WRONG_NODE, f"node {server.node_id} answers at {address}, expected {self._expected}"
            )
        return Peer(
            BrokerId(server.node_id),
            server.incarnation,
            agreed_cluster(local.cluster_id, server.cluster_id),
            server.version,
            address,
        )


class ServerHandshake:
    """The side that accepts. Identities are checked after the proof: only then are they known to be true."""

    def __init__(self, local: LocalNode, secret: bytes) -> None:
        self._local = local
        self._secret = secret
        self._opening: Opening | None = None
        self._opening_bytes = self._challenge_bytes = b""
        self._version = 0

    def received(self, payload: bytes, address: str) -> tuple[bytes, tuple[Peer, Purpose] | None]:
        """Return the message to send, and the peer and its purpose once accepted. Raises HandshakeFailed."""
        try:
            message = _from_client.decode(payload)
        except _DECODE_ERRORS as error:
            raise HandshakeFailed(Refusal.MALFORMED, f"the handshake cannot be read: {error}") from error
        match message:
            case Opening() if self._opening is None:
                return self._answer(message, payload), None
            case Proof() if self._opening is not None:
                return self._check(message, self._opening, address)
        raise HandshakeFailed(Refusal.MALFORMED, "a message of the handshake came out of order")

    def _answer(self, opening: Opening, payload: bytes) -> bytes:
        if not is_version_supported(opening.oldest_version, opening.newest_version):
            raise HandshakeFailed(
                Refusal.WRONG_VERSION, _versions(opening.oldest_version, opening.newest_version)
            )
        local = self._local
        self._opening, self._opening_bytes = opening, payload
        self._version = min(opening.newest_version, NEWEST_VERSION)
        self._challenge_bytes = _encode(
            Challenge(
                version=self._version,
                cluster_id=local.cluster_id,
                node_id=local.node_id,
                incarnation=local.incarnation,
                nonce=secrets.token_bytes(NONCE_BYTES),
            )
        )
        return self._challenge_bytes

    def _check(self, proof: Proof, opening: Opening, address: str) -> tuple[bytes, tuple[Peer, Purpose]]:
        local = self._local
        if not is_proof_valid(
            prove(self._secret, b"client", self._opening_bytes, self._challenge_bytes), proof.mac
        ):
            raise HandshakeFailed(
                Refusal.WRONG_SECRET, f"node {opening.node_id} at {address} has another secret"
            )
        if not are_clusters_compatible(local.cluster_id, opening.cluster_id):
            raise HandshakeFailed(Refusal.WRONG_CLUSTER, _clusters(opening, address, local))
        if not is_expected_node(
            None if opening.expected_node_id == _ANY_NODE else opening.expected_node_id, local.node_id
        ):
            raise HandshakeFailed(
                Refusal.WRONG_NODE,
                f"node {opening.node_id} at {address} expected node {opening.expected_node_id} here, "
                f"this is node {local.node_id}",
            )
        if is_duplicate(local, opening.node_id, opening.incarnation):
            raise HandshakeFailed(
                Refusal.SAME_NODE, f"two nodes have the id {local.node_id}: this one and one at {address}"
            )
        try:
            purpose = Purpose(opening.purpose)
        except ValueError:
            raise HandshakeFailed(Refusal.MALFORMED, f"unknown purpose {opening.purpose!r}") from None
        if not is_purpose_allowed(purpose, agreed_cluster(local.cluster_id, opening.cluster_id)):
            raise HandshakeFailed(
                Refusal.WRONG_CLUSTER,
                f"nodes {opening.node_id} and {local.node_id} have no cluster in common yet",
            )
        peer = Peer(
            BrokerId(opening.node_id),
            opening.incarnation,
            agreed_cluster(local.cluster_id, opening.cluster_id),
            self._version,
            address,
        )
        mac = prove(self._secret, b"server", self._opening_bytes, self._challenge_bytes)
        return _encode(Accepted(mac)), (peer, purpose)


def encode_refusal(failure: HandshakeFailed) -> bytes:
    """Return the message that tells a client why it is refused."""
    return _encode(Refused(failure.refusal, str(failure)[:500]))


def prove(secret: bytes, role: bytes, opening: bytes, challenge: bytes) -> bytes:
    """Return the proof of one side over everything that both have said."""
    parts = (b"alpacamq-cluster", role, opening, challenge)
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(secret, message, "sha256")


def is_proof_valid(expected: bytes, proof: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(expected, proof)


def is_version_supported(oldest: int, newest: int) -> bool:
    """Return whether there is a version that both sides speak."""
    return oldest <= NEWEST_VERSION and newest >= OLDEST_VERSION


def are_clusters_compatible(one: str, other: str) -> bool:
    """Return whether two nodes may talk: same cluster, or one that has none yet."""
    return one == other or not one or not other


def agreed_cluster(one: str, other: str) -> str:
    """Return the cluster id of a connection: empty unless both sides know it."""
    return one if one == other else ""


def is_purpose_allowed(purpose: Purpose, cluster_id: str) -> bool:
    """Return whether a connection may be used so: nothing is replicated before both know their cluster."""
    return purpose is not Purpose.FETCH or cluster_id != ""


def is_expected_node(expected: int | None, actual: int) -> bool:
    return expected is None or expected == actual


def is_duplicate(local: LocalNode, node_id: int, incarnation: bytes) -> bool:
    """Return whether another process uses this node's id. The node itself may connect to itself."""
    return node_id == local.node_id and incarnation != local.incarnation


def _versions(oldest: int, newest: int) -> str:
    return (
        f"the other node speaks versions {oldest} to {newest} of the cluster protocol, "
        f"this one {OLDEST_VERSION} to {NEWEST_VERSION}"
    )


def _clusters(other: Opening | Challenge, address: str, local: LocalNode) -> str:
    return (
        f"node {other.node_id} at {address} belongs to cluster {other.cluster_id}, "
        f"node {local.node_id} to {local.cluster_id}"
    )


def _refusal(name: str) -> Refusal:
    try:
        return Refusal(name)
    except ValueError:
        return Refusal.MALFORMED  # a reason of a newer version; the text says it


def read_secret(path: Path) -> bytes:
    """Read the shared secret, without surrounding white space. Raises InvalidConfig."""
    try:
        with path.open("rb") as file:
            secret = file.read(MAX_SECRET_BYTES + 1).strip()
    except OSError as error:
        raise InvalidConfig(
            f"cluster.secret_file {path} cannot be read: {error.strerror or error}"
        ) from error
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise InvalidConfig(
            f"cluster.secret_file {path} has {len(secret)} bytes; a secret has {MIN_SECRET_BYTES} to "
            f"{MAX_SECRET_BYTES} (for example: openssl rand -base64 32 > {path})"
        )
    return secret


def check_secret_configured(listen: Address, secret_file: Path | None) -> None:
    """Raise InvalidConfig if strangers could reach the cluster listener without a secret."""
    if secret_file is None and not is_loopback(listen.host):
        raise InvalidConfig(
            f"cluster.listen is {listen}, which other machines can reach, so cluster.secret_file is needed: "
            "a file with the same random text on every node (for example: openssl rand -base64 32). Only "
            "nodes that all listen on 127.0.0.1 or ::1 may run without"
        )


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
