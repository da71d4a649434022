"""The head of a request: what it must say, and what it says about the body."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from .messages import Refused

METHODS: Mapping[bytes, str] = {
    name.encode(): name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY")
}
HTTP_1_0 = "1.0"
HTTP_1_1 = "1.1"
# Names that come with nearly every request, so that lower-casing them is a look-up.
_NAMES: Mapping[bytes, str] = {
    form: name.lower()
    for name in (
        "Host", "Content-Type", "Content-Length", "Accept", "Accept-Encoding", "User-Agent", "Connection",
        "Authorization", "X-Amz-Target", "X-Amz-Date", "X-Amzn-Query-Mode", "amz-sdk-invocation-id",
        "amz-sdk-request", "Expect", "Transfer-Encoding", "traceparent",
    )
    for form in (name.encode(), name.lower().encode())
}  # fmt: skip
_HOST = re.compile(r"[A-Za-z0-9\-._~%!$&'()*+,;=:\[\]]*")
_ABSOLUTE = re.compile(r"https?://([^/?#]+)(.*)", re.IGNORECASE)


class Target(NamedTuple):
    """What a request is for; `authority` only where the target names one, which then counts as Host."""

    path: str
    query_string: str
    authority: str | None = None


def add_header(headers: dict[str, str], name: bytes, value: bytes) -> None:
    """Put one header line with the others."""
    key = _NAMES.get(name) or name.decode("latin-1").lower()
    text = value.decode("latin-1").rstrip(" \t")
    if key in headers:
        if key == "host":
            raise Refused(400, "there is more than one Host header")
        text = f"{headers[key]}, {text}"
    headers[key] = text


def method_of(name: bytes) -> str:
    method = METHODS.get(name)
    if method is None:
        raise Refused(501, f"the method {name.decode('latin-1')} is not served")
    return method


def check_version(version: str) -> None:
    if version not in {HTTP_1_0, HTTP_1_1}:
        raise Refused(505, f"HTTP/{version} is not spoken here; HTTP/1.1 is")


def check_host(host: str) -> None:
    """Host is what addresses in answers are made of, and what a proxy routes by: it must be one."""
    if not _HOST.fullmatch(host):
        raise Refused(400, "the Host header is not a host")


def split_target(target: str, method: str) -> Target:
    """The parts of a request's target."""
    if "#" in target:
        raise Refused(400, "the target has a fragment, which is not for servers")
    if target[:1] == "/":
        path, _, query_string = target.partition("?")
        return Target(path, query_string)
    if target == "*" and method == "OPTIONS":
        return Target("*", "")
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise Refused(400, "the target is neither a path nor an http address")
    authority, rest = absolute.groups()
    check_host(authority)
    path, _, query_string = rest.partition("?")
    return Target(path or "/", query_string, authority)


def is_chunked(headers: Mapping[str, str], version: str) -> bool:
    """Whether the body comes in chunks; any other coding would leave its end in doubt."""
    coding = headers.get("transfer-encoding")
    if coding is None:
        return False
    if coding.lower() != "chunked":
        raise Refused(400, "the only Transfer-Encoding understood is chunked")
    if version == HTTP_1_0:
        raise Refused(400, "HTTP/1.0 has no Transfer-Encoding")
    return True


def wants_continue(headers: Mapping[str, str], version: str) -> bool:
    """Whether the client holds the body back until it is told to go on."""
    expectation = headers.get("expect")
    if expectation is None or version == HTTP_1_0:
        return False
    if expectation.lower() != "100-continue":
        raise Refused(417, "the only expectation that can be met is 100-continue")
    return True
