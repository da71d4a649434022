"""Consumers and producers of a queue over HTTP, and their records of it.

A consumer records a delivery before it does anything with it, then its intent to settle, then the broker's
confirmation. Whatever is killed in between, these notes tell which outcomes are allowed.
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
    """A consumer received a message."""

    value: str
    partition: int
    offset: int
    count: int


class Settling(msgspec.Struct, frozen=True, tag="settling"):
    """A consumer is about to settle a delivery."""

    value: str
    count: int
    action: str


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The broker has confirmed a settlement."""

    value: str
    count: int
    action: str


Note = Delivered | Settling | Settled


class Notes:
    """The notes of one consumer, in a file that survives it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, notes: list[Note]) -> None:
        os.write(self._descriptor, b"".join(msgspec.json.encode(note) + b"\n" for note in notes))


def read_notes(path: Path) -> list[Note]:
    """Return every note except a torn last one."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=Note) for line in lines]


class Refused(Exception):
    """The broker has returned an error."""


class HttpConnection:
    """One connection to the broker's HTTP API, reopened when it breaks."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Return the answer; raises Refused, or OSError or HTTPException if the broker does not answer."""
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
    """Publishes numbered messages until stopped, and records which ones the broker has confirmed."""

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
