"""Finds guarantees that a power cut has broken: a pure function of client histories and findings.

Independent of how the load is produced and read; topics have the roles that `Scene` gives them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, pairwise

from .history import (
    Acked,
    Cancelled,
    Cancelling,
    Changed,
    Changing,
    Committed,
    Committing,
    Decided,
    Deciding,
    Delayed,
    Delaying,
    FifoSending,
    FifoSent,
    Found,
    FoundRecord,
    History,
    Promise,
    Seen,
    Sent,
    Settled,
    Settling,
    Trimmed,
    Trimming,
)


class Kind(Enum):
    """Every kind of broken promise."""

    LOST_RECORD = "an acknowledged record was lost"
    MISPLACED_RECORD = "a record is not at the offset it was acknowledged with"
    DUPLICATE_RECORD = "a record sent once is there twice"
    UNKNOWN_RECORD = "there is a record that was never sent"
    RETURNED_RECORD = "a deleted record is there"
    STALE_KEY = "a key of a compacted topic has an older value than was acknowledged, or none"
    REUSED_OFFSET = "another record has the offset of one that was read, in the same leader epoch"
    LOST_TRANSACTION = "an acknowledged commit was lost"
    PARTIAL_TRANSACTION = "a part of a transaction is there"
    DUPLICATE_IN_TRANSACTION = "a record of a transaction is there twice"
    ABORTED_VISIBLE = "an aborted or undecided record is read as committed"
    STUCK = "committed records cannot be read to the end"
    COPY_MISSING = "the group's offset counts a record as copied, but its copy does not exist"
    COPY_UNCOUNTED = "a record was copied, but the group's offset does not count it: it will be copied twice"
    COPY_DUPLICATE = "a record was copied twice"
    OFFSET_AHEAD = "a committed offset is beyond the end of the log: new records will be skipped"
    OFFSET_LOST = "an acknowledged offset commit was lost"
    OFFSET_OF_DELETED = "a group has an offset in a topic that was recreated after it"
    LOST_MESSAGE = "an unfinished message is neither in its queue nor among the dead letters"
    DUPLICATE_MESSAGE = "a message is in its queue and among the dead letters, or twice in one"
    REDELIVERED = "a message is delivered again although its acknowledgement was confirmed"
    LOST_DELAYED = "a delayed message was not delivered"
    DUPLICATE_DELAYED = "a delayed message was delivered twice"
    EARLY_DELAYED = "a delayed message was delivered before its time"
    CANCELLED_DELIVERED = "a cancelled message was delivered"
    LOST_FIFO = "an acknowledged message of a FIFO queue was lost"
    DUPLICATE_FIFO = "a deduplication id is there twice"
    REORDERED_FIFO = "messages of a FIFO group are out of order"
    LOST_TOPIC = "a topic that was created is not there"
    RETURNED_TOPIC = "a topic that was deleted is there"
    WRONG_SETTINGS = "a topic has other settings than it was given"
    CLIENT_FAILED = "a client was refused while there was power"
    BROKER_ERROR = "the broker reports an internal error"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise."""

    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.what} ({self.kind.value})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The roles of the topics."""

    records: Sequence[str] = ()  # plain records, each sent once
    tables: Sequence[str] = ()  # compacted; values are `key/number`, and numbers ascend
    ledgers: Sequence[str] = ()  # written in transactions only
    copy_source: str = ""
    copy_target: str = ""
    copy_group: str = ""
    queues: Sequence[str] = ()  # messages may come back from the dead letters as new records
    delayed: Sequence[str] = ()
    fifo: Sequence[str] = ()
    churned: Sequence[str] = ()  # topics that are created and deleted repeatedly
    churn_group: str = ""


def check(history: History, found: Found, promise: Promise, scene: Scene) -> list[Anomaly]:
    """Every promise that was broken, in no particular order."""
    parts: Sequence[Callable[[History, Found, Promise, Scene], Iterator[Anomaly]]] = (
        _records,
        _deleted_records,
        _tables,
        _offsets_reused,
        _transactions,
        _copies,
        _group_offsets,
        _queues,
        _delays,
        _fifo,
        _topics,
    )
    anomalies = [anomaly for part in parts for anomaly in part(history, found, promise, scene)]
    anomalies += [Anomaly(Kind.STUCK, partition) for partition in found.stuck]
    anomalies += [Anomaly(Kind.CLIENT_FAILED, line) for line in found.failures]
    anomalies += [Anomaly(Kind.BROKER_ERROR, line) for line in found.errors]
    return anomalies


def _records(history: History, found: Found, promise: Promise, scene: Scene) -> Iterator[Anomaly]:
    """Acknowledged records are there, at their offsets, once."""
    places = {
        topic: {(record.partition, record.offset): record.value for record in records}
        for topic, records in found.all_records.items()
    }
    values = {topic: Counter(by_place.values()) for topic, by_place in places.items()}
    trimming = [event for _, event in history.of(Trimming)]
    for phase, acked in history.of(Acked):
        topic = acked.topic
        if topic in scene.tables or not history.is_durable(phase, acked.at_s, promise.window_s(topic)):
            continue
        if any(
            _covers(trim, acked.partition, acked.offset, acked.at_s)
            for trim in trimming
            if trim.topic == topic
        ):
            continue
        where = f"{topic}-{acked.partition}@{acked.offset} {acked.value!r}{_age(history, phase, acked.at_s)}"
        if not values.get(topic, Counter())[acked.value]:
            yield Anomaly(Kind.LOST_RECORD, where)
        elif acked.offset >= 0 and places[topic].get((acked.partition, acked.offset)) != acked.value:
            yield Anomaly(Kind.MISPLACED_RECORD, where)
    for topic in scene.records:
        for value, count in values.get(topic, Counter()).items():
            if count > 1:
                yield Anomaly(Kind.DUPLICATE_RECORD, f"{topic} {value!r}, {count} times")
    sent = {event.value for _, event in history.of(Sent)} | {event.value for _, event in history.of(Delaying)}
    for topic in (*scene.records, *scene.ledgers, *scene.queues, *scene.delayed):
        for value in values.get(topic, ()):
            if value not in sent:
                yield Anomaly(Kind.UNKNOWN_RECORD, f"{topic} {value!r}")


def _covers(trimming: Trimming, partition: int, offset: int, at_s: float) -> bool:
    """Return whether a record that existed then may have been deleted."""
    return trimming.partition == partition and offset < trimming.before and at_s <= trimming.at_s


def _deleted_records(history: History, found: Found, _promise: Promise, _scene: Scene) -> Iterator[Anomaly]:
    before: dict[tuple[str, int], int] = {}
    for _, event in history.of(Trimmed):
        place = event.topic, event.partition
        before[place] = max(before.get(place, 0), event.before)
    for (topic, partition), offset in before.items():
        for record in found.all_records.get(topic, ()):
            if record.partition == partition and record.offset < offset:
                where = f"{topic}-{partition}@{record.offset}, deleted before {offset}"
                yield Anomaly(Kind.RETURNED_RECORD, where)


def _tables(history: History, found: Found, promise: Promise, scene: Scene) -> Iterator[Anomaly]:
    """The last record of a key is the last that was acknowledged, or one sent after it."""
    for topic in scene.tables:
        last: dict[str, int] = {}
        for record in sorted(
            found.all_records.get(topic, ()), key=lambda each: (each.partition, each.offset)
        ):
            key, _, number = record.value.partition("/")
            last[key] = int(number)
        least: dict[str, tuple[int, str]] = {}
        for phase, acked in history.of(Acked):
            if acked.topic == topic and history.is_durable(phase, acked.at_s, promise.window_s(topic)):
                key, _, number = acked.value.partition("/")
                least[key] = max((int(number), _age(history, phase, acked.at_s)), least.get(key, (-1, "")))
        for key, (wanted, age) in least.items():
            if last.get(key, -1) < wanted:
                yield Anomaly(Kind.STALE_KEY, f"{topic} {key}: {wanted}{age}, found {last.get(key)}")


def _age(history: History, phase: int, at_s: float) -> str:
    if phase >= len(history.cuts):
        return ", since the last cut"
    return f", {history.cuts[phase].at_s - at_s:.3f} s before cut {phase + 1}"


def _offsets_reused(history: History, found: Found, _promise: Promise, _scene: Scene) -> Iterator[Anomaly]:
    now = {
        (topic, record.partition, record.offset): record
        for topic, records in found.all_records.items()
        for record in records
    }
    for _, seen in history.of(Seen):
        record = now.get((seen.topic, seen.partition, seen.offset))
        if record is None or record.value == seen.value or record.leader_epoch > seen.leader_epoch:
            continue
        yield Anomaly(
            Kind.REUSED_OFFSET,
            f"{seen.topic}-{seen.partition}@{seen.offset}: {seen.value!r} in epoch {seen.leader_epoch}, "
            f"then {record.value!r} in epoch {record.leader_epoch}",
        )


def _transactions(history: History, found: Found, _promise: Promise, scene: Scene) -> Iterator[Anomaly]:
    """All of a transaction is there or nothing, and all if its commit was acknowledged."""
    visible = Counter((topic, record.value) for topic in scene.ledgers for record in _committed(found, topic))
    confirmed = {event.transaction for _, event in history.of(Decided) if event.commit}
    wanted: set[tuple[str, str]] = set()
    for phase, deciding in history.of(Deciding):
        if not deciding.commit:
            continue
        wanted.update(deciding.records)
        there = [record for record in deciding.records if visible[record]]
        name = f"{deciding.transaction}{_age(history, phase, deciding.at_s)}"
        if there and len(there) < len(deciding.records):
            missing = next(record for record in deciding.records if not visible[record])
            yield Anomaly(
                Kind.PARTIAL_TRANSACTION,
                f"{name}: {len(there)} of {len(deciding.records)} records, {missing} is not there",
            )
        elif not there and deciding.records and deciding.transaction in confirmed:
            yield Anomaly(Kind.LOST_TRANSACTION, name)
    for record, count in visible.items():
        if record not in wanted:
            yield Anomaly(Kind.ABORTED_VISIBLE, f"{record}")
        elif count > 1:
            yield Anomaly(Kind.DUPLICATE_IN_TRANSACTION, f"{record}, {count} times")


def _copies(history: History, found: Found, _promise: Promise, scene: Scene) -> Iterator[Anomaly]:
    """Check that exactly the records before the group's offset have been copied, each once."""
    if not scene.copy_source:
        return
    copies = Counter(record.value for record in _committed(found, scene.copy_target))
    sent = {event.value for _, event in history.of(Sent) if event.topic == scene.copy_source}
    for value, count in copies.items():
        if count > 1:
            yield Anomaly(Kind.COPY_DUPLICATE, f"{value!r}, {count} times")
        if value not in sent:
            yield Anomaly(Kind.UNKNOWN_RECORD, f"{scene.copy_target} {value!r}")
    for record in found.all_records.get(scene.copy_source, ()):
        offset = found.group_offsets.get((scene.copy_group, scene.copy_source, record.partition), 0)
        where = f"{scene.copy_source}-{record.partition}@{record.offset} {record.value!r}, group at {offset}"
        if record.offset < offset and not copies[record.value]:
            yield Anomaly(Kind.COPY_MISSING, where)
        elif record.offset >= offset and copies[record.value]:
            yield Anomaly(Kind.COPY_UNCOUNTED, where)


def _group_offsets(history: History, found: Found, promise: Promise, scene: Scene) -> Iterator[Anomaly]:
    """Check that commits are kept, and none is beyond the end of the log."""
    ends = history.cuts[-1].ends if history.cuts else {}
    for (group, topic, partition), offset in found.group_offsets.items():
        end = ends.get((topic, partition))
        if end is not None and offset > end:
            yield Anomaly(
                Kind.OFFSET_AHEAD, f"{group} is at {topic}-{partition}@{offset}, which ends at {end}"
            )
    kept: dict[tuple[str, str, int], tuple[int, str]] = {}
    for phase, event in history.of(Committed):
        if event.topic in scene.churned or not history.is_durable(phase, event.at_s, promise.state_s):
            continue
        # Records lost in a cut cannot be required.
        limits = [cut.ends.get((event.topic, event.partition)) for cut in history.cuts[phase:]]
        least = min([event.offset, *(limit for limit in limits if limit is not None)])
        kept[event.group, event.topic, event.partition] = least, _age(history, phase, event.at_s)
    for (group, topic, partition), (least, age) in kept.items():
        offset = found.group_offsets.get((group, topic, partition), -1)
        if offset < least:
            yield Anomaly(
                Kind.OFFSET_LOST, f"{group} committed {topic}-{partition}@{least}{age}, is at {offset}"
            )
    yield from _offsets_of_deleted(history, found, scene)


def _offsets_of_deleted(history: History, found: Found, scene: Scene) -> Iterator[Anomaly]:
    committing: dict[str, float] = {}
    for _, commit in history.of(Committing):
        committing[commit.topic] = commit.at_s
    deleted: dict[str, float] = {}
    for _, change in history.of(Changed):
        if change.action == "delete":
            deleted[change.topic] = change.at_s
    for topic, deleted_s in deleted.items():
        if committing.get(topic, 0.0) > deleted_s:
            continue
        for (group, at, partition), offset in found.group_offsets.items():
            if group == scene.churn_group and at == topic:
                yield Anomaly(Kind.OFFSET_OF_DELETED, f"{group} is at {topic}-{partition}@{offset}")


def _queues(history: History, found: Found, promise: Promise, scene: Scene) -> Iterator[Anomaly]:
    """Check that a message is in exactly one place until it is acknowledged, and in none afterwards."""
    # Only messages found alive after the last cut can have been acknowledged since.
    cuts = len(history.cuts)
    tried = {event.value for phase, event in history.of(Settling) if event.action == "ack" and phase < cuts}
    done = {
        event.value: _age(history, phase, event.at_s)
        for phase, event in history.of(Settled)
        if event.action == "ack" and phase < cuts and history.is_durable(phase, event.at_s, promise.state_s)
    }
    for topic in scene.queues:
        live = Counter(found.live.get(topic, ()))
        for phase, acked in history.of(Acked):
            if acked.topic != topic or not history.is_durable(phase, acked.at_s, promise.window_s(topic)):
                continue
            if acked.value not in tried and not live[acked.value]:
                yield Anomaly(Kind.LOST_MESSAGE, f"{topic} {acked.value!r}{_age(history, phase, acked.at_s)}")
        for value, count in live.items():
            if value in done:
                yield Anomaly(Kind.REDELIVERED, f"{topic} {value!r}, acknowledged{done[value]}")
            elif count > 1:
                yield Anomaly(Kind.DUPLICATE_MESSAGE, f"{topic} {value!r}, {count} times")


def _delays(history: History, found: Found, _promise: Promise, scene: Scene) -> Iterator[Anomaly]:
    """Delayed messages are delivered once, not before their time, unless they were cancelled."""
    confirmed = {event.value for _, event in history.of(Delayed)}
    cancelling = {event.value for _, event in history.of(Cancelling)}
    cancelled = {event.value for _, event in history.of(Cancelled)}
    there: dict[str, list[FoundRecord]] = defaultdict(list)
    for topic in scene.delayed:
        for record in found.all_records.get(topic, ()):
            there[record.value].append(record)
    for phase, event in history.of(Delaying):
        value, records = event.value, there[event.value]
        where = f"{event.topic} {value!r}{_age(history, phase, event.at_s)}"
        if len(records) > 1:
            yield Anomaly(Kind.DUPLICATE_DELAYED, where)
        if records and value in cancelled:
            yield Anomaly(Kind.CANCELLED_DELIVERED, where)
        if not records and value in confirmed and value not in cancelling:
            yield Anomaly(Kind.LOST_DELAYED, where)
        # A message already due on arrival was not delayed, and has its producer's timestamp.
        if value in confirmed and any(record.timestamp_ms < event.due_ms for record in records):
            yield Anomaly(Kind.EARLY_DELAYED, where)


def _fifo(history: History, found: Found, promise: Promise, scene: Scene) -> Iterator[Anomaly]:
    """A deduplication id is there once, and the messages of a group in the order of sending."""
    order: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for _, sending in history.of(FifoSending):
        numbered = order[sending.topic, sending.group]
        numbered.setdefault(sending.deduplication_id, len(numbered))
    for topic in scene.fifo:
        records = sorted(found.all_records.get(topic, ()), key=lambda each: (each.partition, each.offset))
        ids = [record.value.partition("/")[0] for record in records]
        count = Counter(ids)
        for phase, sent in history.of(FifoSent):
            if sent.topic != topic or count[sent.deduplication_id]:
                continue
            if history.is_durable(phase, sent.at_s, promise.window_s(topic)):
                where = f"{topic} {sent.deduplication_id!r}{_age(history, phase, sent.at_s)}"
                yield Anomaly(Kind.LOST_FIFO, where)
        for each, times in count.items():
            if times > 1:
                yield Anomaly(Kind.DUPLICATE_FIFO, f"{topic} {each!r}, {times} times")
        for (of, group), numbers in order.items():
            if of == topic:
                found_ids = [each for each in dict.fromkeys(ids) if each in numbers]
                for before, after in pairwise(found_ids):
                    if numbers[after] < numbers[before]:
                        yield Anomaly(Kind.REORDERED_FIFO, f"{topic} {group}: {after!r} after {before!r}")


_State = tuple[int, int] | None  # partitions and retention.ms; None: there is no such topic


def _topics(history: History, found: Found, _promise: Promise, scene: Scene) -> Iterator[Anomaly]:
    """Acknowledged changes of topics are in force; one without an answer may or may not be."""
    possible: dict[str, set[_State]] = {}
    asked: dict[str, set[_State]] = {}  # possible states if the pending change was made
    for event in chain.from_iterable(history.phases):
        if isinstance(event, Changing):
            states = possible.setdefault(event.topic, {None})
            asked[event.topic] = {_changed(state, event) for state in states}
            possible[event.topic] = states | asked[event.topic]
        elif isinstance(event, Changed):
            possible[event.topic] = asked[event.topic]
    for topic, states in possible.items():
        if topic not in scene.churned:
            continue
        state = found.topics.get(topic)
        if state in states:
            continue
        if state is None:
            yield Anomaly(Kind.LOST_TOPIC, topic)
        elif states == {None}:
            yield Anomaly(Kind.RETURNED_TOPIC, topic)
        else:
            yield Anomaly(Kind.WRONG_SETTINGS, f"{topic}: {state}, not one of {states}")


def _changed(state: _State, change: Changing) -> _State:
    match change.action:
        case "create":
            return (change.partitions, change.retention_ms) if state is None else state
        case "delete":
            return None
        case "grow":
            return None if state is None else (max(change.partitions, state[0]), state[1])
        case "configure":
            return None if state is None else (state[0], change.retention_ms)
        case _:
            raise AssertionError(f"unknown change {change.action!r}")


def _committed(found: Found, topic: str) -> Sequence[FoundRecord]:
    return found.committed.get(topic, ())
