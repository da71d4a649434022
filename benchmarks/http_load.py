"""Consumers and producers that use the HTTP API with JSON."""

import msgspec

from .http_client import HttpClient, together

BATCH = 10
PUBLISHED = 1000
GROUP = "bench"
_encode = msgspec.json.encode


class _Message(msgspec.Struct):
    receipt: str


class _Polled(msgspec.Struct):
    messages: list[_Message] = []


class _Settled(msgspec.Struct):
    errors: int = 0


_polled = msgspec.json.Decoder(_Polled)
_settled = msgspec.json.Decoder(_Settled)


def fill(address: str, topic: str, messages: int, value: str) -> None:
    """Publish `messages`, a thousand at a time."""
    request = _encode({"messages": [{"value": value}] * PUBLISHED})
    head = _head(address, "POST", f"/topics/{topic}/messages")

    async def publish(client: HttpClient) -> None:
        for _ in range(messages // PUBLISHED):
            await client.ask(head, request)

    together(address, [publish])


def drain(address: str, topic: str, messages: int, consumers: int) -> None:
    """Receive and acknowledge exactly `messages`, ten at a time, by as many consumers at once."""
    poll = _head(address, "GET", f"/groups/{GROUP}/poll?topic={topic}&max={BATCH}&wait_ms=1000")
    ack = _head(address, "POST", "/messages/ack")
    left = messages

    async def consume(client: HttpClient) -> None:
        nonlocal left
        while left > 0:
            received = _polled.decode(await client.ask(poll)).messages
            if not received:
                continue
            left -= len(received)
            receipts = [message.receipt for message in received]
            settled = _settled.decode(await client.ask(ack, _encode({"receipts": receipts})))
            assert settled.errors == 0, f"{settled.errors} receipts were refused"

    together(address, [consume] * consumers)
    assert left == 0, f"{-left} messages more than were sent"


def _head(address: str, method: str, path: str) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json".encode()
