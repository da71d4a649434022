"""The log in memory: limits, truncation, compaction, and what is durable."""

import pytest

from alpacamq.consensus.log import ENTRY_OVERHEAD_BYTES, RaftLog
from alpacamq.consensus.messages import Entry, EntryKind, HardState, Snapshot, encode_voters
from tests.consensus.raft_node import data, log_of
from tests.consensus.raft_stage import voters_of

STATE = HardState(1)


def log(*terms: int) -> RaftLog:
    """Return a log whose first entry names voters 1, 2 and 3; all of it is durable."""
    return RaftLog(Snapshot(), log_of(*terms))


def voters_entry(index: int, term: int, *numbers: int) -> Entry:
    return Entry(index, term, EntryKind.VOTERS, encode_voters(voters_of(*numbers)))


@pytest.mark.parametrize(
    ("index", "term", "expected"),
    [
        pytest.param(6, 4, (6, 4), id="the entry itself"),
        pytest.param(9, 4, (6, 4), id="after the end"),
        pytest.param(4, 4, (4, 2), id="not after the index"),
        pytest.param(6, 3, (4, 2), id="not of a later term"),
        pytest.param(6, 1, (2, 1), id="the last of a term"),
        pytest.param(6, 0, (0, 0), id="nothing"),
    ],
)
def test_last_possible_match(index: int, term: int, expected: tuple[int, int]) -> None:
    assert log(1, 2, 2, 4, 4).last_possible_match(index, term) == expected


@pytest.mark.parametrize(
    ("index", "term"), [(0, 0), (1, None), (2, None), (3, 2), (4, 2), (5, 3), (6, None), (-1, None)]
)
def test_terms_are_known_from_the_base_to_the_end(index: int, term: int | None) -> None:
    compacted = log(2, 2, 2, 3)
    compacted.compact(compacted.snapshot_at(3), 0)
    assert compacted.term_at(index) == term


@pytest.mark.parametrize(("room", "count"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_a_batch_has_as_many_entries_as_fit(room: int, count: int) -> None:
    found = log(1, 1, 1).batch_from(2, room * (1 + ENTRY_OVERHEAD_BYTES))
    assert [entry.index for entry in found] == list(range(2, 2 + count))


def test_the_size_is_that_of_the_entries() -> None:
    one = 1 + ENTRY_OVERHEAD_BYTES
    kept = log(1, 1, 1, 1)
    first = kept.byte_count - 4 * one
    kept.truncate(5)
    assert kept.byte_count == first + 3 * one
    kept.compact(kept.snapshot_at(3), 0)
    assert kept.byte_count == one
    kept.restart_after(Snapshot(9, 9, ()))
    assert kept.byte_count == 0


def test_voters_go_with_the_entry_that_names_them() -> None:
    kept = log(1)
    kept.append(voters_entry(3, 1, 1, 2))
    kept.append(data(4, 1))
    assert (kept.voters, kept.voters_index) == (voters_of(1, 2), 3)
    assert kept.previous_voters == voters_of(1, 2, 3)
    assert [kept.voters_at(index) for index in (0, 1, 2, 3)] == [
        (),
        voters_of(1, 2, 3),
        voters_of(1, 2, 3),
        voters_of(1, 2),
    ]
    kept.truncate(4)
    assert kept.voters == voters_of(1, 2)
    kept.truncate(3)
    assert (kept.voters, kept.voters_index) == (voters_of(1, 2, 3), 1)


def test_compaction_keeps_the_voters_in_force_and_some_entries() -> None:
    kept = log(1, 1)
    kept.append(voters_entry(4, 1, 1, 2))
    kept.append(data(5, 1))
    kept.compact(kept.snapshot_at(3), 1)
    assert (kept.snapshot.index, kept.base_index) == (3, 2)
    assert kept.snapshot.voters == kept.voters_at(2) == voters_of(1, 2, 3)
    kept.compact(kept.snapshot_at(4), 9)
    assert (kept.snapshot.index, kept.base_index) == (4, 2)
    kept.compact(kept.snapshot_at(4), 0)
    assert (kept.snapshot.index, kept.base_index, kept.last_index) == (4, 4, 5)
    assert kept.voters == kept.previous_voters == kept.voters_at(4) == voters_of(1, 2)


def test_what_was_never_handed_out_needs_no_truncation_on_disk() -> None:
    kept = log(1)
    kept.append(data(3, 1))
    kept.truncate(3)
    assert kept.truncate_from is None
    kept.append(data(3, 2))
    assert [entry.term for entry in kept.unwritten()] == [2]
    kept.begin_write(1, STATE)
    kept.truncate(3)
    assert kept.truncate_from == 3
    kept.append(data(3, 3))
    kept.truncate(2)
    assert kept.truncate_from == 2
    kept.append(data(2, 4))
    kept.append(data(3, 4))
    kept.truncate(3)
    assert kept.truncate_from == 2
    assert [entry.index for entry in kept.unwritten()] == [2]


def test_writes_become_durable_in_order() -> None:
    kept = log()
    for number in (1, 2, 3):
        kept.append(data(number + 1, 1))
        kept.begin_write(number, HardState(number))
    assert kept.unwritten() == []
    assert kept.finish_writes(0) is None
    assert kept.flushed_index == 1
    assert kept.finish_writes(2) == HardState(2)
    assert kept.flushed_index == 3
    assert kept.finish_writes(2) is None
    assert kept.finish_writes(3) == HardState(3)
    assert kept.flushed_index == 4


def test_a_write_that_ends_after_a_truncation_counts_only_up_to_it() -> None:
    kept = log()
    kept.append(data(2, 1))
    kept.append(data(3, 1))
    kept.begin_write(1, STATE)
    kept.truncate(3)
    kept.append(data(3, 2))
    kept.finish_writes(1)
    assert kept.flushed_index == 2
    kept.begin_write(2, STATE)
    kept.finish_writes(2)
    assert kept.flushed_index == 3
    kept.truncate(3)
    assert kept.flushed_index == 2


def test_a_truncation_makes_nothing_durable() -> None:
    kept = log()
    kept.append(data(2, 1))
    kept.begin_write(1, STATE)
    kept.append(data(3, 1))
    kept.append(data(4, 1))
    kept.truncate(4)
    assert kept.flushed_index == 1
    kept.finish_writes(1)
    assert kept.flushed_index == 2


def test_nothing_is_durable_between_receiving_and_installing_a_snapshot() -> None:
    kept = log()
    kept.append(data(2, 1))
    kept.begin_write(1, STATE)
    kept.restart_after(Snapshot(9, 3, voters_of(1)))
    kept.finish_writes(1)
    assert kept.flushed_index == 0
    assert kept.truncate_from is None
    kept.append(data(10, 3))
    kept.append(data(11, 3))
    assert [entry.index for entry in kept.unwritten()] == [10, 11]
    kept.begin_write(2, STATE)
    assert kept.install is None
    kept.finish_writes(2)
    assert kept.flushed_index == 11
