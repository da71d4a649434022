"""Events of the audit log, as the broker writes them to its topic."""

import msgspec

from alpacamq.model.topics import AUDIT_TOPIC
from alpacamq.security.audit import AuditEvent

__all__ = ["AUDIT_TOPIC", "AuditEvent", "decode_event"]

_decode = msgspec.json.Decoder(AuditEvent).decode


def decode_event(value: bytes | None) -> AuditEvent | None:
    """Return the event in a message; None if it is one of a later version."""
    try:
        return _decode(value or b"")
    except msgspec.DecodeError:
        return None
