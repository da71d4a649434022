"""This node as a member of a cluster: links to the other nodes, bootstrap, metadata log, voters."""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from alpacamq.cluster.bootstrap import BOOTSTRAP_VALUES, AskHello, Candidates, Propose
from alpacamq.cluster.image import ClusterImage, Delta
from alpacamq.consensus.messages import (
    RaftSettings,
)
from alpacamq.log.data_directory import DataDirectory
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError, PartitionNotReady
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Voter
from alpacamq.telemetry.logs import get_logger

from .metadata.metadata import Metadata
from .metadata.network import (
    RAFT_MESSAGES,
    VALUES,
    ClusterAddress,
    ControllerCall,
    MetadataNetwork,
    SnapshotChunk,
)
from .peers.bootstrap import Bootstrap, Candidate
from .peers.connection import PeerTls
from .peers.handshake import LocalNode, Peer, read_secret
from .peers.link import Dialler, Events, Peers
from .peers.values import Values
from .remote import (
    appends,
    fifo,
    history,
    markers,
    progress,
    read_values,
    redrives,
    shards,
    status,
    traces,
    transactional_appends,
    views,
)
from .tls import Certificates

log = get_logger(__name__)

# Calls to the partitions and state machines that other brokers lead.
REMOTE_VALUES: tuple[type[msgspec.Struct], ...] = (
    *appends.VALUES,
    *fifo.VALUES,
    *history.VALUES,
    *markers.VALUES,
    *progress.VALUES,
    *read_values.VALUES,
    *redrives.VALUES,
    *shards.VALUES,
    *status.VALUES,
    *traces.VALUES,
    *transactional_appends.VALUES,
    *views.VALUES,
)

CONTROLLER_ROLE = "controller"
CLUSTER_LISTENER = "cluster"
# How often the controller looks for nodes that should vote.
VOTERS_SECONDS = 1.0
MAX_LEARNED = 1000


class NodeAddress(msgspec.Struct, frozen=True):
    """A node of the configured list, ID@HOST:PORT."""

    id: BrokerId
    address: Address


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How this node takes part in a cluster."""

    nodes: tuple[NodeAddress, ...] = ()
    # A name whose addresses are nodes, and the voters that a new cluster needs then.
    dns: Address | None = None
    voters: int = 0
    secret_file: Path | None = None
    # Whether connections between nodes use TLS, and whether those without it are possible as well.
    tls: bool = False
    tls_optional: bool = False
    roles: tuple[str, ...] = ("broker", CONTROLLER_ROLE)
    election_ms: int = 1000
    # Where other nodes reach this one.
    advertised: Address | None = None


async def not_ready(_value: object, _peer: Peer) -> None:
    """Answer a call that comes before the broker has its topics."""
    raise PartitionNotReady("the broker is starting")


class Member:
    """The membership of this node, from its first contact with the others on."""

    def __init__(
        self,
        settings: MemberSettings,
        node_id: BrokerId,
        directory: DataDirectory,
        certificates: Certificates | None = None,
    ) -> None:
        tls = None
        if settings.tls:
            assert certificates is not None, "checked with the configuration"
            tls = PeerTls(certificates.peer_context, is_optional=settings.tls_optional)
        self._settings = settings
        self._node_id = node_id
        self._directory = directory
        self._incarnation = os.urandom(16)
        # Without a file the listener is on loopback, and everyone on this machine is trusted.
        self.secret = b"" if settings.secret_file is None else read_secret(settings.secret_file)
        self.values = Values((*VALUES, *REMOTE_VALUES), BOOTSTRAP_VALUES)
        self.peers = Peers(
            Dialler(self.local, self.secret, self.values, tls=tls), Events(on_lost=self._connection_lost)
        )
        self.network = MetadataNetwork(self.peers, settings.advertised, self._learn_address)
        self.bootstrap = Bootstrap(
            directory,
            self._candidates(),
            self._find_candidates,
            self.local,
            self.secret,
            self.values,
            may_vote=CONTROLLER_ROLE in settings.roles,
            tls=tls,
        )
        # The calls that this node answers. Those to partitions fail until the broker has its topics.
        self.handlers: dict[type[msgspec.Struct], Any] = {
            **dict.fromkeys(REMOTE_VALUES, not_ready),
            **dict.fromkeys(shards.VALUES, shards.not_loaded),
            AskHello: self.bootstrap.hello,
            Propose: self.bootstrap.propose,
            ControllerCall: self.network.on_command,
            SnapshotChunk: self.network.on_chunk,
        }
        self._metadata: Metadata | None = None
        # Of nodes that look for the controller, as they say themselves.
        self._learned: dict[BrokerId, Address] = {}
        # Called when the node has its cluster id: connections from before are opened again with it.
        self.identity_changed: Callable[[], None] = lambda: None
        self.peers.update({node.id: node.address for node in settings.nodes})

    def local(self) -> LocalNode:
        """Return this node as it presents itself to others."""
        return LocalNode(self._node_id, self._directory.cluster_id, self._incarnation)

    def serve(self, handlers: Mapping[type[msgspec.Struct], Any]) -> None:
        """Answer further calls of other nodes, from now on."""
        self.handlers.update(handlers)

    @property
    def posts(self) -> Mapping[type[msgspec.Struct], Any]:
        """The messages that this node takes."""
        raft = dict.fromkeys(RAFT_MESSAGES, self.network.on_raft_message)
        return {**raft, ClusterAddress: self.network.on_address}

    @property
    def raft_settings(self) -> RaftSettings:
        election_ms = self._settings.election_ms
        return RaftSettings(election_ms=election_ms, heartbeat_ms=max(election_ms // 5, 10))

    @property
    def contacts(self) -> Sequence[BrokerId]:
        """The configured nodes, to be asked for a controller."""
        return [node.id for node in self._settings.nodes if node.id != self._node_id]

    def ended_nodes(self) -> list[BrokerId]:
        """Return the nodes whose connections were lost and are refused since: their processes have ended."""
        return [status.node_id for status in self.peers.statuses() if status.is_refused]

    def attach(self, metadata: Metadata) -> None:
        """Take part in the metadata log."""
        self._metadata = metadata
        self.network.attach(metadata)
        self.peers.identity_changed()
        self.identity_changed()
        metadata.subscribe(self._image_changed)
        self._update_addresses(metadata.image)

    def join_step(self) -> str:
        """Return what a node that joins its cluster waits for."""
        if self._metadata is None:
            return "contacting the other nodes"
        if (controller := self._metadata.controller_id) is None:
            return "no controller is known; a majority of the voters must run"
        return f"registering at the controller, node {controller}"

    async def run(self) -> None:
        """Keep links, and as controller the voters, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.peers.run())
            while True:
                await asyncio.sleep(VOTERS_SECONDS)
                self._admit_voters()

    def _connection_lost(self, node_id: BrokerId, is_refused: bool) -> None:
        if self._metadata is not None:
            self._metadata.connection_lost(node_id, is_refused=is_refused)

    def _learn_address(self, node_id: BrokerId, address: Address) -> None:
        """Note where a node is reached that looks for the controller."""
        if self._metadata is not None and len(self._learned) < MAX_LEARNED:
            self._learned[node_id] = address
            self._update_addresses(self._metadata.image)

    def _image_changed(self, delta: Delta) -> None:
        if delta.brokers and self._metadata is not None:
            self._update_addresses(self._metadata.image)

    def _update_addresses(self, image: ClusterImage) -> None:
        """Use the addresses that brokers have registered, and the configured ones of those that have not.

        A fenced broker may have moved: it cannot register its address before the controller reaches it there.
        """
        addresses = dict(self._learned)
        addresses |= {node.id: node.address for node in self._settings.nodes}
        for broker in image.brokers.values():
            has_moved = broker.is_fenced and broker.id in self._learned
            if (endpoint := broker.endpoint(CLUSTER_LISTENER)) is not None and not has_moved:
                addresses[broker.id] = Address(endpoint.host, endpoint.port)
        self.peers.update(addresses)

    def _admit_voters(self) -> None:
        """As controller, make a node a voter that should be one and has caught up; one at a time."""
        metadata = self._metadata
        if metadata is None or not metadata.is_controller:
            return
        quorum = metadata.quorum
        voters = {voter.id: voter for voter in quorum.voters}
        for peer in quorum.peers():
            broker = metadata.image.brokers.get(peer.id)
            if peer.is_voter or broker is None or CONTROLLER_ROLE not in broker.roles:
                continue
            if not broker.is_running:
                continue  # its vote may have been removed because it is lost
            if broker.directory_id != peer.directory:
                continue  # another process with the same id
            if broker.is_leaving and peer.id not in voters:
                continue  # it is being removed
            wanted = dict(voters)
            if peer.id in voters:
                # It has another directory: the vote of the lost one goes first.
                del wanted[peer.id]
            else:
                wanted[peer.id] = Voter(peer.id, peer.directory)
            try:
                quorum.change_voters(list(wanted.values()))
                log.info("voters_changed", voters=sorted(wanted))
            except AlpacaError as error:
                log.debug("voters_not_changed", node=peer.id, reason=str(error))
            return

    def _candidates(self) -> Candidates:
        if self._settings.nodes:
            return Candidates.listed([node.id for node in self._settings.nodes])
        return Candidates(size=self._settings.voters)

    async def _find_candidates(self) -> Sequence[Candidate]:
        if self._settings.nodes:
            return [Candidate(node.address, node.id) for node in self._settings.nodes]
        if self._settings.dns is None:
            return []
        host, port = self._settings.dns.host, self._settings.dns.port
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            log.warning("nodes_not_resolved", name=host, reason=str(error))
            return []
        return [Candidate(Address(str(each[4][0]), port), None) for each in found]
