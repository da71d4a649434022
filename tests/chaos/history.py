"""The history of a run: what clients asked for, what they were answered, and the faults meanwhile.

An append-only file of JSON lines. Every value sent is unique. A request is recorded before it is sent and
its confirmation when it arrives; one without a confirmation has an unknown outcome. Times are monotonic,
in seconds, and shared by all processes of a machine.
"""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """A record is about to be sent; one producer sends to a partition in order."""

    topic: str
    partition: int
    producer: str
    value: str
    # The transaction that it belongs to.
    transaction: str = ""
    at_s: float = 0.0


class Acked(msgspec.Struct, frozen=True, tag="acked"):
    """A record was acknowledged, at an offset that the client was told; -1 if it was not."""

    topic: str
    partition: int
    value: str
    offset: int
    at_s: float = 0.0


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A client gave up: an error came out of a library that retries by itself."""

    client: str
    error: str
    at_s: float = 0.0


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A request failed, or was not answered, in a client that leaves retries to its caller."""

    client: str
    error: str
    waited_s: float
    at_s: float = 0.0


class Ending(msgspec.Struct, frozen=True, tag="ending"):
    """A transaction is about to be committed or aborted."""

    transaction: str
    commit: bool
    at_s: float = 0.0


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The end of a transaction was confirmed."""

    transaction: str
    commit: bool
    at_s: float = 0.0


class Read(msgspec.Struct, frozen=True, tag="read"):
    """A consumer was given a record."""

    reader: str
    topic: str
    partition: int
    offset: int
    value: str
    at_s: float = 0.0


class Assigned(msgspec.Struct, frozen=True, tag="assigned"):
    """A member owns partitions in a generation of its group."""

    group: str
    member: str
    generation: int
    topic: str
    partitions: tuple[int, ...]
    at_s: float = 0.0


class Revoked(msgspec.Struct, frozen=True, tag="revoked"):
    """A member does not own partitions any more."""

    group: str
    member: str
    topic: str
    partitions: tuple[int, ...]
    at_s: float = 0.0


class Committing(msgspec.Struct, frozen=True, tag="committing"):
    """A member is about to commit an offset."""

    group: str
    topic: str
    partition: int
    offset: int
    at_s: float = 0.0


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """The commit was confirmed."""

    group: str
    topic: str
    partition: int
    offset: int
    at_s: float = 0.0


class Position(msgspec.Struct, frozen=True, tag="position"):
    """A group's committed offset as the broker returned it to a request sent at `asked_s`."""

    group: str
    topic: str
    partition: int
    offset: int
    asked_s: float
    at_s: float = 0.0


class Leased(msgspec.Struct, frozen=True, tag="leased"):
    """A queue consumer received a message: no other consumer may have it for `lease_ms`.

    The lease began between `asked_s` and the time of this event.
    """

    queue: str
    consumer: str
    value: str
    lease_ms: int
    asked_s: float
    at_s: float = 0.0


class Settling(msgspec.Struct, frozen=True, tag="settling"):
    """A queue consumer is about to acknowledge or release a message."""

    queue: str
    consumer: str
    value: str
    action: str = "ack"
    at_s: float = 0.0


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The broker has confirmed it."""

    queue: str
    consumer: str
    value: str
    action: str = "ack"
    at_s: float = 0.0


class Delaying(msgspec.Struct, frozen=True, tag="delaying"):
    """A message is about to be sent that is due after `delay_ms`. It has neither `Sent` nor `Acked`."""

    topic: str
    value: str
    delay_ms: int
    at_s: float = 0.0


class Delayed(msgspec.Struct, frozen=True, tag="delayed"):
    """The broker has confirmed a delayed message."""

    topic: str
    value: str
    at_s: float = 0.0


class FaultBegun(msgspec.Struct, frozen=True, tag="fault-begun"):
    """A fault was injected."""

    fault: str
    nodes: tuple[int, ...]
    at_s: float = 0.0


class FaultEnded(msgspec.Struct, frozen=True, tag="fault-ended"):
    """The fault was removed; the nodes concerned may still be recovering."""

    fault: str
    nodes: tuple[int, ...]
    at_s: float = 0.0


class Found(msgspec.Struct, frozen=True, tag="found"):
    """A record read after the run, when all nodes were well; a partition's records come in order."""

    topic: str
    partition: int
    offset: int
    value: str


class ReadBack(msgspec.Struct, frozen=True, tag="read-back"):
    """All records of a topic have been read after the run: those `Found` are all there are."""

    topic: str


class CaughtUp(msgspec.Struct, frozen=True, tag="caught-up"):
    """A group has read a topic to its end after the run."""

    group: str
    topic: str


class Left(msgspec.Struct, frozen=True, tag="left"):
    """A message that a queue still delivered after the run."""

    queue: str
    value: str


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """A queue was received from after the run until it was empty."""

    queue: str


Event = (
    Sent
    | Acked
    | Refused
    | Failed
    | Ending
    | Ended
    | Read
    | Assigned
    | Revoked
    | Committing
    | Committed
    | Position
    | Leased
    | Settling
    | Settled
    | Delaying
    | Delayed
    | FaultBegun
    | FaultEnded
    | Found
    | ReadBack
    | CaughtUp
    | Left
    | Drained
)

_decoder = msgspec.json.Decoder(Event)


class History:
    """Appends events to a file. Threads share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._lock = threading.Lock()
        # Confirmed records, for waiters for the next one: partition and time.
        self.acked: list[tuple[float, str, int]] = []

    def write(self, *events: Event) -> None:
        """Append events, stamped with the time unless they have one."""
        with self._lock:
            # The time is taken here: a reader of the file relies on its order.
            now_s = time.monotonic()
            stamped = [_stamped(event, now_s) for event in events]
            os.write(self._descriptor, b"".join(msgspec.json.encode(event) + b"\n" for event in stamped))
            self.acked.extend(
                (now_s, each.topic, each.partition) for each in stamped if isinstance(each, Acked)
            )

    def close(self) -> None:
        os.close(self._descriptor)


def _stamped(event: Event, now_s: float) -> Event:
    if isinstance(event, Found | ReadBack | CaughtUp | Left | Drained) or event.at_s:
        return event
    return msgspec.structs.replace(event, at_s=now_s)


def read_events(path: Path) -> Iterator[Event]:
    """Yield every event of a file except a torn last one."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield _decoder.decode(line)


def write_events(path: Path, events: Iterable[Event]) -> None:
    """Write a history at once."""
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
