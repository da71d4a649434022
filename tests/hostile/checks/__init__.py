"""The forty checks: what a hostile client sends, and how it is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.api.http.serving import Answer, Client
from tests.api.kafka.wire import Wire
from tests.hostile.target import Target


@dataclass(frozen=True)
class Check:
    """One row: its number in the list of forty, what is sent, and the answer, in which * matches any text."""

    number: int
    name: str
    answer: str
    attack: Callable[[Target], str]


def closed(target: Target, wire: Wire) -> str:
    """Wait until the broker closes a Kafka connection; return why, as its log says."""
    name = wire.name
    assert wire.is_closed, "the broker answered"
    wire.close()

    def is_wanted(line: dict[str, Any]) -> bool:
        return bool(line["event"] == "connection_closed" and line["peer"] == name)

    return f"closed: {target.wait_for_log(is_wanted)['reason']}"


def status(answer: Answer) -> str:
    """Return the status of a response and the detail of its body."""
    body = answer.json if answer.body else {}
    return f"{answer.status} {body.get('detail') or body.get('__type') or body.get('message') or ''}".strip()


def first_answer(address: tuple[str, int], sent: bytes) -> str:
    """Send bytes on a connection of their own; return the status of the answer, or that it was closed."""
    with Client(address) as client:
        client.send(sent)
        try:
            return status(client.answer())
        except ConnectionError:
            return "closed"
