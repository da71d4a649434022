"""Whatever bytes come: answers or the end of the connection, no crash, and the next client is served."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from .serving import KIB, Client, Server, get, post, served

HEADERS = [
    "Host: a", "Content-Length: 5", "Content-Length: 99999", "Transfer-Encoding: chunked",
    "Connection: close", "Connection: upgrade", "Upgrade: h2c", "Expect: 100-continue", "X: " + "y" * 9000,
]  # fmt: skip
PIECES = [
    b"GET ", b"POST ", b"OPTIONS ", b"CONNECT ", b"PRI ", b"/", b"*", b"http://a/", b"/wait", b"/fail",
    b"/later", b"/big/100000", b"?a=%ff", b" HTTP/1.1", b" HTTP/1.0", b" HTTP/2.0", b" RTSP/1.0",
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"GET / HTTP/1.1\r\nHost: a\r\n",
    b"5\r\nabcde\r\n", b"0\r\n\r\n", b";ext=1", b"ffffffffffffffff\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", get(), get("/later"), post(b"abc"),
    *(f"{header}\r\n".encode() for header in HEADERS),
]  # fmt: skip
SAID = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=20)), max_size=30)
CUTS = st.lists(st.integers(0, 20_000), max_size=5)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    with served(max_body_bytes=64 * KIB, in_flight_bytes=256 * KIB) as server:
        yield server


@settings(max_examples=300)
@given(SAID, CUTS)
@example([b"GET / RTSP/1.0\r\n\r\n"], [])
@example([b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"] * 30, [100])
def test_fuzz(shared_server: Server, said: list[bytes], cuts: list[int]) -> None:
    data = b"".join(said)
    with Client(shared_server.address) as client:
        try:
            for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
                client.send(data[begin:end])
            client.finish()
            answers = client.all_answers()
        except ConnectionError:
            answers = []  # hung up on, in the middle of what it said
    assert {answer.status for answer in answers} <= {100, 200, 400, 413, 414, 417, 431, 500, 501, 503, 505}
    with Client(shared_server.address) as client:
        assert client.ask(post(bytes(60 * KIB))).status == 200
    assert not shared_server.logged("connection_crashed")
