"""Discovery: the addresses of a cluster's APIs, from any node."""

from dataclasses import dataclass

from alpacamq.model.address import Address

from .grpc import Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The addresses of the nodes that serve each API."""

    grpc: tuple[Address, ...]
    kafka: tuple[Address, ...]
    http: tuple[Address, ...]


async def discover(nodes: Nodes, deadline_s: float) -> Endpoints:
    """Ask a node for the addresses of all. Raises Unreachable or Refused."""
    raise NotImplementedError((nodes, deadline_s))
