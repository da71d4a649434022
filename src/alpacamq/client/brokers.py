"""The brokers of a cluster."""

from dataclasses import dataclass

from alpacamq.model.address import Address
from alpacamq.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse

from .cluster import Cluster
from .errors import check


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlace:
    """A broker and where it is reached."""

    id: int
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The name of a cluster, who changes its topics, and its brokers."""

    id: str
    controller: int
    brokers: tuple[BrokerPlace, ...]


def describe_cluster(cluster: Cluster) -> ClusterDescription:
    """What the broker we were told of knows of its cluster."""
    answer = cluster.anyone().call(DescribeClusterRequest(), DescribeClusterResponse)
    check("describing the cluster", answer.error_code, answer.error_message)
    brokers = [
        BrokerPlace(id=broker.broker_id, address=Address(broker.host, broker.port), rack=broker.rack)
        for broker in answer.brokers
    ]
    return ClusterDescription(
        id=answer.cluster_id,
        controller=answer.controller_id,
        brokers=tuple(sorted(brokers, key=lambda broker: broker.id)),
    )
