"""What the handlers of the JSON API have to work with."""

from collections.abc import Mapping

from alpacamq.api.metrics.collector import Collector
from alpacamq.api.metrics.history import History, Rates
from alpacamq.api.metrics.requests import Traffic
from alpacamq.broker.broker import Broker
from alpacamq.broker.read.record_reader import RecordReader
from alpacamq.model.address import Address

from .pipeline_reports import PipelineReports

# Group, topic, partition and name of a lane.
LaneKey = tuple[str, str, int, str]


class Backend:
    """The broker, where its APIs are reached by name, and what this API itself remembers."""

    __slots__ = (
        "addresses",
        "broker",
        "collector",
        "delivery_rates",
        "enqueue_rates",
        "history",
        "pipelines",
        "records",
        "started_ms",
        "traffic",
    )

    def __init__(self, broker: Broker, addresses: Mapping[str, Address]) -> None:
        self.broker = broker
        self.addresses = addresses
        self.records = RecordReader(broker.work_threads, broker.settings.unpacked_limit_bytes)
        self.traffic = Traffic()
        # None where metrics are switched off.
        self.collector = None if broker.metrics is None else Collector(broker, broker.metrics, self.traffic)
        self.history = History()
        self.pipelines = PipelineReports(broker, self.records)
        self.enqueue_rates: Rates[LaneKey] = Rates()
        self.delivery_rates: Rates[LaneKey] = Rates()
        self.started_ms = broker.clock.now_ms()
