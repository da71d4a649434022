"""Request and response headers, and what a bad one is answered with."""

import pytest

from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.framing import RequestHeader, read_request_header, response_frame


@pytest.mark.parametrize(("text", "header"), [
    pytest.param(
        "0003 0008 00000007 0004 6b636174 aabb", RequestHeader(3, 8, 7, "kcat", 14), id="legacy"
    ),
    pytest.param("0003 0008 00000007 ffff aabb", RequestHeader(3, 8, 7, None, 10), id="legacy, no client id"),
    pytest.param("0003 0008 00000007 0000", RequestHeader(3, 8, 7, "", 10), id="empty client id, empty body"),
    pytest.param(
        "0003 0009 00000007 0001 61 00 aabb", RequestHeader(3, 9, 7, "a", 12),
        id="flexible: the client id keeps its legacy form",
    ),
    pytest.param(
        "0003 0009 00000007 ffff 01 05 02 eeee aabb", RequestHeader(3, 9, 7, None, 15),
        id="flexible, with a tagged field",
    ),
    pytest.param("0012 0003 ffffffff 0001 61 00", RequestHeader(18, 3, -1, "a", 12), id="ApiVersions"),
    pytest.param("7f00 0000 00000009", RequestHeader(0x7F00, 0, 9, None, 8), id="unknown key"),
    pytest.param("ffff 0000 00000009 ffff", RequestHeader(-1, 0, 9, None, 8), id="negative key"),
    pytest.param("0012 0063 00000009 ffff ff", RequestHeader(18, 99, 9, None, 8), id="version to come"),
    pytest.param("0003 ffff 00000009 ffff", RequestHeader(3, -1, 9, None, 8), id="negative version"),
    pytest.param("0000 0002 00000009 7fff", RequestHeader(0, 2, 9, None, 8), id="advertised but not served"),
])  # fmt: skip
def test_a_request_header(text: str, header: RequestHeader) -> None:
    assert read_request_header(memoryview(bytes.fromhex(text))) == header


@pytest.mark.parametrize(("text", "fault"), [
    ("", "a request of 0 bytes is too short for a header"),
    ("0003 0008 000000", "a request of 7 bytes is too short for a header"),
    ("0003 0008 00000007", "Metadata v8, request header: client_id is cut off"),
    ("0003 0008 00000007 00", "Metadata v8, request header: client_id is cut off"),
    ("0003 0008 00000007 0002 61", "Metadata v8, request header: client_id claims 2 bytes where 1 are left"),
    ("0003 0008 00000007 fffe 61", "Metadata v8, request header: client_id claims -2 bytes where 1 are left"),
    ("0003 0008 00000007 0001 ff", "Metadata v8, request header: client_id is not UTF-8"),
    ("0003 0009 00000007 ffff", "Metadata v9, request header: tagged fields are cut off"),
    ("0003 0009 00000007 ffff 01 05",
     "Metadata v9, request header: tagged fields: claims 1 entries where 1 bytes are left"),
])  # fmt: skip
def test_a_bad_request_header_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_request_header(memoryview(bytes.fromhex(text)))
    assert str(caught.value) == fault


@pytest.mark.parametrize(("key", "version", "text"), [
    pytest.param(ApiKey.METADATA, 8, "00000006 00000007 aabb", id="legacy"),
    pytest.param(ApiKey.METADATA, 9, "00000007 00000007 00 aabb", id="flexible"),
    pytest.param(ApiKey.API_VERSIONS, 0, "00000006 00000007 aabb", id="ApiVersions, legacy"),
    pytest.param(ApiKey.API_VERSIONS, 4, "00000006 00000007 aabb", id="ApiVersions is never flexible"),
    pytest.param(ApiKey.DESCRIBE_CLUSTER, 0, "00000007 00000007 00 aabb", id="flexible from the start"),
])  # fmt: skip
def test_a_response_frame(key: ApiKey, version: int, text: str) -> None:
    assert response_frame(APIS[key], version, 7, b"\xaa\xbb") == bytes.fromhex(text)
