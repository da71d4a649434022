"""What the handlers of the JSON API have to work with."""

from alpacamq.broker.broker import Broker
from alpacamq.broker.record_reader import RecordReader

from .rates import Rates
from .traffic import Traffic

# Group, topic, partition and name of a lane.
LaneKey = tuple[str, str, int, str]


class Backend:
    """The broker, and what the door itself remembers."""

    __slots__ = ("broker", "delivery_rates", "enqueue_rates", "records", "started_ms", "traffic")

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.records = RecordReader(broker.work_threads, broker.settings.unpacked_limit_bytes)
        self.traffic = Traffic()
        self.enqueue_rates: Rates[LaneKey] = Rates()
        self.delivery_rates: Rates[LaneKey] = Rates()
        self.started_ms = broker.clock.now_ms()
