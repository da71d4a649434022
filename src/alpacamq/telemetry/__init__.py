"""What the broker says about itself: logs, figures, traces. Imports nothing of ours."""

from .logs import Format, Level, Logger, configure, get_logger

__all__ = ["Format", "Level", "Logger", "configure", "get_logger"]
