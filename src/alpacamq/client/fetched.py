"""The record batches of a fetch: splits and verifies them, and marks aborted ones as invisible."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from alpacamq.model.batch import FRAME, FRAME_BYTES, HEADER_BYTES, BatchHeader, check_batch
from alpacamq.model.control import CommittedFilter
from alpacamq.model.errors import CorruptBatch
from alpacamq.protocol.messages.fetch import AbortedTransaction


class FetchedBatch(NamedTuple):
    """A complete batch with a valid checksum."""

    header: BatchHeader
    data: memoryview
    # False for markers and for batches of aborted transactions.
    is_visible: bool


def fetched_batches(
    records: memoryview, aborted: Iterable[AbortedTransaction] | None
) -> Iterator[FetchedBatch]:
    """Yield the complete batches in order; a fetch may end in the middle of one."""
    committed = CommittedFilter((each.producer_id, each.first_offset) for each in aborted or ())
    for batch in _whole_batches(records):
        header = check_batch(batch)
        yield FetchedBatch(header, batch, committed.shows(header, batch))


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
