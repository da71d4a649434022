"""One partition of a queue: the state transitions of its messages.

Everything before the start offset is done. Messages beyond it that were delivered are in chunks. Messages
that were never delivered are in the backlog as far as the log was read, and otherwise only in the log.
"""

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from alpacamq.model.deadlines import NO_DEADLINE, Deadlines, Timed
from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Change

from .chunks import (
    CHUNK_BITS,
    CHUNK_SIZE,
    IN_CHUNK,
    NEXT_STATES,
    Chunk,
    LeaseGroup,
    PendingMove,
    State,
    bits_of,
    window,
)
from .messages import EndedLease, Move, QueueId, ReadBacklog
from .ready import ALL_LANES, PartitionBacklog, ReadyPartitions
from .records import StoredHead, chunk_key, head_key, pack_chunk, pack_head


class Stored(Protocol):
    """An object that is stored as one record."""

    is_dirty: bool
    is_forgotten: bool

    def change(self) -> Change: ...


class EventOutput:
    """The changes, effects and reads of the event that is being handled."""

    def __init__(self) -> None:
        self.moves: list[Move] = []
        self.ended: list[EndedLease] = []
        self.reads: list[ReadBacklog] = []
        self._deletions: list[Change] = []
        self._records: list[Stored] = []
        self._chunks: list[Chunk] = []

    def write(self, record: Stored) -> None:
        """Write a queue or a head at the end of the event."""
        if not record.is_dirty:
            record.is_dirty = True
            self._records.append(record)

    def write_chunk(self, chunk: Chunk) -> None:
        """Write a chunk at the end of the event."""
        if not chunk.is_dirty:
            chunk.is_dirty = True
            self._chunks.append(chunk)

    def delete_chunk(self, chunk: Chunk) -> None:
        """Delete a chunk at the end of the event."""
        chunk.is_dropped = True
        if chunk.is_stored:
            self.write_chunk(chunk)

    def delete(self, key: bytes) -> None:
        """Delete a record before everything that this event writes under its key."""
        self._deletions.append(Change(key, None))

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call."""
        if not self._chunks and not self._records and not self._deletions:
            return []
        for partition in {chunk.partition: None for chunk in self._chunks}:
            partition.advance()
        changes, self._deletions = self._deletions, []
        records, self._records = self._records, []
        chunks, self._chunks = self._chunks, []
        for record in records:
            record.is_dirty = False
            if not record.is_forgotten:
                changes.append(record.change())
        for chunk in chunks:
            chunk.is_dirty = False
            if not chunk.is_dropped and chunk.end_offset > chunk.partition.start_offset:
                chunk.is_stored = True
                changes.append(chunk.partition.chunk_change(chunk))
            elif chunk.is_stored:
                chunk.is_stored = False
                changes.append(chunk.partition.chunk_removal(chunk))
        return changes

    def take_effects(self) -> list[Move | EndedLease]:
        """Return the moves and the ended leases since the last call."""
        if not self.moves and not self.ended:
            return []
        effects: list[Move | EndedLease] = [*self.moves, *self.ended]
        self.moves, self.ended = [], []
        return effects

    def take_reads(self) -> list[ReadBacklog]:
        """Return the reads requested since the last call."""
        reads, self.reads = self.reads, []
        return reads


class Consumers:
    """Leased messages by consumer. The limit per consumer does not apply to a consumer without a name."""

    def __init__(self) -> None:
        self._leased: dict[str, int] = {}
        self.total = 0

    def acquire(self, consumer: str, count: int) -> None:
        self._leased[consumer] = self._leased.get(consumer, 0) + count
        self.total += count

    def release(self, consumer: str, count: int) -> None:
        self.total -= count
        left = self._leased[consumer] - count
        if left:
            self._leased[consumer] = left
        else:
            del self._leased[consumer]

    def has_leases(self, consumer: str) -> bool:
        return consumer in self._leased

    def room(self, consumer: str, max_each: int, max_total: int) -> int:
        """Return how many more messages this consumer may lease."""
        room = max_total - self.total
        if consumer:
            room = min(room, max_each - self._leased.get(consumer, 0))
        return max(room, 0)


class LeaseCounts:
    """Counts by lane of messages in flight, in backoff and moving. The backlog counts available messages."""

    def __init__(self, consumers: Consumers) -> None:
        self.in_flight = [0] * len(ALL_LANES)
        self.backoff = [0] * len(ALL_LANES)
        self.moving = 0
        self._consumers = consumers

    def enter(self, state: State, lane: Lane, count: int, owner: str) -> None:
        """Count messages that enter a state."""
        if state is State.ACQUIRED:
            self.in_flight[lane] += count
            self._consumers.acquire(owner, count)
        elif state is State.BACKOFF:
            self.backoff[lane] += count
        elif state is State.MOVING:
            self.moving += count

    def leave(self, state: State, lane: Lane, count: int, owner: str) -> None:
        """Count messages that leave a state."""
        if state is State.ACQUIRED:
            self.in_flight[lane] -= count
            self._consumers.release(owner, count)
        elif state is State.BACKOFF:
            self.backoff[lane] -= count
        elif state is State.MOVING:
            self.moving -= count


class Progress:
    """Everything before `start_offset` is done; nothing from `delivered_end` on has been delivered."""

    def __init__(self, partition: "SharePartition", start_offset: int) -> None:
        self.chunks: dict[int, Chunk] = {}
        self.start_offset = start_offset
        self.delivered_end = start_offset
        self._partition = partition
        self._absent: deque[tuple[int, int]] = deque()  # whole chunks without a message, ascending

    def chunk(self, index: int) -> Chunk:
        """Return a chunk; create it if it does not exist."""
        chunk = self.chunks.get(index)
        if chunk is None:
            chunk = self.chunks[index] = Chunk(self._partition, index)
        return chunk

    def lease_groups(self) -> Iterator[LeaseGroup]:
        """Yield all lease groups, ascending by chunk."""
        for index in sorted(self.chunks):
            yield from self.chunks[index].lease_groups()

    def unfinished_between(self, first: int, end: int) -> list[tuple[LeaseGroup, int]]:
        """Return the delivered messages of first..end-1 that are not done, with their lease groups."""
        if first >= self.delivered_end:
            return []
        within = range(first >> CHUNK_BITS, ((end - 1) >> CHUNK_BITS) + 1)
        few = self.chunks if len(self.chunks) < len(within) else within
        indexes = sorted(index for index in few if index in within and index in self.chunks)
        return [
            (leases, offset)
            for index in indexes
            for leases in self.chunks[index].lease_groups()
            for offset in leases.offsets()
            if first <= offset < end
        ]

    def find(self, offset: int) -> LeaseGroup | None:
        """Return the lease group of a message; None if it was not delivered, or is done."""
        chunk = self.chunks.get(offset >> CHUNK_BITS)
        return None if chunk is None else chunk.groups.get(offset)

    def is_done(self, offset: int) -> bool:
        if offset < self.start_offset:
            return True
        chunk = self.chunks.get(offset >> CHUNK_BITS)
        return chunk is not None and bool(chunk.done >> (offset & IN_CHUNK) & 1)

    def first_undone(self) -> int:
        """Return the highest possible start offset: the first message that is not done, or was not read."""
        start, absent = self.start_offset, self._absent
        while True:
            while absent and absent[0][1] <= start:
                absent.popleft()
            if absent and absent[0][0] <= start:
                start = absent[0][1]
                continue
            chunk = self.chunks.get(start >> CHUNK_BITS)
            if chunk is None:
                return start
            bits = (chunk.done | chunk.absent) >> (start & IN_CHUNK)
            if not bits & 1:
                return start
            start += _trailing_ones(bits)

    def set_start(self, start_offset: int) -> list[Chunk]:
        """Set the start offset; return the chunks that are no longer needed."""
        first, last = self.start_offset >> CHUNK_BITS, start_offset >> CHUNK_BITS
        self.start_offset = start_offset
        self.delivered_end = max(self.delivered_end, start_offset)
        if last - first > len(self.chunks):
            past = [index for index in self.chunks if index < last]
        else:
            past = [index for index in range(first, last) if index in self.chunks]
        return [self.chunks.pop(index) for index in past]

    def mark_absent(self, first: int, end: int) -> None:
        """Record that the log has no messages at first..end-1."""
        while first < end:
            index = first >> CHUNK_BITS
            whole = (end >> CHUNK_BITS) - index
            if not first & IN_CHUNK and whole:
                self._absent.append((first, first + whole * CHUNK_SIZE))
                first += whole * CHUNK_SIZE
            else:
                stop = min(end, (index + 1) << CHUNK_BITS)
                self.chunk(index).absent |= window(first, stop)
                first = stop

    def forget_absent(self) -> None:
        """Clear what is known about offsets without messages, before the log is read again."""
        self._absent.clear()
        for chunk in self.chunks.values():
            chunk.absent = 0

    def undelivered(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of first..end-1 that were never delivered."""
        if first >= self.delivered_end:
            yield first, end
            return
        begin = first = max(first, self.start_offset)
        if first >= end:
            return
        for index in range(first >> CHUNK_BITS, ((end - 1) >> CHUNK_BITS) + 1):
            chunk = self.chunks.get(index)
            if chunk is None:
                continue
            base = index << CHUNK_BITS
            taken = (chunk.done | chunk.unfinished_mask()) & window(
                max(first, base), min(end, chunk.end_offset)
            )
            while taken:
                low = (taken & -taken).bit_length() - 1
                if base + low > begin:
                    yield begin, base + low
                ones = _trailing_ones(taken >> low)
                begin = base + low + ones
                taken = taken >> (low + ones) << (low + ones)
        if begin < end:
            yield begin, end


def _trailing_ones(bits: int) -> int:
    return ((bits + 1) & ~bits).bit_length() - 1


class SharePartition:
    """The messages of one partition for one group."""

    def __init__(
        self,
        queue: QueueId,
        number: int,
        head: StoredHead,
        output: EventOutput,
        deadlines: Deadlines[Timed],
        consumers: Consumers,
        ready_partitions: ReadyPartitions,
    ) -> None:
        self.queue = queue
        self.number = number
        self.progress = Progress(self, head.start_offset)
        self.restore_head(head)
        self.backlog = PartitionBacklog(number, ready_partitions)
        self.lease_counts = LeaseCounts(consumers)
        self.delivered_total = [0] * len(ALL_LANES)
        self.is_dirty = False
        self.is_forgotten = False
        self._output = output
        self._deadlines = deadlines
        self._last_group: LeaseGroup | None = None
        self._chunk_prefix = chunk_key(queue, number, 0)[:-8]

    def restore_head(self, head: StoredHead) -> None:
        """Apply a stored head."""
        self.generation, self.stored_start_offset, self.next_sequence, self.producer_id = head
        self.progress.start_offset = head.start_offset

    @property
    def start_offset(self) -> int:
        return self.progress.start_offset

    def change(self) -> Change:
        """Return the current head as a record."""
        self.stored_start_offset = self.progress.start_offset
        return self.stored_head()

    def stored_head(self) -> Change:
        """Return the head as it was written last."""
        sequence, producer_id = self.next_sequence, self.producer_id
        head = StoredHead(self.generation, self.stored_start_offset, sequence, producer_id)
        return Change(head_key(self.queue, self.number), pack_head(head))

    def chunk_change(self, chunk: Chunk) -> Change:
        """Return the record of a chunk."""
        return Change(self._chunk_prefix + chunk.index.to_bytes(8, "big"), pack_chunk(chunk))

    def chunk_removal(self, chunk: Chunk) -> Change:
        return Change(self._chunk_prefix + chunk.index.to_bytes(8, "big"), None)

    def acquire(self, first: int, end: int, lane: Lane, due_ms: int, now_ms: int, consumer: str) -> None:
        """Lease messages first..end-1 of one chunk, which were never delivered."""
        chunk = self.progress.chunk(first >> CHUNK_BITS)
        mask = window(first, end)
        leases = LeaseGroup(chunk, mask, State.ACQUIRED, lane, 1, due_ms, now_ms, now_ms, consumer)
        chunk.groups.update(dict.fromkeys(range(first, end), leases))
        self._deadlines.put(leases)
        self._output.write_chunk(chunk)
        self._last_group = leases
        self.lease_counts.enter(State.ACQUIRED, lane, end - first, consumer)
        self._count_delivered(lane, end - first)

    def acquire_again(
        self, leases: LeaseGroup, offset: int, due_ms: int, now_ms: int, consumer: str
    ) -> LeaseGroup:
        """Lease a message that was delivered before."""
        self._remove_from_group(leases, offset, State.ACQUIRED)
        times = (due_ms, now_ms, leases.first_ms if leases.count else now_ms)
        self._count_delivered(leases.lane, 1)
        return self._add_to_group(
            leases.chunk, offset, State.ACQUIRED, leases.lane, leases.count + 1, *times, consumer
        )

    def finish(self, leases: LeaseGroup, offset: int) -> None:
        """Mark a message as done."""
        chunk = leases.chunk
        self._remove_from_group(leases, offset, None)
        del chunk.groups[offset]
        chunk.done |= 1 << (offset & IN_CHUNK)
        self._output.write_chunk(chunk)
        self.backlog.finish(offset, leases.lane, was_waiting=leases.state is State.AVAILABLE)

    def finish_run(self, leases: LeaseGroup, mask: int) -> None:
        """Mark leased messages of a group as done."""
        chunk = leases.chunk
        if self.backlog.order is not None:  # the next message of each key may be delivered
            for offset in [*bits_of(mask, chunk.index << CHUNK_BITS)]:
                self.finish(leases, offset)
            return
        assert None in NEXT_STATES[leases.state], leases.state
        self.lease_counts.leave(leases.state, leases.lane, mask.bit_count(), leases.owner)
        leases.mask ^= mask
        leases.packed = None
        if not leases.mask:
            self._deadlines.remove(leases)
        groups = chunk.groups
        for offset in bits_of(mask, chunk.index << CHUNK_BITS):
            del groups[offset]
        chunk.done |= mask
        self._output.write_chunk(chunk)

    def back_off(self, leases: LeaseGroup, offset: int, until_ms: int) -> None:
        """Make a leased message available at `until_ms`."""
        self._remove_from_group(leases, offset, State.BACKOFF)
        times = (until_ms, leases.acquired_ms, leases.first_ms)
        self._add_to_group(leases.chunk, offset, State.BACKOFF, leases.lane, leases.count, *times, "")

    def release(self, leases: LeaseGroup, offset: int, count: int, released_ms: int = 0) -> None:
        """Make a message available at once, with this delivery count; behind what became ready earlier."""
        self._remove_from_group(leases, offset, State.AVAILABLE)
        times = (NO_DEADLINE, leases.acquired_ms, leases.first_ms)
        self._add_to_group(leases.chunk, offset, State.AVAILABLE, leases.lane, count, *times, "")
        self.backlog.requeue(offset, leases.lane, released_ms)

    def release_all(self, leases: LeaseGroup, released_ms: int = 0) -> None:
        """Make all messages of a group available at the end of their lease or backoff."""
        assert State.AVAILABLE in NEXT_STATES[leases.state]
        self.lease_counts.leave(leases.state, leases.lane, leases.mask.bit_count(), leases.owner)
        self._deadlines.remove(leases)
        leases.state, leases.owner, leases.packed = State.AVAILABLE, "", None
        self._output.write_chunk(leases.chunk)
        for offset in leases.offsets():
            self.backlog.requeue(offset, leases.lane, released_ms)

    def extend(self, leases: LeaseGroup, offset: int, due_ms: int) -> None:
        """Set the deadline of a lease; a message whose lease has ended is leased again."""
        if leases.state is State.AVAILABLE:
            self.backlog.hide(offset, leases.lane)
        self._remove_from_group(leases, offset, State.ACQUIRED)
        times = (due_ms, leases.acquired_ms, leases.first_ms)
        self._add_to_group(
            leases.chunk, offset, State.ACQUIRED, leases.lane, leases.count, *times, leases.owner
        )

    def move(self, leases: LeaseGroup, offset: int, target: str, reason: str) -> PendingMove:
        """Start moving a leased message to another topic."""
        self._remove_from_group(leases, offset, State.MOVING)
        move = PendingMove(self.next_sequence, target, reason)
        self.next_sequence += 1
        self.lease_counts.enter(State.MOVING, leases.lane, 1, "")
        times = (NO_DEADLINE, leases.acquired_ms, leases.first_ms)
        chunk, bit = leases.chunk, 1 << (offset & IN_CHUNK)
        chunk.groups[offset] = LeaseGroup(
            chunk, bit, State.MOVING, leases.lane, leases.count, *times, "", move
        )
        self._output.write_chunk(chunk)
        self._output.write(self)
        return move

    def advance(self) -> None:
        """Advance the start offset past everything that is done."""
        start = self.progress.first_undone()
        if start != self.progress.start_offset:
            self._set_start(start)

    def skip(self, first: int, end: int) -> None:
        """Record that the log has no messages at first..end-1, and advance the start offset if possible.

        Compaction may have removed messages that were delivered, leased or not: they are done.
        """
        for leases, offset in self.progress.unfinished_between(first, end):
            self.finish(leases, offset)
        if first <= self.progress.start_offset < end:
            self._set_start(end)
            self.advance()
        elif first > self.progress.start_offset:
            self.progress.mark_absent(first, end)

    def drop_before(self, log_start: int) -> None:
        """Mark all messages before `log_start` as done, leased or not: retention has deleted them."""
        progress = self.progress
        if log_start <= progress.start_offset:
            return
        for leases, offset in progress.unfinished_between(progress.start_offset, log_start):
            self.finish(leases, offset)
        self._set_start(log_start)
        self.advance()
        if self.backlog.order is None:
            self.backlog.drop_before(log_start)
        else:
            self.rebuild_backlog(in_key_order=True)

    def reset(self, offset: int, generation: int) -> None:
        """Start again at `offset`, as if nothing from there on had been delivered."""
        self.clear()
        self.generation = generation
        self.progress = Progress(self, offset)
        self.rebuild_backlog(in_key_order=self.backlog.order is not None)
        self._output.write(self)

    def clear(self) -> None:
        """Forget all messages."""
        for leases in self.progress.lease_groups():
            self.lease_counts.leave(leases.state, leases.lane, leases.mask.bit_count(), leases.owner)
            self._deadlines.remove(leases)
        for chunk in self.progress.chunks.values():
            self._output.delete_chunk(chunk)
        self.progress.chunks.clear()
        self._last_group = None

    def rebuild_backlog(self, *, in_key_order: bool) -> None:
        """Clear the index of ready messages; the log is read again.

        Available messages are added at once, but in key order only when they are read.
        """
        self.progress.forget_absent()
        progress = self.progress
        self.backlog.reset(progress.start_offset, progress.delivered_end, in_key_order=in_key_order)
        if not in_key_order:
            for leases in self.progress.lease_groups():
                if leases.state is State.AVAILABLE:
                    for offset in leases.offsets():
                        self.backlog.add_single(offset, leases.lane)

    def activate(self, leases: LeaseGroup) -> None:
        """Count a restored lease group, and set its deadline."""
        self.lease_counts.enter(leases.state, leases.lane, leases.mask.bit_count(), leases.owner)
        if leases.due_ms != NO_DEADLINE:
            self._deadlines.put(leases)

    def _remove_from_group(self, leases: LeaseGroup, offset: int, into: State | None) -> None:
        """Remove one message from its group before it enters `into`; None is done."""
        assert into in NEXT_STATES[leases.state], (leases.state, into)
        self.lease_counts.leave(leases.state, leases.lane, 1, leases.owner)
        leases.mask ^= 1 << (offset & IN_CHUNK)
        leases.packed = None
        if not leases.mask:
            self._deadlines.remove(leases)

    def _add_to_group(
        self,
        chunk: Chunk,
        offset: int,
        state: State,
        lane: Lane,
        count: int,
        due_ms: int,
        acquired_ms: int,
        first_ms: int,
        owner: str,
    ) -> LeaseGroup:
        """Add one message to the group created last if that has the same state, else to a new one."""
        self._output.write_chunk(chunk)
        self.lease_counts.enter(state, lane, 1, owner)
        bit = 1 << (offset & IN_CHUNK)
        leases = self._last_group
        if (
            leases is not None and leases.mask and leases.chunk is chunk and leases.state is state
            and leases.lane is lane and leases.count == count and leases.due_ms == due_ms
            and leases.acquired_ms == acquired_ms and leases.first_ms == first_ms and leases.owner == owner
        ):  # fmt: skip
            leases.mask |= bit
            leases.packed = None
        else:
            leases = LeaseGroup(chunk, bit, state, lane, count, due_ms, acquired_ms, first_ms, owner)
            self._last_group = leases
            if due_ms != NO_DEADLINE:
                self._deadlines.put(leases)
        chunk.groups[offset] = leases
        return leases

    def _set_start(self, start_offset: int) -> None:
        for chunk in self.progress.set_start(start_offset):
            self._output.delete_chunk(chunk)
        self.backlog.read_to = max(self.backlog.read_to, start_offset)
        # Within a chunk the start offset follows from the done messages; otherwise only the head stores it.
        if self.stored_start_offset >> CHUNK_BITS != start_offset >> CHUNK_BITS:
            self._output.write(self)

    def _count_delivered(self, lane: Lane, count: int) -> None:
        self.backlog.ready[lane] -= count
        self.delivered_total[lane] += count
