"""Headers of requests and responses, and the size before them."""

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from .apis import APIS, Api, ApiKey
from .errors import ProtocolError
from .varint import Malformed, skip_tagged_fields

_START = Struct(">hhi")  # api key, api version, correlation id
_START_AND_LENGTH = Struct(">hhih")  # … and the length of the client id
_RESPONSE_HEADER = Struct(">ii")
_FLEXIBLE_RESPONSE_HEADER = Struct(">iix")

# Whether a request's header ends in tagged fields, by key and version; others are not served.
_ENDS_IN_TAGS: Mapping[tuple[int, int], bool] = {
    (api.key.value, version): version >= api.flexible_from
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
}


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    # Where the body begins in the frame; undefined for requests that are not served.
    body_at: int


def read_request_header(frame: memoryview) -> RequestHeader:
    """Read the header of a frame without its size.

    For a request that is not served only the start is read, because the rest may have any format.
    """
    size = len(frame)
    if size < _START_AND_LENGTH.size:
        return _start_only(frame)
    key, version, correlation_id, length = _START_AND_LENGTH.unpack_from(frame)
    ends_in_tags = _ENDS_IN_TAGS.get((key, version))
    if ends_in_tags is None:
        return _start_only(frame)
    client_id = None
    at = _START_AND_LENGTH.size
    if length != -1:
        stop = at + length
        if length < 0 or stop > size:
            raise _wrong(key, version, f"client_id claims {length} bytes where {size - at} are left")
        try:
            client_id = str(frame[at:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise _wrong(key, version, "client_id is not UTF-8") from error
        at = stop
    if ends_in_tags:
        try:
            at = skip_tagged_fields(frame, at) if frame[at] else at + 1
        except IndexError as error:
            raise _wrong(key, version, "tagged fields are cut off") from error
        except Malformed as error:
            raise _wrong(key, version, f"tagged fields: {error}") from error
    # Without the constructor of the named tuple, which is a call of Python.
    return tuple.__new__(RequestHeader, (key, version, correlation_id, client_id, at))


def _start_only(frame: memoryview) -> RequestHeader:
    if len(frame) < _START.size:
        raise ProtocolError(f"a request of {len(frame)} bytes is too short for a header")
    key, version, correlation_id = _START.unpack_from(frame)
    if (key, version) in _ENDS_IN_TAGS:
        raise _wrong(key, version, "client_id is cut off")
    return RequestHeader(key, version, correlation_id, None, _START.size)


def _wrong(key: int, version: int, what: str) -> ProtocolError:
    return ProtocolError(f"{APIS[key].name} v{version}, request header: {what}")


def response_frame(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    """Return `body` with its size and header."""
    # A client reads the ApiVersions response before it knows our versions, so its header has no tags.
    if version >= api.flexible_from and api.key != ApiKey.API_VERSIONS:
        return _FLEXIBLE_RESPONSE_HEADER.pack(len(body) + 5, correlation_id) + body
    return _RESPONSE_HEADER.pack(len(body) + 4, correlation_id) + body
