"""What SQS calls a message: its id, and its number within a FIFO queue.

A message in the log needs neither stored: both follow from where it lies. One that has no place yet,
because it is delayed, is given them in headers.
"""

from hashlib import md5
from uuid import uuid4

from alpacamq.model.ids import TopicId


def derived_id(topic_id: TopicId, partition: int, offset: int) -> str:
    """The id of the message at this place: a UUID of version 8, which is made of whatever one likes."""
    place = topic_id.bytes + partition.to_bytes(4, "big") + offset.to_bytes(8, "big")
    text = md5(place, usedforsecurity=False).hexdigest()
    return f"{text[:8]}-{text[8:12]}-8{text[13:16]}-a{text[17:20]}-{text[20:]}"


def given_id() -> str:
    """An id for a message that has no place yet."""
    return str(uuid4())


def sequence_number(number: int) -> str:
    """As long as SQS makes them, so that they sort as text too."""
    return f"{number:020d}"
