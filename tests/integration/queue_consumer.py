"""A consumer of a queue as a process, with the arguments ADDRESS NAME SEED FILE.

It acknowledges most messages, fails some, rejects a few, ignores others, and records what it does.
"""

import http.client
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from .queue_traffic import (
    GROUP,
    PAUSE_S,
    TOPIC,
    Delivered,
    HttpConnection,
    Note,
    Notes,
    Refused,
    Settled,
    Settling,
)

LEASE_MS = 1500
ACTIONS = {"ack": 80, "nack": 8, "reject": 3, "forget": 9}


class Consumer:
    """Receives messages and settles them at random."""

    def __init__(self, address: str, name: str, seed: int, notes: Notes) -> None:
        self._api = HttpConnection(address)
        self._name = name
        self._dice = random.Random(seed)
        self._notes = notes
        self.is_stopping = False

    def run(self) -> None:
        while not self.is_stopping:
            try:
                self._work()
            except (OSError, http.client.HTTPException):
                time.sleep(PAUSE_S)

    def _work(self) -> None:
        answer = self._api.ask(
            "GET",
            f"/groups/{GROUP}/poll",
            topic=TOPIC,
            max=self._dice.choice([1, 5, 10, 50]),
            wait_ms=500,
            visibility_ms=LEASE_MS,
            consumer=self._name,
        )
        messages = answer["messages"]
        self._notes.write(
            [Delivered(m["value"], m["partition"], m["offset"], m["delivery_count"]) for m in messages]
        )
        by_action: dict[str, list[Any]] = {}
        for message in messages:
            (action,) = self._dice.choices(list(ACTIONS), list(ACTIONS.values()))
            by_action.setdefault(action, []).append(message)
        for action, chosen in by_action.items():
            if action != "forget":
                self._settle(action, chosen)

    def _settle(self, action: str, messages: list[Any]) -> None:
        self._notes.write([Settling(m["value"], m["delivery_count"], action) for m in messages])
        try:
            answer = self._api.ask(
                "POST", f"/messages/{action}", {"receipts": [m["receipt"] for m in messages]}
            )
        except Refused:
            return  # the only lease has expired
        done: list[Note] = []
        for message, result in zip(messages, answer["results"], strict=True):
            if "error" not in result:
                done.append(Settled(message["value"], message["delivery_count"], action))
        self._notes.write(done)


def main() -> None:
    address, name, seed, file = sys.argv[1:]
    consumer = Consumer(address, name, int(seed), Notes(Path(file)))

    def stop(*_: object) -> None:
        consumer.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    consumer.run()


if __name__ == "__main__":
    main()
