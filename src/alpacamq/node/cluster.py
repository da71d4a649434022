"""Section [cluster], and how a node takes part in a cluster."""

import asyncio
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.api.cluster.listener import ClusterListener, Service
from alpacamq.api.cluster.replica_fetch import ReplicaFetches
from alpacamq.api.tls import ListenerTls
from alpacamq.broker.broker import Broker
from alpacamq.broker.member import Member, MemberSettings, NodeAddress
from alpacamq.broker.peers.handshake import Peer, check_secret_configured
from alpacamq.broker.replication.service import FlushPolicy
from alpacamq.model.address import Address
from alpacamq.model.errors import InvalidConfig
from alpacamq.model.ids import BrokerId
from alpacamq.model.topics import INT32_MAX

from .options import ConfigError


class Role(StrEnum):
    """What a node does in its cluster."""

    BROKER = "broker"
    CONTROLLER = "controller"


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[cluster]: other nodes."""

    nodes: Annotated[
        tuple[str, ...],
        Meta(
            title="a list of nodes, ID@HOST:PORT",
            description="Nodes that found a cluster together, this one included, as ID@HOST:PORT of their "
            "cluster listeners; the same list on each. Empty: this node is a cluster of its own.",
        ),
    ] = ()
    dns: Annotated[
        Address | None,
        Meta(
            description="Instead of nodes: a host name that resolves to the addresses of all nodes, and the "
            "port of their cluster listeners."
        ),
    ] = None
    voters: Annotated[
        int,
        Meta(
            ge=0,
            le=9,
            description="With dns: the number of nodes that found a new cluster together. 0: this node only "
            "joins one.",
        ),
    ] = 0
    listen: Annotated[
        Address,
        Meta(description="Address for other nodes. One that other machines can reach needs secret_file."),
    ] = Address("127.0.0.1", 9093)
    advertised: Annotated[
        Address | None,
        Meta(
            description="Address that other nodes connect to, if it differs from the listening address. "
            "Empty: the listening address, or this machine's host name if that is all interfaces."
        ),
    ] = None
    secret_file: Annotated[
        str,
        Meta(
            title="the path of a file",
            description="File with a secret of at least 16 bytes that all nodes share: they authenticate "
            "each other with it.",
        ),
    ] = ""
    tls: Annotated[
        bool,
        Meta(
            description="Whether connections between nodes use TLS. Each node presents the certificate of "
            "section [tls], for the host by which the others reach it, and accepts those that tls.client_ca "
            "has signed. To change it while the cluster runs, see cluster.tls_optional."
        ),
    ] = False
    tls_optional: Annotated[
        bool,
        Meta(
            description="With cluster.tls: accept connections of nodes without TLS as well, and connect "
            "without TLS to nodes that cannot be reached with it. For the time in which nodes are restarted "
            "one after the other to change cluster.tls."
        ),
    ] = False
    roles: Annotated[
        tuple[Role, ...],
        Meta(
            title="a list of roles: broker, controller",
            description="Nodes with the role controller store the cluster's metadata and elect a controller "
            "among them: three or five of them are enough for any cluster.",
        ),
    ] = (Role.BROKER, Role.CONTROLLER)
    rack: Annotated[
        str,
        Meta(
            title="a name",
            description="Replicas of a partition are placed on different racks. Empty: this machine's host "
            "name.",
        ),
    ] = ""
    heartbeat_ms: Annotated[
        int, Meta(ge=10, le=INT32_MAX, description="Interval of heartbeats to the controller.")
    ] = 3000
    dead_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=INT32_MAX,
            description="Time without a heartbeat after which a node is taken for dead, and its partitions "
            "get other leaders.",
        ),
    ] = 9000
    election_ms: Annotated[
        int,
        Meta(
            ge=50,
            le=INT32_MAX,
            description="Time without a sign of the controller after which another is elected.",
        ),
    ] = 1000
    replica_lag_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=INT32_MAX,
            description="Time that a replica may be behind its leader before it is not in sync any more.",
        ),
    ] = 10_000
    flush: Annotated[
        FlushPolicy,
        Meta(
            description="ack: replicas flush records to disk before they count as replicated. interval: the "
            "topic's flush settings decide, and a power loss of all replicas at once can lose acknowledged "
            "records."
        ),
    ] = FlushPolicy.ACK
    replication_factor: Annotated[
        int,
        Meta(
            ge=-1,
            le=100,
            description="Replicas of topics created without a number. -1: one on each rack, up to 3.",
        ),
    ] = -1

    @property
    def is_enabled(self) -> bool:
        """Whether this node takes part in a cluster with others."""
        return bool(self.nodes) or self.dns is not None


def check_cluster(config: ClusterConfig, node_id: int) -> None:
    """Reject settings with which a node cannot take part in a cluster."""
    if not config.is_enabled:
        return
    if config.nodes and config.dns is not None:
        raise ConfigError("set either cluster.nodes or cluster.dns")
    nodes = parse_nodes(config.nodes)
    if len({node.id for node in nodes}) != len(nodes):
        raise ConfigError("cluster.nodes names an id twice")
    if nodes and node_id in {node.id for node in nodes} and Role.CONTROLLER not in config.roles:
        raise ConfigError(f"cluster.nodes names node {node_id}, so its cluster.roles needs controller")
    if config.listen.port == 0 and (config.advertised is None or config.advertised.port == 0):
        raise ConfigError("cluster.listen needs a port that other nodes know, not 0")
    if config.heartbeat_ms * 2 > config.dead_ms:
        raise ConfigError(
            f"cluster.dead_ms ({config.dead_ms}) must be at least twice "
            f"cluster.heartbeat_ms ({config.heartbeat_ms})"
        )
    try:
        check_secret_configured(config.listen, _secret_file(config))
    except InvalidConfig as error:
        raise ConfigError(str(error)) from None


def parse_nodes(nodes: tuple[str, ...]) -> tuple[NodeAddress, ...]:
    """Parse a list of ID@HOST:PORT. Raises ConfigError."""
    return tuple(map(_parse_node, nodes))


def _parse_node(text: str) -> NodeAddress:
    node_id, _, address = text.strip().partition("@")
    if not (node_id.isascii() and node_id.isdigit()) or int(node_id) > INT32_MAX:
        raise ConfigError(f"cluster.nodes: {text!r} does not begin with a node's id, as in 1@host:9093")
    try:
        return NodeAddress(BrokerId(int(node_id)), Address.parse(address))
    except ValueError as error:
        raise ConfigError(f"cluster.nodes: {text!r}: {error}") from None


def member_settings(config: ClusterConfig) -> MemberSettings | None:
    """Return how the broker takes part in a cluster; None for a cluster of its own."""
    if not config.is_enabled:
        return None
    return MemberSettings(
        nodes=parse_nodes(config.nodes),
        dns=config.dns,
        voters=config.voters,
        secret_file=_secret_file(config),
        tls=config.tls,
        tls_optional=config.tls_optional,
        roles=tuple(role.value for role in config.roles),
        election_ms=config.election_ms,
        advertised=advertised_for(config, config.listen),
    )


def advertised_for(config: ClusterConfig, bound: Address) -> Address:
    """Return the address at which other nodes reach a listener bound to `bound`."""
    if config.advertised is not None:
        return Address(config.advertised.host, config.advertised.port or bound.port)
    return Address(socket.gethostname() if bound.is_wildcard else config.listen.host, bound.port)


class NodeListener:
    """The listener for other nodes. Replica fetches are served once the broker has its partitions."""

    def __init__(self, config: ClusterConfig, member: Member, tls: ListenerTls | None = None) -> None:
        service = Service(member.values, member.handlers, member.posts, self._on_fetch_connection)
        self._listener = ClusterListener(
            config.listen.host, config.listen.port, member.local, member.secret, service, tls=tls
        )
        member.identity_changed = self._listener.identity_changed
        self._fetches: ReplicaFetches | None = None
        self._can_fetch = asyncio.Event()

    def bind(self) -> None:
        """Bind the address; `run` serves nodes."""
        self._listener.bind()

    def serve_fetches(self, broker: Broker) -> None:
        """Serve replica fetches from now on."""
        replication = broker.replication
        self._fetches = ReplicaFetches(
            broker.topics,
            broker.work_threads,
            replication.stats,
            replication.leader_throttle,
            replication.now_ms,
        )
        self._can_fetch.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listener.run())
            await self._can_fetch.wait()
            assert self._fetches is not None
            tasks.create_task(self._fetches.run())

    def _on_fetch_connection(self, transport: asyncio.Transport, peer: Peer) -> None:
        if self._fetches is None:
            transport.abort()  # its follower tries again
        else:
            self._fetches.on_connection(transport, peer)


def _secret_file(config: ClusterConfig) -> Path | None:
    return Path(config.secret_file) if config.secret_file else None
