"""What an API sends of a log: a slice of a file, for sendfile. APIs know the log by this alone."""

from alpacamq.log.reader import Slice as Readable

__all__ = ["Readable"]
