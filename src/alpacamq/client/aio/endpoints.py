"""Discovery: the addresses of a cluster's APIs, from any node."""

from collections.abc import Iterable
from dataclasses import dataclass

from alpacamq.client.errors import Unreachable
from alpacamq.model.address import Address
from alpacamq.v1.cluster_grpc import ClusterStub
from alpacamq.v1.cluster_pb2 import EndpointsRequest, EndpointsResponse

from .grpc import Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The addresses of the nodes that serve each API."""

    grpc: tuple[Address, ...]
    kafka: tuple[Address, ...]
    http: tuple[Address, ...]


async def discover(nodes: Nodes, deadline_s: float) -> Endpoints:
    """Ask a node for the addresses of all. Raises Unreachable or Refused."""
    about = f"cluster at {', '.join(map(str, nodes.addresses))}"
    response: EndpointsResponse = await nodes.call(
        lambda connection: ClusterStub(connection).Endpoints,
        EndpointsRequest(),
        about=about,
        deadline_s=deadline_s,
    )
    found = Endpoints(
        grpc=_parsed(each.grpc for each in response.nodes),
        kafka=_parsed(each.kafka for each in response.nodes),
        http=_parsed(each.http for each in response.nodes),
    )
    if not found.kafka:
        raise Unreachable(f"{about}: no node serves the Kafka API, which the client needs for topics")
    return found


def _parsed(addresses: Iterable[str]) -> tuple[Address, ...]:
    return tuple(Address.parse(each) for each in addresses if each)
