"""Serving receives: which messages a receive is given, reading on in the log where that is needed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import NamedTuple

from alpacamq.model.errors import InvalidRequest, UnknownTopic
from alpacamq.model.lanes import Lane

from .chunks import CHUNK_BITS, State, bits_of
from .lanes import ALL_PARTITIONS, most_urgent
from .messages import Acquired, EngineLimits, ReceiveReply, ReceiveRequest, fits
from .partition import SharePartition
from .queue import Queue
from .views import LogView


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


MAX_LEASE_MS = 12 * 3_600_000
MAX_CONSUMER_BYTES = 255
# One event reads at most so many times on behalf of one receive.
_MAX_READS = 8
# The log is read beyond what is needed, so that urgent messages are found behind many others: at once where
# this few are unread, else no more often than this.
_NEAR_MESSAGES = 1000
_READ_AHEAD_PAUSE_MS = 5
# Of queues with very many partitions less often: so many are looked at in a millisecond between.
_LOOKED_AT_PER_MS = 16


def check_receive(request: ReceiveRequest, log: LogView) -> None:
    """InvalidRequest or UnknownTopic, naming what makes no sense."""
    if request.max_messages < 0:
        raise InvalidRequest(f"a receive of {request.max_messages} messages makes no sense")
    if request.wait_ms < 0:
        raise InvalidRequest(f"a receive cannot wait {request.wait_ms} ms")
    if request.visibility_ms is not None and not 0 <= request.visibility_ms <= MAX_LEASE_MS:
        raise InvalidRequest(f"a lease of {request.visibility_ms} ms is not between 0 and {MAX_LEASE_MS}")
    if not fits(request.consumer, MAX_CONSUMER_BYTES):
        raise InvalidRequest(f"the name of a consumer is at most {MAX_CONSUMER_BYTES} bytes of UTF-8")
    if request.partitions is not None:
        check_partitions(request.queue.topic, request.partitions, log)


def check_partitions(topic: str, numbers: Iterable[int], log: LogView) -> None:
    """UnknownTopic if the topic does not have these partitions."""
    there_are = log.partitions(topic) if log.config(topic) is not None else 0
    for number in numbers:
        if not 0 <= number < there_are:
            raise UnknownTopic(f"there is no partition {number} of a topic {topic!r}")


def answer_at_once(
    queue: Queue, request: ReceiveRequest, room: int, limits: EngineLimits, now_ms: int
) -> ReceiveReply | None:
    """What a receive is answered if there is something for it now."""
    most = min(room, request.max_messages)
    found = grant(queue, request, most, limits, now_ms)
    among = _mask_of(request)
    if not found and not queue.turns.active(among) and _notice_growth(queue, among):
        found = grant(queue, request, most, limits, now_ms)
    if found or (not request.max_messages and has_any(queue, request, limits)):
        return ReceiveReply(messages=tuple(found))
    return None


def room_for(queue: Queue, request: ReceiveRequest) -> int:
    """How many messages the consumer may lease besides those it holds."""
    settings = queue.settings
    most_each, most = settings.queue_max_in_flight, settings.queue_max_in_flight_total
    return queue.consumers.room(request.consumer, most_each, most)


def grant(
    queue: Queue, request: ReceiveRequest, room: int, limits: EngineLimits, now_ms: int
) -> list[Acquired]:
    """Lease up to `room` messages as the request says."""
    settings = queue.settings
    lease_ms = (
        settings.queue_visibility_timeout_ms if request.visibility_ms is None else request.visibility_ms
    )
    among = _mask_of(request)
    terms = Terms(request.consumer, now_ms, now_ms + min(lease_ms, MAX_LEASE_MS), request.key_runs)
    is_time_to_look = now_ms >= queue.read_ahead_ms
    if is_time_to_look:
        # While there is enough to deliver nobody waits, and who does not wait is not told of arrivals.
        queue.read_ahead_ms = now_ms + _READ_AHEAD_PAUSE_MS + len(queue.partitions) // _LOOKED_AT_PER_MS
        _notice_growth(queue, ALL_PARTITIONS)
    if queue.unread & among:
        _read_arrivals(queue, among, limits)
    _take_fairly(queue, among, room, terms)
    reads = _MAX_READS
    while len(terms.found) < room and reads and queue.unread & among:
        reads -= 1
        if not _read_some(queue, among, limits):
            break
        _take_fairly(queue, among, room, terms)
    queue.is_behind |= not reads and not terms.found
    if queue.unread and is_time_to_look:
        _read_some(queue, ALL_PARTITIONS, limits)
    queue.totals.received += len(terms.found)
    queue.totals.redelivered += terms.redelivered
    return terms.found


def has_any(queue: Queue, request: ReceiveRequest, limits: EngineLimits) -> bool:
    """Whether there seems to be something to lease for this request."""
    among = _mask_of(request)
    reads = _MAX_READS
    while not queue.turns.active(among) and reads and _read_some(queue, among, limits):
        reads -= 1
    queue.is_behind |= not reads
    return bool(queue.turns.active(among))


def _notice_growth(queue: Queue, among: int) -> bool:
    """Whether a log has grown without our having been told."""
    topic = queue.id.topic
    for number, partition in queue.partitions.items():
        if among >> number & 1 and queue.log.bounds(topic, number)[1] > partition.backlog.read_to:
            queue.unread |= 1 << number
    return bool(queue.unread & among)


def _mask_of(request: ReceiveRequest) -> int:
    """The partitions a receive is about."""
    if request.partitions is None:
        return ALL_PARTITIONS
    among = 0
    for number in request.partitions:
        among |= 1 << number
    return among


def _take_fairly(queue: Queue, among: int, room: int, terms: Terms) -> None:
    settings, turns, lanes = queue.settings, queue.turns, queue.lanes
    is_strict = settings.queue_priority_mode == "strict"
    if not is_strict:
        for lane in lanes.starved(turns.lanes, terms.now_ms, settings.queue_priority_starvation_ms):
            if len(terms.found) < room and turns.active(among) >> lane & 1:
                _serve(queue, lane, among, 1, terms)
    while (left := room - len(terms.found)) > 0 and (active := turns.active(among)):
        if is_strict:
            _serve(queue, most_urgent(active), among, left, terms)
        else:
            lane, allowance = lanes.choose(active, left)
            _serve(queue, lane, among, allowance, terms)


def _serve(queue: Queue, lane: Lane, among: int, room: int, terms: Terms) -> None:
    """Give messages of one lane in the partition whose turn it is, and of no other."""
    partition = queue.partitions[queue.turns.next_partition(lane, among)]
    partition.cut(queue.log.bounds(queue.id.topic, partition.number)[0])
    taken = take(partition, lane, room, terms)
    queue.lanes.served(lane, taken, terms.now_ms, is_empty=not queue.turns.lanes >> lane & 1)


def _read_arrivals(queue: Queue, among: int, limits: EngineLimits) -> None:
    """Read the partitions to their ends that have only a little left."""
    near = 0
    for number in islice(bits_of(queue.unread & among, 0), _MAX_READS):
        _, log_end = queue.log.bounds(queue.id.topic, number)
        if log_end - queue.partitions[number].backlog.read_to <= _NEAR_MESSAGES:
            near |= 1 << number
    for _ in range(near.bit_count()):
        _read_some(queue, near, limits)


def _read_some(queue: Queue, among: int, limits: EngineLimits) -> bool:
    """Read on in one partition where that leads on; whether there was one."""
    candidates = queue.unread & among
    while candidates:
        later = candidates >> (queue.last_read + 1) << (queue.last_read + 1) or candidates
        number = (later & -later).bit_length() - 1
        candidates &= ~(1 << number)
        queue.last_read = number
        partition = queue.partitions[number]
        backlog = partition.backlog
        if backlog.runs >= limits.max_indexed_runs or backlog.in_line >= limits.max_blocked_messages:
            if backlog.catch_up(is_full=True):
                return True
            continue
        read = read_on(partition, queue.log)
        if not read.is_more:
            queue.unread &= ~(1 << number)
        if read.has_moved:
            return True
    return False
