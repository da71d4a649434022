"""Consumers and producers that use the HTTP API with JSON."""

from collections.abc import Generator

import msgspec

from .dialogue import Dialogue, Turns, ask, http_head, http_request, together

BATCH = 10
PUBLISHED = 1000
GROUP = "bench"
WAIT_MS = 1000
_encode = msgspec.json.encode


class _Message(msgspec.Struct):
    receipt: str


class _Polled(msgspec.Struct):
    messages: list[_Message] = []


class _Settled(msgspec.Struct):
    errors: int = 0


_polled = msgspec.json.Decoder(_Polled)
_settled = msgspec.json.Decoder(_Settled)


def publish(address: str, topic: str, turns: Turns, value: str, *, connections: int, batch: int) -> None:
    """Send requests with `batch` messages each, one in flight on each connection."""
    body = _encode({"messages": [{"value": value}] * batch})
    request = http_request(http_head(address, "POST", f"/topics/{topic}/messages"), body)

    def send() -> Dialogue:
        for _ in turns:
            answer = yield from ask(request)
            assert b'"errors":0' in answer, answer[-200:]

    together(address, [send() for _ in range(connections)])


def fill(address: str, topic: str, messages: int, value: str) -> None:
    """Publish `messages`, a thousand at a time."""
    publish(address, topic, Turns(messages // PUBLISHED), value, connections=1, batch=PUBLISHED)


def drain(address: str, topic: str, messages: int, consumers: int, batch: int = BATCH) -> None:
    """Receive and acknowledge exactly `messages`, `batch` at a time, by as many consumers at once."""
    ack = http_head(address, "POST", "/messages/ack")
    left = messages

    def poll(wanted: int) -> bytes:
        path = f"/groups/{GROUP}/poll?topic={topic}&max={wanted}&wait_ms={WAIT_MS}"
        return http_request(http_head(address, "GET", path))

    whole = poll(batch)

    def settle(received: list[_Message]) -> Generator[bytes, bytes, None]:
        receipts = [message.receipt for message in received]
        answer = yield from ask(http_request(ack, _encode({"receipts": receipts})))
        errors = _settled.decode(answer).errors
        assert errors == 0, f"{errors} receipts were refused"

    def consume() -> Dialogue:
        nonlocal left
        while left:
            # Reserved before they are received: a poll for what others have received would wait in vain.
            wanted = min(batch, left)
            left -= wanted
            answer = yield from ask(whole if wanted == batch else poll(wanted))
            received = _polled.decode(answer).messages
            left += wanted - len(received)
            if received:
                yield from settle(received)

    together(address, [consume() for _ in range(consumers)])
    assert left == 0, f"{left} messages were not received"
