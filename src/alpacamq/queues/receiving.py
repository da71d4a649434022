"""Serves receives from the index of ready messages, and requests reads that extend it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, repeat

from alpacamq.model.errors import InvalidRequest, UnknownTopic
from alpacamq.model.lanes import Lane

from .chunks import CHUNK_BITS, State, bits_of
from .lanes import ALL_LANES, ALL_PARTITIONS, most_urgent
from .messages import Acquired, EngineLimits, ReadBacklog, ReceiveReply, ReceiveRequest, fits
from .partition import SharePartition
from .queue import MAX_READS, PendingReceive, Queue
from .views import Outline, TopicsView


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


def request_read(queue: Queue, number: int, limits: EngineLimits) -> bool:
    """Request a read of what follows in a partition; false if there is nothing to wait for."""
    partition = queue.partitions[number]
    backlog = partition.backlog
    if backlog.reading is not None:
        return True
    if backlog.runs >= limits.max_indexed_runs or backlog.in_line >= limits.max_blocked_messages:
        return backlog.catch_up(is_full=True)
    log_start, log_end = queue.log.bounds(queue.id.topic, number)
    partition.cut(log_start)
    if backlog.read_to >= log_end:
        queue.unread &= ~(1 << number)
        return False
    backlog.reading = ReadBacklog(queue.id, number, backlog.read_to, backlog.order is not None)
    queue.reading |= 1 << number
    queue.journal.reads.append(backlog.reading)
    return True


def load_backlog(queue: Queue, read: ReadBacklog, outline: Outline) -> None:
    """Index the messages that a requested read has found."""
    partition = queue.partitions.get(read.partition)
    if partition is None or partition.backlog.reading != read:
        # The queue was reset meanwhile.
        if partition is None or partition.backlog.reading is None:
            queue.reading &= ~(1 << read.partition)
        return
    backlog = partition.backlog
    backlog.reading = None
    queue.reading &= ~(1 << read.partition)
    log_start, log_end = queue.log.bounds(queue.id.topic, read.partition)
    partition.cut(log_start)
    if backlog.read_to != read.offset:
        return  # retention has removed some of it; what follows is still unread
    position = read.offset
    for first, last, lane, keys in outline.ranges:
        assert first >= position, f"{read} goes back from {position} to {first}"
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
    if not read.offset < backlog.read_to < log_end:
        queue.unread &= ~(1 << read.partition)


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
# The log is read beyond what is needed, so that urgent messages are found behind many others: at once where
# this few are unread, else no more often than this.
_NEAR_MESSAGES = 1000
_READ_AHEAD_PAUSE_MS = 5
# Of queues with very many partitions less often: so many are checked in a millisecond between.
_CHECKED_PER_MS = 16


def check_receive(request: ReceiveRequest, log: TopicsView) -> None:
    """Raise InvalidRequest or UnknownTopic for invalid parameters."""
    if request.max_messages < 0:
        raise InvalidRequest(f"max_messages must be at least 0, not {request.max_messages}")
    if request.wait_ms < 0:
        raise InvalidRequest(f"wait_ms must be at least 0, not {request.wait_ms}")
    if request.visibility_ms is not None and not 0 <= request.visibility_ms <= MAX_LEASE_MS:
        raise InvalidRequest(f"a lease of {request.visibility_ms} ms is not between 0 and {MAX_LEASE_MS}")
    if not fits(request.consumer, MAX_CONSUMER_BYTES):
        raise InvalidRequest(f"the name of a consumer is at most {MAX_CONSUMER_BYTES} bytes of UTF-8")
    if request.partitions is not None:
        check_partitions(request.queue.topic, request.partitions, log)


def check_partitions(topic: str, numbers: Iterable[int], log: TopicsView) -> None:
    """UnknownTopic if the topic does not have these partitions."""
    there_are = log.partitions(topic) if log.config(topic) is not None else 0
    for number in numbers:
        if not 0 <= number < there_are:
            raise UnknownTopic(f"there is no partition {number} of a topic {topic!r}")


def room_for(queue: Queue, request: ReceiveRequest) -> int:
    """How many messages the consumer may lease besides those it holds."""
    settings = queue.settings
    most_each, most = settings.queue_max_in_flight, settings.queue_max_in_flight_total
    return queue.consumers.room(request.consumer, most_each, most)


def prepare(queue: Queue, partitions: int, limits: EngineLimits, now_ms: int) -> None:
    """Request reads of what has arrived, before a new receive is served."""
    if now_ms >= queue.read_ahead_ms:
        # While there is enough to deliver no receive waits, and arrivals are not reported.
        queue.read_ahead_ms = now_ms + _READ_AHEAD_PAUSE_MS + len(queue.partitions) // _CHECKED_PER_MS
        _notice_growth(queue, ALL_PARTITIONS)
        if queue.unread:
            _request_reads(queue, ALL_PARTITIONS, 1, limits)
    elif not queue.turns.active(partitions):
        _notice_growth(queue, partitions)
    for number in islice(bits_of(queue.unread & partitions, 0), MAX_READS):
        _, log_end = queue.log.bounds(queue.id.topic, number)
        if log_end - queue.partitions[number].backlog.read_to <= _NEAR_MESSAGES:
            request_read(queue, number, limits)


def serve(
    queue: Queue,
    receive: PendingReceive,
    room: int,
    limits: EngineLimits,
    now_ms: int,
    *,
    is_last: bool = False,
) -> ReceiveReply | None:
    """Reply to a receive if there are enough messages, or some and no reads to wait for.

    `is_last`: its time is over; reply with what there is.
    """
    request, partitions = receive.request, receive.partitions
    if not request.max_messages:
        if queue.turns.active(partitions):
            return ReceiveReply()
        _request_reads(queue, partitions, MAX_READS, limits)
        # Messages may have become deliverable without a read.
        return ReceiveReply() if queue.turns.active(partitions) else None
    wanted = min(room, request.max_messages)
    if not is_last and (queue.unread | queue.reading) & partitions:
        is_enough = _deliverable(queue, partitions, wanted) >= wanted
        if not is_enough:
            _request_reads(queue, partitions, MAX_READS, limits)
        is_new = receive.reads_left == MAX_READS
        if (is_new or not is_enough) and receive.reads_left and queue.reading & partitions:
            receive.reads_left -= 1
            return None
    found = grant(queue, request, partitions, wanted, now_ms)
    if found:
        return ReceiveReply(messages=tuple(found))
    if not is_last and queue.unread & partitions:
        _request_reads(queue, partitions, MAX_READS, limits)
    return None


def grant(queue: Queue, request: ReceiveRequest, partitions: int, room: int, now_ms: int) -> list[Acquired]:
    """Lease up to `room` messages of those that are indexed."""
    settings = queue.settings
    lease_ms = (
        settings.queue_visibility_timeout_ms if request.visibility_ms is None else request.visibility_ms
    )
    terms = Terms(request.consumer, now_ms, now_ms + min(lease_ms, MAX_LEASE_MS), request.key_runs)
    _take_fairly(queue, partitions, room, terms)
    queue.totals.received += len(terms.found)
    queue.totals.redelivered += terms.redelivered
    return terms.found


def _deliverable(queue: Queue, partitions: int, enough: int) -> int:
    """Count the indexed messages that can be delivered, up to `enough`."""
    count = 0
    for lane in ALL_LANES:
        for number in bits_of(queue.turns.ready(lane) & partitions, 0):
            count += queue.partitions[number].backlog.lanes[lane].count
            if count >= enough:
                return count
    return count


def _notice_growth(queue: Queue, among: int) -> None:
    """Mark partitions that have grown without being reported."""
    topic = queue.id.topic
    for number, partition in queue.partitions.items():
        if among >> number & 1 and queue.log.bounds(topic, number)[1] > partition.backlog.read_to:
            queue.unread |= 1 << number


def mask_of(request: ReceiveRequest) -> int:
    """Return the partitions of a receive as a mask."""
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


def _request_reads(queue: Queue, among: int, count: int, limits: EngineLimits) -> None:
    """Request reads of up to `count` partitions, in turn."""
    candidates = queue.unread & among
    while candidates and count:
        later = candidates >> (queue.last_read + 1) << (queue.last_read + 1) or candidates
        number = (later & -later).bit_length() - 1
        candidates &= ~(1 << number)
        queue.last_read = number
        count -= request_read(queue, number, limits)
