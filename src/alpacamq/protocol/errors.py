"""What the wire format can raise."""

from alpacamq.model.errors import AlpacaError


class ProtocolError(AlpacaError):
    """Bytes that should be a Kafka message are not one; names message, field and fault."""
