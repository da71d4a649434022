"""The checker finds every kind of broken guarantee, and reports nothing else.

A sound history with one of everything is the start; each case plants one loss in what is found, or shows
that the same loss is forgiven where the durability page allows it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from .checker import Anomaly, Kind, Scene, check
from .history import (
    Acked,
    Cancelled,
    Cancelling,
    Changed,
    Changing,
    Committed,
    Committing,
    Cut,
    Decided,
    Deciding,
    Delayed,
    Delaying,
    Event,
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

SCENE = Scene(
    records=("records", "in"),
    tables=("table",),
    ledgers=("a", "b"),
    copy_source="in",
    copy_target="out",
    copy_group="copiers",
    queues=("jobs",),
    delayed=("later",),
    fifo=("fifo",),
    churned=("churn",),
    churn_group="churners",
)
CUT_S = 100.0
EARLY_S, LATE_S = 90.0, 99.9  # long before the cut, and within a second of it
INTERVAL = Promise(topics=dict.fromkeys(("records", "in", "jobs", "fifo", "table"), 1.0), state_s=1.0)
EVERY_BATCH = Promise()


@dataclass
class Case:
    """A history with one cut and what is found after it; sound to begin with."""

    events: list[Event] = field(default_factory=list)
    since: list[Event] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    found: Found = field(default_factory=Found)

    def check(self, promise: Promise = EVERY_BATCH) -> list[Anomaly]:
        history = History(phases=[self.events, self.since], cuts=[Cut(CUT_S, self.ends)])
        return check(history, self.found, promise, SCENE)

    def kinds(self, promise: Promise = EVERY_BATCH) -> set[Kind]:
        return {anomaly.kind for anomaly in self.check(promise)}

    def lose(self, topic: str, value: str) -> None:
        records = self.found.all_records
        records[topic] = [record for record in records[topic] if record.value != value]

    def add(self, topic: str, value: str, offset: int = 1000) -> None:
        self.found.all_records[topic].append(FoundRecord(0, offset, value, timestamp_ms=5000))

    def hide(self, topic: str, value: str) -> None:
        committed = self.found.committed
        committed[topic] = [record for record in committed[topic] if record.value != value]

    def show(self, topic: str, value: str, offset: int = 1000) -> None:
        self.found.committed[topic].append(FoundRecord(0, offset, value))


def records(*values: str, epoch: int = 0) -> list[FoundRecord]:
    return [FoundRecord(0, offset, value, epoch, 5000) for offset, value in enumerate(values)]


def sound(at_s: float = EARLY_S) -> Case:
    """One of everything, done at one time, and all of it found again."""
    case = Case()
    case.events = [
        Sent("records", "r0", at_s),
        Sent("records", "r1", at_s),
        Acked("records", "r0", 0, 0, at_s),
        Acked("records", "r1", 0, 1, at_s),
        Seen("records", 0, 1, "r1", 0, at_s),
        Committing("readers", "records", 0, 2, at_s),
        Committed("readers", "records", 0, 2, at_s),
        *(Sent(topic, value, at_s) for topic, value in (("a", "t0"), ("b", "t1"), ("a", "x0"), ("a", "u0"))),
        Deciding("t", True, (("a", "t0"), ("b", "t1")), at_s),
        Decided("t", True, at_s),
        Deciding("x", False, (("a", "x0"),), at_s),
        Decided("x", False, at_s),
        Deciding("u", True, (("a", "u0"),), at_s),
        *(Acked("table", f"k/{number}", 0, number, at_s) for number in range(3)),
        Trimming("records", 1, 5, at_s),
        Trimmed("records", 1, 5, at_s),
        Sent("in", "i0", at_s),
        Sent("in", "i1", at_s),
        Acked("in", "i0", 0, 0, at_s),
        Acked("in", "i1", 0, 1, at_s),
        *(Sent("jobs", value, at_s) for value in ("waiting", "done", "unsure", "dead")),
        *(
            Acked("jobs", value, 0, at, at_s)
            for at, value in enumerate(("waiting", "done", "unsure", "dead"))
        ),
        Settling("jobs", "done", "ack", at_s),
        Settled("jobs", "done", "ack", at_s),
        Settling("jobs", "unsure", "ack", at_s),
        Settling("jobs", "dead", "reject", at_s),
        Settled("jobs", "dead", "reject", at_s),
        Delaying("later", "d0", 4000, at_s),
        Delayed("later", "d0", at_s),
        Delaying("later", "d1", 4000, at_s),
        Delayed("later", "d1", at_s),
        Cancelling("later", "d1", at_s),
        Cancelled("later", "d1", at_s),
        *(FifoSending("fifo", each, "g", at_s) for each in ("f0", "f1", "f1")),
        *(FifoSent("fifo", each, "g", at_s) for each in ("f0", "f1", "f1")),
        Changing("churn", "create", 2, 70, at_s),
        Changed("churn", "create", 2, 70, at_s),
    ]
    # An acknowledgement by an observer shows that a message was alive, not that it must not be redelivered.
    case.since = [
        Settling("jobs", "waiting", "ack", CUT_S + 1),
        Settled("jobs", "waiting", "ack", CUT_S + 1),
    ]
    case.ends = {("records", 0): 2, ("in", 0): 2}
    case.found = Found(
        all_records={
            "records": records("r0", "r1"),
            "in": records("i0", "i1"),
            "table": [FoundRecord(0, 2, "k/2")],
            "jobs": records("waiting", "done", "unsure", "dead"),
            "later": records("d0"),
            "fifo": records("f0/1", "f1/2"),
            "a": records("t0", "x0", "u0"),
            "b": records("t1"),
        },
        committed={"a": records("t0"), "b": records("t1"), "out": records("i0")},
        group_offsets={("readers", "records", 0): 2, ("copiers", "in", 0): 1},
        live={"jobs": ["waiting", "dead"]},
        topics={"churn": (2, 70)},
    )
    return case


def test_a_sound_history_breaks_no_promise() -> None:
    assert sound().check() == []
    assert sound(LATE_S).check() == []


Plant = Callable[[Case], None]


def reuse_offset(case: Case) -> None:
    case.events.remove(Acked("records", "r1", 0, 1, EARLY_S))
    case.since.append(Sent("records", "r2", CUT_S + 1))
    case.found.all_records["records"] = records("r0", "r2")


def move_record(case: Case) -> None:
    case.lose("records", "r1")
    case.add("records", "r1", offset=2)


def bring_back(case: Case) -> None:
    case.events.append(Sent("records", "old", EARLY_S))
    case.found.all_records["records"].append(FoundRecord(1, 4, "old"))


def lose_transaction(case: Case) -> None:
    case.hide("a", "t0")
    case.hide("b", "t1")


def commit_ahead(case: Case) -> None:
    case.found.group_offsets["readers", "records", 0] = 3


def lose_commit(case: Case) -> None:
    case.found.group_offsets["readers", "records", 0] = 1


def forget_group(case: Case) -> None:
    del case.found.group_offsets["readers", "records", 0]


def copy_without_counting(case: Case) -> None:
    case.found.group_offsets["copiers", "in", 0] = 0


def count_without_copying(case: Case) -> None:
    case.found.group_offsets["copiers", "in", 0] = 2


def remake_topic(case: Case) -> None:
    case.events += [
        Committing("churners", "churn", 0, 5, EARLY_S),
        Committed("churners", "churn", 0, 5, EARLY_S),
        Changing("churn", "delete", at_s=EARLY_S + 1),
        Changed("churn", "delete", at_s=EARLY_S + 1),
        Changing("churn", "create", 2, 70, EARLY_S + 2),
        Changed("churn", "create", 2, 70, EARLY_S + 2),
    ]
    case.found.group_offsets["churners", "churn", 0] = 5


def delete_topic(case: Case) -> None:
    case.events += [
        Changing("churn", "delete", at_s=EARLY_S + 1),
        Changed("churn", "delete", at_s=EARLY_S + 1),
    ]


def grow_topic(case: Case) -> None:
    case.events += [
        Changing("churn", "grow", 3, at_s=EARLY_S + 1),
        Changed("churn", "grow", 3, at_s=EARLY_S + 1),
    ]


def configure_topic(case: Case) -> None:
    case.events += [
        Changing("churn", "configure", 0, 80, EARLY_S + 1),
        Changed("churn", "configure", 0, 80, EARLY_S + 1),
    ]


def hurry_delay(case: Case) -> None:
    case.found.all_records["later"] = [replace(record, timestamp_ms=3999) for record in records("d0")]


PLANTS: list[tuple[str, Plant, Kind]] = [
    ("a record is lost", lambda case: case.lose("records", "r1"), Kind.LOST_RECORD),
    ("a record is elsewhere", move_record, Kind.MISPLACED_RECORD),
    ("a record is there twice", lambda case: case.add("records", "r1"), Kind.DUPLICATE_RECORD),
    ("a record is made up", lambda case: case.add("records", "\0\0"), Kind.UNKNOWN_RECORD),
    ("a deleted record is back", bring_back, Kind.RETURNED_RECORD),
    ("a key has an old value", lambda c: c.found.all_records.update(table=records("k/1")), Kind.STALE_KEY),
    ("an old value follows a new one", lambda case: case.add("table", "k/0"), Kind.STALE_KEY),
    ("a key is gone", lambda case: case.lose("table", "k/2"), Kind.STALE_KEY),
    ("an offset is used again in the same epoch", reuse_offset, Kind.REUSED_OFFSET),
    ("a committed transaction is gone", lose_transaction, Kind.LOST_TRANSACTION),
    ("half a transaction is gone", lambda case: case.hide("b", "t1"), Kind.PARTIAL_TRANSACTION),
    ("a transaction is there twice", lambda case: case.show("a", "t0"), Kind.DUPLICATE_IN_TRANSACTION),
    ("an aborted record is visible", lambda case: case.show("a", "x0"), Kind.ABORTED_VISIBLE),
    ("committed records end early", lambda case: case.found.stuck.append("a-0"), Kind.STUCK),
    ("an offset without its copy", count_without_copying, Kind.COPY_MISSING),
    ("a copy without its offset", copy_without_counting, Kind.COPY_UNCOUNTED),
    ("a copy is there twice", lambda case: case.show("out", "i0"), Kind.COPY_DUPLICATE),
    ("a copy of nothing", lambda case: case.show("out", "i9"), Kind.UNKNOWN_RECORD),
    ("an offset beyond the end", commit_ahead, Kind.OFFSET_AHEAD),
    ("an offset has gone back", lose_commit, Kind.OFFSET_LOST),
    ("an offset is gone", forget_group, Kind.OFFSET_LOST),
    ("an offset of a deleted topic", remake_topic, Kind.OFFSET_OF_DELETED),
    ("a message is nowhere", lambda case: case.found.live["jobs"].remove("waiting"), Kind.LOST_MESSAGE),
    ("a dead letter is nowhere", lambda case: case.found.live["jobs"].remove("dead"), Kind.LOST_MESSAGE),
    (
        "a dead letter is still in its queue",
        lambda c: c.found.live["jobs"].append("dead"),
        Kind.DUPLICATE_MESSAGE,
    ),
    ("an acknowledged message is back", lambda c: c.found.live["jobs"].append("done"), Kind.REDELIVERED),
    ("a delayed message is lost", lambda case: case.lose("later", "d0"), Kind.LOST_DELAYED),
    ("a delayed message is there twice", lambda case: case.add("later", "d0"), Kind.DUPLICATE_DELAYED),
    ("a delayed message is early", hurry_delay, Kind.EARLY_DELAYED),
    ("a cancelled message is there", lambda case: case.add("later", "d1"), Kind.CANCELLED_DELIVERED),
    ("a FIFO message is lost", lambda case: case.lose("fifo", "f1/2"), Kind.LOST_FIFO),
    ("a deduplication id is there twice", lambda case: case.add("fifo", "f1/3"), Kind.DUPLICATE_FIFO),
    (
        "FIFO messages change places",
        lambda case: case.found.all_records.update(fifo=records("f1/2", "f0/1")),
        Kind.REORDERED_FIFO,
    ),
    ("a topic is gone", lambda case: case.found.topics.clear(), Kind.LOST_TOPIC),
    ("a deleted topic is back", delete_topic, Kind.RETURNED_TOPIC),
    ("added partitions are gone", grow_topic, Kind.WRONG_SETTINGS),
    ("a setting is gone", configure_topic, Kind.WRONG_SETTINGS),
    ("a client fails", lambda case: case.found.failures.append("copier"), Kind.CLIENT_FAILED),
    ("the broker complains", lambda case: case.found.errors.append("Traceback"), Kind.BROKER_ERROR),
]


@pytest.mark.parametrize(("plant", "kind"), [pytest.param(*rest, id=name) for name, *rest in PLANTS])
@pytest.mark.parametrize("promise", [INTERVAL, EVERY_BATCH], ids=["default flush", "flush.messages=1"])
def test_a_planted_anomaly_is_found(plant: Plant, kind: Kind, promise: Promise) -> None:
    case = sound()
    plant(case)
    assert case.kinds(promise) == {kind}


def test_every_kind_is_planted() -> None:
    assert {kind for _, _, kind in PLANTS} == {*Kind}


FORGIVEN = [Kind.LOST_RECORD, Kind.STALE_KEY, Kind.OFFSET_LOST, Kind.REDELIVERED, Kind.LOST_FIFO]


@pytest.mark.parametrize(("plant", "kind"), [(plant, kind) for _, plant, kind in PLANTS if kind in FORGIVEN])
def test_the_last_second_may_go_with_the_default_flush_and_not_with_every_batch(
    plant: Plant, kind: Kind
) -> None:
    case = sound(LATE_S)
    plant(case)
    assert case.kinds(INTERVAL) == set()
    assert case.kinds(EVERY_BATCH) == {kind}


NEVER_FORGIVEN = {
    Kind.LOST_TRANSACTION,
    Kind.PARTIAL_TRANSACTION,
    Kind.COPY_MISSING,
    Kind.COPY_UNCOUNTED,
    Kind.OFFSET_AHEAD,
    Kind.DUPLICATE_MESSAGE,
    Kind.LOST_DELAYED,
    Kind.DUPLICATE_DELAYED,
    Kind.CANCELLED_DELIVERED,
    Kind.LOST_TOPIC,
}


@pytest.mark.parametrize(
    ("plant", "kind"), [(plant, kind) for _, plant, kind in PLANTS if kind in NEVER_FORGIVEN]
)
def test_some_promises_hold_up_to_the_cut_whatever_the_flush_settings(plant: Plant, kind: Kind) -> None:
    case = sound(LATE_S)
    plant(case)
    assert case.kinds(INTERVAL) == {kind}


def test_a_dead_letter_may_go_only_with_its_message() -> None:
    case = sound(LATE_S)
    case.found.live["jobs"].remove("dead")
    assert case.kinds(INTERVAL) == set()  # the message itself was sent within the second
    case.events[:] = [
        replace_time(event, EARLY_S) if isinstance(event, Acked) else event for event in case.events
    ]
    assert case.kinds(INTERVAL) == {Kind.LOST_MESSAGE}


def replace_time(event: Acked, at_s: float) -> Acked:
    return Acked(event.topic, event.value, event.partition, event.offset, at_s)


def test_an_unanswered_commit_may_be_there_or_not_but_not_in_part() -> None:
    case = sound()
    case.events.remove(Decided("t", True, EARLY_S))
    assert case.kinds() == set()
    case.hide("a", "t0")
    assert case.kinds() == {Kind.PARTIAL_TRANSACTION}
    case.hide("b", "t1")
    assert case.kinds() == set()


def test_a_record_of_a_transaction_that_was_never_ended_must_not_be_visible() -> None:
    case = sound()
    case.events.append(Sent("a", "open", EARLY_S))
    case.show("a", "open")
    assert case.kinds() == {Kind.ABORTED_VISIBLE}


def test_an_offset_may_go_back_to_the_end_of_a_log_that_was_cut() -> None:
    case = sound(LATE_S)
    case.lose("records", "r1")
    case.ends["records", 0] = 1
    case.found.group_offsets["readers", "records", 0] = 1
    assert case.kinds(INTERVAL) == set()


def test_an_offset_may_be_used_again_in_a_new_epoch() -> None:
    case = sound(LATE_S)
    case.since.append(Sent("records", "r2", CUT_S + 1))
    case.found.all_records["records"] = [*records("r0"), FoundRecord(0, 1, "r2", leader_epoch=1)]
    assert case.kinds(INTERVAL) == set()


def test_a_change_without_an_answer_may_be_in_force_or_not() -> None:
    case = sound()
    case.events.append(Changing("churn", "delete", at_s=EARLY_S + 1))
    assert case.kinds() == set()
    case.found.topics.clear()
    assert case.kinds() == set()


def test_data_acknowledged_since_the_last_cut_must_exist() -> None:
    case = sound()
    case.since += [Sent("records", "r2", CUT_S + 1), Acked("records", "r2", 0, 2, CUT_S + 1)]
    assert case.kinds(INTERVAL) == {Kind.LOST_RECORD}


def test_a_record_deletion_removes_only_earlier_records() -> None:
    case = sound()
    case.events += [Sent("records", "r2", EARLY_S), Acked("records", "r2", 1, 4, EARLY_S)]
    assert case.kinds() == set()
    case.since += [Sent("records", "r3", CUT_S + 1), Acked("records", "r3", 1, 4, CUT_S + 1)]
    assert case.kinds() == {Kind.LOST_RECORD}
