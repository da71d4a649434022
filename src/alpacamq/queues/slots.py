"""One slot of the timer wheel: messages that are due about the same time, 16 bytes each.

A message is two numbers: its id, and a word that holds when it is due and which target it is for.
Ids come in ascending order, so one can be found by bisection. A message that is taken back is
marked, and swept out when half of the slot is marks.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import compress

TARGET_BITS = 22
MAX_TARGETS = 1 << TARGET_BITS
# 2^42 ms after 1970 is the year 2109.
MAX_DUE_MS = (1 << (64 - TARGET_BITS)) - 1
# A message of no time and no target: nobody can make one, so it marks what is gone.
_GONE = 0
_TARGET_MASK = MAX_TARGETS - 1


def pack_word(due_ms: int, target: int) -> int:
    """When and where to; sorts by time."""
    return due_ms << TARGET_BITS | target


def due_of(word: int) -> int:
    return word >> TARGET_BITS


def target_of(word: int) -> int:
    return word & _TARGET_MASK


def pack(ids: "array[int]", words: "array[int]") -> bytes:
    """Messages as bytes, ids first."""
    return ids.tobytes() + words.tobytes()


def unpack(data: bytes | memoryview) -> tuple["array[int]", "array[int]"]:
    """What `pack` made; ValueError if it is not that."""
    if len(data) % 16:
        raise ValueError(f"{len(data)} bytes are not a whole number of messages")
    ids, words = array("Q"), array("Q")
    ids.frombytes(data[: len(data) // 2])
    words.frombytes(data[len(data) // 2 :])
    return ids, words


class Slot:
    """Messages by ascending id."""

    __slots__ = ("_gone", "ids", "words")

    def __init__(self, ids: "array[int] | None" = None, words: "array[int] | None" = None) -> None:
        self.ids = array("Q") if ids is None else ids
        self.words = array("Q") if words is None else words
        self._gone = self.words.count(_GONE)

    def __len__(self) -> int:
        return len(self.ids) - self._gone

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Id and word of each message."""
        return ((id_, word) for id_, word in zip(self.ids, self.words, strict=True) if word != _GONE)

    def add(self, id_: int, word: int) -> None:
        """Put in a message whose id is larger than those that are there."""
        self.ids.append(id_)
        self.words.append(word)

    def holds(self, id_: int) -> bool:
        return self._find(id_) is not None

    def remove(self, id_: int) -> bool:
        """Take a message out; false if it is not here."""
        if (at := self._find(id_)) is None:
            return False
        self.words[at] = _GONE
        self._gone += 1
        if self._gone * 2 > len(self.ids):
            self._sweep()
        return True

    def take(self, count: int) -> "Slot":
        """Take out the messages with the lowest ids, at most so many."""
        if self._gone:
            self._sweep()
        taken = Slot(self.ids[:count], self.words[:count])
        del self.ids[:count]
        del self.words[:count]
        return taken

    def put_back(self, other: "Slot") -> None:
        """Put in messages whatever their ids are."""
        self._sweep()
        other._sweep()
        ids, words = other.ids + self.ids, other.words + self.words
        if self.ids and other.ids and self.ids[0] < other.ids[-1]:
            pairs = sorted(zip(ids, words, strict=True))
            ids, words = array("Q", [id_ for id_, _ in pairs]), array("Q", [word for _, word in pairs])
        self.ids, self.words = ids, words

    def earliest_ms(self) -> int | None:
        """When the first of its messages is due."""
        word = min(filter(None, self.words), default=None)
        return None if word is None else due_of(word)

    def after(self, id_: int) -> "Slot":
        """A copy of the messages with larger ids, for a reader in another thread."""
        at = bisect_right(self.ids, id_) if id_ >= 0 else 0
        return Slot(self.ids[at:], self.words[at:])

    def pack(self) -> bytes:
        if self._gone:
            self._sweep()
        return pack(self.ids, self.words)

    def _find(self, id_: int) -> int | None:
        at = bisect_left(self.ids, id_)
        if at == len(self.ids) or self.ids[at] != id_ or self.words[at] == _GONE:
            return None
        return at

    def _sweep(self) -> None:
        self.ids = array("Q", compress(self.ids, self.words))
        self.words = array("Q", filter(None, self.words))
        self._gone = 0
