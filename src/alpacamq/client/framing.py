"""Requests and responses of Kafka's protocol as frames, and the versions that both sides can use."""

from collections.abc import Mapping
from struct import Struct

from alpacamq.model.address import Address
from alpacamq.protocol.apis import APIS, Api, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.cluster import ApiVersionsResponse
from alpacamq.protocol.messages.committed_offsets import OffsetCommitRequest, OffsetFetchRequest
from alpacamq.protocol.messages.fetch import FetchRequest
from alpacamq.protocol.messages.groups import FindCoordinatorRequest
from alpacamq.protocol.messages.produce import ProduceRequest
from alpacamq.protocol.messages.sasl import SaslHandshakeRequest
from alpacamq.protocol.messages.topics import DeleteTopicsRequest
from alpacamq.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from alpacamq.protocol.notation import Message
from alpacamq.protocol.schema import decode

from .errors import Refused, check

CLIENT_ID = "alpacamq"
MAX_RESPONSE_BYTES = 256 << 20
# The version of the first request, before the versions of the broker are known.
API_VERSIONS_VERSION = 3

API_OF: Mapping[type[Message], Api] = {api.request: api for api in APIS.values()}
# Versions of an API that a broker serves: lowest and highest.
Versions = Mapping[int, tuple[int, int]]

# Versions narrower than those we can read and write: in later ones topics go by id instead of name, and
# every transaction ends with a new epoch, which a client that ends it for another could not pass on;
# earlier ones have another form, which only old brokers need.
_VERSIONS: Mapping[type[Message], tuple[int, int]] = {
    ProduceRequest: (3, 11),
    FetchRequest: (4, 12),
    OffsetCommitRequest: (2, 9),
    OffsetFetchRequest: (8, 9),
    FindCoordinatorRequest: (4, 6),
    DeleteTopicsRequest: (6, 6),
    AddPartitionsToTxnRequest: (0, 3),
    EndTxnRequest: (0, 4),
    TxnOffsetCommitRequest: (3, 4),
    # After version 0, messages have no header.
    SaslHandshakeRequest: (1, 1),
}
_REQUEST_START = Struct(">ihhih")
_INT32 = Struct(">i")
_INT16 = Struct(">h")
SIZE_BYTES = _INT32.size


def common_version(api: Api, theirs: tuple[int, int] | None, address: Address) -> int:
    """Return the highest common version. Raises Refused if there is none."""
    lowest, highest = _VERSIONS.get(api.request, (api.min_version, api.max_version))
    if theirs is None or min(highest, theirs[1]) < max(lowest, theirs[0]):
        offer = "offers none" if theirs is None else f"offers versions {theirs[0]} to {theirs[1]}"
        raise Refused(
            f"{api.name} at {address}",
            ErrorCode.UNSUPPORTED_VERSION,
            f"this client needs version {lowest} to {highest}, the broker {offer}",
        )
    return min(highest, theirs[1])


def read_versions(address: Address, body: memoryview, version: int) -> dict[int, tuple[int, int]] | None:
    """Return the versions in a response to ApiVersions; None if it has to be sent again in version 0."""
    if version and len(body) >= _INT16.size and _INT16.unpack_from(body)[0] == ErrorCode.UNSUPPORTED_VERSION:
        # A broker that does not support this version responds in version 0.
        return None
    answer = decode(ApiVersionsResponse, version, body)
    check(f"talking to {address}", answer.error_code)
    return {spoken.api_key: (spoken.min_version, spoken.max_version) for spoken in answer.api_keys}


def request_frame(
    api: Api, version: int, correlation_id: int, body: bytes, client_id: bytes = CLIENT_ID.encode()
) -> bytes:
    """Return a request with its size and header."""
    tags = b"\0" if version >= api.flexible_from else b""
    size = _REQUEST_START.size - SIZE_BYTES + len(client_id) + len(tags) + len(body)
    start = _REQUEST_START.pack(size, api.key, version, correlation_id, len(client_id))
    return b"".join((start, client_id, tags, body))


def response_size(head: bytes | bytearray | memoryview, address: Address) -> int:
    """Return the size of the response that the first four bytes announce. Raises ProtocolError."""
    size: int = _INT32.unpack_from(head)[0]
    if not _INT32.size <= size <= MAX_RESPONSE_BYTES:
        raise ProtocolError(f"{address} announces an answer of {size} bytes; is it a Kafka listener?")
    return size


def response_body(
    frame: memoryview, api: Api, version: int, correlation_id: int, address: Address
) -> memoryview:
    """Return the body of the response to a request. Raises ProtocolError if it is to another one."""
    found = _INT32.unpack_from(frame)[0]
    if found != correlation_id:
        raise ProtocolError(f"{address} responded with correlation id {found} to request {correlation_id}")
    # ApiVersions precedes version negotiation, so its response header is not flexible.
    if version < api.flexible_from or api.key == ApiKey.API_VERSIONS:
        return frame[_INT32.size :]
    if len(frame) <= _INT32.size or frame[_INT32.size]:
        raise ProtocolError(f"{address} sent tagged fields in the header of its {api.name} response")
    return frame[_INT32.size + 1 :]
