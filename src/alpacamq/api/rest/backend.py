"""What the handlers of the JSON API have to work with."""

from alpacamq.broker.broker import Broker
from alpacamq.broker.record_reader import RecordReader

from .traffic import Traffic


class Backend:
    """The broker, and what the door itself remembers."""

    __slots__ = ("broker", "records", "started_ms", "traffic")

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.records = RecordReader(broker.work_threads, broker.settings.unpacked_limit_bytes)
        self.traffic = Traffic()
        self.started_ms = broker.clock.now_ms()
