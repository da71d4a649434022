"""Where the doors of a broker are, told by its HTTP door."""

import msgspec

from alpacamq.model.address import Address

from .address import parse_address
from .errors import Unreachable
from .http import HttpApi, Problem

_UNKNOWN_PATH = "unknown-path"


class BrokerDoors(msgspec.Struct, frozen=True, kw_only=True):
    """A broker, and HOST:PORT of its doors by name."""

    cluster_id: str
    node_id: int
    version: str
    doors: dict[str, str]


def broker_doors(api: HttpApi) -> BrokerDoors:
    return api.get(["cluster"], BrokerDoors)


def kafka_address(api: HttpApi) -> Address:
    """Where Kafka's protocol is spoken, as the broker tells its clients."""
    try:
        return parse_address(broker_doors(api).doors["kafka"])
    except (Problem, KeyError, ValueError) as error:
        if isinstance(error, Problem) and error.kind != _UNKNOWN_PATH:
            raise
        raise Unreachable(
            f"{api.address} does not say where Kafka's protocol is spoken; name it with --broker HOST:PORT"
        ) from error
