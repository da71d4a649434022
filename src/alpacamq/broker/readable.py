"""The part of a log that an API sends: a slice of a file, for sendfile. APIs use no other type of the log."""

from alpacamq.log.reader import Slice as Readable

__all__ = ["Readable"]
