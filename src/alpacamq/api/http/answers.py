"""Answers as bytes."""

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from .messages import Response
from .reader import Persistence

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_CONNECTION = {
    Persistence.KEEP: b"\r\n",
    Persistence.KEEP_AND_SAY_SO: b"Connection: keep-alive\r\n\r\n",
    Persistence.CLOSE: b"Connection: close\r\n\r\n",
}
# Bodies up to this size are copied behind their head, so that both are one piece.
_COPIED_BYTES = 16 << 10


class DateLine:
    """The Date header, made anew once a second."""

    def __init__(self) -> None:
        self._line = b""
        self._valid_until = 0.0

    def at(self, now: float) -> bytes:
        """The line to send at `now`, a reading of the loop's clock."""
        if now >= self._valid_until:
            self._valid_until = now + 1.0
            self._line = f"Date: {formatdate(time.time(), usegmt=True)}\r\n".encode()
        return self._line


def encode(response: Response, persistence: Persistence, date_line: bytes, *, with_body: bool) -> list[bytes]:
    """The pieces to send; ValueError if a header of the answer cannot be one."""
    status, body, content_type, headers = response
    lines = _status_and_type(status, content_type) + date_line
    for name, value in headers:
        lines += _header(name, value)
    if status in _BODILESS:
        return [lines + _CONNECTION[persistence]]
    head = b"%bContent-Length: %d\r\n%b" % (lines, len(body), _CONNECTION[persistence])
    if not with_body:
        return [head]
    if len(body) <= _COPIED_BYTES:
        return [head + body]
    return [head, body]


@lru_cache(maxsize=256)
def _status_and_type(status: int, content_type: str) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = f"HTTP/1.1 {status} {phrase}\r\n".encode()
    return lines if status in _BODILESS else lines + _header("Content-Type", content_type)


def _header(name: str, value: str) -> bytes:
    # A line break from somewhere outside would let its author write the rest of the answer.
    if not (name.isprintable() and value.isprintable()):
        raise ValueError(f"{name!r}: {value!r} cannot be a header")
    return f"{name}: {value}\r\n".encode("latin-1")
