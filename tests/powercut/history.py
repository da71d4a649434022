"""The history of client requests and their answers, and the state found after a restart.

Every value sent is unique, so that a record can be followed through topics. An event is recorded when
the broker's answer arrives; a request without an answer is known only by the event recorded before it.
Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

Place = tuple[str, int]  # topic and partition


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """A record is about to be sent."""

    topic: str
    value: str
    at_s: float = 0.0


class Acked(msgspec.Struct, frozen=True, tag="acked"):
    """A record was acknowledged."""

    topic: str
    value: str
    partition: int
    offset: int
    at_s: float = 0.0


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """A consumer was given a record."""

    topic: str
    partition: int
    offset: int
    value: str
    leader_epoch: int
    at_s: float = 0.0


class Trimming(msgspec.Struct, frozen=True, tag="trimming"):
    """All records of a partition before an offset are about to be deleted."""

    topic: str
    partition: int
    before: int
    at_s: float = 0.0


class Trimmed(msgspec.Struct, frozen=True, tag="trimmed"):
    """Their deletion was acknowledged."""

    topic: str
    partition: int
    before: int
    at_s: float = 0.0


class Deciding(msgspec.Struct, frozen=True, tag="deciding"):
    """A transaction with these records, as (topic, value), is about to be ended."""

    transaction: str
    commit: bool
    records: tuple[tuple[str, str], ...]
    at_s: float = 0.0


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """The end of a transaction was acknowledged."""

    transaction: str
    commit: bool
    at_s: float = 0.0


class Committing(msgspec.Struct, frozen=True, tag="committing"):
    """A group is about to commit an offset."""

    group: str
    topic: str
    partition: int
    offset: int
    at_s: float = 0.0


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """A group's commit was acknowledged."""

    group: str
    topic: str
    partition: int
    offset: int
    at_s: float = 0.0


class Delivered(msgspec.Struct, frozen=True, tag="delivered"):
    """A queue consumer was given a message."""

    topic: str
    value: str
    count: int
    at_s: float = 0.0


class Settling(msgspec.Struct, frozen=True, tag="settling"):
    """A queue consumer is about to settle a delivery."""

    topic: str
    value: str
    action: str
    at_s: float = 0.0


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """A settlement was acknowledged."""

    topic: str
    value: str
    action: str
    at_s: float = 0.0


class Delaying(msgspec.Struct, frozen=True, tag="delaying"):
    """A delayed message is about to be scheduled."""

    topic: str
    value: str
    due_ms: int
    at_s: float = 0.0


class Delayed(msgspec.Struct, frozen=True, tag="delayed"):
    """A delayed message was accepted."""

    topic: str
    value: str
    at_s: float = 0.0


class Cancelling(msgspec.Struct, frozen=True, tag="cancelling"):
    """A delayed message is about to be cancelled."""

    topic: str
    value: str
    at_s: float = 0.0


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """A delayed message was cancelled before it was due."""

    topic: str
    value: str
    at_s: float = 0.0


class FifoSending(msgspec.Struct, frozen=True, tag="fifo-sending"):
    """A message is about to be sent to a FIFO queue; several may share a deduplication id."""

    topic: str
    deduplication_id: str
    group: str
    at_s: float = 0.0


class FifoSent(msgspec.Struct, frozen=True, tag="fifo-sent"):
    """A message to a FIFO queue was accepted."""

    topic: str
    deduplication_id: str
    group: str
    at_s: float = 0.0


class Changing(msgspec.Struct, frozen=True, tag="changing"):
    """A topic is about to be created, deleted, given partitions or settings."""

    topic: str
    action: str
    partitions: int = 0
    retention_ms: int = 0
    at_s: float = 0.0


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """A change of a topic was acknowledged."""

    topic: str
    action: str
    partitions: int = 0
    retention_ms: int = 0
    at_s: float = 0.0


Event = (
    Sent
    | Acked
    | Seen
    | Trimming
    | Trimmed
    | Deciding
    | Decided
    | Committing
    | Committed
    | Delivered
    | Settling
    | Settled
    | Delaying
    | Delayed
    | Cancelling
    | Cancelled
    | FifoSending
    | FifoSent
    | Changing
    | Changed
)
E = TypeVar("E", bound=Event)
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class Recorder:
    """Writes the events of one client to a file of its own."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *events: Event) -> None:
        """Write events down, as of now."""
        now_s = time.monotonic()
        stamped = (msgspec.structs.replace(event, at_s=now_s) for event in events)
        os.write(self._descriptor, b"".join(msgspec.json.encode(event) + b"\n" for event in stamped))


def read_events(paths: Iterable[Path]) -> list[Event]:
    """Every event of these files in the order of time, but for a last one that was cut off."""
    events: list[Event] = []
    for path in paths:
        events += [_decoder.decode(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return sorted(events, key=lambda event: event.at_s)


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record in a topic."""

    partition: int
    offset: int
    value: str
    leader_epoch: int = 0
    timestamp_ms: int = 0


@dataclass(slots=True)
class Found:
    """The state found after a restart.

    `committed` is what readers of committed records get, `all_records` what others get as well.
    `stuck` names partitions whose committed records cannot be read to the end. `live` are the messages of
    queues that are still delivered, by the topic they were first sent to, as often as they are there.
    `topics` has the number of partitions and retention.ms of each. `errors` is what the broker logged, and
    `failures` is what went wrong for clients before the cut.
    """

    all_records: dict[str, list[FoundRecord]] = field(default_factory=dict)
    committed: dict[str, list[FoundRecord]] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    group_offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    live: dict[str, list[str]] = field(default_factory=dict)
    topics: dict[str, tuple[int, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cut:
    """The time of a power cut, and the partitions' end offsets after the restart."""

    at_s: float
    ends: Mapping[Place, int]


@dataclass(slots=True)
class History:
    """Events in phases: each but the last ends with a cut."""

    phases: list[list[Event]] = field(default_factory=lambda: [[]])
    cuts: list[Cut] = field(default_factory=list)

    def of(self, kind: type[E]) -> Iterator[tuple[int, E]]:
        """Every event of a kind, in order, with its phase."""
        for phase, events in enumerate(self.phases):
            for event in events:
                if isinstance(event, kind):
                    yield phase, event

    def is_durable(self, phase: int, at_s: float, window_s: float) -> bool:
        """Return whether data acknowledged then must exist now: no cut within `window_s` after it."""
        return phase >= len(self.cuts) or window_s == 0 or at_s <= self.cuts[phase].at_s - window_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The data loss that the durability page allows, in seconds before a power cut.

    Topics that are not named lose nothing. `state_s` is about group offsets and acknowledgements of queues.
    Transactions, delayed messages and changes of topics are on the disk when they are acknowledged.
    """

    topics: Mapping[str, float] = field(default_factory=dict)
    state_s: float = 0.0

    def window_s(self, topic: str) -> float:
        return self.topics.get(topic, 0.0)
