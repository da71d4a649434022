"""Receipt handles: which delivery of which message, as text for consumers to bring back.

A receipt says all that is needed to settle its delivery, so that it outlives the broker that gave it.
It is not a secret: the checksum tells what is ours from what was mistyped or cut.
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
# What only the usual alphabet has becomes a character that no alphabet has.
_FROM_OURS = bytes.maketrans(b"-_+/=", b"+/!!!")


class Receipt(NamedTuple):
    """One delivery. `topic_tag` tells a topic from a later one of the same name."""

    queue: QueueId
    topic_tag: bytes
    partition: int
    offset: int
    delivery_count: int
    generation: int


def check_group(group: str) -> None:
    """Refuse a name that no receipt could carry."""
    if not group:
        raise InvalidGroupId("a group needs a name")
    try:
        size = len(group.encode())
    except UnicodeEncodeError:
        raise InvalidGroupId("the name of a group is not valid text") from None
    if size > MAX_GROUP_BYTES:
        raise InvalidGroupId(f"the name of a group has at most {MAX_GROUP_BYTES} bytes, this one {size}")


def write_receipt(receipt: Receipt) -> str:
    """The receipt as text of letters, digits, '-' and '_'."""
    (group_name, topic), topic_tag, partition, offset, delivery_count, generation = receipt
    group = group_name.encode()
    body = _FIXED.pack(_VERSION, partition, offset, delivery_count, generation, topic_tag, len(group))
    body += group + topic.encode()
    encoded = binascii.b2a_base64(body + _CHECK.pack(crc32c(body)), newline=False)
    return encoded.translate(_TO_OURS).rstrip(b"=").decode()


def read_receipt(text: str) -> Receipt:
    """What the text says, or InvalidReceipt."""
    if not 0 < len(text) <= MAX_RECEIPT_CHARS:
        raise InvalidReceipt(
            f"a receipt handle has 1 to {MAX_RECEIPT_CHARS} characters, this one {len(text)}"
        )
    try:
        encoded = text.encode("ascii").translate(_FROM_OURS)
        data = binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4), strict_mode=True)
        body, check = data[: -_CHECK.size], data[-_CHECK.size :]
        if _CHECK.unpack(check)[0] != crc32c(body):
            raise InvalidReceipt("the receipt handle is not one of ours, or not all of it")
        version, partition, offset, count, generation, tag, size = _FIXED.unpack_from(body)
        if version != _VERSION:
            raise InvalidReceipt(f"the receipt handle has version {version}, which is not known here")
        names = body[_FIXED.size :]
        queue = QueueId(names[:size].decode(), names[size:].decode())
    except (binascii.Error, struct.error, UnicodeDecodeError, UnicodeEncodeError):
        raise InvalidReceipt("the receipt handle is not one of ours, or not all of it") from None
    return Receipt(queue, tag, partition, offset, count, generation)
