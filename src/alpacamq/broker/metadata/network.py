"""Connects the metadata log of this node with the other nodes: Raft messages, commands, snapshots."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import msgspec

from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.link import Peers
from alpacamq.cluster.commands import AnyCommand, Command
from alpacamq.cluster.image import ClusterImage
from alpacamq.consensus.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CampaignNow,
    Hello,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    SendSnapshot,
    Snapshot,
    VoteRequest,
    VoteResponse,
)
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError, InvalidRequest
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Change, Request
from alpacamq.telemetry.logs import get_logger

from .metadata import ControllerReply, Metadata

log = get_logger(__name__)

# Changes of a snapshot per call, and how long a call may take.
CHUNK_CHANGES = 5000
CHUNK_TIMEOUT_MS = 10_000
# Changes of a snapshot that is being received at most.
MAX_CHANGES = 10_000_000

RAFT_MESSAGES: tuple[type[msgspec.Struct], ...] = (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CampaignNow,
    Hello,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)


class ControllerCall(Request[ControllerReply], frozen=True, kw_only=True, tag="controller-call"):
    """A command that another node forwards to the controller."""

    command: AnyCommand


class SnapshotChunk(Request[None], frozen=True, kw_only=True, tag="snapshot-chunk"):
    """A part of a snapshot of the metadata. The last one is answered once the snapshot is in use."""

    snapshot: Snapshot
    number: int
    changes: tuple[Change, ...]
    is_last: bool


class ClusterAddress(msgspec.Struct, frozen=True, tag="cluster-address"):
    """Tells where the sender is reached: the controller may not know it yet."""

    host: str
    port: int


VALUES: tuple[type[msgspec.Struct], ...] = (*RAFT_MESSAGES, ControllerCall, SnapshotChunk, ClusterAddress)


class MetadataNetwork:
    """Sends for the metadata log of this node, and takes what other nodes send it."""

    def __init__(
        self, peers: Peers, advertised: Address | None, learn_address: Callable[[BrokerId, Address], None]
    ) -> None:
        """Tell other nodes the `advertised` address, and `learn_address` theirs."""
        self._peers = peers
        self._advertised = advertised
        self._learn_address = learn_address
        self._metadata: Metadata
        self._sending: dict[BrokerId, asyncio.Task[None]] = {}
        # The snapshot that is being received: its sender and position, and its parts so far.
        self._receiving: tuple[BrokerId, Snapshot] | None = None
        self._received: list[tuple[Change, ...]] = []

    def attach(self, metadata: Metadata) -> None:
        """Serve this metadata."""
        self._metadata = metadata

    # Sending.

    def send(self, message: Message) -> None:
        """Send a Raft message; it may be lost."""
        with suppress(AlpacaError):  # the node has not joined the cluster yet
            if isinstance(message, Hello) and self._advertised is not None:
                self._peers.post(message.to, ClusterAddress(self._advertised.host, self._advertised.port))
            self._peers.post(message.to, message)

    def send_snapshot(self, wanted: SendSnapshot) -> None:
        """Stream the current image to a node, and report the end."""
        if wanted.to not in self._sending:
            task = asyncio.ensure_future(self._stream(wanted))
            self._sending[wanted.to] = task
            task.add_done_callback(lambda _: self._sending.pop(wanted.to, None))

    async def forward(self, controller: BrokerId, command: Command[Any], timeout_ms: int) -> ControllerReply:
        """Send a command to the controller. Raises PeerUnavailable if it was not sent."""
        return await self._peers.call(
            controller, ControllerCall(command=cast("AnyCommand", command)), timeout_ms
        )

    async def _stream(self, wanted: SendSnapshot) -> None:
        is_installed = False
        try:
            snapshot, image = self._metadata.snapshot()
            for number, (changes, is_last) in enumerate(_chunks(image)):
                chunk = SnapshotChunk(snapshot=snapshot, number=number, changes=changes, is_last=is_last)
                await self._peers.call(wanted.to, chunk, CHUNK_TIMEOUT_MS)
            is_installed = True
        except AlpacaError as error:
            log.warning("metadata_snapshot_not_sent", node=wanted.to, reason=str(error))
        finally:
            self._metadata.quorum.snapshot_sent(wanted.to, wanted.index, installed=is_installed)

    # Handlers of the cluster listener.

    def on_raft_message(self, message: Message, peer: Peer) -> None:
        """Take a Raft message, of its authenticated sender only."""
        if message.sender == peer.node_id:
            self._metadata.quorum.receive(message)

    def on_address(self, value: ClusterAddress, peer: Peer) -> None:
        """Note where a node is reached."""
        self._learn_address(peer.node_id, Address(value.host, value.port))

    async def on_command(self, call: ControllerCall, _peer: Peer) -> ControllerReply:
        """Answer a command as the controller. Raises NotController."""
        return await self._metadata.answer(call.command)

    async def on_chunk(self, chunk: SnapshotChunk, peer: Peer) -> None:
        """Take a part of a snapshot; install it when it is complete."""
        if chunk.number == 0:
            self._receiving, self._received = (peer.node_id, chunk.snapshot), []
        if self._receiving != (peer.node_id, chunk.snapshot) or chunk.number != len(self._received):
            raise InvalidRequest("a part of a snapshot is missing; send it again from the start")
        self._received.append(chunk.changes)
        if len(self._received) * CHUNK_CHANGES > MAX_CHANGES:
            self._receiving, self._received = None, []
            raise InvalidRequest("the snapshot is too large")
        if chunk.is_last:
            changes = [change for part in self._received for change in part]
            self._receiving, self._received = None, []
            await self._metadata.install(chunk.snapshot, changes)


def _chunks(image: ClusterImage) -> Iterator[tuple[tuple[Change, ...], bool]]:
    """Yield the changes of an image in parts, with whether each is the last."""
    part: list[Change] = []
    for change in image.changes():
        if len(part) >= CHUNK_CHANGES:
            yield tuple(part), False
            part = []
        part.append(change)
    yield tuple(part), True
