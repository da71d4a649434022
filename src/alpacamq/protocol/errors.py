"""Errors of the wire format."""

from alpacamq.model.errors import AlpacaError


class ProtocolError(AlpacaError):
    """The bytes are not a valid Kafka message; names message, field and fault."""


class ManyEntries(Exception):
    """A request has more entries than are read in one go; it has to be decoded in slices."""
