"""Giving the ready messages of a partition to one receive."""

from dataclasses import dataclass, field
from itertools import repeat

from alpacamq.model.lanes import Lane

from .chunks import CHUNK_BITS, State
from .messages import Acquired
from .share_partition import SharePartition


@dataclass(slots=True)
class Terms:
    """On what terms one receive is given messages, and those it was given."""

    consumer: str
    now_ms: int
    due_ms: int
    key_runs: bool
    found: list[Acquired] = field(default_factory=list)
    redelivered: int = 0


def take(partition: SharePartition, lane: Lane, room: int, terms: Terms) -> int:
    """Lease up to `room` ready messages of a lane; how many there were."""
    ready = partition.backlog.lanes[lane]
    left = room
    while left > 0 and (span := ready.pop(left)) is not None:
        if span.is_single:
            left -= _deliver_single(partition, span.first, lane, left, terms)
        else:
            _deliver_run(partition, span.first, span.end, lane, terms)
            left -= span.end - span.first
    partition.backlog.close_if_empty(lane)
    return room - left


def _deliver_run(partition: SharePartition, first: int, end: int, lane: Lane, terms: Terms) -> None:
    """Messages that were never delivered."""
    due_ms, now_ms = terms.due_ms, terms.now_ms
    terms.found += map(
        Acquired, repeat(partition.number), range(first, end), repeat(1), repeat(lane), repeat(due_ms),
        repeat(now_ms), repeat(partition.generation),
    )  # fmt: skip
    progress = partition.progress
    progress.touched_end = max(progress.touched_end, end)
    while first < end:
        stop = min(end, ((first >> CHUNK_BITS) + 1) << CHUNK_BITS)
        partition.acquire(first, stop, lane, due_ms, now_ms, terms.consumer)
        first = stop


def _deliver_single(partition: SharePartition, offset: int, lane: Lane, room: int, terms: Terms) -> int:
    """A message that came back, or the head of its key's line; with key runs, those behind it too."""
    order = partition.backlog.order
    if order is None or not order.knows(offset):
        hold = partition.progress.find(offset)
        if hold is None or hold.state is not State.AVAILABLE:
            return 0  # acknowledged since, by who had it last
        _deliver_one(partition, offset, lane, terms)
        return 1
    if not order.may_go(offset):
        return 0
    taken = 0
    while True:
        following = order.leave(offset)
        _deliver_one(partition, offset, lane, terms)
        taken += 1
        if not terms.key_runs or taken == room or following is None or following.lane is not lane:
            return taken
        offset = following.offset


def _deliver_one(partition: SharePartition, offset: int, lane: Lane, terms: Terms) -> None:
    hold = partition.progress.find(offset)
    if hold is None:
        _deliver_run(partition, offset, offset + 1, lane, terms)
        return
    leased = partition.acquire_again(hold, offset, terms.due_ms, terms.now_ms, terms.consumer)
    terms.redelivered += leased.count > 1
    count, due_ms, first_ms = leased.count, terms.due_ms, leased.first_ms
    acquired = Acquired(partition.number, offset, count, lane, due_ms, first_ms, partition.generation)
    terms.found.append(acquired)
