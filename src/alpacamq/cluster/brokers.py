"""Brokers as the metadata log stores them."""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from alpacamq.model.ids import BrokerId

NO_EPOCH = 0


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """The address at which a broker serves one of its listeners: kafka, http, sqs, cluster."""

    listener: str
    host: str
    port: int


class FeatureRange(msgspec.Struct, frozen=True, array_like=True):
    """The levels of a feature that a broker supports."""

    min_level: int
    max_level: int

    def __contains__(self, level: int) -> bool:
        return self.min_level <= level <= self.max_level


# Of a feature that a broker does not know.
NO_LEVEL = FeatureRange(0, 0)


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A registered broker. It is fenced until it has sent a heartbeat, and again when its session ends."""

    id: BrokerId
    # One process; and one data directory, whose loss is the loss of all replicas in it.
    incarnation_id: UUID
    directory_id: UUID
    # Identifies this registration: higher than that of any registration before it.
    epoch: int
    # The epoch in which the broker last was unfenced: its replicas may have been in sync then.
    active_epoch: int = NO_EPOCH
    rack: str = ""
    roles: tuple[str, ...] = ("broker",)
    endpoints: tuple[Endpoint, ...] = ()
    features: Mapping[str, FeatureRange] = {}
    is_fenced: bool = True
    # Leaders move off it, and its replicas as well unless it keeps them.
    is_draining: bool = False
    keeps_replicas: bool = False
    is_shutting_down: bool = False
    software_version: str = ""

    @property
    def is_running(self) -> bool:
        """Whether its replicas may be in sync and lead."""
        return not self.is_fenced

    @property
    def is_staying(self) -> bool:
        """Whether it may be given new leaders and replicas."""
        return not (self.is_fenced or self.is_draining or self.is_shutting_down)

    @property
    def is_leaving(self) -> bool:
        """Whether its replicas move to other brokers."""
        return self.is_draining and not self.keeps_replicas

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((each for each in self.endpoints if each.listener == listener), None)
