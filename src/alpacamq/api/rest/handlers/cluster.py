"""Who answers, and where its APIs are reached: for clients that know only one of them."""

import msgspec

from alpacamq import __version__
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that answers, and HOST:PORT of its open APIs: kafka, http, sqs."""

    cluster_id: str
    node_id: int
    version: str
    addresses: dict[str, str] = msgspec.field(name="doors")


def describe_cluster(call: Call[Nothing, Nothing]) -> ClusterDescription:
    backend = call.backend
    return ClusterDescription(
        cluster_id=backend.broker.cluster_id,
        node_id=backend.broker.settings.node_id,
        version=__version__,
        addresses={name: str(address) for name, address in backend.addresses.items()},
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/cluster",
        summary="Who answers, and where its APIs are reached",
        handler=describe_cluster,
        parameters=Nothing,
        body=Nothing,
        answers=(ClusterDescription,),
    ),
)
