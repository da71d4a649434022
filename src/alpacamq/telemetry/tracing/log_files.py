"""Files of the trace log: JSON lines, each file named after its start time.

Owns names, reading and retention of the files. Lines that cannot be decoded, because of a crash or an
edit, are skipped.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from .events import TraceEvent

_PREFIX, _SUFFIX = "traces-", ".jsonl"
_DIGITS = 20
# Chunk size of reads: searching blocks other threads of the interpreter.
_CHUNK_BYTES = 256 << 10
# No valid line is longer; the rest of longer ones is skipped.
MAX_LINE_BYTES = 64 << 10
_TRACE_AT = len('{"trace_id":"')
_TRACE_END = _TRACE_AT + 32

_decode = msgspec.json.Decoder(TraceEvent).decode


class LogFile(NamedTuple):
    """One file and its start time."""

    begun_us: int
    path: Path

    @classmethod
    def named(cls, directory: Path, begun_us: int) -> "LogFile":
        return cls(begun_us, directory / f"{_PREFIX}{begun_us:0{_DIGITS}}{_SUFFIX}")

    @property
    def size_bytes(self) -> int:
        """Size; 0 if the file was deleted."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    @property
    def modified_us(self) -> int:
        """Time of the last write; 0 if the file was deleted."""
        try:
            return self.path.stat().st_mtime_ns // 1000
        except OSError:
            return 0


def log_files(directory: Path) -> list[LogFile]:
    """List the files, oldest first; other files are ignored."""
    found = []
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        digits = path.name[len(_PREFIX) : -len(_SUFFIX)]
        if len(digits) == _DIGITS and digits.isascii() and digits.isdigit():
            found.append(LogFile(int(digits), path))
    return sorted(found)


def lines_of(file: LogFile) -> Iterator[bytes]:
    """Yield the lines of a file without newlines; none if it was deleted."""
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
    """Return the trace id of a line, as bytes."""
    return line[_TRACE_AT:_TRACE_END]


def read_event(line: bytes) -> TraceEvent | None:
    """Decode the event of a line; None if it is torn or invalid."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def events_of(file: LogFile, is_wanted: Callable[[bytes], bool]) -> Iterator[TraceEvent]:
    """Yield the events of selected lines of a file."""
    for line in lines_of(file):
        if is_wanted(line) and (event := read_event(line)) is not None:
            yield event


def expired_files(files: list[LogFile], max_bytes: int, oldest_us: int) -> list[LogFile]:
    """Return the files to delete to enforce the size and age limits.

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
