"""Counts the HTTP/2 frames of a client before they are parsed.

A frame of nine bytes takes longer to parse than to send. Frames that change nothing, or only undo what others
did, are limited in number, and so are those that are parsed in one turn of the event loop. Clients earn some
of them: by reading what they are sent, and by calls that end.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES = 9
END_STREAM = 0x1
END_HEADERS = 0x4
# Of the headers of a call as they are sent; they may not be longer unpacked either.
MAX_HEADER_BYTES = 16 << 10
# Frames that are parsed in one turn. Those with headers, which begin calls, count as several.
TURN_FRAMES = 256
_HEADERS_WEIGHT = 8


class FrameKind(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Allowance(NamedTuple):
    """How many frames of a kind a client may send at once, and how many more each second."""

    burst: float
    per_second: float


# Data without contents that does not end a call counts as this kind.
EMPTY_DATA = -1
OTHER = -2
ALLOWANCES = {
    EMPTY_DATA: Allowance(100, 10),
    FrameKind.PRIORITY: Allowance(200, 10),
    FrameKind.RST_STREAM: Allowance(200, 20),
    FrameKind.SETTINGS: Allowance(50, 2),
    FrameKind.PING: Allowance(100, 2),
    FrameKind.GOAWAY: Allowance(5, 0),
    FrameKind.WINDOW_UPDATE: Allowance(1000, 100),
    FrameKind.CONTINUATION: Allowance(100, 10),
    OTHER: Allowance(100, 10),
}
# The length of frames of these kinds; that of SETTINGS is a multiple of one setting.
_LENGTHS: Mapping[int, int] = {
    FrameKind.PRIORITY: 5,
    FrameKind.RST_STREAM: 4,
    FrameKind.PING: 8,
    FrameKind.WINDOW_UPDATE: 4,
}
_SETTING_BYTES = 6
_NAMES = {EMPTY_DATA: "empty DATA", OTHER: "unknown"}


class FloodError(Exception):
    """The client sends too many frames of a kind, or too long headers."""


class FrameLengthError(Exception):
    """The client sends a frame of a length that its kind cannot have."""


class FrameMeter:
    """Follows the frames of one connection."""

    __slots__ = ("_block_bytes", "_head", "_left", "_refilled_at", "_skip", "in_headers")

    def __init__(self, now: float) -> None:
        self._left = {kind: allowance.burst for kind, allowance in ALLOWANCES.items()}
        self._refilled_at = now
        # Bytes of the current frame, or of the preface, that are still to come.
        self._skip = len(PREFACE)
        # The part of a frame's header that has arrived.
        self._head = b""
        # Whether the headers of a call are incomplete, and how long they are so far.
        self.in_headers = False
        self._block_bytes = 0

    @property
    def is_between(self) -> bool:
        """Whether what has arrived ends with a whole frame."""
        return not (self._skip or self._head or self.in_headers)

    def earn(self, kind: FrameKind, count: int = 1) -> None:
        """Let a client send more frames of a kind."""
        self._left[kind] = min(self._left[kind] + count, ALLOWANCES[kind].burst)

    def spend(self, kind: int) -> None:
        """Count a frame of a kind. Raises FloodError if the client has sent too many."""
        self._left[kind] -= 1
        if self._left[kind] < 0:
            name = _NAMES.get(kind) or FrameKind(kind).name
            raise FloodError(f"too many {name} frames")

    def refill(self, now: float) -> None:
        """Add what a client may send by now."""
        seconds = now - self._refilled_at
        if seconds < 0.05:
            return
        self._refilled_at = now
        for kind, allowance in ALLOWANCES.items():
            self._left[kind] = min(self._left[kind] + seconds * allowance.per_second, allowance.burst)

    def end_of_turn(self, data: bytes, at: int) -> int:
        """Return how much of `data`, from `at` on, to parse in this turn.

        Raises FloodError, FrameLengthError.
        """
        size = len(data)
        frames = 0
        while at < size:
            if self._skip:
                step = min(self._skip, size - at)
                self._skip -= step
                at += step
                continue
            if frames >= TURN_FRAMES:
                return at
            if self._head or size - at < FRAME_HEADER_BYTES:
                taken = FRAME_HEADER_BYTES - len(self._head)
                self._head += data[at : at + taken]
                at = min(at + taken, size)
                if len(self._head) < FRAME_HEADER_BYTES:
                    return size
                head, self._head = self._head, b""
            else:
                head = data[at : at + FRAME_HEADER_BYTES]
                at += FRAME_HEADER_BYTES
            length = head[0] << 16 | head[1] << 8 | head[2]
            self._skip = length
            frames += self._count(head[3], head[4], length)
        return size

    def _count(self, kind: int, flags: int, length: int) -> int:
        """Count a frame; return its weight."""
        if kind == FrameKind.DATA and (length or flags & END_STREAM):
            return 1
        if kind == FrameKind.HEADERS:
            self._in_block(flags, length, begins=True)
            return _HEADERS_WEIGHT
        if kind == FrameKind.CONTINUATION:
            self._in_block(flags, length, begins=False)
        elif length != _LENGTHS.get(kind, length) or (kind == FrameKind.SETTINGS and length % _SETTING_BYTES):
            raise FrameLengthError(f"a {FrameKind(kind).name} frame of {length} bytes")
        self.spend(EMPTY_DATA if kind == FrameKind.DATA else kind if kind in ALLOWANCES else OTHER)
        return 1

    def _in_block(self, flags: int, length: int, *, begins: bool) -> None:
        self._block_bytes = length if begins else self._block_bytes + length
        self.in_headers = not flags & END_HEADERS
        if self._block_bytes > MAX_HEADER_BYTES:
            raise FloodError(f"headers of more than {MAX_HEADER_BYTES} bytes")
