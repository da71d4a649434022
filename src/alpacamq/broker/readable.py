"""What a door sends of a log: a slice of a file, for sendfile. Doors know the log by this alone."""

from alpacamq.log.slice import Slice as Readable

__all__ = ["Readable"]
