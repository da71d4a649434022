"""Turns the bytes of one connection into complete requests, or the reason why none will follow.

Owns framing: where a request begins and ends must be unambiguous, or a proxy may see other requests than
we do (request smuggling). The parser refuses most ambiguous input; this module refuses the rest. All
buffers are bounded by limits.
"""

import re
from collections import deque
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from .messages import Head, Refused, Request

KIB = 1 << 10

MAX_TARGET_BYTES = 16 * KIB
MAX_HEADER_BYTES = 32 * KIB
MAX_HEADERS = 100
# Bytes passed to the parser per call: it cannot be stopped before the end of its input.
PORTION_BYTES = 8 * KIB
# What one connection may send while an earlier request is being answered; then reading pauses.
MAX_UNREAD_BYTES = 64 * KIB
MAX_UNREAD_PORTIONS = 64
# Requests answered per turn before other connections get theirs.
TURN_REQUESTS = 64
# And how long it may parse: chunks of single bytes take a hundred times as long as others.
TURN_SECONDS = 0.004
# A body may take longer than the timeout of the head if it arrives at this rate.
MIN_BODY_BYTES_PER_SECOND = 64 * KIB
# Unread responses; beyond this no further request is started.
MAX_UNSENT_BYTES = 64 * KIB
MIN_ANSWER_BYTES_PER_SECOND = 64 * KIB
# How long a client may continue sending after its last response, so that it can read that.
LINGER_SECONDS = 2.0
RETRY_AFTER_SECONDS = 1


class HttpLimits(Protocol):
    """The configured limits of one listener."""

    @property
    def max_connections(self) -> int: ...
    @property
    def idle_timeout_ms(self) -> int: ...
    @property
    def header_timeout_ms(self) -> int: ...
    @property
    def max_body_bytes(self) -> int: ...
    @property
    def in_flight_bytes(self) -> int: ...


class Room:
    """Memory for requests, shared by all connections of a listener."""

    __slots__ = ("_free_bytes",)

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes

    @property
    def is_exhausted(self) -> bool:
        return self._free_bytes < 0

    def take(self, size: int) -> bool:
        """Reserve memory for a request that can still be refused; return whether there was enough."""
        if size > self._free_bytes:
            return False
        self._free_bytes -= size
        return True

    def occupy(self, size: int) -> None:
        """Reserve memory that is in use already, even beyond the limit."""
        self._free_bytes -= size

    def give(self, size: int) -> None:
        self._free_bytes += size


METHODS: Mapping[bytes, str] = {
    name.encode(): name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY")
}
HTTP_1_0 = "1.0"
HTTP_1_1 = "1.1"
# Common header names, so that lower-casing them is a lookup.
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
    """Parts of a request target; `authority` is set only for absolute targets and replaces Host."""

    path: str
    query_string: str
    authority: str | None = None


def add_header(headers: dict[str, str], name: bytes, value: bytes) -> None:
    """Add one header line."""
    key = _NAMES.get(name) or name.decode("latin-1").lower()
    text = value.decode("latin-1").rstrip(" \t")
    if key in headers:
        if key == "host":
            raise Refused(400, "more than one Host header")
        text = f"{headers[key]}, {text}"
    headers[key] = text


def method_of(name: bytes) -> str:
    method = METHODS.get(name)
    if method is None:
        raise Refused(501, f"the method {name.decode('latin-1')} is not supported")
    return method


def check_version(version: str) -> None:
    if version not in {HTTP_1_0, HTTP_1_1}:
        raise Refused(505, f"HTTP/{version} is not supported, use HTTP/1.1")


def check_host(host: str) -> None:
    """Refuse an invalid Host: addresses in responses are built from it, and proxies route by it."""
    if not _HOST.fullmatch(host):
        raise Refused(400, "invalid Host header")


def split_target(target: str, method: str) -> Target:
    """Return the parts of a request target."""
    if "#" in target:
        raise Refused(400, "the target must not contain a fragment")
    if target[:1] == "/":
        path, _, query_string = target.partition("?")
        return Target(path, query_string)
    if target == "*" and method == "OPTIONS":
        return Target("*", "")
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise Refused(400, "the target must be a path or an http URL")
    authority, rest = absolute.groups()
    check_host(authority)
    path, _, query_string = rest.partition("?")
    return Target(path or "/", query_string, authority)


def is_chunked(headers: Mapping[str, str], version: str) -> bool:
    """Return whether the body is chunked; with any other coding its end would be ambiguous."""
    coding = headers.get("transfer-encoding")
    if coding is None:
        return False
    if coding.lower() != "chunked":
        raise Refused(400, "unsupported Transfer-Encoding: only chunked is supported")
    if version == HTTP_1_0:
        raise Refused(400, "HTTP/1.0 has no Transfer-Encoding")
    return True


def wants_continue(headers: Mapping[str, str], version: str) -> bool:
    """Return whether the client waits for 100 Continue before it sends the body."""
    expectation = headers.get("expect")
    if expectation is None or version == HTTP_1_0:
        return False
    if expectation.lower() != "100-continue":
        raise Refused(417, "unsupported expectation: only 100-continue is supported")
    return True


# Bytes kept of the last receive, to find the line with a chunk size.
_RECENT_BYTES = 128


class Phase(Enum):
    """The part of a request that the next byte belongs to."""

    BETWEEN = auto()
    HEAD = auto()
    BODY = auto()


class Persistence(Enum):
    """Whether the connection stays open after a response, and whether a header must say so."""

    KEEP = auto()
    KEEP_AND_SAY_SO = auto()  # an HTTP/1.0 client expects it to be closed
    CLOSE = auto()


class Arrival(NamedTuple):
    """A complete request, or the reason for its refusal; it holds `held_bytes` of the shared memory."""

    what: Request | Refused
    persistence: Persistence
    held_bytes: int


# Requests with these headers are always parsed.
_NOT_KEPT = frozenset({"expect", "transfer-encoding", "upgrade"})
# Heads that are kept, for all connections of a listener, and their size.
MAX_KNOWN_HEADS = 512
_MAX_KNOWN_BYTES = 4 * KIB
_END_OF_HEAD = b"\r\n\r\n"


class KnownHeads:
    """Heads of requests that were parsed before, by their bytes; the oldest are forgotten.

    Clients send the same head again and again. A parser that is between two requests finds the same in the
    same bytes, so it need not look at them twice.
    """

    __slots__ = ("heads",)

    def __init__(self) -> None:
        # For reading only.
        self.heads: dict[bytes, Head] = {}

    def add(self, head: bytes, parsed: Head) -> None:
        if len(self.heads) >= MAX_KNOWN_HEADS:
            del self.heads[next(iter(self.heads))]
        self.heads[head] = parsed

    def clear(self) -> None:
        self.heads.clear()


# Of readers whose connection has ended.
_NO_PARSER = HttpRequestParser(object())


class RequestReader:
    """The receiving side of one connection."""

    def __init__(
        self, peer: str, max_body_bytes: int, room: Room, known_heads: KnownHeads | None = None
    ) -> None:
        """`known_heads` are shared by readers with the same limit."""
        self.phase = Phase.BETWEEN
        # When the current head or body began to arrive.
        self.began_at = 0.0
        self.arrivals: deque[Arrival] = deque()
        # No further request follows: the client closes, or framing is lost.
        self.has_ended = False
        self.awaits_continue = False
        self._peer = peer
        self._max_body_bytes = max_body_bytes
        self._room = room
        self._known_heads = KnownHeads() if known_heads is None else known_heads
        self._now = 0.0
        self._checked_host = ""
        # Grows with every parser callback, over the lifetime of the connection.
        self._heard = 0
        self._unheard_bytes = 0
        self._held_bytes = 0
        self._body: bytes | bytearray = b""
        self._chunked = False
        # Of the latest chunk: whether its size was checked, and how much of it has arrived.
        self._chunk_is_new = False
        self._chunk_bytes = 0
        self._recent = b""
        self._parser = HttpRequestParser(self)

    @property
    def body_bytes(self) -> int:
        """How much of the current body has arrived."""
        return len(self._body)

    def feed(self, data: bytes | memoryview, now: float) -> None:
        """Parse received bytes; completed requests are appended to `arrivals`."""
        if self.has_ended:
            return
        self._now = now
        if self.phase is Phase.BETWEEN and isinstance(data, bytes):
            end = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
            head = self._known_heads.heads.get(data[:end])
            if head is None or end + head.body_bytes != len(data) or not self._room.take(head.body_bytes):
                self._parse_and_keep(data, end)
                return
            # A request whose head is known, and whose body has arrived with it.
            request = Request(
                head.method, head.path, head.query_string, head.headers, data[end:], self._peer, head
            )
            self.arrivals.append(Arrival(request, Persistence.KEEP, head.body_bytes))
            return
        self._parse_some(data)

    def _parse_and_keep(self, data: bytes, end: int) -> None:
        """Parse bytes that begin with a request; keep its head if it ends at `end`, and is all there is."""
        count = len(self.arrivals)
        self._parse_some(data)
        if self.phase is not Phase.BETWEEN or self._chunked or self.has_ended:
            return
        if len(self.arrivals) != count + 1 or end > _MAX_KNOWN_BYTES:
            return
        request, persistence, _ = self.arrivals[-1]
        if (
            isinstance(request, Request)
            and persistence is Persistence.KEEP
            and end + len(request.body) == len(data)
            and not self._asks_for_upgrade
            and not _NOT_KEPT.intersection(request.headers)
        ):
            request.head = Head(request)
            self._known_heads.add(data[:end], request.head)

    def _parse_some(self, data: bytes | memoryview) -> None:
        heard = self._heard
        try:
            self._parse(data)
            if self.phase is not Phase.BETWEEN:
                self._check_silence(heard, len(data))
                if self._chunked:
                    self._check_chunk_size(data)
        except Refused as refusal:
            # Its traceback refers to the connection, which refers to it until it is answered: a cycle.
            refusal.__traceback__ = refusal.__context__ = None
            self.end(refusal)

    def end(self, refusal: Refused) -> None:
        """Refuse the current request, and read no further one."""
        self._drop_message()
        self.arrivals.append(Arrival(refusal, Persistence.CLOSE, 0))

    def abandon(self) -> None:
        """Drop requests that were not started, after the client has disconnected."""
        self._drop_message()
        for arrival in self.arrivals:
            self._room.give(arrival.held_bytes)
        self.arrivals.clear()
        # The parser refers to this object: a cycle, which would live until a garbage collection.
        self._parser = _NO_PARSER

    def _drop_message(self) -> None:
        self.has_ended = True
        self.phase = Phase.BETWEEN
        self.awaits_continue = False
        self._body = b""
        self._room.give(self._held_bytes)
        self._held_bytes = 0

    def _parse(self, data: bytes | memoryview) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                data = memoryview(data)[upgrade.args[0] :]
                self._ignore_upgrade()
            except HttpParserCallbackError as error:
                raise error.__context__ or error from None
            except HttpParserError as error:
                if self.has_ended:
                    return  # the error is in bytes after the last request
                raise Refused(400, f"the request is malformed: {error}") from None

    def _ignore_upgrade(self) -> None:
        """Parse the head again without its Upgrade header, because we support no other protocol.

        The parser takes everything after such a head for the other protocol, even the body.
        """
        version = self._parser.get_http_version()
        head = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._target, version.encode())
        for name, value in self._headers.items():
            if name != "upgrade":
                head += f"{name}: {value}\r\n".encode("latin-1")
        self._parser = HttpRequestParser(self)
        self._parse(head + b"\r\n")

    def _check_silence(self, heard: int, received: int) -> None:
        """Bound what the parser buffers or skips without a callback."""
        if self._heard != heard:
            self._unheard_bytes = 0
            return
        self._unheard_bytes += received
        if self._unheard_bytes > MAX_HEADER_BYTES:
            raise Refused(431, f"a line of the request is longer than {MAX_HEADER_BYTES} bytes")

    def _check_chunk_size(self, data: bytes | memoryview) -> None:
        """Refuse a chunk larger than the body limit when its size is announced, not when it has arrived.

        The parser does not report sizes, but if a portion ends inside a chunk, the line with the size ends
        where the data of that chunk begins. A line that is not found there is longer than any client writes
        and is left to the limit on received bytes.
        """
        data = memoryview(data)
        if not self._chunk_is_new:
            self._recent = (self._recent + bytes(data[-_RECENT_BYTES:]))[-_RECENT_BYTES:]
            return
        self._chunk_is_new = False
        end = len(data) - self._chunk_bytes
        before = self._recent + bytes(data[max(0, end - _RECENT_BYTES) : end])
        line = before[before.rfind(b"\n", 0, -1) + 1 :]
        self._recent = b""
        if len(line) == len(before):
            return
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            return
        if len(self._body) - self._chunk_bytes + size > self._max_body_bytes:
            self._refuse_body()

    def _hold(self, size: int) -> None:
        if not self._room.take(size):
            raise Refused(
                503,
                "too many requests in progress; retry later",
                (("Retry-After", str(RETRY_AFTER_SECONDS)),),
            )
        self._held_bytes += size

    # Parser callbacks; an exception ends parsing.

    def on_message_begin(self) -> None:
        self.phase = Phase.HEAD
        self.began_at = self._now
        self._heard += 1
        self._target = b""
        self._headers: dict[str, str] = {}
        self._header_count = 0
        self._header_bytes = 0
        self._asks_for_upgrade = False
        self._chunked = self._chunk_is_new = False
        self._recent = b""

    def on_url(self, part: bytes) -> None:
        self._target += part
        self._heard += 1
        if len(self._target) > MAX_TARGET_BYTES:
            raise Refused(414, f"the target is longer than {MAX_TARGET_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._heard += 1
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_count > MAX_HEADERS or self._header_bytes > MAX_HEADER_BYTES:
            raise Refused(431, f"more than {MAX_HEADERS} headers or {MAX_HEADER_BYTES} bytes of headers")
        if self.phase is Phase.HEAD:
            add_header(self._headers, name, value)
        # Trailers behind a chunked body are counted and ignored.

    def on_headers_complete(self) -> None:
        headers, parser = self._headers, self._parser
        self._method = method_of(parser.get_method())
        self._version = version = parser.get_http_version()
        check_version(version)
        if "upgrade" in headers and parser.should_upgrade():
            self._asks_for_upgrade = True
            return
        self._parts: Target = split_target(self._target.decode("latin-1"), self._method)
        self._check_host()
        self._chunked = is_chunked(headers, version)
        self._content_length = int(headers.get("content-length", 0))
        if self._content_length > self._max_body_bytes:
            self._refuse_body()
        self._hold(0)  # refused if the shared memory is exhausted
        if "expect" in headers and (self._chunked or self._content_length):
            self.awaits_continue = wants_continue(headers, version)
        self.phase = Phase.BODY
        self.began_at = self._now

    def _check_host(self) -> None:
        host = self._headers.get("host")
        if host is None:
            if self._version == HTTP_1_1:
                raise Refused(400, "missing Host header")
        elif host != self._checked_host:
            check_host(host)
            self._checked_host = host
        if self._parts.authority is not None:
            self._headers["host"] = self._parts.authority

    def _refuse_body(self) -> None:
        raise Refused(413, f"the body is larger than {self._max_body_bytes} bytes")

    def on_chunk_header(self) -> None:
        self._chunk_is_new = True
        self._chunk_bytes = 0

    def on_chunk_complete(self) -> None:
        self._chunk_is_new = False

    def on_body(self, part: bytes) -> None:
        self._heard += 1
        self.awaits_continue = False
        if self._chunked:
            self._chunk_bytes += len(part)
            if len(self._body) + len(part) > self._max_body_bytes:
                self._refuse_body()
        # As it arrives: an announced length must not block the bodies of others.
        self._hold(len(part))
        if isinstance(self._body, bytearray):
            self._body += part
        elif not self._chunked and len(part) == self._content_length:
            self._body = part
        else:
            # Not a list of parts: a client that sends single bytes would cost one object per byte.
            self._body = bytearray(part)

    def on_message_complete(self) -> None:
        if self._asks_for_upgrade:
            return
        parts = self._parts
        body = self._body if isinstance(self._body, bytes) else bytes(self._body)
        request = Request(self._method, parts.path, parts.query_string, self._headers, body, self._peer)
        persistence = Persistence.KEEP
        if not self._parser.should_keep_alive():
            persistence = Persistence.CLOSE
            self.has_ended = True
        elif self._version != HTTP_1_1:
            persistence = Persistence.KEEP_AND_SAY_SO
        self.arrivals.append(Arrival(request, persistence, self._held_bytes))
        self._held_bytes = 0
        self._body = b""
        self.awaits_continue = False
        self.phase = Phase.BETWEEN
