"""Record batches as a fetch brings them: cut apart, checked, and told which of them a reader may see."""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop
from typing import NamedTuple

from alpacamq.model.batch import FRAME, FRAME_BYTES, HEADER_BYTES, BatchHeader, check_batch
from alpacamq.model.control import read_marker
from alpacamq.model.errors import CorruptBatch
from alpacamq.protocol.messages.fetch import AbortedTransaction


class FetchedBatch(NamedTuple):
    """One whole batch with a matching checksum."""

    header: BatchHeader
    data: memoryview
    # False for markers and for what belongs to an aborted transaction.
    is_visible: bool


def fetched_batches(
    records: memoryview, aborted: Iterable[AbortedTransaction] | None
) -> Iterator[FetchedBatch]:
    """The whole batches in front, in order; a fetch may end in the middle of one."""
    to_come = [(each.first_offset, each.producer_id) for each in aborted or ()]
    heapify(to_come)
    aborting: set[int] = set()
    for batch in _whole_batches(records):
        header = check_batch(batch)
        while to_come and to_come[0][0] <= header.last_offset:
            aborting.add(heappop(to_come)[1])
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and not marker.committed:
                aborting.discard(header.producer_id)
        is_aborted = header.is_transactional and header.producer_id in aborting
        yield FetchedBatch(header, batch, not header.is_control and not is_aborted)


def _whole_batches(records: memoryview) -> Iterator[memoryview]:
    at = 0
    while len(records) - at >= HEADER_BYTES:
        _, length = FRAME.unpack_from(records, at)
        end = at + FRAME_BYTES + length
        if end < at + HEADER_BYTES:
            raise CorruptBatch(f"a batch claims {length} bytes")
        if end > len(records):
            return
        yield records[at:end]
        at = end
