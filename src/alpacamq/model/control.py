"""Control batches, which clients know and pass over: markers and placeholders.

A marker ends a producer's transaction in a partition. It is an ordinary batch with the control bit
set and one record, whose key says commit or abort. A placeholder keeps the offsets and sequences of
a batch that has no records here.
"""

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
_NOTHING = _VALUE.pack(_VERSION, -1)


class Marker(NamedTuple):
    """What a marker says of its producer's transaction."""

    committed: bool
    coordinator_epoch: int


def marker_batch(
    producer_id: int,
    producer_epoch: int,
    committed: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytearray:
    """A batch that ends a transaction."""
    key = _KEY.pack(_VERSION, _COMMIT if committed else _ABORT)
    record = Record(0, timestamp_ms, key, _VALUE.pack(_VERSION, coordinator_epoch))
    return write_batch(
        [record],
        attributes=CONTROL | TRANSACTIONAL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def placeholder_batch(header: BatchHeader) -> bytearray:
    """A batch in place of the one with this header, with its offsets and sequences but none of its records.

    To clients it is the marker of a commit. A batch that is merely empty makes some of them believe that
    they have to ask for more bytes, and in the end that there is a record they cannot get.
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
    """What the marker in a control batch says; None for control records of other kinds."""
    record = next(read_records(batch), None)
    if record is None or record.key is None or len(record.key) < _KEY.size:
        raise CorruptBatch("a control batch has no key that says what it controls")
    _, kind = _KEY.unpack_from(record.key)
    if kind not in (_ABORT, _COMMIT):
        return None
    value = record.value or b""
    epoch = _VALUE.unpack_from(value)[1] if len(value) >= _VALUE.size else -1
    return Marker(kind == _COMMIT, epoch)
