"""A log in memory, as the queue engine sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from alpacamq.model.errors import PartitionNotReady
from alpacamq.model.ids import TopicName
from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Outcome, Pending, Request
from alpacamq.model.topics import Topic, TopicConfig, topic_config
from alpacamq.queues.engine import QueueEngine
from alpacamq.queues.messages import BacklogRead, OffsetRange, Outline


@dataclass(frozen=True, slots=True)
class Entry:
    """A message."""

    lane: Lane = Lane.NORMAL
    key: bytes | None = None


@dataclass(slots=True)
class FakePartition:
    """Entries from `start` on. None is an offset without a message: a marker or an aborted record."""

    start: int = 0
    entries: list[Entry | None] = field(default_factory=list)
    open: int = 0  # entries at the end that belong to an open transaction
    times: list[tuple[int, int]] = field(default_factory=list)  # first offset and time of every append

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    def append(self, *entries: Entry | None, time_ms: int = 0) -> int:
        """Append entries as a batch; return the offset of the first."""
        first = self.end
        self.times.append((first, time_ms))
        self.entries += entries
        return first

    def cut(self, start: int) -> None:
        """Delete everything before `start`, as retention does."""
        del self.entries[: start - self.start]
        self.start = start

    def truncate(self, end: int) -> None:
        """Delete everything from `end` on, as a crash does."""
        del self.entries[end - self.start :]
        self.times = [each for each in self.times if each[0] < end]


class FakeTopic:
    """A topic and its settings."""

    def __init__(self, partitions: int, settings: Mapping[str, str]) -> None:
        self.id = uuid4()
        self.is_readable = True
        self.partitions = [FakePartition() for _ in range(partitions)]
        self.settings = dict(settings)
        self.config: TopicConfig = topic_config(self.settings)

    def alter(self, settings: Mapping[str, str]) -> None:
        self.settings |= settings
        self.config = topic_config(self.settings)


class FakeLog:
    """All topics. A read returns at most `slab` offsets."""

    def __init__(self, slab: int = 4096) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.slab = slab
        self.outlines = 0

    def add(self, topic: str, settings: Mapping[str, str] | None = None, *, partitions: int = 1) -> FakeTopic:
        self.topics[topic] = FakeTopic(partitions, settings or {})
        return self.topics[topic]

    @property
    def version(self) -> int:
        return hash(tuple((name, topic.id, len(topic.partitions)) for name, topic in self.topics.items()))

    def topic(self, name: str) -> Topic | None:
        if (found := self.topics.get(name)) is None:
            return None
        return Topic(name=TopicName(name), id=found.id, partitions=len(found.partitions))

    def config(self, topic: str) -> TopicConfig | None:
        found = self.topics.get(topic)
        return None if found is None else found.config

    def bounds(self, topic: str, partition: int, *, is_committed: bool = True) -> tuple[int, int]:
        if (found := self.topics.get(topic)) is None or not found.is_readable:
            raise PartitionNotReady(f"{topic} is not here")
        log = found.partitions[partition]
        return log.start, log.end - log.open if is_committed else log.end

    def leader_end(self, topic: str, partition: int) -> int | None:
        found = self.topics[topic]
        return found.partitions[partition].end if found.is_readable else None

    def outline(self, topic: str, partition: int, offset: int, *, with_keys: bool) -> Outline:
        self.outlines += 1
        log = self.topics[topic].partitions[partition]
        assert offset >= log.start, "read of deleted records"
        end = min(offset + self.slab, log.end)
        runs: list[OffsetRange] = []
        for at in range(offset, end):
            entry = log.entries[at - log.start]
            if entry is None:
                continue
            keys: tuple[bytes | None, ...] | None = (entry.key,) if with_keys else None
            if runs and runs[-1].last == at - 1 and runs[-1].lane is entry.lane:
                before = runs.pop()
                if before.keys is not None:
                    keys = (*before.keys, entry.key)
                runs.append(OffsetRange(before.first, at, entry.lane, keys))
            else:
                runs.append(OffsetRange(at, at, entry.lane, keys))
        earlier = [each for each in log.times if each[0] <= offset][-1:]
        return Outline(runs, end, [*earlier, *(each for each in log.times if offset < each[0] < end)])

    def handle(
        self, engine: QueueEngine, requests: list[tuple[Request[Any], object]], now_ms: int
    ) -> Outcome:
        """Pass requests to an engine, and perform the reads that it requests."""
        outcome = engine.handle([Pending(*each) for each in requests], now_ms)
        while reads := outcome.reads:
            outcome.reads = []
            for read in reads:
                outline = self.outline(
                    read.queue.topic, read.partition, read.offset, with_keys=read.with_keys
                )
                event = BacklogRead(read=read, outline=outline)
                outcome += engine.handle([Pending(event, None)], now_ms)
        return outcome
