"""Checks 37 to 40: request smuggling, HTTP/2, pages of other sites, and signatures."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from tests.api.http.serving import Client
from tests.hostile.target import ADMIN, MALLORY, OPEN, Target, http_request

from . import Check, first_answer

_HOST = "Host: localhost\r\n"
SMUGGLED = f"GET /topics/smuggled HTTP/1.1\r\n{_HOST}\r\n"


def _smuggled(headers: str, body: str, listener: str = "http") -> Callable[[Target], str]:
    """Send a request whose end is ambiguous, and another one behind it."""

    def attack(target: Target) -> str:
        with Client(getattr(target, listener)) as client:
            client.send(f"POST /topics HTTP/1.1\r\n{_HOST}{headers}\r\n{body}{SMUGGLED}".encode())
            answer = client.answer()
            try:
                second = client.answer()
            except ConnectionError:
                return f"{answer.status}, closed"
            return f"{answer.status}, then {second.status}"

    return attack


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# HEADERS of a stream and RST_STREAM, again and again.
_RESETS = b"".join(
    bytes((0, 0, 1, 1, 5)) + (2 * number + 1).to_bytes(4, "big") + b"\x82"
    + bytes((0, 0, 4, 3, 0)) + (2 * number + 1).to_bytes(4, "big") + bytes(4)
    for number in range(5000)
)  # fmt: skip


def _http2(listener: str) -> Callable[[Target], str]:
    return lambda target: first_answer(getattr(target, listener), PREFACE + _RESETS)


def _upgrade(target: Target) -> str:
    """Ask for HTTP/2 in a request of HTTP/1.1: it is answered as HTTP/1.1."""
    headers = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAMAAABkAAQAAP__",
    }
    with Client(target.http) as client:
        client.send(http_request("GET", "/readyz", b"", headers) + PREFACE)
        first = client.answer()
        second = client.answer()
    return f"{first.status}, then {second.status}"


def _small_chunks(target: Target) -> str:
    """Send a body in chunks of one byte."""
    body = b"1\r\n[\r\n" * 200_000
    with Client(target.http) as client:
        client.send(b"POST /topics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n")
        client.send(
            "".join(f"{name}: {value}\r\n" for name, value in target.bearer(MALLORY).items()).encode()
        )
        client.send(b"\r\n" + body + b"0\r\n\r\n")
        return str(client.answer().status)


def _other_host(listener: str) -> Callable[[Target], str]:
    """Send what a page can send whose name resolves to this machine."""

    def attack(target: Target) -> str:
        address = getattr(target, listener)
        port = address[1]
        request = http_request("GET", "/topics", b"", target.bearer(ADMIN), host=f"evil.example:{port}")
        with Client(address) as client:
            client.send(request)
            return str(client.answer().status)

    return attack


def _other_site(target: Target) -> str:
    """Send what a page of another site can send with the login of a browser."""
    statuses = set()
    for headers in (
        {"Origin": "http://evil.example", "Content-Type": "text/plain"},
        {"Origin": "null", "Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:1"},
    ):
        body = b'{"value": "forged"}'
        path = f"/topics/{OPEN}/messages"
        statuses.add(target.ask_http("POST", path, body, {**target.bearer(MALLORY), **headers}).status)
        request = target.signed("SendMessage", target.message(OPEN), MALLORY)
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name != "Content-Type")
        statuses.add(target.ask_sqs(request.replace(b"\r\n", f"\r\n{extra}".encode(), 1)).status)
        path, body = f"/subjects/{OPEN}-value/versions", b'{"schema": "\\"string\\""}'
        statuses.add(target.ask_registry("POST", path, body, {**target.bearer(MALLORY), **headers}).status)
    return ", ".join(map(str, sorted(statuses)))


def _framing(target: Target) -> str:
    answer = target.ask_http("GET", "/console/")
    policy = answer.headers["content-security-policy"]
    assert answer.status == 200
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    return "frame-ancestors 'none'"


SCRIPT = "<script>alert(1)</script>"


def _script(target: Target) -> str:
    """Have the broker show a script in names, values and errors: never as HTML."""
    headers = target.bearer(MALLORY)
    body = json.dumps({"value": SCRIPT, "key": SCRIPT, "headers": {SCRIPT: SCRIPT}}).encode()
    assert target.ask_http("POST", f"/topics/{OPEN}-script/messages", body, headers).status in {200, 201}
    types = set()
    for path in (
        f"/topics/{OPEN}-script/messages",
        f"/topics/{SCRIPT.replace(' ', '')}".replace("<", "%3C").replace(">", "%3E"),
        f"/groups/{SCRIPT}".replace("<", "%3C").replace(">", "%3E"),
        "/%3Cscript%3E",
        f"/topics?{SCRIPT}",
        f"/console/{SCRIPT}".replace("<", "%3C").replace(">", "%3E"),
    ):
        answer = target.ask_http("GET", path, headers={**headers, "Accept": "text/html"})
        types.add(answer.headers["content-type"].partition(";")[0])
    return ", ".join(sorted(types))


def _signed(change: Callable[[bytes], bytes]) -> Callable[[Target], str]:
    """Send a request that was changed after it was signed."""

    def attack(target: Target) -> str:
        request = target.signed("SendMessage", target.message(OPEN, "body"), MALLORY)
        changed = change(request)
        assert changed != request
        return _sqs_error(target, changed)

    return attack


def _sqs_error(target: Target, request: bytes) -> str:
    answer = target.ask_sqs(request)
    return f"{answer.status} {answer.json['__type'].rpartition('#')[2]}"


def _stamp(moved: timedelta) -> Callable[[bytes], bytes]:
    stamp = (datetime.now(UTC) + moved).strftime("%Y%m%dT%H%M%SZ").encode()
    return lambda request: re.sub(rb"(?i)(x-amz-date: )\w+", rb"\g<1>" + stamp, request)


def _other_region(target: Target) -> str:
    return _sqs_error(target, target.signed("SendMessage", target.message(OPEN), MALLORY, region="eu-west-1"))


def _other_secret(target: Target) -> str:
    return _sqs_error(target, target.signed("SendMessage", target.message(OPEN), MALLORY, secret="a guess"))  # noqa: S106 - a wrong one


def _unsigned_action(request: bytes) -> bytes:
    """Leave the action out of what is signed, and change it."""
    request = request.replace(b";x-amz-target", b"")
    return request.replace(b"AmazonSQS.SendMessage", b"AmazonSQS.DeleteQueue")


_CHUNKED = "Transfer-Encoding: chunked\r\n"
_WRONG = "403 InvalidSignatureException"

CHECKS = [
    Check(
        37,
        "Content-Length and Transfer-Encoding",
        "400, closed",
        _smuggled(f"Content-Length: 6\r\n{_CHUNKED}", "0\r\n\r\n"),
    ),
    Check(
        37,
        "Transfer-Encoding and Content-Length, SQS",
        "400, closed",
        _smuggled(f"{_CHUNKED}Content-Length: 6\r\n", "0\r\n\r\n", "sqs"),
    ),
    Check(
        37,
        "Transfer-Encoding and Content-Length, registry",
        "400, closed",
        _smuggled(f"{_CHUNKED}Content-Length: 6\r\n", "0\r\n\r\n", "registry"),
    ),
    Check(
        37,
        "two different Content-Lengths",
        "400, closed",
        _smuggled("Content-Length: 2\r\nContent-Length: 3\r\n", "{}"),
    ),
    Check(
        37,
        "Transfer-Encoding: chunked, identity",
        "400, closed",
        _smuggled("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
    ),
    Check(
        37,
        "a space before the colon of Transfer-Encoding",
        "400, closed",
        _smuggled("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
    ),
    Check(37, "a bare line feed in the chunks", "400, closed", _smuggled(_CHUNKED, "2\n{}\r\n0\r\n\r\n")),
    Check(37, "200,000 chunks of one byte", "400", _small_chunks),
    Check(38, "HTTP/2 with 5,000 streams that are reset, HTTP", "400 *", _http2("http")),
    Check(38, "HTTP/2 with 5,000 streams that are reset, SQS", "400 *", _http2("sqs")),
    Check(38, "HTTP/2 with 5,000 streams that are reset, registry", "400 *", _http2("registry")),
    Check(38, "an upgrade to HTTP/2", "200, then 400", _upgrade),
    Check(39, "a name that resolves to this machine, HTTP", "421", _other_host("http")),
    Check(39, "a name that resolves to this machine, SQS", "421", _other_host("sqs")),
    Check(39, "a name that resolves to this machine, registry", "421", _other_host("registry")),
    Check(39, "requests of pages of other sites, HTTP, SQS and registry", "403", _other_site),
    Check(39, "the console in a frame", "frame-ancestors 'none'", _framing),
    Check(39, "a script in names, values and errors", "application/json, application/problem+json", _script),
    Check(
        40, "SigV4, the body changed", _WRONG, _signed(lambda request: request.replace(b'"body"', b'"BODY"'))
    ),
    Check(
        40,
        "SigV4, a header changed",
        _WRONG,
        _signed(lambda request: request.replace(b"AmazonSQS.SendMessage", b"AmazonSQS.DeleteQueue")),
    ),
    Check(40, "SigV4, the action not signed", "400 IncompleteSignatureException", _signed(_unsigned_action)),
    Check(40, "SigV4, a date of an hour ago", _WRONG, _signed(_stamp(timedelta(hours=-1)))),
    Check(40, "SigV4, a date in an hour", _WRONG, _signed(_stamp(timedelta(hours=1)))),
    Check(40, "SigV4, another region", _WRONG, _other_region),
    Check(40, "SigV4, another secret", _WRONG, _other_secret),
]
