"""Logs: events with fields, one line each, as text for people or JSON for machines.

Owns format and destination of lines. The standard library's loggers (used by asyncio) are
redirected to the same stream, so that there is one format.
"""

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

__all__ = ["Format", "Level", "Logger", "capture_logs", "configure", "get_logger"]


class Level(StrEnum):
    """Minimum severity of written events."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(StrEnum):
    """Format of lines; AUTO is text on a terminal and JSON elsewhere."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


_NUMBERS: Mapping[Level, int] = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
}
# Values of these types are encoded as JSON; all others as text.
_JSON_TYPES = (str, int, float, bool, type(None), list, tuple, dict)

# Takes the logger's name, the level, the event and its fields.
_Write = Callable[[str, Level, str, dict[str, Any]], None]


class _Destination:
    """Where all loggers write, and from which level on."""

    __slots__ = ("level", "write")

    def __init__(self, level: Level, write: _Write) -> None:
        self.level = _NUMBERS[level]
        self.write = write


class Logger:
    """Writes the events of one module."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def debug(self, event: str, **fields: Any) -> None:
        self._write(Level.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write(Level.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write(Level.WARNING, event, fields)

    def error(self, event: str, *, exception: BaseException | None = None, **fields: Any) -> None:
        """Write an error, with the traceback of its exception if there is one."""
        if exception is not None:
            fields["exception"] = _traceback(exception)
        self._write(Level.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Write an error with the traceback of the exception that is being handled."""
        self.error(event, exception=sys.exception(), **fields)

    def _write(self, level: Level, event: str, fields: dict[str, Any]) -> None:
        if _NUMBERS[level] >= _destination.level:
            _destination.write(self.name, level, event, fields)


def get_logger(name: str) -> Logger:
    """Return the logger of a module: `log = get_logger(__name__)`; `log.info("event_name", field=value)`."""
    return Logger(name)


def configure(level: Level, format: Format, stream: TextIO) -> None:  # noqa: A002 - the setting's name
    """Send every event of at least `level` to `stream`; replaces the previous configuration."""
    as_text = format is Format.TEXT or (format is Format.AUTO and stream.isatty())
    _destination.level = _NUMBERS[level]
    _destination.write = _lines(stream, _text_line if as_text else _json_line)
    # Events of libraries are written from warnings on, whatever our own level.
    root = logging.getLogger()
    root.handlers = [_Forward(max(_NUMBERS[level], logging.WARNING))]


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Collect events of every level instead of writing them: their fields, `event` and `log_level`."""
    events: list[dict[str, Any]] = []

    def collect(_name: str, level: Level, event: str, fields: dict[str, Any]) -> None:
        events.append({**fields, "event": event, "log_level": level.value})

    former = _destination.level, _destination.write
    _destination.level, _destination.write = _NUMBERS[Level.DEBUG], collect
    try:
        yield events
    finally:
        _destination.level, _destination.write = former


def _lines(stream: TextIO, line_of: Callable[[str, Level, str, dict[str, Any]], str]) -> _Write:
    """Write events as whole lines. A line that cannot be written is lost; it does not stop the broker."""

    def write(name: str, level: Level, event: str, fields: dict[str, Any]) -> None:
        try:
            stream.write(line_of(name, level, event, fields) + "\n")
            stream.flush()
        except (OSError, ValueError):  # full disk, broken pipe, closed stream
            return

    return write


class _Forward(logging.Handler):
    """Forwards records of the standard library's loggers to our stream."""

    def emit(self, record: logging.LogRecord) -> None:
        level = Level.ERROR if record.levelno >= logging.ERROR else Level.WARNING
        fields: dict[str, Any] = {"message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = _traceback(record.exc_info[1])
        _destination.write(record.name, level, "library_message", fields)


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip("\n")


def _now() -> str:
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _text_line(name: str, level: Level, event: str, fields: dict[str, Any]) -> str:
    exception = fields.pop("exception", None)
    shown = "".join(f" {key}={_text(value)}" for key, value in fields.items())
    line = f"{_now()} {level:<7} {_text(event)}{shown} ({name})"
    return f"{line}\n{exception}" if exception else line


def _text(value: object) -> str:
    """Format a value as one word that cannot forge a line or control the terminal: clients choose some."""
    text = str(value)
    plain = text and text.isprintable() and not set(text) & set(" ='\"")
    return text if plain else repr(text)


def _json_line(name: str, level: Level, event: str, fields: dict[str, Any]) -> str:
    line = {"timestamp": _now(), "level": level.value, "logger": name, "event": event}
    line |= {key: value if type(value) in _JSON_TYPES else str(value) for key, value in fields.items()}
    return json.dumps(line, default=str, skipkeys=True)


def _write_to_stderr(name: str, level: Level, event: str, fields: dict[str, Any]) -> None:
    if sys.__stderr__ is not None:  # else the process was started without one
        _lines(sys.__stderr__, _text_line)(name, level, event, fields)


_destination = _Destination(Level.DEBUG, _write_to_stderr)
