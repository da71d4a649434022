"""One partition of a queue, and every step that a message of it can take.

Everything before the start offset is done. What was delivered beyond it is in chunks; what was never
delivered is in the backlog as far as the log was read, and in the log from there on.
"""

from collections import deque
from collections.abc import Iterator

from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Change

from .backlog import PartitionBacklog
from .chunks import (
    CHUNK_BITS,
    CHUNK_SIZE,
    IN_CHUNK,
    NEXT_STATES,
    NO_DEADLINE,
    Chunk,
    LeaseGroup,
    PendingMove,
    State,
    window,
)
from .deadlines import Deadlines, Timed
from .journal import Journal
from .lanes import ALL_LANES, Turns
from .messages import QueueId
from .records import StoredHead, chunk_key, head_key, pack_chunk, pack_head


class Consumers:
    """Counts of leased messages. A consumer without a name is held to no limit but the queue's."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self.total = 0

    def acquire(self, consumer: str, count: int) -> None:
        self._held[consumer] = self._held.get(consumer, 0) + count
        self.total += count

    def release(self, consumer: str, count: int) -> None:
        self.total -= count
        left = self._held[consumer] - count
        if left:
            self._held[consumer] = left
        else:
            del self._held[consumer]

    def holds_any(self, consumer: str) -> bool:
        return consumer in self._held

    def room(self, consumer: str, max_each: int, max_total: int) -> int:
        """How many more this consumer may lease."""
        room = max_total - self.total
        if consumer:
            room = min(room, max_each - self._held.get(consumer, 0))
        return max(room, 0)


class LeaseCounts:
    """Counts per lane, of what was delivered and is not done. What is available is counted in the backlog."""

    def __init__(self, consumers: Consumers) -> None:
        self.in_flight = [0] * len(ALL_LANES)
        self.resting = [0] * len(ALL_LANES)
        self.moving = 0
        self._consumers = consumers

    def enter(self, state: State, lane: Lane, count: int, owner: str) -> None:
        """So many messages come into a state."""
        if state is State.ACQUIRED:
            self.in_flight[lane] += count
            self._consumers.acquire(owner, count)
        elif state is State.BACKOFF:
            self.resting[lane] += count
        elif state is State.MOVING:
            self.moving += count

    def leave(self, state: State, lane: Lane, count: int, owner: str) -> None:
        """So many messages leave a state."""
        if state is State.ACQUIRED:
            self.in_flight[lane] -= count
            self._consumers.release(owner, count)
        elif state is State.BACKOFF:
            self.resting[lane] -= count
        elif state is State.MOVING:
            self.moving -= count


class Progress:
    """Everything before `start_offset` is done; nothing from `touched_end` on has been delivered."""

    def __init__(self, partition: "SharePartition", start_offset: int) -> None:
        self.chunks: dict[int, Chunk] = {}
        self.start_offset = start_offset
        self.touched_end = start_offset
        self._partition = partition
        self._absent: deque[tuple[int, int]] = deque()  # whole chunks without a message, ascending

    def chunk(self, index: int) -> Chunk:
        """The chunk, made if there is none."""
        chunk = self.chunks.get(index)
        if chunk is None:
            chunk = self.chunks[index] = Chunk(self._partition, index)
        return chunk

    def holds(self) -> Iterator[LeaseGroup]:
        """Every hold, ascending by chunk."""
        for index in sorted(self.chunks):
            yield from self.chunks[index].distinct_holds()

    def find(self, offset: int) -> LeaseGroup | None:
        """The hold that a message is in that was delivered and is not done."""
        chunk = self.chunks.get(offset >> CHUNK_BITS)
        return None if chunk is None else chunk.holds.get(offset)

    def is_done(self, offset: int) -> bool:
        if offset < self.start_offset:
            return True
        chunk = self.chunks.get(offset >> CHUNK_BITS)
        return chunk is not None and bool(chunk.done >> (offset & IN_CHUNK) & 1)

    def first_undone(self) -> int:
        """Where the start offset can be: the first message that is not done, or what is not known yet."""
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

    def move_start(self, start_offset: int) -> list[Chunk]:
        """Everything before is done. The chunks that are no longer needed."""
        first, last = self.start_offset >> CHUNK_BITS, start_offset >> CHUNK_BITS
        self.start_offset = start_offset
        self.touched_end = max(self.touched_end, start_offset)
        if last - first > len(self.chunks):
            past = [index for index in self.chunks if index < last]
        else:
            past = [index for index in range(first, last) if index in self.chunks]
        return [self.chunks.pop(index) for index in past]

    def mark_absent(self, first: int, end: int) -> None:
        """There are no messages at first..end-1, and never will be."""
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
        """The log will be read again."""
        self._absent.clear()
        for chunk in self.chunks.values():
            chunk.absent = 0

    def untouched(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The stretches of first..end-1 that were never delivered."""
        if first >= self.touched_end:
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
            taken = (chunk.done | chunk.held_mask()) & window(max(first, base), min(end, chunk.end_offset))
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
    """The messages of one partition, for one group, and how many of them are where."""

    def __init__(
        self,
        queue: QueueId,
        number: int,
        head: StoredHead,
        journal: Journal,
        deadlines: Deadlines[Timed],
        consumers: Consumers,
        turns: Turns,
    ) -> None:
        self.queue = queue
        self.number = number
        self.progress = Progress(self, head.start_offset)
        self.restore_head(head)
        self.backlog = PartitionBacklog(number, turns)
        self.lease_counts = LeaseCounts(consumers)
        self.delivered_total = [0] * len(ALL_LANES)
        self.is_dirty = False
        self.is_forgotten = False
        self._journal = journal
        self._deadlines = deadlines
        self._recent: LeaseGroup | None = None
        self._chunk_prefix = chunk_key(queue, number, 0)[:-8]

    def restore_head(self, head: StoredHead) -> None:
        """Take in a stored head."""
        self.generation, self.stored_start_offset, self.next_sequence, self.producer_id = head
        self.progress.start_offset = head.start_offset

    @property
    def start_offset(self) -> int:
        return self.progress.start_offset

    def change(self) -> Change:
        """The head, to be written as it is."""
        self.stored_start_offset = self.progress.start_offset
        return self.stored_head()

    def stored_head(self) -> Change:
        """The head as it was written last."""
        sequence, producer_id = self.next_sequence, self.producer_id
        head = StoredHead(self.generation, self.stored_start_offset, sequence, producer_id)
        return Change(head_key(self.queue, self.number), pack_head(head))

    def chunk_change(self, chunk: Chunk) -> Change:
        """A chunk as it is."""
        return Change(self._chunk_prefix + chunk.index.to_bytes(8, "big"), pack_chunk(chunk))

    def chunk_removal(self, chunk: Chunk) -> Change:
        return Change(self._chunk_prefix + chunk.index.to_bytes(8, "big"), None)

    def acquire(self, first: int, end: int, lane: Lane, due_ms: int, now_ms: int, consumer: str) -> None:
        """Messages first..end-1 of one chunk, which were never delivered, are leased."""
        chunk = self.progress.chunk(first >> CHUNK_BITS)
        mask = window(first, end)
        hold = LeaseGroup(chunk, mask, State.ACQUIRED, lane, 1, due_ms, now_ms, now_ms, consumer)
        chunk.holds.update(dict.fromkeys(range(first, end), hold))
        self._deadlines.put(hold)
        self._journal.mark_chunk(chunk)
        self._recent = hold
        self.lease_counts.enter(State.ACQUIRED, lane, end - first, consumer)
        self._count_delivered(lane, end - first)

    def acquire_again(
        self, hold: LeaseGroup, offset: int, due_ms: int, now_ms: int, consumer: str
    ) -> LeaseGroup:
        """A message that came back is leased once more."""
        self._lift(hold, offset, State.ACQUIRED)
        times = (due_ms, now_ms, hold.first_ms if hold.count else now_ms)
        self._count_delivered(hold.lane, 1)
        return self._place(hold.chunk, offset, State.ACQUIRED, hold.lane, hold.count + 1, *times, consumer)

    def finish(self, hold: LeaseGroup, offset: int) -> None:
        """A message is done."""
        chunk = hold.chunk
        self._lift(hold, offset, None)
        del chunk.holds[offset]
        chunk.done |= 1 << (offset & IN_CHUNK)
        self._journal.mark_chunk(chunk)
        self.backlog.finish(offset, hold.lane, was_waiting=hold.state is State.AVAILABLE)

    def rest(self, hold: LeaseGroup, offset: int, until_ms: int) -> None:
        """A leased message is available when its rest ends."""
        self._lift(hold, offset, State.BACKOFF)
        times = (until_ms, hold.acquired_ms, hold.first_ms)
        self._place(hold.chunk, offset, State.BACKOFF, hold.lane, hold.count, *times, "")

    def free(self, hold: LeaseGroup, offset: int, count: int) -> None:
        """A leased message is available again at once, having been delivered so many times."""
        self._lift(hold, offset, State.AVAILABLE)
        times = (NO_DEADLINE, hold.acquired_ms, hold.first_ms)
        self._place(hold.chunk, offset, State.AVAILABLE, hold.lane, count, *times, "")
        self.backlog.put_back(offset, hold.lane)

    def free_all(self, hold: LeaseGroup) -> None:
        """The lease or the rest of these messages is over."""
        assert State.AVAILABLE in NEXT_STATES[hold.state]
        self.lease_counts.leave(hold.state, hold.lane, hold.mask.bit_count(), hold.owner)
        self._deadlines.forget(hold)
        hold.state, hold.owner, hold.packed = State.AVAILABLE, "", None
        self._journal.mark_chunk(hold.chunk)
        for offset in hold.offsets():
            self.backlog.put_back(offset, hold.lane)

    def extend(self, hold: LeaseGroup, offset: int, due_ms: int) -> None:
        """A leased message stays so until then."""
        self._lift(hold, offset, State.ACQUIRED)
        times = (due_ms, hold.acquired_ms, hold.first_ms)
        self._place(hold.chunk, offset, State.ACQUIRED, hold.lane, hold.count, *times, hold.owner)

    def move(self, hold: LeaseGroup, offset: int, target: str, reason: str) -> PendingMove:
        """A leased message goes to another topic."""
        self._lift(hold, offset, State.MOVING)
        move = PendingMove(self.next_sequence, target, reason)
        self.next_sequence += 1
        self.lease_counts.enter(State.MOVING, hold.lane, 1, "")
        times = (NO_DEADLINE, hold.acquired_ms, hold.first_ms)
        chunk, bit = hold.chunk, 1 << (offset & IN_CHUNK)
        chunk.holds[offset] = LeaseGroup(chunk, bit, State.MOVING, hold.lane, hold.count, *times, "", move)
        self._journal.mark_chunk(chunk)
        self._journal.mark(self)
        return move

    def advance(self) -> None:
        """Let the start offset pass everything that is done."""
        start = self.progress.first_undone()
        if start != self.progress.start_offset:
            self._move_start(start)

    def skip(self, first: int, end: int) -> None:
        """The log has no messages at first..end-1."""
        if first <= self.progress.start_offset < end:
            self._move_start(end)
            self.advance()
        elif first > self.progress.start_offset:
            self.progress.mark_absent(first, end)

    def cut(self, log_start: int) -> None:
        """The log has nothing before this offset any more: that is done, leased or not."""
        progress = self.progress
        if log_start <= progress.start_offset:
            return
        for hold in [*progress.holds()]:
            if hold.chunk.index << CHUNK_BITS < log_start:
                for offset in [offset for offset in hold.offsets() if offset < log_start]:
                    self.finish(hold, offset)
        self._move_start(log_start)
        self.advance()
        if self.backlog.order is None:
            self.backlog.cut(log_start)
        else:
            self.read_again(in_key_order=True)

    def restart(self, offset: int, generation: int) -> None:
        """Begin at `offset`, as if nothing from there on had been delivered."""
        self.forget_all()
        self.generation = generation
        self.progress = Progress(self, offset)
        self.read_again(in_key_order=self.backlog.order is not None)
        self._journal.mark(self)

    def forget_all(self) -> None:
        """Let go of every message."""
        for hold in self.progress.holds():
            self.lease_counts.leave(hold.state, hold.lane, hold.mask.bit_count(), hold.owner)
            self._deadlines.forget(hold)
        for chunk in self.progress.chunks.values():
            self._journal.drop_chunk(chunk)
        self.progress.chunks.clear()
        self._recent = None

    def read_again(self, *, in_key_order: bool) -> None:
        """Forget what is ready; what came back is so at once, unless it has to find its place in line."""
        self.progress.forget_absent()
        progress = self.progress
        self.backlog.begin(progress.start_offset, progress.touched_end, in_key_order=in_key_order)
        if not in_key_order:
            for hold in self.progress.holds():
                if hold.state is State.AVAILABLE:
                    for offset in hold.offsets():
                        self.backlog.add_single(offset, hold.lane)

    def take_up(self, hold: LeaseGroup) -> None:
        """A stored hold is in force again."""
        self.lease_counts.enter(hold.state, hold.lane, hold.mask.bit_count(), hold.owner)
        if hold.due_ms != NO_DEADLINE:
            self._deadlines.put(hold)

    def _lift(self, hold: LeaseGroup, offset: int, into: State | None) -> None:
        """Take one message out of its hold, to be put into this state; None is done."""
        assert into in NEXT_STATES[hold.state], (hold.state, into)
        self.lease_counts.leave(hold.state, hold.lane, 1, hold.owner)
        hold.mask ^= 1 << (offset & IN_CHUNK)
        hold.packed = None
        if not hold.mask:
            self._deadlines.forget(hold)

    def _place(
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
        """Put one message into a hold: the one made last, if it has had the same fate."""
        self._journal.mark_chunk(chunk)
        self.lease_counts.enter(state, lane, 1, owner)
        bit = 1 << (offset & IN_CHUNK)
        hold = self._recent
        if (
            hold is not None and hold.mask and hold.chunk is chunk and hold.state is state
            and hold.lane is lane and hold.count == count and hold.due_ms == due_ms
            and hold.acquired_ms == acquired_ms and hold.first_ms == first_ms and hold.owner == owner
        ):  # fmt: skip
            hold.mask |= bit
            hold.packed = None
        else:
            hold = LeaseGroup(chunk, bit, state, lane, count, due_ms, acquired_ms, first_ms, owner)
            self._recent = hold
            if due_ms != NO_DEADLINE:
                self._deadlines.put(hold)
        chunk.holds[offset] = hold
        return hold

    def _move_start(self, start_offset: int) -> None:
        for chunk in self.progress.move_start(start_offset):
            self._journal.drop_chunk(chunk)
        self.backlog.read_to = max(self.backlog.read_to, start_offset)
        # Within a chunk the done messages tell the start; without it only the head can.
        if self.stored_start_offset >> CHUNK_BITS != start_offset >> CHUNK_BITS:
            self._journal.mark(self)

    def _count_delivered(self, lane: Lane, count: int) -> None:
        self.backlog.ready[lane] -= count
        self.delivered_total[lane] += count
