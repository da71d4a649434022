"""Consumers and producers of a queue over HTTP, and what they wrote down of it.

A consumer notes a delivery before it does anything about it, that it is about to settle it, and that
the broker has confirmed that: whatever is killed in between, the notes tell what may be expected.
"""

import http.client
import os
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

TOPIC = "work"
GROUP = "workers"
PAUSE_S = 0.05


class Delivered(msgspec.Struct, frozen=True, tag="delivered"):
    """A consumer was given a message."""

    value: str
    partition: int
    offset: int
    count: int


class Settling(msgspec.Struct, frozen=True, tag="settling"):
    """A consumer is about to say what becomes of a delivery."""

    value: str
    count: int
    action: str


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The broker has confirmed that."""

    value: str
    count: int
    action: str


Note = Delivered | Settling | Settled


class Notes:
    """Notes of one consumer, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, notes: list[Note]) -> None:
        os.write(self._descriptor, b"".join(msgspec.json.encode(note) + b"\n" for note in notes))


def read_notes(path: Path) -> list[Note]:
    """Every note but a last one that was cut off."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=Note) for line in lines]


class Refused(Exception):
    """The broker has understood, and says no."""


class HttpConnection:
    """One connection to the broker's HTTP API, made anew when it breaks."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The answer, or Refused; OSError or HTTPException where the broker is not there to give one."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._address, timeout=30)
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            headers = {} if body is None else {"Content-Type": "application/json"}
            self._connection.request(
                method, target, None if body is None else msgspec.json.encode(body), headers
            )
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        if response.status >= 500:
            raise ConnectionError(f"{response.status}: {answer!r}")
        if response.status >= 400:
            raise Refused(f"{method} {target}: {response.status} {answer!r}")
        return msgspec.json.decode(answer) if answer else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Publisher:
    """Publishes numbered messages until told to stop; knows which the broker has confirmed."""

    def __init__(self, address: str) -> None:
        self.confirmed: set[str] = set()
        self.unsure: set[str] = set()
        self._api = HttpConnection(address)
        self._number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.is_set():
            values = [f"{self._number + place}" for place in range(20)]
            self._number += len(values)
            try:
                answer = self._api.ask(
                    "POST", f"/topics/{TOPIC}/messages", {"messages": [{"value": value} for value in values]}
                )
            except (OSError, http.client.HTTPException):
                self.unsure.update(values)
                time.sleep(PAUSE_S)
                continue
            assert answer["errors"] == 0, answer
            self.confirmed.update(values)
            time.sleep(0.02)
