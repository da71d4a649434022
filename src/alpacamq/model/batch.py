"""The header of a record batch (Kafka's format v2), the unit that the broker appends, stores and serves.

Defines the byte layout and the checks that need only the batch itself. `records` handles the records
behind the header.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from .errors import CorruptBatch, UnsupportedCompression
from .ports import Buffer

MAGIC = 2
HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
# Base offset and batch length: enough to find the end of the batch.
FRAME = Struct(">qi")
FRAME_BYTES = FRAME.size
MIN_BATCH_LENGTH = HEADER_BYTES - FRAME_BYTES
EPOCH_AT = 12
CRC_AT = 17
# The checksum covers everything from the attributes on: base offset and leader epoch can be
# patched by the broker without touching it.
CHECKED_FROM = 21

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
KNOWN_ATTRIBUTES = 0x7F

# Length, attributes, timestamp and offset delta, two null fields, no headers: a byte each.
MIN_RECORD_BYTES = 7
# Of a batch that a client sends; librdkafka's own limit. Compressed, more would fit into a small batch, and
# unpacking them takes hundreds of bytes of memory each.
MAX_PRODUCED_RECORDS = 1_000_000

# The epoch of producers inside the broker; clients cannot have it.
BROKER_EPOCH = 2**15 - 1

_PLACE = Struct(">qii")  # base offset, batch length, leader epoch
_CRC = Struct(">I")
_LOG_APPEND = Struct(">hiqq")  # attributes, last offset delta, base and max timestamp
_PRODUCER = Struct(">qhi")  # producer id, producer epoch, base sequence
_PRODUCER_AT = 43


class Codec(IntEnum):
    """Compression of a batch's records, by its number in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BatchHeader(NamedTuple):
    """The 61 bytes in front of a batch's records, in their order on disk and on the wire."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes, frame included."""
        return FRAME_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & COMPRESSION_MASK)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id >= 0


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`; the caller has checked that 61 bytes are there."""
    # Without the constructor of the named tuple, which is a call of Python.
    return tuple.__new__(BatchHeader, HEADER.unpack_from(data, position))


def checksum(batch: Buffer) -> int:
    """Return the CRC-32C of the part that the header's checksum covers."""
    return crc32c(memoryview(batch)[CHECKED_FROM:])


def check_batch(batch: Buffer) -> BatchHeader:
    """Return the header of exactly one whole batch with a matching checksum. Raises CorruptBatch."""
    if len(batch) < HEADER_BYTES:
        raise CorruptBatch(f"a batch of {len(batch)} bytes is shorter than its {HEADER_BYTES}-byte header")
    header = read_header(batch)
    if header.magic != MAGIC:
        raise CorruptBatch(f"batch format {header.magic} is not supported, only {MAGIC}")
    if header.batch_length + FRAME_BYTES != len(batch):
        raise CorruptBatch(
            f"the batch header gives {header.batch_length + FRAME_BYTES} bytes, but there are {len(batch)}"
        )
    if checksum(batch) != header.crc:
        raise CorruptBatch(f"checksum {checksum(batch):#010x} does not match the batch's {header.crc:#010x}")
    return header


def check_produced(header: BatchHeader) -> None:
    """Reject a header that a producer may not send, although its checksum is right."""
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise CorruptBatch(
            f"a batch of {header.record_count} records has last offset delta {header.last_offset_delta}"
        )
    most = MAX_PRODUCED_RECORDS
    if not header.attributes & COMPRESSION_MASK:
        most = min(most, (header.size - HEADER_BYTES) // MIN_RECORD_BYTES)
    if header.record_count > most:
        raise CorruptBatch(
            f"a batch of {header.size} bytes claims {header.record_count} records, more than {most}"
        )
    if header.attributes & ~KNOWN_ATTRIBUTES or header.attributes & DELETE_HORIZON:
        raise CorruptBatch(f"attributes {header.attributes:#06x} have bits reserved for the broker")
    if header.attributes & COMPRESSION_MASK > Codec.ZSTD:
        raise UnsupportedCompression(f"no compression has number {header.attributes & COMPRESSION_MASK}")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise CorruptBatch(
            f"producer {header.producer_id} sent epoch {header.producer_epoch}, "
            f"sequence {header.base_sequence}: both must be 0 or more"
        )
    if header.producer_epoch == BROKER_EPOCH:
        raise CorruptBatch(f"producer epoch {BROKER_EPOCH} is reserved for the broker")


def place(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch of a batch: the two fields outside its checksum."""
    _PLACE.pack_into(batch, 0, base_offset, len(batch) - FRAME_BYTES, leader_epoch)


def stamp_append_time(batch: bytearray | memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Replace a batch's timestamps by the append time and update its checksum."""
    attributes = header.attributes | LOG_APPEND_TIME
    _LOG_APPEND.pack_into(
        batch, CHECKED_FROM, attributes, header.last_offset_delta, header.base_timestamp, now_ms
    )
    crc = checksum(batch)
    _CRC.pack_into(batch, CRC_AT, crc)
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc)


def stamp_producer(batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Set the producer fields of a batch and update its checksum."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, CRC_AT, checksum(batch))
