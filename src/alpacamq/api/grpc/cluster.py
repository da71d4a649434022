"""The service `alpacamq.v1.Cluster`: where clients reach the nodes."""

from alpacamq.api.grpc.call import Backend, Call
from alpacamq.cluster.brokers import BrokerRegistration
from alpacamq.model.address import Address
from alpacamq.v1 import cluster_pb2 as c
from alpacamq.v1.cluster_grpc import ClusterBase

# The listeners that have sections of their own, which are fields of the response.
APIS = ("kafka", "http", "grpc", "sqs", "registry")


class ClusterService(ClusterBase):
    """Discovery of nodes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def Endpoints(self, call: Call[c.EndpointsRequest, c.EndpointsResponse]) -> None:  # noqa: N802
        await call.only_message()
        broker = self._backend.broker
        response = c.EndpointsResponse(cluster_id=broker.cluster_id, node_id=broker.settings.node_id)
        for node_id, registration in sorted(broker.metadata.image.brokers.items()):
            if registration.is_running and not registration.is_shutting_down:
                response.nodes.append(_endpoints(node_id, registration, call.listener))
        await call.send_message(response)


def _endpoints(node_id: int, registration: BrokerRegistration, listener: str) -> c.NodeEndpoints:
    """Return the addresses of a node; that of its gRPC listener of the same name as the client's, if any."""
    found = c.NodeEndpoints(node_id=node_id, rack=registration.rack)
    for api in APIS:
        endpoint = registration.endpoint(api)
        if api == "grpc":
            endpoint = registration.endpoint(listener) or endpoint
        if endpoint is not None:
            setattr(found, api, str(Address(endpoint.host, endpoint.port)))
    return found
