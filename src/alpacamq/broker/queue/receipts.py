"""Receipt handles: identify one delivery of one message, as text that consumers send back.

A receipt contains everything needed to settle its delivery, so it survives a restart of the broker.
It is not a secret: the checksum detects mistyped and truncated handles.
"""

import binascii
import struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.errors import InvalidGroupId, InvalidReceipt
from alpacamq.queues.messages import QueueId

MAX_RECEIPT_CHARS = 1024
MAX_GROUP_BYTES = 255
TOPIC_TAG_BYTES = 8

_VERSION = 1
# Version, partition, offset, delivery count, generation, start of the topic's id, length of the group.
_FIXED = struct.Struct(f">BIqIq{TOPIC_TAG_BYTES}sB")
_CHECK = struct.Struct(">I")
_TO_OURS = bytes.maketrans(b"+/", b"-_")
# Characters of the standard alphabet become one that is invalid in both.
_FROM_OURS = bytes.maketrans(b"-_+/=", b"+/!!!")


class Receipt(NamedTuple):
    """One delivery. `topic_tag` distinguishes a topic from a later one of the same name."""

    queue: QueueId
    topic_tag: bytes
    partition: int
    offset: int
    delivery_count: int
    generation: int


def check_group(group: str) -> None:
    """Raise InvalidGroupId for a name that does not fit into a receipt."""
    if not group:
        raise InvalidGroupId("invalid group id: must not be empty")
    try:
        size = len(group.encode())
    except UnicodeEncodeError:
        raise InvalidGroupId("invalid group id: not valid Unicode") from None
    if size > MAX_GROUP_BYTES:
        raise InvalidGroupId(f"invalid group id: {size} bytes, the limit is {MAX_GROUP_BYTES}")


def write_receipt(receipt: Receipt) -> str:
    """Encode a receipt as letters, digits, '-' and '_'."""
    (group_name, topic), topic_tag, partition, offset, delivery_count, generation = receipt
    group = group_name.encode()
    body = _FIXED.pack(_VERSION, partition, offset, delivery_count, generation, topic_tag, len(group))
    body += group + topic.encode()
    encoded = binascii.b2a_base64(body + _CHECK.pack(crc32c(body)), newline=False)
    return encoded.translate(_TO_OURS).rstrip(b"=").decode()


def read_receipt(text: str) -> Receipt:
    """Decode a receipt; raises InvalidReceipt."""
    if not 0 < len(text) <= MAX_RECEIPT_CHARS:
        raise InvalidReceipt(f"a receipt handle has 1 to {MAX_RECEIPT_CHARS} characters, not {len(text)}")
    try:
        encoded = text.encode("ascii").translate(_FROM_OURS)
        data = binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4), strict_mode=True)
        body, check = data[: -_CHECK.size], data[-_CHECK.size :]
        if _CHECK.unpack(check)[0] != crc32c(body):
            raise InvalidReceipt("the receipt handle is malformed or truncated")
        version, partition, offset, count, generation, tag, size = _FIXED.unpack_from(body)
        if version != _VERSION:
            raise InvalidReceipt(f"the receipt handle has an unknown version, {version}")
        names = body[_FIXED.size :]
        queue = QueueId(names[:size].decode(), names[size:].decode())
    except (binascii.Error, struct.error, UnicodeDecodeError, UnicodeEncodeError):
        raise InvalidReceipt("the receipt handle is malformed or truncated") from None
    return Receipt(queue, tag, partition, offset, count, generation)
