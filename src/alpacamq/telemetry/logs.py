"""Logs: events with fields, one line each, as text for people or JSON for machines.

Owns format and destination of lines. The standard library's loggers (used by asyncio) are
redirected to the same stream, so that there is one format.
"""

import json
import logging
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from typing import Any, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger as Logger

__all__ = ["Format", "Level", "Logger", "configure", "get_logger"]


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


def configure(level: Level, format: Format, stream: TextIO) -> None:  # noqa: A002 - the setting's name
    """Send every event of at least `level` to `stream`; replaces the previous configuration."""
    as_text = format is Format.TEXT or (format is Format.AUTO and stream.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _text_line if as_text else _json_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_NUMBERS[level]),
        logger_factory=lambda name="": _Lines(stream, name),
        cache_logger_on_first_use=False,
    )
    # Events of libraries are written from warnings on, whatever our own level.
    root = logging.getLogger()
    root.handlers = [_Forward(max(_NUMBERS[level], logging.WARNING))]


def get_logger(name: str) -> Logger:
    """Return the logger of a module: `log = get_logger(__name__)`; `log.info("event_name", field=value)`."""
    return cast("Logger", structlog.get_logger(name))


class _Lines:
    """Writes whole lines. A line that cannot be written is lost; it does not stop the broker."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.name = name
        self._stream = stream

    def write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # full disk, broken pipe, closed stream
            return

    debug = info = warning = error = critical = msg = write


class _Forward(logging.Handler):
    """Forwards records of the standard library's loggers to our stream."""

    def emit(self, record: logging.LogRecord) -> None:
        write = get_logger(record.name).log
        write(record.levelno, "library_message", message=record.getMessage(), exc_info=record.exc_info)


def _text_line(logger: _Lines, _method: str, event: MutableMapping[str, Any]) -> str:
    exception = event.pop("exception", None)
    time, level, name = event.pop("timestamp"), event.pop("level"), event.pop("event")
    fields = "".join(f" {key}={_text(value)}" for key, value in event.items())
    line = f"{time} {level:<7} {_text(name)}{fields} ({logger.name})"
    return f"{line}\n{exception}" if exception else line


def _text(value: object) -> str:
    """Format a value as one word that cannot forge a line or control the terminal: clients choose some."""
    text = str(value)
    plain = text and text.isprintable() and not set(text) & set(" ='\"")
    return text if plain else repr(text)


def _json_line(logger: _Lines, _method: str, event: MutableMapping[str, Any]) -> str:
    line = {
        "timestamp": event.pop("timestamp"),
        "level": event.pop("level"),
        "logger": logger.name,
        "event": event.pop("event"),
    }
    line |= {key: value if type(value) in _JSON_TYPES else str(value) for key, value in event.items()}
    return json.dumps(line, default=str, skipkeys=True)
