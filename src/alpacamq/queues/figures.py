"""A queue in figures."""

from alpacamq.model.lanes import Lane

from .chunks import CHUNK_BITS, State
from .lane_scheduler import ALL_LANES
from .messages import DescribeReply, LaneFigures, PartitionFigures
from .queue import Queue
from .share_partition import SharePartition


def describe(queue: Queue) -> DescribeReply:
    """The queue as it is. What was not read yet counts as ready, in the normal lane."""
    topic, log = queue.id.topic, queue.log
    partitions = []
    for number in range(log.partitions(topic)):
        log_start, log_end = log.bounds(topic, number)
        partition = queue.partitions.get(number)
        if partition is None:
            partitions.append(_unopened(number, log_start, log_end))
        else:
            partition.cut(log_start)
            partitions.append(_opened(partition, log_end))
    totals = queue.totals
    return DescribeReply(
        queue=queue.id,
        generation=queue.generation,
        overrides=dict(queue.overrides),
        partitions=tuple(partitions),
        received_total=totals.received,
        acked_total=totals.acked,
        nacked_total=totals.nacked,
        rejected_total=totals.rejected,
        expired_leases_total=totals.expired_leases,
        dead_lettered_total=totals.dead_lettered,
        redelivered_total=totals.redelivered,
        waiting_receives=len(queue.waiting),
    )


def _unopened(number: int, log_start: int, log_end: int) -> PartitionFigures:
    """Nobody has received from this partition yet: all of it is ready."""
    ready = log_end - log_start
    return PartitionFigures(
        partition=number,
        start_offset=log_start,
        end_offset=log_end,
        ready=ready,
        in_flight=0,
        resting=0,
        dead_lettering=0,
        oldest_offset=log_start if ready else None,
        lanes={lane.text: LaneFigures(ready=ready if lane is Lane.NORMAL else 0) for lane in ALL_LANES},
    )


def _opened(partition: SharePartition, log_end: int) -> PartitionFigures:
    backlog = partition.backlog
    ready = [*backlog.ready]
    ready[Lane.NORMAL] += _unread(partition, log_end)
    lanes = {
        lane.text: LaneFigures(
            ready=ready[lane],
            in_flight=partition.tally.in_flight[lane],
            resting=partition.tally.resting[lane],
            enqueued_total=backlog.enqueued_total[lane],
            delivered_total=partition.delivered_total[lane],
        )
        for lane in ALL_LANES
    }
    start_offset = partition.start_offset
    return PartitionFigures(
        partition=partition.number,
        start_offset=start_offset,
        end_offset=log_end,
        ready=sum(ready),
        in_flight=sum(partition.tally.in_flight),
        resting=sum(partition.tally.resting),
        dead_lettering=partition.tally.moving,
        oldest_offset=start_offset if start_offset < log_end else None,
        lanes=lanes,
    )


def _unread(partition: SharePartition, log_end: int) -> int:
    """Messages behind what was read that are ready as far as is known."""
    backlog = partition.backlog
    unread = max(log_end - backlog.read_to, 0)
    if not unread or partition.progress.touched_end <= backlog.read_to:
        return unread
    for chunk in partition.progress.chunks.values():
        behind = -1 << max(backlog.read_to - (chunk.index << CHUNK_BITS), 0)
        unread -= (chunk.done & behind).bit_count()
        for hold in chunk.distinct_holds():
            # What came back is counted as ready already, unless it waits to be read for its place in line.
            if hold.state is not State.AVAILABLE or backlog.order is None:
                unread -= (hold.mask & behind).bit_count()
    return unread
