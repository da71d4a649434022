"""Records committed offsets as the acknowledgement of traced messages."""

from collections.abc import Iterable

from alpacamq.broker.topics import Topics
from alpacamq.coordinator.messages import OffsetToCommit, PartitionResults

from .partition import Origin


def record_commits(
    topics: Topics, offsets: Iterable[OffsetToCommit], results: PartitionResults, origin: Origin
) -> None:
    """Record an acknowledgement in the traces of messages before the committed offsets."""
    for each, result in zip(offsets, results.partitions, strict=True):
        if (
            result.error is None
            and (partition := topics.find(each.topic.encode(), each.partition)) is not None
        ):
            traces = partition.traces
            if traces is not None and traces.unacknowledged:
                traces.committed(each.offset, origin)
