"""What the handlers of the JSON API have to work with."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from alpacamq.broker.broker import Broker
from alpacamq.broker.record_reader import RecordReader
from alpacamq.model.address import Address

from .history import History
from .pipeline_reports import PipelineReports
from .rates import Rates
from .traffic import Traffic

if TYPE_CHECKING:
    from .collectors.collector import Collector

# Group, topic, partition and name of a lane.
LaneKey = tuple[str, str, int, str]


class Backend:
    """The broker, where its doors are reached by name, and what this door itself remembers."""

    __slots__ = (
        "broker",
        "collector",
        "delivery_rates",
        "doors",
        "enqueue_rates",
        "history",
        "pipelines",
        "records",
        "started_ms",
        "traffic",
    )

    def __init__(self, broker: Broker, doors: Mapping[str, Address]) -> None:
        self.broker = broker
        self.doors = doors
        self.records = RecordReader(broker.work_threads, broker.settings.unpacked_limit_bytes)
        self.traffic = Traffic()
        # Given by the door where metrics are switched on: it uses handlers, which use this.
        self.collector: Collector | None = None
        self.history = History()
        self.pipelines = PipelineReports(broker, self.records)
        self.enqueue_rates: Rates[LaneKey] = Rates()
        self.delivery_rates: Rates[LaneKey] = Rates()
        self.started_ms = broker.clock.now_ms()
