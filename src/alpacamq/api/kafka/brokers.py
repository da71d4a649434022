"""The brokers and partition leaders of the cluster, as Kafka clients see them."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from alpacamq.cluster.image import ClusterImage
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.model.errors import AlpacaError, NotLeader
from alpacamq.model.ids import BrokerId

from .call import KAFKA_LISTENER, Backend

NO_LEADER = -1


class BrokerNode(NamedTuple):
    """A broker with the address for the clients of one listener."""

    id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


async def learn_topics(backend: Backend, names: Iterable[str], within_s: float | None = None) -> None:
    """Catch up with the cluster if a topic is unknown, as a controller would know it that gets the request.

    If that fails the topic stays unknown; clients try again after UNKNOWN_TOPIC_OR_PARTITION.
    """
    with suppress(AlpacaError, TimeoutError):
        async with asyncio.timeout(within_s):
            await backend.broker.topics.learn(names)


def node_in(image: ClusterImage, broker_id: int, listener: str) -> BrokerNode | None:
    """Return a registered broker; None if it has no address for Kafka clients.

    A broker without a listener of that name is reached through its first.
    """
    broker = image.brokers.get(BrokerId(broker_id))
    if broker is None:
        return None
    if (endpoint := broker.endpoint(listener) or broker.endpoint(KAFKA_LISTENER)) is None:
        return None
    return BrokerNode(broker.id, endpoint.host, endpoint.port, broker.rack or None, broker.is_fenced)


def own_node(backend: Backend, listener: str) -> BrokerNode:
    """Return this broker. It answers, so clients may use it whatever the metadata says."""
    broker = backend.broker.topics.image.brokers.get(BrokerId(backend.node_id))
    rack = None if broker is None else broker.rack or None
    address = backend.others.get(listener)
    if address is None:
        return BrokerNode(backend.node_id, backend.host, backend.port, rack)
    return BrokerNode(backend.node_id, address.host, address.port, rack)


def live_node(backend: Backend, broker_id: int, listener: str) -> BrokerNode | None:
    """Return a broker that clients of a listener can use; None for others."""
    if broker_id == backend.node_id:
        return own_node(backend, listener)
    node = node_in(backend.broker.topics.image, broker_id, listener)
    return None if node is None or node.is_fenced else node


def live_nodes(backend: Backend, listener: str) -> list[BrokerNode]:
    """Return the brokers that clients of a listener can use, by id."""
    ids = sorted({backend.node_id, *backend.broker.topics.image.brokers})
    return [node for broker_id in ids if (node := live_node(backend, broker_id, listener)) is not None]


def all_nodes(backend: Backend, listener: str) -> list[BrokerNode]:
    """Return the registered brokers that have an address for Kafka clients, fenced ones included."""
    image = backend.broker.topics.image
    nodes = []
    for broker_id in sorted({backend.node_id, *image.brokers}):
        is_own = broker_id == backend.node_id
        node = own_node(backend, listener) if is_own else node_in(image, broker_id, listener)
        if node is not None:
            broker = image.brokers.get(BrokerId(broker_id))
            nodes.append(node._replace(is_fenced=broker is not None and broker.is_fenced))
    return nodes


def controller_node(backend: Backend) -> int:
    """Return the broker to send requests for the controller to: any can take them and forwards them."""
    controller_id = backend.broker.metadata.controller_id
    if controller_id is None or live_node(backend, controller_id, KAFKA_LISTENER) is None:
        return backend.node_id
    return controller_id


class PartitionView(NamedTuple):
    """The leader and the replicas of a partition."""

    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]
    eligible: Sequence[int] = ()
    last_known: Sequence[int] = ()


def partition_view(
    state: PartitionState | None, *, own_id: int, is_led_here: bool, live: Collection[int]
) -> PartitionView:
    """Return the partition as clients see it; `live` are the brokers that they can use.

    A leader that they cannot use is no leader for them, and neither is this broker while it opens the
    partition, or while the controller does not answer it.
    """
    if state is None:
        return PartitionView(NO_LEADER, -1, (own_id,), (own_id,), ())
    if state.leader == own_id and not is_led_here:
        # Not -1: clients would forget the epoch, and librdkafka would validate its position again when it
        # learns the same epoch from another broker; records that arrive meanwhile may be skipped. Not this
        # epoch either: who learns it without its leader does not validate once there is one. To clients
        # that know this epoch or a later one, the epoch before says nothing new.
        return PartitionView(NO_LEADER, max(state.leader_epoch - 1, 0), state.replicas, state.isr, ())
    is_led = state.leader is not None and state.leader in live
    return PartitionView(
        leader=state.leader if is_led and state.leader is not None else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replicas=state.replicas,
        isr=state.isr,
        offline=[replica for replica in state.replicas if replica not in live],
        eligible=state.elr,
        last_known=() if state.last_leader is None else (state.last_leader,),
    )


def preferred_replica(
    image: ClusterImage, partition: PartitionId, own_id: int, client_rack: str
) -> int | None:
    """Return a follower in sync that is closer to a client than this leader (KIP-392); None if none is.

    A replica in sync has everything that the client can have read, so it does not send it back here.
    """
    state = image.partition(partition)
    own = image.brokers.get(BrokerId(own_id))
    if not client_rack or state is None or own is None or own.rack == client_rack:
        return None
    near = [
        node.id
        for replica in state.isr
        if replica != own_id
        and (node := node_in(image, replica, KAFKA_LISTENER)) is not None
        and node.rack == client_rack
        and not node.is_fenced
    ]
    return near[partition.partition % len(near)] if near else None


class LeaderHint(NamedTuple):
    """The leader of a partition that another broker leads (KIP-951)."""

    leader: int
    leader_epoch: int


def leader_hint(error: AlpacaError) -> LeaderHint | None:
    """Return the leader that an error names, if it is certain."""
    if isinstance(error, NotLeader) and error.leader is not None and error.leader_epoch >= 0:
        return LeaderHint(error.leader, error.leader_epoch)
    return None


def hinted_nodes(image: ClusterImage, leaders: Iterable[int], listener: str) -> list[BrokerNode]:
    """Return the addresses of leaders that responses name, each once."""
    found = (node_in(image, leader, listener) for leader in sorted(set(leaders)))
    return [node for node in found if node is not None]
