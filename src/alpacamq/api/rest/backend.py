"""The shared arguments of the handlers of the HTTP API."""

from collections.abc import Mapping

from alpacamq.api.http.login import Login
from alpacamq.api.metrics.collector import Collector
from alpacamq.api.metrics.requests import Traffic
from alpacamq.broker.broker import Broker
from alpacamq.broker.pipelines import PipelineReports
from alpacamq.model.address import Address

from .message_decoding import MessageDecoding


class Backend:
    """The broker, the addresses of its APIs by name, and helpers that handlers share."""

    __slots__ = (
        "addresses",
        "broker",
        "collector",
        "decoding",
        "login",
        "pipelines",
        "started_ms",
        "traffic",
    )

    def __init__(self, broker: Broker, addresses: Mapping[str, Address]) -> None:
        self.broker = broker
        self.addresses = addresses
        self.traffic = Traffic()
        self.login = Login(broker.access, broker.sessions, broker.cluster_id)
        self.pipelines = PipelineReports(broker)
        # None if metrics are disabled.
        self.collector = (
            None
            if broker.metrics is None
            else Collector(broker, broker.metrics, self.traffic, self.pipelines)
        )
        self.decoding = MessageDecoding(broker)
        self.started_ms = broker.clock.now_ms()
