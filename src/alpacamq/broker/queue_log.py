"""The log as the queue engine sees it: which messages there are, and in which lanes.

The engine gets its answers at once. Near the end of a partition they are read then and there from the
page cache; what would take longer is looked through in the background, and the engine is told when
there is more to ask for. So a long backlog is seen to its end while its first messages are delivered.
"""

import asyncio

from alpacamq.model.errors import AlpacaError, DamagedLog
from alpacamq.model.topics import TopicConfig
from alpacamq.queues.views import Outline

from .backlog_scans import BacklogScans, Told
from .partition import Partition
from .stored_blocks import BLOCK_BYTES, StoredBlocks
from .topics import Topics

# What one partition may have read on the event loop in one turn of it.
_TURN_BYTES = 4 * BLOCK_BYTES
# With more than this behind what was read, the rest is looked through ahead of the next question.
_FAR_MESSAGES = 2000


class QueueLog:
    """The partitions of all topics in outline, for all shards."""

    def __init__(self, topics: Topics, blocks: StoredBlocks, scans: BacklogScans) -> None:
        self._topics = topics
        self._blocks = blocks
        self._scans = scans
        self._turn_bytes: dict[Partition, int] = {}

    def config(self, topic: str) -> TopicConfig | None:
        partitions = self._topics.partitions_of(topic)
        return partitions[0].config if partitions else None

    def partitions(self, topic: str) -> int:
        return len(self._topics.partitions_of(topic))

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        found = self._topics.find(topic.encode(), partition)
        return (0, 0) if found is None else (found.log.start_offset, found.last_stable_offset)

    def cut_offset(self, topic: str, partition: int) -> int | None:
        found = self._topics.find(topic.encode(), partition)
        return None if found is None else found.cut_offset

    def outline(self, topic: str, partition: int, offset: int, told: Told, *, with_keys: bool) -> Outline:
        """What lies from `offset` on, as far as it is known; `told` is called when there is more."""
        nothing = Outline((), offset)
        if (found := self._topics.find(topic.encode(), partition)) is None:
            return nothing
        offset = max(offset, found.log.start_offset)
        stable_offset = found.last_stable_offset
        if offset >= stable_offset:
            return Outline((), offset)
        if not with_keys and (outline := self._scans.found(found, offset)) is not None:
            self._spend(found, _TURN_BYTES)
            return outline
        if self._scans.is_under_way(found, offset):
            self._scans.start(found, offset, told, with_keys=with_keys)  # not anew: to be told as well
            return nothing
        block = self._blocks.cached(found, offset)
        if block is None and self._turn_bytes.get(found, 0) < _TURN_BYTES:
            self._spend(found, BLOCK_BYTES)
            try:
                block = self._blocks.load_now(found, offset, stable_offset)
            except DamagedLog as error:
                if error.offsets is None:
                    self._scans.report(found, error)
                    return nothing
                self._scans.passed_over(found, error)
                return Outline((), max(offset, min(error.offsets[1], stable_offset)))
            except AlpacaError as error:
                self._scans.report(found, error)
                return nothing
        if block is None:
            self._scans.start(found, offset, told, with_keys=with_keys)
            return nothing
        if not with_keys and stable_offset - block.next_offset > _FAR_MESSAGES:
            self._scans.start(found, block.next_offset, told, with_keys=False)
        return block.outline(offset, with_keys=with_keys)

    def _spend(self, partition: Partition, count: int) -> None:
        if not self._turn_bytes:
            asyncio.get_running_loop().call_soon(self._turn_bytes.clear)
        self._turn_bytes[partition] = self._turn_bytes.get(partition, 0) + count


class ShardView:
    """The log as the engine of one shard sees it, which is told when there is more."""

    def __init__(self, log: QueueLog, told: Told) -> None:
        self._log = log
        self._told = told

    def config(self, topic: str) -> TopicConfig | None:
        return self._log.config(topic)

    def partitions(self, topic: str) -> int:
        return self._log.partitions(topic)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._log.bounds(topic, partition)

    def cut_offset(self, topic: str, partition: int) -> int | None:
        return self._log.cut_offset(topic, partition)

    def outline(self, topic: str, partition: int, offset: int, *, with_keys: bool) -> Outline:
        return self._log.outline(topic, partition, offset, self._told, with_keys=with_keys)
