"""Reading on in the log: what its outline says becomes a partition's backlog."""

from typing import NamedTuple

from alpacamq.model.lanes import Lane

from .chunks import State
from .share_partition import SharePartition
from .views import LogView


class Read(NamedTuple):
    """What came of reading on."""

    has_moved: bool  # something was read, be it only that there is nothing
    is_more: bool  # there may be more to read


def read_on(partition: SharePartition, log: LogView) -> Read:
    """Read some of what follows."""
    topic, number = partition.queue.topic, partition.number
    log_start, log_end = log.bounds(topic, number)
    partition.cut(log_start)
    backlog = partition.backlog
    asked = position = backlog.read_to
    if asked >= log_end:
        return Read(has_moved=False, is_more=False)
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
    backlog.catch_up()
    return Read(has_moved=asked < backlog.read_to, is_more=asked < backlog.read_to < log_end)


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
