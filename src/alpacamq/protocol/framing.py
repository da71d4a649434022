"""The headers of requests and responses and the size in front of them."""

from struct import Struct
from typing import NamedTuple

from .apis import APIS, Api, ApiKey
from .errors import ProtocolError
from .varint import Malformed, skip_tagged_fields

_START = Struct(">hhi")
_LENGTH = Struct(">h")
_RESPONSE_HEADER = Struct(">ii")
_FLEXIBLE_RESPONSE_HEADER = Struct(">iix")


class RequestHeader(NamedTuple):
    """What comes before a request's body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    # Where the body begins in the frame; no meaning when the request is not one we serve.
    body_at: int


def read_request_header(frame: memoryview) -> RequestHeader:
    """The header of a frame whose size has been taken off.

    Of a request we do not serve only the start is read, for what follows may have any form.
    """
    if len(frame) < _START.size:
        raise ProtocolError(f"a request of {len(frame)} bytes is too short for a header")
    key, version, correlation_id = _START.unpack_from(frame)
    api = APIS.get(key)
    at = _START.size
    if api is None or not api.serves(version):
        return RequestHeader(key, version, correlation_id, None, at)
    left = len(frame) - at - _LENGTH.size
    if left < 0:
        raise ProtocolError(f"{api.name} v{version}: the header has no client_id")
    (length,) = _LENGTH.unpack_from(frame, at)
    at += _LENGTH.size
    client_id = None
    if length != -1:
        if not 0 <= length <= left:
            raise ProtocolError(
                f"{api.name} v{version}: client_id claims {length} bytes where {left} are left"
            )
        try:
            client_id = str(frame[at : at + length], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{api.name} v{version}: client_id is not UTF-8") from error
        at += length
    if version >= api.flexible_from:
        try:
            at = skip_tagged_fields(frame, at)
        except (IndexError, Malformed) as error:
            raise ProtocolError(f"{api.name} v{version}: the header's tagged fields {error}") from error
    return RequestHeader(key, version, correlation_id, client_id, at)


def response_frame(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    """`body` behind its size and header, ready to be sent."""
    # A client reads the ApiVersions response before it knows what we speak, so its header stays plain.
    if version >= api.flexible_from and api.key != ApiKey.API_VERSIONS:
        return _FLEXIBLE_RESPONSE_HEADER.pack(len(body) + 5, correlation_id) + body
    return _RESPONSE_HEADER.pack(len(body) + 4, correlation_id) + body
