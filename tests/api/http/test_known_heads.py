"""A head that is known is not parsed again, and means the same as if it were."""

import pytest

from alpacamq.api.http.messages import Refused, Request
from alpacamq.api.http.reader import MAX_KNOWN_HEADS, KnownHeads, Phase, RequestReader, Room

HEAD = b"POST /a?b=1 HTTP/1.1\r\nHost: h\r\nX-Name: value\r\nContent-Length: 3\r\n\r\n"

CHUNKED = HEAD.replace(b"Content-Length: 3", b"Transfer-Encoding: chunked")
UPGRADE = HEAD.replace(b"X-Name: value", b"Connection: upgrade\r\nUpgrade: h2c")


def reader_of(heads: KnownHeads, room: Room | None = None) -> RequestReader:
    return RequestReader("127.0.0.1:1", 1000, room or Room(100_000), heads)


def arrived(reader: RequestReader, *received: bytes) -> list[Request | Refused]:
    for data in received:
        reader.feed(data, 0.0)
    found = [arrival.what for arrival in reader.arrivals]
    reader.arrivals.clear()
    return found


def shown(found: list[Request | Refused]) -> list[object]:
    return [
        (each.status, each.detail)
        if isinstance(each, Refused)
        else (each.method, each.path, each.query_string, dict(each.headers), each.body)
        for each in found
    ]


def test_a_known_head_is_shared_by_the_requests_of_all_connections() -> None:
    heads = KnownHeads()
    (first,) = arrived(reader_of(heads), HEAD + b"abc")
    (second,) = arrived(reader_of(heads), HEAD + b"xyz")
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert second.head is first.head is not None
    assert (first.body, second.body) == (b"abc", b"xyz")


@pytest.mark.parametrize(
    "received",
    [
        pytest.param([HEAD + b"abc"], id="head and body together"),
        pytest.param([HEAD, b"abc"], id="head and body apart"),
        pytest.param([HEAD + b"a", b"bc"], id="part of the body"),
        pytest.param([HEAD[:20], HEAD[20:] + b"abc"], id="part of the head"),
        pytest.param([HEAD + b"abc" + HEAD + b"def"], id="pipelined"),
        pytest.param([HEAD + b"abcGET / HTTP/1.1\r\nHost: h\r\n\r\n"], id="another behind it"),
        pytest.param([b"\r\n" + HEAD + b"abc"], id="an empty line before it"),
        pytest.param([HEAD + b"abc\r\n"], id="an empty line behind it"),
        pytest.param([HEAD + b"abc", b"no request"], id="nonsense behind it"),
        pytest.param([HEAD.replace(b"\r\n", b"\n") + b"a\r\n\r\nbc"], id="bare line feeds"),
        pytest.param([b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc"], id="HTTP/1.0"),
        pytest.param([HEAD.replace(b"X-Name: value", b"Connection: close") + b"abc"], id="the last request"),
        pytest.param([CHUNKED + b"0\r\n\r\n"], id="chunked"),
        pytest.param([HEAD.replace(b"X-Name: value", b"Expect: 100-continue"), b"abc"], id="expectation"),
        pytest.param([UPGRADE + b"abc"], id="upgrade"),
        pytest.param([HEAD.replace(b"Host: h\r\n", b"") + b"abc"], id="no host"),
        pytest.param([HEAD.replace(b": 3", b": 3000") + b"abc"], id="too large"),
    ],
)  # fmt: skip
def test_the_requests_are_those_that_the_parser_finds(received: list[bytes]) -> None:
    expected = shown(arrived(reader_of(KnownHeads()), *received))
    heads = KnownHeads()
    for _ in range(3):
        assert shown(arrived(reader_of(heads), *received)) == expected
    # Behind a request with the same head, on one connection.
    if HEAD in received[0]:
        reader = reader_of(heads)
        arrived(reader, HEAD + b"abc")
        assert reader.phase is Phase.BETWEEN
        assert shown(arrived(reader, *received)) == expected


def test_only_so_many_heads_are_kept() -> None:
    heads = KnownHeads()
    reader = reader_of(heads)

    def head_of(number: int) -> object:
        (found,) = arrived(reader, b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number)
        assert isinstance(found, Request)
        return found.head

    first = head_of(0)
    assert head_of(0) is first
    for number in range(1, MAX_KNOWN_HEADS + 1):
        head_of(number)
    assert head_of(0) is not first


def test_a_body_is_refused_when_the_memory_for_requests_is_used_up() -> None:
    heads, room = KnownHeads(), Room(4)
    reader = reader_of(heads, room)
    (served,) = arrived(reader, HEAD + b"abc")
    assert isinstance(served, Request)
    (refused,) = arrived(reader_of(heads, room), HEAD + b"abc")
    assert isinstance(refused, Refused)
    assert refused.status == 503
