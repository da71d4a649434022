"""The checker finds each anomaly in a made history, and none in a good one."""

from collections.abc import Sequence

import pytest

from .checker import Kind, check
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


def sent(value: str, transaction: str = "", topic: str = "t") -> Sent:
    return Sent(topic, 0, "p", value, transaction, at_s=1)


def acked(value: str, offset: int, topic: str = "t") -> Acked:
    return Acked(topic, 0, value, offset, at_s=2)


def found(value: str, offset: int) -> Found:
    return Found("t", 0, offset, value)


def leased(value: str, at_s: float, *, to: str = "c1", asked_s: float | None = None) -> Leased:
    return Leased("q", to, value, 10_000, at_s if asked_s is None else asked_s, at_s=at_s)


GOOD_RECORDS: Sequence[Event] = (
    sent("a"), sent("b"), sent("unknown"), sent("c"),
    acked("a", 0), acked("b", 1), acked("c", 2),
    found("a", 0), found("b", 1), found("c", 2), ReadBack("t"),
)  # fmt: skip
GOOD_GROUP: Sequence[Event] = (
    *GOOD_RECORDS,
    Assigned("g", "m1", 1, "t", (0,), at_s=3),
    Read("m1", "t", 0, 0, "a", at_s=3), Read("m1", "t", 0, 1, "b", at_s=3),
    Committing("g", "t", 0, 2, at_s=3), Committed("g", "t", 0, 2, at_s=4),
    # It was not told about its second commit.
    Read("m1", "t", 0, 2, "c", at_s=4), Committing("g", "t", 0, 3, at_s=4),
    Assigned("g", "m2", 2, "t", (0,), at_s=6),
    Position("g", "t", 0, 2, 5, at_s=6), Read("m2", "t", 0, 2, "c", at_s=6),
    CaughtUp("g", "t"),
)  # fmt: skip
GOOD_TRANSACTIONS: Sequence[Event] = (
    sent("a", "kept"), sent("b", "kept"), Ending("kept", True, at_s=2), Ended("kept", True, at_s=3),
    sent("x", "aborted"), acked("x", 3), Ending("aborted", False, at_s=2),
    sent("y", "open"), acked("y", 4),
    sent("u", "unknown"), sent("v", "unknown"), Ending("unknown", True, at_s=2),
    found("a", 0), found("b", 1), ReadBack("t"),
)  # fmt: skip
GOOD_QUEUE: Sequence[Event] = (
    *(sent(value, topic="q") for value in "abc"), *(acked(value, n, "q") for n, value in enumerate("abc")),
    leased("a", 10), Settling("q", "c1", "a", at_s=11), Settled("q", "c1", "a", at_s=12),
    # The lease ended, then another had it; and its acknowledgement has no answer.
    leased("b", 10), leased("b", 20.5, to="c2"), Settling("q", "c2", "b", at_s=21),
    leased("c", 22), Settling("q", "c1", "c", "release", at_s=22), leased("c", 23, to="c2"),
    Drained("q"), Left("q", "c"),
)  # fmt: skip
GOOD_DELAYS: Sequence[Event] = (
    Delaying("t", "d", 5000, at_s=1), Delayed("t", "d", at_s=2),
    Delaying("t", "unknown", 5000, at_s=1),
    FaultBegun("pause", (1,), at_s=5), FaultBegun("kill", (2,), at_s=6),
    FaultEnded("kill", (2,), at_s=20), FaultEnded("pause", (1,), at_s=25),
    Read("r", "t", 0, 0, "d", at_s=26),
    found("d", 0), ReadBack("t"),
)  # fmt: skip


@pytest.mark.parametrize("events", [GOOD_RECORDS, GOOD_GROUP, GOOD_TRANSACTIONS, GOOD_QUEUE, GOOD_DELAYS])
def test_a_history_without_anomalies(events: Sequence[Event]) -> None:
    assert check(events) == []


def replaced(events: Sequence[Event], old: Event, *new: Event) -> Sequence[Event]:
    place = events.index(old)
    return [*events[:place], *new, *events[place + 1 :]]


@pytest.mark.parametrize(
    ("kinds", "events"),
    [
        pytest.param({Kind.LOST}, replaced(GOOD_RECORDS, found("b", 1)), id="lost"),
        pytest.param(
            {Kind.LOST, Kind.VANISHED}, replaced(GOOD_DELAYS, found("d", 0)), id="delayed message lost"
        ),
        pytest.param(
            {Kind.MISPLACED}, replaced(GOOD_RECORDS, found("c", 2), found("c", 3)), id="misplaced"
        ),
        pytest.param(
            {Kind.DUPLICATED, Kind.MISPLACED},
            replaced(GOOD_RECORDS, found("c", 2), found("c", 2), found("c", 3)),
            id="duplicated",
        ),
        pytest.param(
            {Kind.DUPLICATED, Kind.REORDERED},
            replaced(GOOD_RECORDS, found("c", 2), found("unknown", 2), found("c", 2), found("unknown", 3)),
            id="a record without acknowledgement, there twice",
        ),
        pytest.param(
            {Kind.REORDERED},
            [sent("a"), sent("b"), found("b", 0), found("a", 1), ReadBack("t")],
            id="reordered",
        ),
        pytest.param(
            {Kind.UNKNOWN_RECORD}, [*GOOD_RECORDS, found("never sent", 3)], id="never sent"
        ),
        pytest.param(
            {Kind.REORDERED},
            [*GOOD_GROUP, Read("m2", "t", 0, 1, "b", at_s=7)],
            id="read backwards",
        ),
        pytest.param(
            {Kind.VANISHED},
            [*GOOD_RECORDS, Read("r", "t", 0, 3, "unknown", at_s=3)],
            id="read, then lost",
        ),
        pytest.param(
            {Kind.VANISHED},
            [*GOOD_RECORDS, Read("r", "t", 0, 2, "unknown", at_s=3)],
            id="read, then another in its place",
        ),
        pytest.param(
            {Kind.UNSEEN}, replaced(GOOD_GROUP, Read("m1", "t", 0, 1, "b", at_s=3)), id="unseen"
        ),
        pytest.param(
            {Kind.ABORTED_READ}, [*GOOD_TRANSACTIONS, found("x", 3)], id="aborted and read back"
        ),
        pytest.param(
            {Kind.ABORTED_READ, Kind.VANISHED},
            [*GOOD_TRANSACTIONS, Read("r", "t", 0, 4, "y", at_s=9)],
            id="open and read",
        ),
        pytest.param(
            {Kind.PARTIAL_TRANSACTION}, [*GOOD_TRANSACTIONS, found("u", 5)], id="partial transaction"
        ),
        pytest.param(
            {Kind.LOST, Kind.PARTIAL_TRANSACTION},
            replaced(GOOD_TRANSACTIONS, found("b", 1)),
            id="committed and lost",
        ),
        pytest.param(
            {Kind.OFFSET_REGRESSION, Kind.OFFSET_UNKNOWN},
            replaced(GOOD_GROUP, Position("g", "t", 0, 2, 5, at_s=6), Position("g", "t", 0, 1, 5, at_s=6)),
            id="offset went back",
        ),
        pytest.param(
            {Kind.OFFSET_REGRESSION},
            replaced(GOOD_GROUP, Position("g", "t", 0, 2, 5, at_s=6), Position("g", "t", 0, -1, 5, at_s=6)),
            id="offset was forgotten",
        ),
        pytest.param(
            {Kind.TWO_OWNERS},
            [*GOOD_GROUP, Assigned("g", "m3", 2, "t", (0,), at_s=9)],
            id="two owners",
        ),
        pytest.param({Kind.MESSAGE_LOST}, replaced(GOOD_QUEUE, Left("q", "c")), id="message lost"),
        pytest.param({Kind.REDELIVERED}, [*GOOD_QUEUE, leased("a", 30)], id="redelivered"),
        pytest.param({Kind.REDELIVERED}, [*GOOD_QUEUE, Left("q", "a")], id="acknowledged and left"),
        pytest.param(
            {Kind.EARLY_LEASE},
            replaced(GOOD_QUEUE, leased("b", 20.5, to="c2"), leased("b", 19.5, to="c2")),
            id="early lease",
        ),
        pytest.param(
            {Kind.EARLY_DELAY},
            replaced(GOOD_DELAYS, Read("r", "t", 0, 0, "d", at_s=26), Read("r", "t", 0, 0, "d", at_s=5.5)),
            id="early delay",
        ),
        pytest.param(
            {Kind.LATE_DELAY},
            replaced(GOOD_DELAYS, Read("r", "t", 0, 0, "d", at_s=26), Read("r", "t", 0, 0, "d", at_s=41)),
            id="late delay",
        ),
    ],
)  # fmt: skip
def test_each_anomaly_is_found(kinds: set[Kind], events: Sequence[Event]) -> None:
    assert {anomaly.kind for anomaly in check(events)} == kinds


def test_a_receive_that_was_asked_before_the_acknowledgement_is_not_a_redelivery() -> None:
    assert check([*GOOD_QUEUE, leased("a", 12.5, asked_s=11.5)]) == []


def test_a_commit_confirmed_after_the_offset_was_asked_for_may_be_missing_in_the_answer() -> None:
    late = replaced(GOOD_GROUP, Position("g", "t", 0, 2, 5, at_s=6), Position("g", "t", 0, -1, 3.5, at_s=6))
    assert check(late) == []


def test_every_kind_of_anomaly_has_a_test() -> None:
    marks = test_each_anomaly_is_found.pytestmark  # type: ignore[attr-defined]
    assert set().union(*(each.values[0] for each in marks[0].args[1])) == set(Kind)
