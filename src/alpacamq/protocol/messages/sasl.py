"""SaslHandshake and SaslAuthenticate: authentication of a connection."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import Bytes, ErrorText, Int16, Int64, Message, String, since


class SaslHandshakeRequest(Message):
    mechanism: String = ""


class SaslHandshakeResponse(Message):
    error_code: Int16 = 0
    mechanisms: Sequence[String] = []


class SaslAuthenticateRequest(Message, flexible_from=2):
    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(Message, flexible_from=2):
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, since(1)] = 0
