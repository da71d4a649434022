"""What was sent to one FIFO queue in the last five minutes, and by whom it is being sent right now.

Who is first with a deduplication id claims it, and then either confirms what became of the message or
gives the claim up; others with the same id wait for that.
"""

import asyncio
import struct
from hashlib import blake2b
from typing import NamedTuple

WINDOW_MS = 5 * 60 * 1000

_PLACE = struct.Struct(">qIq")
_KEY_BYTES = 16


class Remembered(NamedTuple):
    """What became of a message. A delayed one has an id of its own, and its number in place of an offset."""

    sent_ms: int
    partition: int
    offset: int
    message_id: str = ""


Answer = asyncio.Future[Remembered | None]


def key_of(deduplication_id: str, group_id: str | None) -> bytes:
    """Under what a message is remembered; with the group where ids are told apart per group only."""
    # Neither can hold a space. A digest, because most of a million ids would be longer.
    text = deduplication_id if group_id is None else f"{group_id} {deduplication_id}"
    return blake2b(text.encode(), digest_size=_KEY_BYTES).digest()


class Room:
    """How much all windows together remember."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0


class SentWindow:
    """The memory of one queue."""

    def __init__(self, room: Room) -> None:
        self._room = room
        # In the order of sending, so that what is too old is in front.
        self._sent: dict[bytes, bytes] = {}
        self._claims: dict[bytes, Answer] = {}
        # By partition: the highest number given to a message that had no place yet.
        self._last_numbers: dict[int, int] = {}

    def find(self, key: bytes, now_ms: int) -> Remembered | Answer | None:
        """What became of a message, or what will be told about that, or None if it is new."""
        self.forget_before(now_ms - WINDOW_MS)
        if (found := self._sent.get(key)) is not None:
            sent_ms, partition, offset = _PLACE.unpack_from(found)
            return Remembered(sent_ms, partition, offset, found[_PLACE.size :].decode())
        return self._claims.get(key)

    def claim(self, key: bytes) -> None:
        """This message is being sent now."""
        self._claims[key] = asyncio.get_running_loop().create_future()
        self._room.used += 1

    def confirm(self, key: bytes, remembered: Remembered) -> None:
        """The message claimed was sent."""
        self.remember(key, remembered)
        self._settle(key, remembered)

    def give_up(self, key: bytes) -> None:
        """The message claimed was not sent."""
        self._settle(key, None)

    def remember(self, key: bytes, remembered: Remembered) -> None:
        """Note a message that was sent, no earlier than those noted before."""
        if key not in self._sent:
            self._room.used += 1
        place = _PLACE.pack(remembered.sent_ms, remembered.partition, remembered.offset)
        self._sent[key] = place + remembered.message_id.encode()
        if remembered.message_id:
            last = self._last_numbers.get(remembered.partition, -1)
            self._last_numbers[remembered.partition] = max(last, remembered.offset)

    def next_number(self, partition: int, least: int) -> int:
        """A number for a message that will get its place in a partition later: above those given before."""
        number = max(self._last_numbers.get(partition, -1) + 1, least)
        self._last_numbers[partition] = number
        return number

    def forget_before(self, limit_ms: int) -> None:
        """Forget what was sent at `limit_ms` or earlier."""
        sent = self._sent
        while sent:
            key = next(iter(sent))
            if _PLACE.unpack_from(sent[key])[0] > limit_ms:
                return
            del sent[key]
            self._room.used -= 1

    def clear(self) -> None:
        """The queue is gone."""
        self._room.used -= len(self._sent)
        self._sent.clear()

    def _settle(self, key: bytes, outcome: Remembered | None) -> None:
        self._claims.pop(key).set_result(outcome)
        self._room.used -= 1
