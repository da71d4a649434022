"""Where a request ends is beyond doubt, or there is no request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.api.http.messages import Refused, Request
from alpacamq.api.http.reader import Persistence, RequestReader, Room

from .serving import Client, Server, get, post

GET = "GET / HTTP/1.1\r\nHost: a\r\n"
POST = "POST / HTTP/1.1\r\nHost: a\r\n"
UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "request_text",
    [
        pytest.param(
            f"{POST}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="CL then TE"
        ),
        pytest.param(
            f"{POST}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", id="TE then CL"
        ),
        pytest.param(f"{POST}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", id="two lengths"),
        pytest.param(f"{POST}Content-Length: 1\r\nContent-Length: 1\r\n\r\na", id="the same length twice"),
        pytest.param(f"{POST}Content-Length: 1, 1\r\n\r\na", id="a list of lengths"),
        pytest.param(f"{POST}Content-Length: +1\r\n\r\na", id="signed length"),
        pytest.param(f"{POST}Content-Length: -1\r\n\r\n", id="negative length"),
        pytest.param(f"{POST}Content-Length: 0x1\r\n\r\na", id="hexadecimal length"),
        pytest.param(f"{POST}Content-Length: 1 1\r\n\r\na", id="length with a space"),
        pytest.param(f"{POST}Content-Length: 1_0\r\n\r\na", id="length with an underscore"),
        pytest.param(f"{POST}Content-Length: \r\n\r\n", id="empty length"),
        pytest.param(f"{POST}Content-Length: \u00b2\r\n\r\nab", id="length in superscript"),
        pytest.param(f"{POST}Content-Length: {'9' * 30}\r\n\r\n", id="length beyond 64 bits"),
        pytest.param(f"{POST}Content-Length : 1\r\n\r\na", id="space before the colon"),
        pytest.param(f"{POST}Content-Length\t: 1\r\n\r\na", id="tab before the colon"),
        pytest.param(f"{POST}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", id="space before TE's colon"),
        pytest.param(f"{POST}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="gzip, chunked"),
        pytest.param(f"{POST}Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", id="chunked, gzip"),
        pytest.param(f"{POST}Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n", id="a comma before chunked"),
        pytest.param(f"{POST}Transfer-Encoding: identity\r\n\r\n", id="identity"),
        pytest.param(f"{POST}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="xchunked"),
        pytest.param(f"{POST}Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", id="chunked with a parameter"),
        pytest.param(f"{POST}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", id="vertical tab and chunked"),
        pytest.param(f"{POST}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", id="folded TE"),
        pytest.param(
            f"{POST}Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="two TEs"
        ),
        pytest.param(
            f"{POST}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="TE twice"
        ),
        pytest.param(
            f"{POST}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
            id="chunked and identity",
        ),
        pytest.param(
            "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="chunked in HTTP/1.0"
        ),
        pytest.param(f"{POST}{CHUNKED}1\na\n0\n\n", id="chunk lines ending in LF"),
        pytest.param(f"{POST}{CHUNKED}1\r\nab\r\n0\r\n\r\n", id="chunk too long"),
        pytest.param(f"{POST}{CHUNKED}0x1\r\na\r\n0\r\n\r\n", id="chunk size 0x1"),
        pytest.param(f"{POST}{CHUNKED}1 \r\na\r\n0\r\n\r\n", id="chunk size, space"),
        pytest.param(f"{POST}{CHUNKED}-1\r\na\r\n0\r\n\r\n", id="chunk size -1"),
        pytest.param(f"{POST}{CHUNKED}{'F' * 17}\r\na\r\n", id="chunk size beyond 64 bits"),
        pytest.param(f"{POST}{CHUNKED}1;\na\r\n0\r\n\r\n", id="LF in a chunk extension"),
        pytest.param(
            f"{POST}{CHUNKED}0\r\nTransfer-Encoding: chunked\r\n\r\n",
            id="TE as a trailer",
        ),
        pytest.param("GET / HTTP/1.1\nHost: a\n\n", id="lines ending in LF"),
        pytest.param("GET / HTTP/1.1\r\nHost: a\n\r\n", id="one line ending in LF"),
        pytest.param("GET / HTTP/1.1\rHost: a\r\r", id="lines ending in CR"),
        pytest.param(f"{GET}X: a\rY: b\r\n\r\n", id="CR inside a value"),
        pytest.param(f"{GET}X: a\0b\r\n\r\n", id="NUL inside a value"),
        pytest.param(f"{GET}X: a\r\n b\r\n\r\n", id="folded with a space"),
        pytest.param(f"{GET}X: a\r\n\tb\r\n\r\n", id="folded with a tab"),
        pytest.param("GET / HTTP/1.1\r\n Host: a\r\n\r\n", id="space before the first header"),
        pytest.param(f"{GET}X y: a\r\n\r\n", id="space inside a name"),
        pytest.param(f"{GET}: a\r\n\r\n", id="empty name"),
        pytest.param(f"{GET}X\r\n\r\n", id="no colon"),
        pytest.param(f"{GET}X(: a\r\n\r\n", id="name that is no token"),
        pytest.param("GET / HTTP/1.1\r\n\r\n", id="no Host"),
        pytest.param(f"{GET}Host: b\r\n\r\n", id="two Hosts"),
        pytest.param(f"{GET}Host: a\r\n\r\n", id="the same Host twice"),
        pytest.param("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", id="Host with a space"),
        pytest.param("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", id="Host with a path"),
        pytest.param("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", id="Host with a user"),
        pytest.param('GET / HTTP/1.1\r\nHost: a">\r\n\r\n', id="Host with markup"),
        pytest.param("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", id="space in the target"),
        pytest.param("GET /\u00e9 HTTP/1.1\r\nHost: a\r\n\r\n", id="raw byte in the target"),
        pytest.param("GET /#a HTTP/1.1\r\nHost: a\r\n\r\n", id="fragment"),
        pytest.param("GET * HTTP/1.1\r\nHost: a\r\n\r\n", id="* to GET"),
        pytest.param("GET a HTTP/1.1\r\nHost: a\r\n\r\n", id="target without a slash"),
        pytest.param("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", id="target of another scheme"),
        pytest.param("GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", id="target with a user"),
        pytest.param("GET / HTTP/1.2\r\nHost: a\r\n\r\n", id="HTTP/1.2"),
        pytest.param("GET / HTTP/1.10\r\nHost: a\r\n\r\n", id="HTTP/1.10"),
        pytest.param("GET / http/1.1\r\nHost: a\r\n\r\n", id="http in small letters"),
        pytest.param("get / HTTP/1.1\r\nHost: a\r\n\r\n", id="method in small letters"),
        pytest.param(" GET / HTTP/1.1\r\nHost: a\r\n\r\n", id="space before the method"),
        pytest.param("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2 without an upgrade"),
        pytest.param("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
    ],
)
def test_a_request_of_doubtful_framing_is_refused_and_nothing_after_it_is_read(
    server: Server, client: Client, request_text: str
) -> None:
    answer = client.ask((request_text + SMUGGLED).encode("latin-1"))

    assert answer.status == 400
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["status"] == 400
    assert client.is_closed()
    assert server.app.requests == []


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        pytest.param("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, id="HTTP/2.0"),
        pytest.param("GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505, id="HTTP/0.9"),
        pytest.param("GET /\r\n\r\n", 505, id="no version"),
        pytest.param("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501, id="CONNECT"),
        pytest.param("PROPFIND / HTTP/1.1\r\nHost: a\r\n\r\n", 501, id="PROPFIND"),
        pytest.param(f"{POST}Expect: tea\r\nContent-Length: 1\r\n\r\na", 417, id="expecting tea"),
    ],
)
def test_unsupported_protocols_are_refused(
    server: Server, client: Client, request_text: str, status: int
) -> None:
    assert client.ask((request_text + SMUGGLED).encode("latin-1")).status == status
    assert client.is_closed()
    assert server.app.requests == []


@pytest.mark.parametrize(
    ("request_text", "path", "body"),
    [
        pytest.param(f"{GET}\r\n", "/", "", id="plain"),
        pytest.param(f"{GET}X:\r\nY: \r\n\r\n", "/", "", id="empty values"),
        pytest.param(f"\r\n\r\n{GET}\r\n", "/", "", id="empty lines before it"),
        pytest.param("GET /a%20b HTTP/1.1\r\nHost: a\r\n\r\n", "/a%20b", "", id="encoded target"),
        pytest.param("GET http://b/c HTTP/1.1\r\nHost: a\r\n\r\n", "/c", "", id="whole address"),
        pytest.param("GET http://b HTTP/1.1\r\nHost: a\r\n\r\n", "/", "", id="whole address, no path"),
        pytest.param("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "*", "", id="* to OPTIONS"),
        pytest.param("GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", "/", "", id="Host of IPv6"),
        pytest.param("GET / HTTP/1.1\r\nHost:\r\n\r\n", "/", "", id="empty Host"),
        pytest.param(f"{POST}Content-Length: 03 \r\n\r\nabc", "/", "abc", id="length with a zero"),
        pytest.param(
            f"{POST}Transfer-Encoding: Chunked\r\n\r\n2;x=1\r\nab\r\n1\r\nc\r\n0\r\nT: 1\r\n\r\n",
            "/",
            "abc",
            id="chunks, extension, trailer",
        ),
        pytest.param(
            f"{POST}{CHUNKED}0\r\nHost: evil\r\n\r\n",
            "/",
            "",
            id="a trailer is no header",
        ),
        pytest.param(
            f"{POST}{UPGRADE}Content-Length: 3\r\n\r\nabc",
            "/",
            "abc",
            id="upgrade with a body",
        ),
        pytest.param(
            f"{POST}{UPGRADE}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "/",
            "abc",
            id="upgrade with chunks",
        ),
        pytest.param(f"{GET}Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", "/", "", id="websocket"),
    ],
)
def test_pipelined_requests_are_separated(client: Client, request_text: str, path: str, body: str) -> None:
    client.send((request_text + "GET /next HTTP/1.1\r\nHost: a\r\n\r\n").encode("latin-1"))

    first = client.answer()
    assert (first.status, first.json["path"], first.json["body"]) == (200, path, body)
    assert client.answer().json["path"] == "/next"


def test_the_host_of_a_whole_address_is_the_one_that_counts(client: Client) -> None:
    assert client.ask(b"GET http://b:1/ HTTP/1.1\r\nHost: a\r\n\r\n").json["host"] == "b:1"


def test_repeated_headers_are_joined_and_names_are_lower_case(server: Server, client: Client) -> None:
    client.ask(get(headers="X-Many: 1\r\nx-many: 2 \t\r\nX-ONCE: \xe9\r\n"))

    headers = server.app.requests[0].headers
    assert headers == {"host": "a.example", "x-many": "1, 2", "x-once": "\xe9"}


@pytest.mark.parametrize("hostile", ["?a=%ff", "?" + "&".join(f"a{n}=1" for n in range(1001))])
def test_a_malformed_query_is_refused_on_use(hostile: str) -> None:
    request = Request("GET", "/", hostile[1:], {}, b"", "127.0.0.1:1")
    with pytest.raises(Refused) as refused:
        _ = request.query
    assert refused.value.status == 400


def test_a_query_is_decoded() -> None:
    request = Request("GET", "/", "a=1&a=2&b=%C3%A9+x&c", {}, b"", "127.0.0.1:1")
    assert request.query == {"a": ["1", "2"], "b": ["é x"], "c": [""]}


REQUESTS = [
    get("/first?x=1", headers="X: y\r\n"),
    post(b"a body", "/second"),
    f"POST /third HTTP/1.1\r\nHost: a\r\n{CHUNKED}2;x\r\nab\r\n3\r\ncde\r\n0\r\nT: 1\r\n\r\n".encode(),
    b"POST /up HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nab",
    get("/last", headers="Connection: close\r\n"),
]
EXPECTED = [
    ("/first", b"", Persistence.KEEP),
    ("/second", b"a body", Persistence.KEEP),
    ("/third", b"abcde", Persistence.KEEP),
    ("/up", b"ab", Persistence.KEEP),
    ("/last", b"", Persistence.CLOSE),
]


@given(st.lists(st.integers(0, len(b"".join(REQUESTS))), max_size=40))
def test_however_the_bytes_are_cut_the_requests_are_the_same(cuts: list[int]) -> None:
    data = b"".join(REQUESTS)
    room = Room(1000)
    reader = RequestReader("127.0.0.1:1", 1000, room)
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        reader.feed(data[begin:end], 0.0)

    arrived = []
    for what, persistence, held_bytes in reader.arrivals:
        assert isinstance(what, Request)
        assert held_bytes == len(what.body)
        arrived.append((what.path, what.body, persistence))
    assert arrived == EXPECTED


@given(st.integers(0, len(b"".join(REQUESTS))))
def test_memory_is_released_on_disconnect_at_any_point(cut: int) -> None:
    room = Room(1000)
    reader = RequestReader("127.0.0.1:1", 1000, room)
    reader.feed(b"".join(REQUESTS)[:cut], 0.0)

    reader.abandon()

    assert room.take(1000)
