"""Serves receives from the index of ready messages, and requests reads that extend it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, repeat

from alpacamq.model.errors import InvalidRequest, UnknownTopic
from alpacamq.model.lanes import Lane
from alpacamq.model.topics import TopicConfig

from .chunks import CHUNK_BITS, State, bits_of
from .messages import (
    Acquired,
    EngineLimits,
    Outline,
    PartitionsView,
    ReadBacklog,
    ReceiveReply,
    ReceiveRequest,
    fits,
)
from .partition import SharePartition
from .queue import MAX_READS, PendingReceive, Queue
from .ready import ALL_LANES, ALL_PARTITIONS, PartitionHeap, most_urgent


@dataclass(slots=True)
class Grant:
    """The lease terms of one receive, and the messages leased so far."""

    consumer: str
    now_ms: int
    due_ms: int
    key_runs: bool
    messages: list[Acquired] = field(default_factory=list)
    redelivered: int = 0
    # The partitions of each lane that was served.
    heaps: dict[Lane, PartitionHeap] = field(default_factory=dict)
    # The last run of each partition and lane that is not acquired yet: it may be continued.
    runs: dict[tuple[int, Lane], tuple[SharePartition, int, int]] = field(default_factory=dict)

    def add_run(self, partition: SharePartition, first: int, end: int, lane: Lane) -> None:
        """Lease messages that were never delivered."""
        # Without the constructor of the named tuple, which is a call of Python for every message.
        self.messages += map(
            tuple.__new__, repeat(Acquired), zip(
                repeat(partition.number), range(first, end), repeat(1), repeat(lane),
                repeat(self.due_ms), repeat(self.now_ms), repeat(partition.generation),
            ),
        )  # fmt: skip
        place = partition.number, lane
        if (run := self.runs.get(place)) is not None:
            if run[2] == first:
                first = run[1]
            else:
                self._acquire(*run, lane)
        self.runs[place] = partition, first, end

    def acquire_runs(self) -> None:
        """Acquire the runs that were added."""
        for (_, lane), run in self.runs.items():
            self._acquire(*run, lane)
        self.runs.clear()

    def _acquire(self, partition: SharePartition, first: int, end: int, lane: Lane) -> None:
        progress = partition.progress
        progress.delivered_end = max(progress.delivered_end, end)
        while first < end:
            stop = min(end, ((first >> CHUNK_BITS) + 1) << CHUNK_BITS)
            partition.acquire(first, stop, lane, self.due_ms, self.now_ms, self.consumer)
            first = stop


def _lease_from_lane(partition: SharePartition, lane: Lane, room: int, until_ms: int, grant: Grant) -> int:
    """Lease up to `room` messages of a lane that became ready before `until_ms`; return how many there were.

    If there is no such message, those of the first batch are leased.
    """
    ready = partition.backlog.lanes[lane]
    left = room
    while left > 0 and (span := ready.pop(left, until_ms)) is not None:
        if span.is_single:
            left -= _lease_single(partition, span.first, lane, left, grant)
        else:
            grant.add_run(partition, span.first, span.end, lane)
            left -= span.end - span.first
        if not ready or ready.since_ms >= until_ms:
            break
    partition.backlog.served(lane)
    return room - left


def _lease_single(partition: SharePartition, offset: int, lane: Lane, room: int, grant: Grant) -> int:
    """Lease a redelivery or the first message of a key; with `key_runs` also the messages behind it."""
    order = partition.backlog.order
    if order is None or not order.contains(offset):
        leases = partition.progress.find(offset)
        if leases is None or leases.state is not State.AVAILABLE:
            return 0  # acknowledged late by its last consumer
        _lease_one(partition, offset, lane, grant)
        return 1
    if not order.is_deliverable(offset):
        return 0
    taken = 0
    while True:
        following = order.take(offset)
        _lease_one(partition, offset, lane, grant)
        taken += 1
        if not grant.key_runs or taken == room or following is None or following.lane is not lane:
            return taken
        offset = following.offset


def _lease_one(partition: SharePartition, offset: int, lane: Lane, grant: Grant) -> None:
    leases = partition.progress.find(offset)
    if leases is None:
        grant.add_run(partition, offset, offset + 1, lane)
        return
    leased = partition.acquire_again(leases, offset, grant.due_ms, grant.now_ms, grant.consumer)
    grant.redelivered += leased.count > 1
    count, due_ms, first_ms = leased.count, grant.due_ms, leased.first_ms
    acquired = Acquired(partition.number, offset, count, lane, due_ms, first_ms, partition.generation)
    grant.messages.append(acquired)


def request_read(queue: Queue, number: int, limits: EngineLimits) -> bool:
    """Request a read of the next part of a partition; return False if there is nothing to wait for."""
    partition = queue.partitions[number]
    backlog = partition.backlog
    if backlog.reading is not None:
        return True
    if backlog.runs >= limits.max_indexed_runs or backlog.keyed_count >= limits.max_blocked_messages:
        return backlog.release_deferred(is_full=True)
    log_start, log_end = queue.bounds(number)
    partition.drop_before(log_start)
    if backlog.read_to >= log_end:
        queue.unread &= ~(1 << number)
        return False
    with_keys = backlog.order is not None
    backlog.reading = ReadBacklog(
        queue.id, number, backlog.read_to, with_keys, partition.generation, queue.is_committed
    )
    queue.reading |= 1 << number
    queue.output.reads.append(backlog.reading)
    return True


def load_backlog(queue: Queue, read: ReadBacklog, outline: Outline, now_ms: int) -> None:
    """Index the messages of a completed read."""
    partition = queue.partitions.get(read.partition)
    if partition is None or partition.backlog.reading != read:
        # The queue was reset in the meantime.
        if partition is None or partition.backlog.reading is None:
            queue.reading &= ~(1 << read.partition)
        return
    backlog = partition.backlog
    backlog.reading = None
    queue.reading &= ~(1 << read.partition)
    log_start, log_end = queue.bounds(read.partition)
    partition.drop_before(log_start)
    if backlog.read_to != read.offset:
        return  # retention has deleted part of it; the remainder is still unread
    backlog.times.drop_before(partition.start_offset)
    for offset, time_ms in outline.times:
        # A batch without a timestamp, or with one in the future, counts from its reading.
        backlog.times.add(max(offset, read.offset), min(time_ms, now_ms) if time_ms >= 0 else now_ms)
    position = read.offset
    for first, last, lane, keys in outline.ranges:
        assert first >= position, f"{read}: offset {first} follows {position}"
        if first > position:
            partition.skip(position, first)
        backlog.count_read(first, last + 1, lane)
        if keys is None:
            for begin, end in partition.progress.undelivered(first, last + 1):
                backlog.add_run(begin, end, lane)
        else:
            for offset, key in zip(range(first, last + 1), keys, strict=True):
                _index_keyed(partition, offset, lane, key)
        position = backlog.read_to = last + 1
    if outline.next_offset > position:
        partition.skip(position, outline.next_offset)
        backlog.read_to = outline.next_offset
    backlog.release_deferred()
    if not read.offset < backlog.read_to < log_end:
        queue.unread &= ~(1 << read.partition)
    queue.cold_messages -= backlog.read_to - read.offset
    if queue.cold_messages <= 0 or not queue.unread | queue.reading:
        queue.cold_until_ms = 0


def _index_keyed(partition: SharePartition, offset: int, lane: Lane, key: bytes | None) -> None:
    progress, backlog = partition.progress, partition.backlog
    assert backlog.order is not None
    leases = None
    if offset < progress.delivered_end:
        if progress.is_done(offset):
            return
        leases = progress.find(offset)
    if leases is not None and leases.state is not State.AVAILABLE:
        if key is not None:
            backlog.order.add_in_flight(key, offset)
    elif key is not None:
        backlog.add_keyed(key, offset, lane)
    elif leases is not None:
        backlog.add_single(offset, lane)
    else:
        backlog.add_run(offset, offset + 1, lane)


MAX_LEASE_MS = 12 * 3_600_000
MAX_CONSUMER_BYTES = 255
# The log is read ahead, so that urgent messages are found behind many others: at once where at most this many
# are unread, otherwise with this pause between reads.
_NEAR_MESSAGES = 1000
_READ_AHEAD_PAUSE_MS = 5
# Queues with very many partitions pause longer: a millisecond for this many partitions.
_CHECKED_PER_MS = 16


def check_receive(request: ReceiveRequest, log: PartitionsView) -> None:
    """Raise InvalidRequest or UnknownTopic for invalid parameters."""
    if request.max_messages < 0:
        raise InvalidRequest(f"max_messages must be at least 0, not {request.max_messages}")
    if request.wait_ms < 0:
        raise InvalidRequest(f"wait_ms must be at least 0, not {request.wait_ms}")
    if request.visibility_ms is not None and not 0 <= request.visibility_ms <= MAX_LEASE_MS:
        raise InvalidRequest(f"visibility_ms must be 0 to {MAX_LEASE_MS}, not {request.visibility_ms}")
    if not fits(request.consumer, MAX_CONSUMER_BYTES):
        raise InvalidRequest(f"consumer must be at most {MAX_CONSUMER_BYTES} bytes of UTF-8")
    if request.partitions is not None:
        check_partitions(request.queue.topic, request.partitions, log)


def check_partitions(topic: str, numbers: Iterable[int], log: PartitionsView) -> None:
    """Raise UnknownTopic if the topic does not have these partitions."""
    found = log.topic(topic)
    partition_count = 0 if found is None else found.partitions
    for number in numbers:
        if not 0 <= number < partition_count:
            raise UnknownTopic(f"unknown partition {number} of topic {topic!r}")


def room_for(queue: Queue, request: ReceiveRequest) -> int:
    """Return how many more messages the consumer may lease."""
    settings = queue.settings
    return queue.consumers.room(
        request.consumer, settings.queue_max_in_flight, settings.queue_max_in_flight_total
    )


def drop_deleted(queue: Queue) -> None:
    """End the leases of messages that retention has deleted."""
    for number, partition in queue.partitions.items():
        log_start, _ = queue.bounds(number)
        if log_start > partition.start_offset:
            partition.drop_before(log_start)
            queue.unread |= 1 << number


def read_ahead(queue: Queue, partitions: int, limits: EngineLimits, now_ms: int) -> None:
    """Request reads of new records before a receive is served."""
    if now_ms >= queue.read_ahead_ms:
        # Arrivals are reported only to queues with waiting receives.
        queue.read_ahead_ms = now_ms + _READ_AHEAD_PAUSE_MS + len(queue.partitions) // _CHECKED_PER_MS
        _mark_grown(queue, ALL_PARTITIONS)
        if queue.unread:
            _request_reads(queue, ALL_PARTITIONS, 1, limits)
    elif not queue.ready_partitions.active(partitions):
        _mark_grown(queue, partitions)
    for number in islice(bits_of(queue.unread & partitions, 0), MAX_READS):
        _, log_end = queue.bounds(number)
        if log_end - queue.partitions[number].backlog.read_to <= _NEAR_MESSAGES:
            request_read(queue, number, limits)


def read_cold(queue: Queue, limits: EngineLimits) -> None:
    """Request reads for the first receives of a queue."""
    _request_reads(queue, ALL_PARTITIONS, MAX_READS, limits)


def serve(
    queue: Queue,
    receive: PendingReceive,
    room: int,
    limits: EngineLimits,
    now_ms: int,
    *,
    is_last: bool = False,
) -> ReceiveReply | None:
    """Serve a receive if there are enough messages, or some and no reads to wait for.

    `is_last`: its wait has ended; serve it with what is ready.
    """
    request, partitions = receive.request, receive.partitions
    if not request.max_messages:
        if queue.ready_partitions.active(partitions):
            return ReceiveReply()
        _request_reads(queue, partitions, MAX_READS, limits)
        # Messages may have become deliverable without a read.
        return ReceiveReply() if queue.ready_partitions.active(partitions) else None
    wanted = min(room, request.max_messages)
    if not is_last and (queue.unread | queue.reading) & partitions:
        deliverable = _deliverable(queue, partitions, wanted)
        # The first receives wait until lanes and partitions are known: their shares and order hold from then.
        is_cold = queue.is_cold(now_ms)
        if deliverable < wanted or is_cold:
            _request_reads(queue, partitions, MAX_READS, limits)
        reading = queue.reading & partitions
        is_new = receive.reads_left == MAX_READS
        # Partitions without a known message may have the oldest one.
        unknown = reading & ~queue.ready_partitions.all
        receive.awaited = unknown if is_new else receive.awaited & unknown
        needs_read = (is_new or receive.awaited or deliverable < wanted) and receive.reads_left
        if reading and (needs_read or is_cold):
            receive.reads_left = max(receive.reads_left - 1, is_cold)
            # Messages that are ready do not wait for a slow read.
            receive.has_ready = deliverable > 0
            return None
    leased = _lease(queue, request, partitions, wanted, now_ms)
    if leased:
        return ReceiveReply(messages=tuple(leased), overrides=dict(queue.overrides))
    if not is_last and receive.reads_left and not queue.ready_partitions.active(partitions):
        # What was indexed was stale, or retention has deleted it.
        receive.reads_left -= 1
        _mark_grown(queue, partitions)
        _request_reads(queue, partitions, MAX_READS, limits)
    return None


def _lease(queue: Queue, request: ReceiveRequest, partitions: int, room: int, now_ms: int) -> list[Acquired]:
    """Lease up to `room` indexed messages."""
    settings = queue.settings
    lease_ms = (
        settings.queue_visibility_timeout_ms if request.visibility_ms is None else request.visibility_ms
    )
    grant = Grant(request.consumer, now_ms, now_ms + min(lease_ms, MAX_LEASE_MS), request.key_runs)
    _schedule(queue, settings, partitions, room, grant)
    grant.acquire_runs()
    queue.totals.received += len(grant.messages)
    queue.totals.redelivered += grant.redelivered
    return grant.messages


def _deliverable(queue: Queue, partitions: int, enough: int) -> int:
    """Count the deliverable indexed messages, up to about `enough`."""
    count = 0
    for lane in ALL_LANES:
        for number in bits_of(queue.ready_partitions.in_lane(lane) & partitions, 0):
            count += queue.partitions[number].backlog.lanes[lane].count
            if count >= enough:
                return count
    return count


def _mark_grown(queue: Queue, among: int) -> None:
    """Mark partitions that have grown without an event."""
    for number, partition in queue.partitions.items():
        if among >> number & 1 and queue.bounds(number)[1] > partition.backlog.read_to:
            queue.unread |= 1 << number


def mask_of(request: ReceiveRequest) -> int:
    """Return the partitions of a receive as a mask."""
    if request.partitions is None:
        return ALL_PARTITIONS
    among = 0
    for number in request.partitions:
        among |= 1 << number
    return among


def _schedule(queue: Queue, settings: TopicConfig, among: int, room: int, grant: Grant) -> None:
    ready_partitions, lanes = queue.ready_partitions, queue.lanes
    is_strict = settings.queue_priority_mode == "strict"
    if not is_strict:
        for lane in lanes.starved(
            ready_partitions.lanes, grant.now_ms, settings.queue_priority_starvation_ms
        ):
            if len(grant.messages) < room and ready_partitions.active(among) >> lane & 1:
                _lease_from_next_partition(queue, lane, among, 1, grant)
    while (left := room - len(grant.messages)) > 0 and (active := ready_partitions.active(among)):
        if is_strict:
            _lease_from_next_partition(queue, most_urgent(active), among, left, grant)
        else:
            lane, allowance = lanes.choose(active, left)
            _lease_from_next_partition(queue, lane, among, allowance, grant)


def _lease_from_next_partition(queue: Queue, lane: Lane, among: int, room: int, grant: Grant) -> None:
    """Lease messages of one lane from the partition with the oldest one, until another has an older one."""

    def since(number: int) -> int:
        return queue.partitions[number].backlog.since_ms(lane)

    ready = queue.ready_partitions
    heap = grant.heaps.get(lane)
    if heap is None or not heap.entries:
        heap = grant.heaps[lane] = ready.heap(lane, among)
        late = ready.passed_over(lane, among)
    else:
        late = None
    number, until_ms = (late, 0) if late is not None else heap.first(since)
    partition = queue.partitions[number]
    log_start, _ = queue.bounds(number)
    if log_start > partition.start_offset:
        partition.drop_before(log_start)
        for each, copied in grant.heaps.items():
            ready.update(copied, each, number)  # other lanes may be empty now
    taken = _lease_from_lane(partition, lane, room, until_ms, grant)
    ready.update(heap, lane, number)
    queue.lanes.served(lane, taken, grant.now_ms, is_empty=not queue.ready_partitions.lanes >> lane & 1)


def _request_reads(queue: Queue, among: int, count: int, limits: EngineLimits) -> None:
    """Request reads of up to `count` partitions, round robin."""
    candidates = queue.unread & among
    while candidates and count:
        later = candidates >> (queue.last_read + 1) << (queue.last_read + 1) or candidates
        number = (later & -later).bit_length() - 1
        candidates &= ~(1 << number)
        queue.last_read = number
        count -= request_read(queue, number, limits)
