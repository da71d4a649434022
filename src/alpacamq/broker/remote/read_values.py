"""The values of reads from other brokers: requests to the leader of a partition, and its replies."""

from typing import NamedTuple

import msgspec

from alpacamq.broker.peers.values import RemoteError
from alpacamq.broker.read.record_reader import Limits, Page
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.log.reader import TimestampOffset
from alpacamq.model.state_machine import Request


class Bounds(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The offsets and the size of a partition. Counters begin with the process of its leader."""

    start_offset: int
    high_watermark: int
    last_stable_offset: int
    end_offset: int
    leader_epoch: int
    size_bytes: int
    written_bytes: int = 0
    fetched_messages: int = 0
    fetched_bytes: int = 0

    def readable_end(self, *, committed: bool) -> int:
        """Return the offset before which everything can be read."""
        return self.last_stable_offset if committed else self.high_watermark

    @property
    def messages(self) -> int:
        return self.high_watermark - self.start_offset


class FetchedBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Whole batches, beginning with the one that has the offset asked for; `data` is empty if there are none.

    `aborted` has producer id and first offset of the aborted transactions among them, for committed reads.
    """

    bounds: Bounds
    next_offset: int
    aborted: tuple[tuple[int, int], ...] = ()
    data: bytes = b""


class FetchedPage(NamedTuple):
    """Records, and the bounds of their partition when they were read."""

    page: Page
    bounds: Bounds


class FoundBounds(msgspec.Struct, frozen=True):
    """The bounds of several partitions in the order of the request; None for those with an error."""

    found: list[Bounds | None]
    errors: dict[int, RemoteError]


class FoundOffsets(msgspec.Struct, frozen=True):
    """Records found by timestamp in the order of the request; None if there is none or an error."""

    found: list[TimestampOffset | None]
    errors: dict[int, RemoteError]


class ReadBounds(Request[FoundBounds], frozen=True, kw_only=True, tag="read-bounds"):
    """Asks for the bounds of partitions."""

    places: tuple[PartitionId, ...]


class ReadBatches(Request[FetchedBatches], frozen=True, kw_only=True, tag="read-batches"):
    """Reads whole batches of a partition."""

    place: PartitionId
    offset: int
    max_bytes: int
    committed: bool
    wait_ms: int = 0


class ReadRecords(Request[FetchedPage], frozen=True, kw_only=True, tag="read-records"):
    """Reads records of a partition. `reader` is recorded in their traces."""

    place: PartitionId
    offset: int
    limits: Limits
    committed: bool
    wait_ms: int = 0
    reader: Origin | None = None


class FindTimestamps(Request[FoundOffsets], frozen=True, kw_only=True, tag="find-timestamps"):
    """Searches partitions for the first record at or after a timestamp."""

    places: tuple[PartitionId, ...]
    timestamp_ms: int


class AwaitRecords(Request[None], frozen=True, kw_only=True, tag="await-records"):
    """Returns once one of several partitions can be read beyond an offset, or when its time is up."""

    positions: tuple[tuple[PartitionId, int], ...]
    committed: bool
    wait_ms: int


class FlushPartition(Request[int], frozen=True, kw_only=True, tag="flush-partition"):
    """Flushes a partition up to an offset, or to its end; the reply is the flushed offset."""

    place: PartitionId
    offset: int | None = None


class DeleteRecords(Request[Bounds], frozen=True, kw_only=True, tag="delete-records"):
    """Moves the start of a partition to an offset; -1 is its high watermark."""

    place: PartitionId
    offset: int


class CompactedSize(NamedTuple):
    """The result of a compaction; `is_compacted` is false if there was nothing to compact."""

    is_compacted: bool
    before_bytes: int
    size_bytes: int


class CompactPartition(Request[CompactedSize], frozen=True, kw_only=True, tag="compact-partition"):
    """Compacts a partition at its leader, up to its last record."""

    place: PartitionId


VALUES: tuple[type[msgspec.Struct], ...] = (
    ReadBounds,
    ReadBatches,
    ReadRecords,
    FindTimestamps,
    AwaitRecords,
    FlushPartition,
    DeleteRecords,
    CompactPartition,
)
