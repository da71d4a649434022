"""Reading on in the log: what its outline says becomes a partition's backlog."""

from alpacamq.model.lanes import Lane

from .chunks import State
from .share_partition import SharePartition
from .views import LogView


def read_on(partition: SharePartition, log: LogView) -> bool:
    """Read some of what follows; whether there may be more."""
    topic, number = partition.queue.topic, partition.number
    log_start, log_end = log.bounds(topic, number)
    partition.cut(log_start)
    backlog = partition.backlog
    asked = position = backlog.read_to
    if asked >= log_end:
        return False
    outline = log.outline(topic, number, asked, with_keys=backlog.order is not None)
    for first, last, lane, keys in outline.runs:
        assert first >= position, f"outline of {topic}-{number} goes back from {position} to {first}"
        if first > position:
            partition.skip(position, first)
        backlog.count_read(first, last + 1, lane)
        if keys is None:
            for begin, end in partition.progress.untouched(first, last + 1):
                backlog.add_run(begin, end, lane)
        else:
            for offset, key in zip(range(first, last + 1), keys, strict=True):
                _place_in_line(partition, offset, lane, key)
        position = backlog.read_to = last + 1
    if outline.next_offset > position:
        partition.skip(position, outline.next_offset)
        backlog.read_to = outline.next_offset
    return asked < backlog.read_to < log_end


def _place_in_line(partition: SharePartition, offset: int, lane: Lane, key: bytes | None) -> None:
    progress, backlog = partition.progress, partition.backlog
    assert backlog.order is not None
    hold = None
    if offset < progress.touched_end:
        if progress.is_done(offset):
            return
        hold = progress.find(offset)
    if hold is not None and hold.state is not State.AVAILABLE:
        if key is not None:
            backlog.order.join_busy(key, offset)
    elif key is not None:
        backlog.add_in_line(key, offset, lane)
    elif hold is not None:
        backlog.add_single(offset, lane)
    else:
        backlog.add_run(offset, offset + 1, lane)
