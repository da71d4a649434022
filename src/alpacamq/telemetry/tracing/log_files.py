"""The files of the trace log: JSON lines, each file named for when it was begun.

Owns their names, reading them, and which of them are deleted. A line that cannot be read, because a crash
tore it or somebody edited the file, is passed over.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from .events import TraceEvent

_PREFIX, _SUFFIX = "traces-", ".jsonl"
_DIGITS = 20
# Read so much at a time: searching holds up the interpreter's other threads.
_CHUNK_BYTES = 256 << 10
# No line of ours is longer; of others, the rest is passed over.
MAX_LINE_BYTES = 64 << 10
_TRACE_AT = len('{"trace_id":"')
_TRACE_END = _TRACE_AT + 32

_decode = msgspec.json.Decoder(TraceEvent).decode


class LogFile(NamedTuple):
    """One file, and when it was begun."""

    begun_us: int
    path: Path

    @classmethod
    def named(cls, directory: Path, begun_us: int) -> "LogFile":
        return cls(begun_us, directory / f"{_PREFIX}{begun_us:0{_DIGITS}}{_SUFFIX}")

    @property
    def size_bytes(self) -> int:
        """0 if it is no more."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    @property
    def modified_us(self) -> int:
        """When its last line was written; 0 if it is no more."""
        try:
            return self.path.stat().st_mtime_ns // 1000
        except OSError:
            return 0


def log_files(directory: Path) -> list[LogFile]:
    """The files there are, oldest first; what is not named like one is not ours."""
    found = []
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        digits = path.name[len(_PREFIX) : -len(_SUFFIX)]
        if len(digits) == _DIGITS and digits.isascii() and digits.isdigit():
            found.append(LogFile(int(digits), path))
    return sorted(found)


def lines_of(file: LogFile) -> Iterator[bytes]:
    """The lines of a file, without their ends; none if it is no more."""
    rest = b""
    try:
        with file.path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                if len(rest) > MAX_LINE_BYTES:
                    rest = b""
                yield from lines
    except OSError:
        return
    if rest:
        yield rest


def trace_of(line: bytes) -> bytes:
    """The id of the trace that a line is of, as its bytes."""
    return line[_TRACE_AT:_TRACE_END]


def read_event(line: bytes) -> TraceEvent | None:
    """The event of a line; None if it is torn or not one of ours."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def events_of(file: LogFile, is_wanted: Callable[[bytes], bool]) -> Iterator[TraceEvent]:
    """The events of those lines of a file that are wanted."""
    for line in lines_of(file):
        if is_wanted(line) and (event := read_event(line)) is not None:
            yield event


def outlived(files: list[LogFile], max_bytes: int, oldest_us: int) -> list[LogFile]:
    """The files to delete so that the rest is not larger than this, and none of it all too old.

    For its size alone, the last one is never among them: it is written to.
    """
    gone = [file for file in files if file.modified_us < oldest_us]
    left = [file for file in files if file not in gone]
    total = sum(file.size_bytes for file in left)
    for file in left[:-1]:
        if total <= max_bytes:
            break
        gone.append(file)
        total -= file.size_bytes
    return gone
