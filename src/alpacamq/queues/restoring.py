"""Taking up the partition of a queue as it was stored."""

from .chunks import CHUNK_BITS, CHUNK_SIZE, NO_DEADLINE, Chunk, Hold, State
from .journal import Journal
from .share_partition import SharePartition


def restore(partition: SharePartition, journal: Journal, now_ms: int) -> list[Hold]:
    """Put what was stored in force; the moves that are not known to be done, in their order."""
    _drop_done(partition, journal)
    progress = partition.progress
    moves = []
    for hold in progress.holds():
        if hold.acquired_ms > now_ms:
            _set_back(hold, now_ms, journal)
        partition.take_up(hold)
        if hold.state is State.MOVING:
            moves.append(hold)
    touched = (
        (chunk.index << CHUNK_BITS) + (chunk.done | chunk.held_mask()).bit_length()
        for chunk in progress.chunks.values()
    )
    progress.touched_end = max(progress.start_offset, *touched, 0)
    return sorted(moves, key=_sequence)


def cut_tail(partition: SharePartition, log_end: int, journal: Journal) -> bool:
    """A crash can take messages with it whose deliveries were kept: others will have their offsets.

    Whether it did. Receipts of those deliveries must not settle the others.
    """
    progress = partition.progress
    is_cut = progress.start_offset > log_end
    if is_cut:
        progress.start_offset = log_end
        journal.mark(partition)
    for chunk in [*progress.chunks.values()]:
        if chunk.end_offset > log_end:
            base = chunk.index << CHUNK_BITS
            is_cut |= _keep(chunk, (1 << max(log_end - base, 0)) - 1, journal)
    return is_cut


def _drop_done(partition: SharePartition, journal: Journal) -> None:
    """What lies before the start offset is done, whatever else was stored of it."""
    start_offset = partition.start_offset
    for chunk in [*partition.progress.chunks.values()]:
        past = start_offset - (chunk.index << CHUNK_BITS)
        if past > 0 and (past >= CHUNK_SIZE or chunk.held_mask() & ~(-1 << past)):
            _keep(chunk, -1 << past, journal)


def _set_back(hold: Hold, now_ms: int, journal: Journal) -> None:
    """The clock was set back while nobody ran: a lease or a rest is as long as it was, from now on."""
    if hold.due_ms != NO_DEADLINE:
        hold.due_ms -= hold.acquired_ms - now_ms
    hold.acquired_ms = now_ms
    hold.packed = None
    journal.mark_chunk(hold.chunk)


def _keep(chunk: Chunk, mask: int, journal: Journal) -> bool:
    """Forget the messages of a chunk that are not in the mask; whether there were any."""
    had_others = bool((chunk.done | chunk.held_mask()) & ~mask)
    if had_others:
        chunk.done &= mask
        for hold in chunk.distinct_holds():
            hold.mask &= mask
            hold.packed = None
        chunk.holds = {offset: hold for hold in chunk.distinct_holds() for offset in hold.offsets()}
        journal.mark_chunk(chunk)
    if not chunk.done and not chunk.holds:
        del chunk.partition.progress.chunks[chunk.index]
        journal.drop_chunk(chunk)
    return had_others


def _sequence(hold: Hold) -> int:
    return -1 if hold.move is None else hold.move.sequence
