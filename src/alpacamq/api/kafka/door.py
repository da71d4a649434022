"""What a handler of the Kafka door has to work with."""

from dataclasses import dataclass

from alpacamq.broker.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """The broker, and the address clients are told to come to."""

    broker: Broker
    host: str
    port: int

    @property
    def node_id(self) -> int:
        return self.broker.settings.node_id
