"""Partitions and compactions of topics, as the HTTP API describes them."""

import msgspec


class PartitionDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: who leads and has it, its offsets and its size.

    Consumers see records up to the high watermark, those of transactions up to the last stable offset.
    Offsets and sizes are null if the leader does not answer; `leader` is -1 if there is none.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync_replicas: list[int]
    start_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    messages: int | None
    size_bytes: int | None


class PartitionList(msgspec.Struct, frozen=True, kw_only=True):
    """All partitions of a topic."""

    topic: str
    partitions: list[PartitionDetails]


class CompactedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one partition; `compacted` is false if there was nothing new to compact."""

    partition: int
    compacted: bool
    size_before_bytes: int
    size_bytes: int


class CompactedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a compaction."""

    topic: str
    partitions: list[CompactedPartition]
