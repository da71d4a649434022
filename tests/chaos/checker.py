"""Finds promises that were broken: a pure function of a history.

Knows nothing about how the load is made. A request without a confirmation may or may not have taken effect.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from alpacamq.cluster.cluster_time import MAX_SLEW

from .history import (
    Acked,
    Assigned,
    CaughtUp,
    Committed,
    Committing,
    Delayed,
    Delaying,
    Drained,
    Ended,
    Ending,
    Event,
    FaultBegun,
    FaultEnded,
    Found,
    Leased,
    Left,
    Position,
    Read,
    ReadBack,
    Sent,
    Settled,
    Settling,
)

# Clocks are read a little apart.
CLOCK_TOLERANCE_S = 0.01
# How late a delayed message may be without a fault.
LATE_S = 15.0

E = TypeVar("E", bound=Event)


class Kind(Enum):
    """Every kind of broken promise."""

    LOST = "an acknowledged record is not there"
    MISPLACED = "a record is not at the offset it was acknowledged with"
    DUPLICATED = "a record sent once is there twice"
    REORDERED = "records of one producer are in another order than they were sent, or were read so"
    UNKNOWN_RECORD = "there is a record that was never sent"
    VANISHED = "a record was read and is not there, or another has its offset"
    UNSEEN = "a group has passed an acknowledged record without reading it"
    ABORTED_READ = "a record of a transaction that was not committed was read"
    PARTIAL_TRANSACTION = "a part of a transaction is there"
    OFFSET_REGRESSION = "a group's offset is behind one whose commit was confirmed"
    OFFSET_UNKNOWN = "a group's offset was never committed"
    TWO_OWNERS = "two members own a partition in one generation"
    MESSAGE_LOST = "a message was neither acknowledged by a consumer nor is in its queue"
    REDELIVERED = "a message was delivered after its acknowledgement was confirmed"
    EARLY_LEASE = "a message was delivered while another consumer had it"
    EARLY_DELAY = "a message was delivered before it was due"
    LATE_DELAY = "a message was delivered long after it was due"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise."""

    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.detail}"


def check(events: Sequence[Event], *, late_s: float = LATE_S) -> list[Anomaly]:
    """Return every broken promise of a history."""
    view = _View(events)
    found = [anomaly for checks in _CHECKS for anomaly in checks(view)]
    return [*found, *_late_delays(view, late_s)]


class _View:
    """A history by what the checks look for."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.sent = {each.value: each for each in self.of(Sent)}
        self.acked = {each.value: each for each in self.of(Acked)}
        self.delaying = {each.value: each for each in self.of(Delaying)}
        self.delayed = {each.value: each for each in self.of(Delayed)}
        self.read_back = {each.topic for each in self.of(ReadBack)}
        self.found: dict[tuple[str, int], list[Found]] = defaultdict(list)
        for each in self.of(Found):
            self.found[each.topic, each.partition].append(each)
        self.places = {(each.topic, each.partition, each.offset): each.value for each in self.of(Found)}
        self.found_values = {(each.topic, each.value) for each in self.of(Found)}
        self.wants_commit = {each.transaction: each.commit for each in self.of(Ending)}
        self.ended = {each.transaction for each in self.of(Ended)}

    def of(self, kind: type[E]) -> Iterator[E]:
        return (event for event in self.events if isinstance(event, kind))

    def is_promised(self, record: Sent) -> bool:
        """Whether a record must be there: acknowledged, and its transaction's commit confirmed."""
        if record.transaction:
            return record.transaction in self.ended and self.wants_commit[record.transaction]
        return record.value in self.acked

    def may_be_read(self, record: Sent) -> bool:
        """Whether a record may be read as committed: it is in no transaction, or its commit was asked for."""
        return not record.transaction or self.wants_commit.get(record.transaction, False)


def _lost(view: _View) -> Iterator[Anomaly]:
    for record in view.sent.values():
        is_missing = (record.topic, record.value) not in view.found_values
        if record.topic in view.read_back and is_missing and view.is_promised(record):
            yield Anomaly(Kind.LOST, f"{record.value} in {record.topic}-{record.partition}")
    for value, delaying in view.delaying.items():
        is_missing = (delaying.topic, value) not in view.found_values
        if delaying.topic in view.read_back and is_missing and value in view.delayed:
            yield Anomaly(Kind.LOST, f"delayed {value} in {delaying.topic}")


def _misplaced(view: _View) -> Iterator[Anomaly]:
    for each in view.of(Found):
        acked = view.acked.get(each.value)
        if acked is None or acked.offset < 0:
            continue
        if (acked.topic, acked.partition, acked.offset) != (
            each.topic,
            each.partition,
            each.offset,
        ):
            yield Anomaly(
                Kind.MISPLACED,
                f"{each.value} at {each.topic}-{each.partition}@{each.offset}, not @{acked.offset}",
            )


def _duplicated(view: _View) -> Iterator[Anomaly]:
    counts = Counter((each.topic, each.value) for each in view.of(Found))
    for (topic, value), count in counts.items():
        if count > 1:
            yield Anomaly(Kind.DUPLICATED, f"{value} is in {topic} {count} times")


def _unknown_records(view: _View) -> Iterator[Anomaly]:
    for topic, value in sorted(view.found_values):
        if value not in view.sent and value not in view.delaying:
            yield Anomaly(Kind.UNKNOWN_RECORD, f"{value} in {topic}")


def _reordered(view: _View) -> Iterator[Anomaly]:
    order = {value: number for number, value in enumerate(view.sent)}
    for (topic, partition), records in view.found.items():
        last: dict[str, Found] = {}
        for record in records:
            if (sent := view.sent.get(record.value)) is None:
                continue
            before = last.get(sent.producer)
            if before is not None and order[record.value] < order[before.value]:
                yield Anomaly(
                    Kind.REORDERED, f"{record.value} comes after {before.value} in {topic}-{partition}"
                )
            last[sent.producer] = record


def _read_out_of_order(view: _View) -> Iterator[Anomaly]:
    """A consumer reads upwards from each assignment on."""
    last: dict[tuple[str, str, int], int] = {}
    for event in view.events:
        if isinstance(event, Assigned):
            for partition in event.partitions:
                last.pop((event.member, event.topic, partition), None)
        elif isinstance(event, Read):
            place = event.reader, event.topic, event.partition
            if event.offset <= last.get(place, -1):
                yield Anomaly(
                    Kind.REORDERED,
                    f"{event.reader} read {event.topic}-{event.partition}@{event.offset} after {last[place]}",
                )
            last[place] = event.offset


def _vanished(view: _View) -> Iterator[Anomaly]:
    for read in view.of(Read):
        if read.topic not in view.read_back:
            continue
        there = view.places.get((read.topic, read.partition, read.offset))
        if there != read.value:
            yield Anomaly(
                Kind.VANISHED,
                f"{read.reader} read {read.value} at {read.topic}-{read.partition}@{read.offset}; "
                f"there is {there or 'nothing'}",
            )


def _unseen(view: _View) -> Iterator[Anomaly]:
    members: dict[str, set[str]] = defaultdict(set)
    for assigned in view.of(Assigned):
        members[assigned.group].add(assigned.member)
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    for read in view.of(Read):
        seen[read.reader, read.topic].add(read.value)
    for group in view.of(CaughtUp):
        values = set().union(*(seen[member, group.topic] for member in members[group.group]))
        for record in view.sent.values():
            if record.topic == group.topic and view.is_promised(record) and record.value not in values:
                yield Anomaly(Kind.UNSEEN, f"{record.value} in {record.topic} by {group.group}")


def _aborted_read(view: _View) -> Iterator[Anomaly]:
    read = [(each.reader, each.value) for each in view.of(Read)]
    for reader, value in [*read, *(("the last reader", value) for _, value in sorted(view.found_values))]:
        record = view.sent.get(value)
        if record is not None and not view.may_be_read(record):
            yield Anomaly(Kind.ABORTED_READ, f"{value} of {record.transaction} by {reader}")


def _partial_transactions(view: _View) -> Iterator[Anomaly]:
    records: dict[str, list[Sent]] = defaultdict(list)
    for record in view.sent.values():
        if record.transaction and record.topic in view.read_back:
            records[record.transaction].append(record)
    for transaction, members in records.items():
        there = sum((each.topic, each.value) in view.found_values for each in members)
        if 0 < there < len(members):
            yield Anomaly(Kind.PARTIAL_TRANSACTION, f"{there} of {len(members)} records of {transaction}")


def _offsets(view: _View) -> Iterator[Anomaly]:
    """A group's offset never goes back behind a confirmed commit, and is one that a client committed."""
    asked: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    confirmed: dict[tuple[str, str, int], list[tuple[float, int]]] = defaultdict(list)
    for event in view.events:
        if isinstance(event, Committing):
            asked[event.group, event.topic, event.partition].add(event.offset)
        elif isinstance(event, Committed):
            confirmed[event.group, event.topic, event.partition].append((event.at_s, event.offset))
        elif isinstance(event, Position):
            place = event.group, event.topic, event.partition
            name = f"{event.group} on {event.topic}-{event.partition}"
            # Only those confirmed before the question was asked: others may have come after the answer.
            least = max((offset for at_s, offset in confirmed[place] if at_s < event.asked_s), default=-1)
            if event.offset < least:
                yield Anomaly(Kind.OFFSET_REGRESSION, f"{name}: {event.offset} after {least} was confirmed")
            if event.offset >= 0 and event.offset not in asked[place]:
                yield Anomaly(Kind.OFFSET_UNKNOWN, f"{name}: {event.offset}")


def _two_owners(view: _View) -> Iterator[Anomaly]:
    owners: dict[tuple[str, int, str, int], str] = {}
    for event in view.of(Assigned):
        for partition in event.partitions:
            owned = event.group, event.generation, event.topic, partition
            owner = owners.setdefault(owned, event.member)
            if owner != event.member:
                yield Anomaly(
                    Kind.TWO_OWNERS,
                    f"{owner} and {event.member} of {event.group} own {event.topic}-{partition} "
                    f"in generation {event.generation}",
                )


def _queues(view: _View) -> Iterator[Anomaly]:
    """A message has one holder at a time, and none after its acknowledgement was confirmed.

    A lease is that much shorter while cluster time, by which it ends, is corrected.
    """
    held: dict[tuple[str, str], Leased] = {}
    acked: dict[tuple[str, str], float] = {}
    for event in view.events:
        if isinstance(event, Settling):
            held.pop((event.queue, event.value), None)
        elif isinstance(event, Settled):
            if event.action == "ack":
                acked.setdefault((event.queue, event.value), event.at_s)
        elif isinstance(event, Leased):
            message = event.queue, event.value
            before = held.get(message)
            if message in acked and event.asked_s > acked[message]:
                yield Anomaly(Kind.REDELIVERED, f"{event.value} of {event.queue} to {event.consumer}")
            elif before is not None and event.at_s < before.asked_s + (1 - MAX_SLEW) * before.lease_ms / 1000:
                yield Anomaly(
                    Kind.EARLY_LEASE,
                    f"{event.value} of {event.queue} to {event.consumer}, "
                    f"{event.at_s - before.at_s:.3f} s after {before.consumer} got it",
                )
            held[message] = event


def _lost_messages(view: _View) -> Iterator[Anomaly]:
    settled = {(each.queue, each.value) for each in view.of(Settling) if each.action == "ack"}
    left = {(each.queue, each.value) for each in view.of(Left)}
    for queue in {each.queue for each in view.of(Drained)}:
        for value, acked in view.acked.items():
            if acked.topic == queue and (queue, value) not in settled | left:
                yield Anomaly(Kind.MESSAGE_LOST, f"{value} of {queue}")
    after = {(each.queue, each.value) for each in view.of(Settled) if each.action == "ack"}
    for queue, value in sorted(left & after):
        yield Anomaly(Kind.REDELIVERED, f"{value} of {queue} after the run")


def _early_delays(view: _View) -> Iterator[Anomaly]:
    for event in view.events:
        if isinstance(event, Read | Leased) and (delaying := view.delaying.get(event.value)) is not None:
            early_s = delaying.at_s + delaying.delay_ms / 1000 - event.at_s
            if early_s > CLOCK_TOLERANCE_S:
                yield Anomaly(Kind.EARLY_DELAY, f"{event.value} by {early_s:.3f} s")


def _late_delays(view: _View, late_s: float) -> Iterator[Anomaly]:
    first: dict[str, float] = {}
    for event in view.events:
        if isinstance(event, Read | Leased):
            first.setdefault(event.value, event.at_s)
    faults = _fault_spans(view)
    for value, delaying in view.delaying.items():
        if value not in view.delayed or value not in first:
            continue
        due_s = max(delaying.at_s + delaying.delay_ms / 1000, view.delayed[value].at_s)
        excused_s = sum(max(0.0, min(end, first[value]) - max(begin, due_s)) for begin, end in faults)
        if (over_s := first[value] - due_s - excused_s) > late_s:
            yield Anomaly(Kind.LATE_DELAY, f"{value} by {over_s:.1f} s, faults not counted")


def _fault_spans(view: _View) -> list[tuple[float, float]]:
    """Return when there were faults; overlapping ones are joined."""
    spans: list[tuple[float, float]] = []
    open_faults = 0
    begun = 0.0
    for event in view.events:
        if isinstance(event, FaultBegun):
            begun = begun if open_faults else event.at_s
            open_faults += 1
        elif isinstance(event, FaultEnded):
            open_faults -= 1
            if not open_faults:
                spans.append((begun, event.at_s))
    return spans


_CHECKS: Sequence[Callable[[_View], Iterable[Anomaly]]] = (
    _lost,
    _misplaced,
    _duplicated,
    _unknown_records,
    _reordered,
    _read_out_of_order,
    _vanished,
    _unseen,
    _aborted_read,
    _partial_transactions,
    _offsets,
    _two_owners,
    _queues,
    _lost_messages,
    _early_delays,
)
