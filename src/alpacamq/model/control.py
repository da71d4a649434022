"""Control batches, which clients recognise and skip: transaction markers and placeholders.

A marker ends a producer's transaction in a partition. It is an ordinary batch with the control bit
set and one record, whose key says commit or abort. A placeholder keeps the offsets and sequences of
a batch whose records are elsewhere.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from .batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, BatchHeader
from .errors import CorruptBatch
from .ports import Buffer
from .records import Record, read_records, write_batch

_ABORT, _COMMIT = 0, 1
_VERSION = 0
_KEY = Struct(">hh")  # version, type
_VALUE = Struct(">hi")  # version, coordinator epoch
_NUMBER = Struct(">q")  # behind it: the number of the transaction, which Kafka does not have
_NOTHING = _VALUE.pack(_VERSION, -1)


# Of a marker that an administrator wrote, or a version that did not number transactions.
NO_NUMBER = -1


class Marker(NamedTuple):
    """The content of a transaction marker.

    `number` counts the transactions of a transactional id, and so of the producer: a marker with a number
    that was seen before is a duplicate.
    """

    committed: bool
    coordinator_epoch: int
    number: int = NO_NUMBER


def marker_batch(
    producer_id: int,
    producer_epoch: int,
    committed: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
    number: int = NO_NUMBER,
) -> bytearray:
    """Build a batch that ends a transaction."""
    key = _KEY.pack(_VERSION, _COMMIT if committed else _ABORT)
    value = _VALUE.pack(_VERSION, coordinator_epoch)
    if number != NO_NUMBER:
        value += _NUMBER.pack(number)
    record = Record(0, timestamp_ms, key, value)
    return write_batch(
        [record],
        attributes=CONTROL | TRANSACTIONAL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def placeholder_batch(header: BatchHeader) -> bytearray:
    """Build a batch with the offsets and sequences of the one with this header, but without its records.

    Clients see a commit marker. An empty batch would make some clients request more bytes and finally
    report a record that they cannot fetch.
    """
    record = Record(header.base_offset, header.max_timestamp, _KEY.pack(_VERSION, _COMMIT), _NOTHING)
    return write_batch(
        [record],
        last_offset=header.last_offset,
        attributes=(header.attributes & LOG_APPEND_TIME) | CONTROL,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def read_marker(batch: Buffer) -> Marker | None:
    """Read the marker in a control batch; None for control records of other types."""
    record = next(read_records(batch), None)
    if record is None or record.key is None or len(record.key) < _KEY.size:
        raise CorruptBatch("the record of a control batch has no type in its key")
    _, kind = _KEY.unpack_from(record.key)
    if kind not in (_ABORT, _COMMIT):
        return None
    value = record.value or b""
    epoch = _VALUE.unpack_from(value)[1] if len(value) >= _VALUE.size else -1
    has_number = len(value) >= _VALUE.size + _NUMBER.size
    number = _NUMBER.unpack_from(value, _VALUE.size)[0] if has_number else NO_NUMBER
    return Marker(kind == _COMMIT, epoch, number)


class CommittedFilter:
    """Tells which batches a reader of committed records may see, given in the order of their offsets.

    `aborted` are the aborted transactions of the range that is read: producer id and first offset.
    """

    __slots__ = ("_aborting", "_upcoming")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._upcoming = sorted(((first, producer_id) for producer_id, first in aborted), reverse=True)
        self._aborting: set[int] = set()

    def shows(self, header: BatchHeader, batch: Buffer) -> bool:
        """Return whether the records of a batch are visible: it is no control batch, and not aborted."""
        upcoming, aborting = self._upcoming, self._aborting
        while upcoming and upcoming[-1][0] <= header.last_offset:
            aborting.add(upcoming.pop()[1])
        if header.is_control:
            # Compaction leaves other control batches in the middle of transactions: only markers end them.
            if aborting and header.producer_id in aborting and _is_abort_marker(batch):
                aborting.discard(header.producer_id)
            return False
        return not (aborting and header.is_transactional and header.producer_id in aborting)


def _is_abort_marker(batch: Buffer) -> bool:
    try:
        marker = read_marker(batch)
    except CorruptBatch:
        return False
    return marker is not None and not marker.committed
