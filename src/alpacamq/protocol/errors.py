"""What the wire format can raise."""

from alpacamq.model.errors import AlpacaError


class ProtocolError(AlpacaError):
    """Bytes that should be a Kafka message are not one; names message, field and fault."""


class ManyEntries(Exception):
    """A request names more than is read in one go; it is to be read in slices."""
