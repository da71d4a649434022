"""Another implementation, h11, sees the same requests in the same bytes, or one of the two sees none."""

import h11
from hypothesis import example, given, settings
from hypothesis import strategies as st

from alpacamq.api.http.messages import Request
from alpacamq.api.http.reader import RequestReader, Room

Seen = tuple[str, str, bytes]

HEADERS = st.sampled_from(
    [
        "Host: a", "Host: b", "Content-Length: 5", "content-length: 05", "Content-Length: 3",
        "Content-Length: 5, 5", "Content-Length: 0", "Content_Length: 5", "X: a\rContent-Length: 5",
        "Transfer-Encoding: chunked", "transfer-encoding: CHUNKED ", "Transfer-Encoding: identity",
        "Transfer-Encoding: gzip, chunked", "Transfer-Encoding:chunked", "Transfer-Encoding\t: chunked",
        "Connection: close", "Connection: keep-alive", "Connection: upgrade", "Upgrade: h2c",
        "Expect: 100-continue", "X: y", "X:", "X : y", " X: y", "X: \ty\t ",
    ]
)  # fmt: skip
BODIES = st.sampled_from(
    [
        "", "abcde", "abc", "5\r\nabcde\r\n0\r\n\r\n", "5;x=y\r\nabcde\r\n0\r\nT: 1\r\n\r\n", "0\r\n\r\n",
        "5\nabcde\n0\n\n",
        "5\r\nabcdef\r\n0\r\n\r\n", "05\r\nabcde\r\n00\r\n\r\n", "+5\r\nabcde\r\n0\r\n\r\n",
        "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", "0\r\nContent-Length: 5\r\n\r\nabcde",
    ]
)  # fmt: skip
LINE_ENDS = st.sampled_from(["\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n"])
UPGRADE = (
    b"POST /1 HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nabcde"
)
METHODS = st.sampled_from(["GET", "POST", "OPTIONS", "DELETE"])
VERSIONS = st.sampled_from(["1.1", "1.1", "1.1", "1.0"])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A request, more or less."""
    lines = [f"{draw(METHODS)} /{draw(st.integers(0, 9))} HTTP/{draw(VERSIONS)}", "Host: a"]
    lines += draw(st.lists(HEADERS, max_size=3))
    head = "".join(line + draw(LINE_ENDS) for line in lines)
    return (head + draw(LINE_ENDS) + draw(BODIES)).encode()


def seen_by_us(data: bytes) -> list[Seen]:
    reader = RequestReader("127.0.0.1:1", 1000, Room(100_000))
    reader.feed(data, 0.0)
    requests = (arrival.what for arrival in reader.arrivals)
    return [(each.method, each.path, each.body) for each in requests if isinstance(each, Request)]


def seen_by_h11(data: bytes) -> list[Seen]:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    seen = []
    try:
        while isinstance(request := connection.next_event(), h11.Request):
            body = b""
            while isinstance(part := connection.next_event(), h11.Data):
                body += part.data
            if not isinstance(part, h11.EndOfMessage):
                break
            seen.append((request.method.decode(), request.target.decode(), body))
            connection.send(h11.Response(status_code=204, headers=[]))
            connection.send(h11.EndOfMessage())
            if connection.states[h11.SERVER] is not h11.DONE:
                break
            connection.start_next_cycle()
    except h11.RemoteProtocolError:
        pass
    return seen


@settings(max_examples=300)
@given(st.lists(messages(), min_size=1, max_size=3))
@example([UPGRADE, UPGRADE])
def test_nothing_is_smuggled(sent: list[bytes]) -> None:
    ours, theirs = seen_by_us(b"".join(sent)), seen_by_h11(b"".join(sent))

    # We skip empty lines between requests, as RFC 9112 wants it, where h11 sees no request any more.
    both = min(len(ours), len(theirs))
    assert ours[:both] == theirs[:both]


def test_the_last_request_is_the_last_for_both() -> None:
    data = b"GET /1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n"
    assert seen_by_us(data) == seen_by_h11(data) == [("GET", "/1", b"")]
