"""Logs, metrics and traces. Imports no other package of AlpacaMQ."""

from .logs import Format, Level, Logger, configure, get_logger

__all__ = ["Format", "Level", "Logger", "configure", "get_logger"]
