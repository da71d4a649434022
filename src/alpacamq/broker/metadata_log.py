"""The metadata log: the only store of topics, counters and broker settings changed at run time.

An internal compacted partition like any other. A change is in force once it is on disk.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from alpacamq.cluster.image import Change, ClusterImage, producer_ids_change, start_change, time_change
from alpacamq.log.partition_log import Incoming
from alpacamq.model.batch import read_header
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import ProducerId, TopicId, TopicName, TopicPartition
from alpacamq.model.ports import Clock
from alpacamq.model.records import Record, write_batch
from alpacamq.model.topics import topic_config
from alpacamq.telemetry.logs import get_logger

from .partition.leader import Partition, append
from .statemachine.snapshots import replay

logger = get_logger(__name__)

IDENTITY = TopicPartition(TopicName("__cluster_metadata"), 0)
TOPIC_ID = TopicId(int=1)
CONFIG = topic_config({"cleanup.policy": "compact", "flush.messages": "1", "segment.bytes": str(1 << 20)})

# For data directories whose partitions have leader epochs from before starts were numbered: no partition
# has seen this many crashes.
FIRST_START_NUMBER = 1000


class MetadataLog:
    """Writes changes durably, then applies them to the image."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        # A refused change that is in the log anyway would take effect at the next start.
        partition.always_waits_for_flush = True
        self.image = ClusterImage()
        self._clock = clock

    def load(self) -> None:
        """Rebuild the image from the log. Blocking."""
        self.image.apply(
            Change(record.key, record.value)
            for record in replay(self.partition.log)
            if record.key is not None
        )

    async def record_time(self, now_ms: int) -> None:
        """Record the time, as a lower bound for the next start's clock."""
        try:
            await self.write([time_change(now_ms)])
        except AlpacaError as error:
            logger.warning("time_not_recorded", reason=str(error))

    def number_start(self, now_ms: int) -> int:
        """Assign this start a number above every leader epoch. Blocking; call before the event loop runs."""
        image = self.image
        is_numbered = image.start_number > 0 or not image.topics
        number = image.start_number + 1 if is_numbered else FIRST_START_NUMBER
        changes = [start_change(number), time_change(now_ms)]
        batch = self._batch(changes)
        log = self.partition.log
        try:
            (outcome,) = log.append([Incoming(batch, read_header(batch))], self.partition.leader_epoch)
            if isinstance(outcome, AlpacaError):
                raise outcome
            log.flush_now()
        except AlpacaError as error:
            # The next start may get the same number; a log that is written to until then exceeds it.
            logger.warning("start_not_recorded", reason=str(error))
            return number
        self.partition.high_watermark = log.end_offset
        image.apply(changes)
        return number

    async def write(self, changes: Sequence[Change]) -> None:
        """Return once the changes are on disk and in the image."""
        await append(self.partition, self._batch(changes))
        self.image.apply(changes)

    def _batch(self, changes: Sequence[Change]) -> bytearray:
        now_ms = self._clock.now_ms()
        return write_batch([Record(i, now_ms, *change) for i, change in enumerate(changes)])


BLOCK = 1000
LOW = 100


class ProducerIds:
    """Allocates producer ids that were never used before, in blocks."""

    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata
        self._stock: deque[ProducerId] = deque()
        self._replenishing = asyncio.Lock()

    async def new(self) -> ProducerId:
        await self.replenish()
        return self.take()

    def take(self) -> ProducerId:
        """Take an id from the stock that `replenish` has filled."""
        return self._stock.popleft()

    @property
    def is_low(self) -> bool:
        return len(self._stock) < LOW

    async def replenish(self, wanted: int = LOW) -> None:
        """Return once the stock holds at least `wanted` ids."""
        wanted = max(wanted, LOW)
        if len(self._stock) >= wanted:
            return
        async with self._replenishing:
            while len(self._stock) < wanted:
                first = self._metadata.image.next_producer_id
                await self._metadata.write([producer_ids_change(first + BLOCK)])
                self._stock.extend(ProducerId(number) for number in range(first, first + BLOCK))
