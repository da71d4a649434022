"""The metadata log: the one place topics and counters are remembered.

An internal compacted partition like any other. A change is in force once it is on the medium.
"""

from collections.abc import Sequence

from alpacamq.cluster.image import Change, ClusterImage
from alpacamq.model.ids import TopicId, TopicName, TopicPartition
from alpacamq.model.ports import Clock
from alpacamq.model.records import Record, write_batch
from alpacamq.model.topics import topic_config

from .partition import Partition, append
from .replay import replay

IDENTITY = TopicPartition(TopicName("__cluster_metadata"), 0)
TOPIC_ID = TopicId(int=1)
CONFIG = topic_config({"cleanup.policy": "compact", "flush.messages": "1", "segment.bytes": str(1 << 20)})


class MetadataLog:
    """Writes changes durably, then applies them to the image."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self.image = ClusterImage()
        self._clock = clock

    def load(self) -> None:
        """Rebuild the image from the log. Blocking."""
        self.image.apply(
            Change(record.key, record.value)
            for record in replay(self.partition.log)
            if record.key is not None
        )

    async def write(self, changes: Sequence[Change]) -> None:
        """Return once the changes are on the medium and in the image."""
        now_ms = self._clock.now_ms()
        batch = write_batch([Record(i, now_ms, *change) for i, change in enumerate(changes)])
        await append(self.partition, batch)
        self.image.apply(changes)
