"""Answers in order, on connections that last as long as both sides want."""

import contextlib
import socket

import pytest

from tests.waiting import eventually

from .serving import KIB, MIB, TIMEOUT_S, Client, Limits, Server, get, post


def test_one_connection_serves_many_requests(client: Client) -> None:
    for number in range(20):
        answer = client.ask(post(b"x" * number, f"/{number}"))
        assert (answer.status, answer.json["body"]) == (200, "x" * number)
        assert "connection" not in answer.headers


def test_a_response_has_type_and_length(client: Client) -> None:
    answer = client.ask(get())

    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-echo"] == "yes"
    assert answer.headers["date"].endswith(" GMT")


def test_the_app_gets_the_address_of_the_client(server: Server, client: Client) -> None:
    client.ask(get())

    assert server.app.requests[0].peer == "{}:{}".format(*client.socket.getsockname())


def test_pipelined_requests_are_answered_in_their_order(client: Client) -> None:
    """Some at once and some later, in one packet."""
    paths = [f"/{'later' if number % 3 else 'now'}/{number}" for number in range(300)]
    client.send(b"".join(map(get, paths)))

    assert [client.answer().json["path"] for _ in paths] == paths


def test_a_request_waits_for_the_one_before_it(server: Server, client: Client) -> None:
    client.send(get("/wait") + get("/after"))
    eventually(lambda: server.app.begun)
    assert [request.path for request in server.app.requests] == ["/wait"]

    server.call(lambda: server.app.released.set())

    assert [client.answer().json["path"] for _ in range(2)] == ["/wait", "/after"]


def test_more_than_is_waited_for_is_not_read(server: Server, client: Client) -> None:
    """While one request waits, the client can send only what the buffers take; all of it is served then."""
    client.send(get("/wait"))
    eventually(lambda: server.app.begun)
    client.socket.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 64 * MIB:
            sent += client.socket.send(post(bytes(64 * KIB)))
    assert sent < 32 * MIB

    server.call(lambda: server.app.released.set())

    client.socket.settimeout(TIMEOUT_S)
    assert client.answer().json["path"] == "/wait"
    assert len(client.answer().json["body"]) == 64 * KIB


def test_many_requests_of_one_client_do_not_keep_others_waiting(server: Server, client: Client) -> None:
    behind: list[int] = []
    # On a busy machine the other request may be sent when all of the many have been answered.
    for _ in range(10):
        before = len(server.app.requests)
        with Client(server.address) as other:
            client.send(get() * 5000)
            other.send(get("/other"))
            other.answer()
        behind.append(len(server.app.requests) - before)
        assert all(client.answer().status == 200 for _ in range(5000))
        if behind[-1] < 5001:
            return
    raise AssertionError(f"the other client was answered after {behind} requests")


def test_a_body_of_many_packets_is_put_together(client: Client) -> None:
    body = bytes(range(256)) * 4 * KIB

    assert client.ask(post(body)).json["body"].encode("latin-1") == body


def test_a_large_answer_arrives_whole(client: Client) -> None:
    assert client.ask(get(f"/big/{20 * MIB}")).body == bytes(20 * MIB)
    assert client.ask(get()).status == 200


def test_head_gets_the_head_only(client: Client) -> None:
    client.send(b"HEAD /big/1000 HTTP/1.1\r\nHost: a\r\n\r\n" + get("/next"))

    answer = client.answer(to_head=True)
    assert (answer.status, answer.headers["content-length"]) == (200, "1000")
    assert client.answer().json["path"] == "/next"


def test_no_content_has_neither_body_nor_length(client: Client) -> None:
    answer = client.ask(get("/empty"))

    assert answer.status == 204
    assert not {"content-length", "content-type"} & answer.headers.keys()
    assert client.ask(get()).status == 200


@pytest.mark.parametrize("path", ["/", "/later"])
def test_the_connection_is_closed_on_request(client: Client, path: str) -> None:
    answer = client.ask(get(path, headers="Connection: close\r\n") + get("/ignored"))

    assert answer.headers["connection"] == "close"
    assert client.is_closed()


def test_http_1_0_closes_unless_keep_alive_is_requested(server: Server, client: Client) -> None:
    answer = client.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert answer.headers["connection"] == "keep-alive"

    answer = client.ask(b"GET / HTTP/1.0\r\n\r\n")
    assert answer.headers["connection"] == "close"
    assert client.is_closed()


def test_expect_100_continue_is_answered(client: Client) -> None:
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    assert client.answer().status == 100

    client.send(b"abc")

    assert client.answer().json["body"] == "abc"


def test_no_100_continue_after_the_body_has_arrived(client: Client) -> None:
    answer = client.ask(post(b"abc", headers="Expect: 100-continue\r\n"))

    assert (answer.status, answer.json["body"]) == (200, "abc")


def test_100_continue_waits_for_earlier_responses(server: Server, client: Client) -> None:
    expecting = b"POST /e HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    client.send(get("/wait") + expecting)
    eventually(lambda: server.app.begun)

    server.call(lambda: server.app.released.set())

    assert client.answer().json["path"] == "/wait"
    assert client.answer().status == 100
    client.send(b"abc")
    assert client.answer().json["body"] == "abc"


def test_expect_100_continue_with_a_large_body_is_refused(server: Server, client: Client) -> None:
    size = Limits().max_body_bytes + 1
    client.send(
        f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\nExpect: 100-continue\r\n\r\n".encode()
    )

    assert client.answer().status == 413


@pytest.mark.parametrize("path", ["/fail", "/fail-later", "/cancelled", "/bad-header"])
def test_a_bug_costs_one_answer_and_tells_nothing(client: Client, path: str) -> None:
    answer = client.ask(get(path))

    assert answer.status == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert b"secret" not in answer.body
    assert "set-cookie" not in answer.headers
    assert client.ask(get()).status == 200


def test_a_bug_is_logged_with_its_place(server: Server, client: Client) -> None:
    client.ask(get("/fail"))

    [failure] = server.logged("request_failed")
    assert failure["request"] == "GET /fail"
    assert "the secret of the house" in str(failure["exception"])


def test_a_long_poll_ends_when_its_client_goes(server: Server, client: Client) -> None:
    client.send(get("/wait"))
    eventually(lambda: server.app.begun)

    client.socket.close()

    assert eventually(lambda: server.app.ended) == ["cancelled"]


def test_a_long_poll_ends_when_its_connection_is_reset(server: Server, client: Client) -> None:
    client.send(get("/wait"))
    eventually(lambda: server.app.begun)

    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.socket.close()

    assert eventually(lambda: server.app.ended) == ["cancelled"]


def test_responses_are_sent_after_the_client_shuts_down_sending(client: Client) -> None:
    client.send(get("/big/1000000"))
    client.socket.shutdown(socket.SHUT_WR)

    assert len(client.answer().body) == 1_000_000
    assert client.is_closed()


def test_shutdown_answers_waiting_clients_and_closes_the_rest(server: Server, client: Client) -> None:
    with Client(server.address) as idle:
        idle.ask(get())
        client.send(get("/wait"))
        eventually(lambda: server.app.begun)

        server.stop()

        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert client.is_closed()
        assert idle.is_closed()
        assert server.app.ended == ["cancelled"]


def test_shutting_down_ends_although_a_client_does_not_read(server: Server, client: Client) -> None:
    client.send(get(f"/big/{32 * MIB}"))
    client.answer(to_head=True)

    server.stop()
