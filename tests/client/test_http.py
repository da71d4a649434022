"""The HTTP client with misbehaving brokers and with other servers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from select import select

import msgspec
import pytest

from alpacamq.client.errors import Unreachable
from alpacamq.client.http import connection as http_module
from alpacamq.client.http.connection import HttpApi, Problem
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError
from tests.waiting import eventually


class Number(msgspec.Struct):
    """An answer."""

    number: int


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def problem(kind: str, status: str, detail: str = "") -> bytes:
    content = {"type": f"urn:alpacamq:problem:{kind}", "title": kind, "status": 0, "detail": detail}
    return answer(msgspec.json.encode(content), status, "Content-Type: application/problem+json")


VERSION = answer(b'{"version":"1","node_id":1,"cluster_id":"c"}')
ONE = answer(b'{"number":1}')


@contextmanager
def broker(*connections: list[bytes]) -> Iterator[HttpApi]:
    """Serves the answers; and a client of it."""
    with serving(*connections) as port, HttpApi(Address("127.0.0.1", port)) as api:
        yield api


@contextmanager
def serving(*connections: list[bytes]) -> Iterator[int]:
    """Gives each connection in turn its answers, request by request, and closes it. Yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server, connections), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


def _serve(server: socket.socket, connections: tuple[list[bytes], ...]) -> None:
    server.settimeout(10)
    for answers in connections:
        connection, _ = server.accept()
        connection.settimeout(10)
        with connection, connection.makefile("rb") as requests:
            for each in answers:
                while requests.readline().strip():
                    pass
                connection.sendall(each)


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        pytest.param(b"", "closed the connection during GET /version", id="nothing"),
        pytest.param(b"\0\0\0\x10 kafka", "not the HTTP API", id="another protocol"),
        pytest.param(answer(b"<html>"), "not the HTTP API", id="a web page"),
        pytest.param(answer(b'{"version":"1"}'), "not the HTTP API", id="another program's version"),
        pytest.param(answer(b"<html>", "404 Not Found"), "not the HTTP API", id="a web server without"),
        pytest.param(problem("unknown-path", "404 Not Found"), "not the HTTP API", id="another of our APIs"),
        pytest.param(answer(b"{}")[:-1], "closed the connection", id="an answer cut short"),
    ],
)
def test_a_server_that_is_not_a_broker_is_detected_on_connect(greeting: bytes, reason: str) -> None:
    with broker([greeting]) as api, pytest.raises(Unreachable, match=reason):
        api.get(["topics"], Number)


def test_a_recovering_broker_is_recognised() -> None:
    greeting = problem("recovering", "503 Service Unavailable", "the broker is recovering: 3 of 8 partitions")
    with broker([greeting]) as api, pytest.raises(Unreachable, match=r"not serve yet: .* 3 of 8 partitions"):
        api.get(["topics"], Number)


def test_responses_are_read_over_one_connection() -> None:
    with broker([VERSION, ONE, answer(b'{"number":2,"further":[]}')]) as api:
        assert [api.get(["x"], Number).number, api.send("POST", ["x"], Number).number] == [1, 2]


def test_a_connection_closed_between_requests_is_reopened() -> None:
    closing = answer(b'{"number":1}', "200 OK", "Connection: close")
    with broker([VERSION, ONE], [VERSION, closing], [VERSION, ONE]) as api:
        for _ in range(3):
            assert api.get(["x"], Number).number == 1
            eventually(lambda: _is_closed(api), what="the connection is closed")


def _is_closed(api: HttpApi) -> bool:
    connection = api._connection
    assert connection is not None
    return connection.sock is None or bool(select([connection.sock], [], [], 0)[0])


@pytest.mark.parametrize(
    ("content", "expected", "reason"),
    [
        pytest.param(answer(b'{"number":"1"}'), Unreachable, "not the HTTP API", id="of another form"),
        pytest.param(answer(b"{")[:-1], Unreachable, "closed the connection", id="cut short"),
        pytest.param(
            problem("stale-receipt", "409 Conflict", "it is over"), Problem, "it is over", id="a refusal"
        ),
        pytest.param(answer(b"{}", "500 Oops"), Problem, "answers 500 Oops", id="a refusal without words"),
    ],
)
def test_invalid_responses(content: bytes, expected: type[AlpacaError], reason: str) -> None:
    with broker([VERSION, content]) as api, pytest.raises(expected, match=reason):
        api.get(["x"], Number)


def test_the_connection_is_reused_after_a_problem_response() -> None:
    with broker([VERSION, problem("stale-receipt", "409 Conflict"), ONE]) as api:
        with pytest.raises(Problem) as refused:
            api.get(["x"], Number)
        assert refused.value.kind == "stale-receipt"
        assert api.get(["x"], Number).number == 1


def test_requests_are_retried_while_the_broker_is_loading() -> None:
    loading = problem("coordinator-loading", "503 Service Unavailable")
    with broker([VERSION, loading, loading, ONE]) as api:
        assert api.get(["x"], Number).number == 1


def test_an_endless_response_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "MAX_ANSWER_BYTES", 1000)
    with (
        broker([VERSION, answer(b'"' + b"x" * 2000 + b'"')]) as api,
        pytest.raises(Unreachable, match="1000"),
    ):
        api.get(["x"], str)
