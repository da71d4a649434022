"""Consumers and producers that use the HTTP API with JSON."""

from collections import deque
from collections.abc import Generator, Sequence

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
    refused: list[_Message] = []


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
    drain_each(address, [topic], messages, consumers, batch)


def drain_ahead(address: str, topic: str, messages: int, consumers: int, batch: int = BATCH) -> None:
    """Do the same, each request acknowledging what the one before it has received."""
    head = _ahead(address, topic, batch)
    left = messages

    def consume() -> Dialogue:
        nonlocal left
        received: list[_Message] = []
        while left:
            wanted = min(batch, left)
            left -= wanted
            body = _encode({"receipts": [each.receipt for each in received]})
            request = http_request(head if wanted == batch else _ahead(address, topic, wanted), body)
            polled = _polled.decode((yield from ask(request)))
            assert not polled.refused, polled.refused
            received = polled.messages
            left += wanted - len(received)
        if received:
            yield from _acknowledge(address, received)

    together(address, [consume() for _ in range(consumers)])
    assert not left, f"{left} messages were not received"


def drain_each(address: str, topics: Sequence[str], messages: int, consumers: int, batch: int) -> None:
    """Receive and acknowledge `messages` of each topic, `batch` at a time, from one topic after another."""
    polls = [_poll(address, topic, batch) for topic in topics]
    left = [messages] * len(topics)
    # Topics that still have messages that no consumer has reserved.
    places = deque(range(len(topics)))

    def consume() -> Dialogue:
        while places:
            place = places.popleft()
            # Reserved before they are received: a poll for what others have received would wait in vain.
            wanted = min(batch, left[place])
            left[place] -= wanted
            if left[place]:
                places.append(place)
            request = polls[place] if wanted == batch else _poll(address, topics[place], wanted)
            received = _polled.decode((yield from ask(request))).messages
            if len(received) < wanted:
                if not left[place]:
                    places.append(place)
                left[place] += wanted - len(received)
            if received:
                yield from _acknowledge(address, received)

    together(address, [consume() for _ in range(consumers)])
    assert not any(left), f"{sum(left)} messages were not received"


def _poll(address: str, topic: str, wanted: int) -> bytes:
    path = f"/groups/{GROUP}/poll?topic={topic}&max={wanted}&wait_ms={WAIT_MS}"
    return http_request(http_head(address, "GET", path))


def _ahead(address: str, topic: str, wanted: int) -> bytes:
    path = f"/groups/{GROUP}/poll?topic={topic}&max={wanted}&wait_ms={WAIT_MS}"
    return http_head(address, "POST", path)


def _acknowledge(address: str, messages: list[_Message]) -> Generator[bytes, bytes, None]:
    body = _encode({"receipts": [message.receipt for message in messages]})
    answer = yield from ask(http_request(http_head(address, "POST", "/messages/ack"), body))
    errors = _settled.decode(answer).errors
    assert errors == 0, f"{errors} receipts were refused"
