"""Appends, acknowledgements and snapshots at a follower."""

import pytest

from alpacamq.consensus.messages import (
    AppendAccepted,
    AppendRejected,
    Entry,
    HardState,
    Role,
    Snapshot,
)
from alpacamq.consensus.raft import Raft
from tests.consensus.raft_node import (
    ONE,
    THREE,
    TIMEOUT_MS,
    TWO,
    append,
    committed,
    data,
    flush,
    log_of,
    node,
    role,
    vote_request,
)
from tests.consensus.raft_stage import voter, voters_of


def acks(raft: Raft) -> list[int]:
    """Make everything durable, and return how much is acknowledged."""
    return [message.match_index for message in flush(raft) if isinstance(message, AppendAccepted)]


def terms(raft: Raft) -> list[int]:
    return [entry.term for entry in raft._log.entries]


@pytest.mark.parametrize(
    ("prev", "hint"),
    [
        pytest.param((9, 3), (4, 3), id="after the end"),
        pytest.param((4, 2), (2, 1), id="another term there"),
        pytest.param((9, 2), (2, 1), id="after the end, and the end is of a later term"),
        pytest.param((4, 0), (0, 0), id="nothing can be equal"),
    ],
)
def test_an_append_that_does_not_fit_is_rejected_with_a_hint(
    prev: tuple[int, int], hint: tuple[int, int]
) -> None:
    raft = node(1, log_of(1, 3, 3))
    raft.step(append(4, prev, data(prev[0] + 1, 4)), 0)
    (answer,) = flush(raft)
    assert isinstance(answer, AppendRejected)
    assert (answer.prev_index, answer.hint_index, answer.hint_term) == (prev[0], *hint)
    assert raft.last_index == 4


@pytest.mark.parametrize(
    ("prev", "sent", "expected", "ack"),
    [
        pytest.param((4, 3), [4, 4], [1, 1, 2, 3, 4, 4], 6, id="at the end"),
        pytest.param((2, 1), [4], [1, 1, 4], 3, id="a conflict cuts the rest"),
        pytest.param((2, 1), [2, 4], [1, 1, 2, 4], 4, id="a conflict after equal entries"),
        pytest.param((2, 1), [2], [1, 1, 2, 3], 3, id="known entries change nothing"),
        pytest.param((2, 1), [], [1, 1, 2, 3], 2, id="a heartbeat changes nothing"),
        pytest.param((0, 0), [], [1, 1, 2, 3], 0, id="a heartbeat at the start"),
    ],
)
def test_entries_replace_those_of_other_terms(
    prev: tuple[int, int], sent: list[int], expected: list[int], ack: int
) -> None:
    raft = node(1, log_of(1, 2, 3))
    raft.step(append(4, prev, *(data(prev[0] + 1 + n, term) for n, term in enumerate(sent))), 0)
    assert acks(raft) == [ack]
    assert terms(raft) == expected


def test_a_conflict_is_truncated_on_disk() -> None:
    raft = node(1, log_of(1, 2, 3))
    raft.step(append(4, (2, 1), data(3, 4)), 0)
    ready = raft.take_ready()
    assert ready.truncate_from == 3
    assert [entry.index for entry in ready.entries] == [3]


def test_entries_are_acknowledged_once_they_are_durable() -> None:
    raft = node(hard_state=HardState(2))
    raft.step(append(2, (1, 1), data(2, 2)), 0)
    ready = raft.take_ready()
    assert ready.messages == []
    raft.step(append(2, (2, 2), data(3, 2)), 0)
    second = raft.take_ready()
    # A heartbeat is answered at once, with what is durable.
    raft.step(append(2, (3, 2)), 0)
    assert [message for message in raft.take_ready().messages if isinstance(message, AppendAccepted)] == []
    raft.step(append(2, (1, 1)), 0)
    (answer,) = raft.take_ready().messages
    assert answer == AppendAccepted(term=2, sender=ONE, to=TWO, directory=voter(1).directory, match_index=1)
    assert ready.write is not None
    raft.flushed(ready.write, 0)
    (answer,) = raft.take_ready().messages
    assert isinstance(answer, AppendAccepted)
    assert answer.match_index == 2
    assert second.write is not None
    raft.flushed(second.write, 0)
    (answer,) = raft.take_ready().messages
    assert isinstance(answer, AppendAccepted)
    assert answer.match_index == 3
    # Nothing more is due, whatever else is written.
    raft.step(vote_request(2, (9, 9)), 0)
    assert acks(raft) == []


def test_nothing_is_acknowledged_in_a_term_that_is_not_durable() -> None:
    """After a crash, the node would follow a leader of an earlier term."""
    raft = node()
    raft.step(append(2, (1, 1)), 0)
    ready = raft.take_ready()
    assert ready.messages == []
    assert ready.write is not None
    raft.flushed(ready.write, 0)
    (answer,) = raft.take_ready().messages
    assert isinstance(answer, AppendAccepted)


def test_an_acknowledgement_that_was_due_in_an_earlier_term_is_not_sent() -> None:
    raft = node(hard_state=HardState(2))
    raft.step(append(2, (1, 1), data(2, 2)), 0)
    first = raft.take_ready()
    raft.step(append(3, (9, 3), sender=THREE), 0)  # rejected
    assert first.write is not None
    raft.flushed(first.write, 0)
    assert acks(raft) == []


def test_what_was_written_and_truncated_again_is_not_durable() -> None:
    raft = node(hard_state=HardState(2))
    raft.step(append(2, (1, 1), data(2, 2), data(3, 2)), 0)
    first = raft.take_ready()
    raft.step(append(3, (1, 1), data(2, 3), sender=THREE), 0)
    second = raft.take_ready()
    raft.step(append(4, (1, 1), data(2, 2), data(3, 2), data(4, 4)), 0)
    third = raft.take_ready()
    assert (second.truncate_from, third.truncate_from) == (2, 2)
    assert first.write is not None
    assert second.write is not None
    raft.flushed(first.write, 0)
    assert raft.flushed_index == 1
    raft.flushed(second.write, 0)
    assert raft.flushed_index == 1
    assert third.write is not None
    raft.flushed(third.write, 0)
    assert raft.flushed_index == 4


def test_a_follower_commits_no_further_than_the_leader_is_known_to_agree() -> None:
    raft = node(1, log_of(2, 2, 2), hard_state=HardState(3))
    raft.step(append(3, (2, 2), commit=9), 0)
    ready = raft.take_ready()
    assert raft.commit_index == 2
    assert committed(ready) == [1, 2]
    raft.step(append(3, (2, 2), data(3, 2), commit=1), 0)
    assert raft.commit_index == 2
    raft.step(append(3, (2, 2), data(3, 2), commit=3), 0)
    assert committed(raft.take_ready()) == [3]
    assert committed(raft.take_ready()) == []


def test_entries_are_handed_out_once_they_are_durable_here() -> None:
    raft = node(hard_state=HardState(2))
    raft.step(append(2, (1, 1), data(2, 2), commit=2), 0)
    ready = raft.take_ready()
    assert raft.commit_index == 2
    assert committed(ready) == [1]
    assert ready.write is not None
    raft.flushed(ready.write, 0)
    assert committed(raft.take_ready()) == [2]


def test_the_leader_learns_what_is_committed_here_from_a_heartbeat() -> None:
    raft = node(1, log_of(2, 2), hard_state=HardState(2))
    raft.step(append(2, (3, 2), commit=3), 0)
    flush(raft)
    raft.step(append(3, (0, 0), sender=THREE), 0)
    assert acks(raft) == [3]


def test_an_earlier_leader_is_told_of_the_term() -> None:
    raft = node(hard_state=HardState(5))
    raft.step(append(4, (1, 1), data(2, 4)), 0)
    (answer,) = flush(raft)
    assert isinstance(answer, AppendRejected)
    assert answer.term == 5
    assert raft.last_index == 1
    assert raft.leader is None


def test_a_follower_reports_its_leader_and_waits_for_it() -> None:
    raft = node()
    raft.step(append(2, (1, 1)), 400)
    ready = raft.take_ready()
    assert ready.role is not None
    assert (ready.role.role, ready.role.term, ready.role.leader) == (Role.FOLLOWER, 2, TWO)
    assert raft.next_deadline_ms == 400 + TIMEOUT_MS
    raft.step(append(2, (1, 1)), 300)  # the clock of a node never goes back
    assert raft.next_deadline_ms == 400 + TIMEOUT_MS
    assert raft.take_ready().role is None


# Snapshots.

SNAPSHOT = Snapshot(5, 3, voters_of(1, 2, 3, 4))


def test_a_received_snapshot_replaces_the_log() -> None:
    raft = node(1, log_of(1, 1, 1, 1, 1, 1))
    raft.step(append(3, (9, 3)), 0)
    flush(raft)
    assert raft.install_snapshot(SNAPSHOT, 0)
    ready = raft.take_ready()
    assert ready.install == SNAPSHOT
    assert ready.truncate_from is None
    assert ready.messages == []
    assert (raft.commit_index, raft.last_index, raft.flushed_index) == (5, 5, 0)
    assert raft.voters == SNAPSHOT.voters
    assert ready.write is not None
    raft.flushed(ready.write, 0)
    assert acks(raft) == [5]
    raft.step(append(3, (5, 3), data(6, 3), commit=6), 0)
    assert acks(raft) == [6]


def test_a_snapshot_of_what_is_here_already_is_not_installed() -> None:
    raft = node(1, log_of(2, 2, 3, 3), hard_state=HardState(3))
    assert not raft.install_snapshot(Snapshot(4, 3, voters_of(1, 2, 3)), 0)
    assert raft.last_index == 5
    assert committed(raft.take_ready()) == [1, 2, 3, 4]
    assert not raft.install_snapshot(Snapshot(4, 3, voters_of(1, 2, 3)), 0)
    assert not raft.install_snapshot(Snapshot(2, 2, voters_of(1, 2, 3)), 0)
    assert raft.commit_index == 4


def test_a_snapshot_does_not_lower_what_is_known_to_be_equal() -> None:
    raft = node(1, log_of(2, 2, 2, 2), hard_state=HardState(2))
    raft.step(append(2, (5, 2)), 0)
    flush(raft)
    assert not raft.install_snapshot(Snapshot(4, 2, voters_of(1, 2, 3)), 0)
    raft.step(append(2, (1, 1)), 0)
    assert acks(raft) == [5]


def test_appends_that_begin_before_the_snapshot_are_taken_from_there() -> None:
    raft = node(1, [], snapshot=SNAPSHOT, hard_state=HardState(3))
    raft.step(append(3, (4, 3), data(5, 3), data(6, 3)), 0)
    assert acks(raft) == [6]
    assert raft.last_index == 6
    raft.step(append(3, (2, 2), data(3, 2)), 0)
    assert acks(raft) == [6]


@pytest.mark.parametrize(
    ("stored", "last_index", "is_reset"),
    [
        pytest.param([], 5, False, id="no log"),
        pytest.param([data(6, 3), data(7, 3)], 7, False, id="a log that begins after it"),
        pytest.param([data(4, 2), data(5, 3), data(6, 3)], 6, False, id="a log that contains it"),
        pytest.param([data(5, 3)], 5, False, id="a log that ends with it"),
        pytest.param([data(4, 2), data(5, 2), data(6, 3)], 5, True, id="a log that diverged before"),
        pytest.param([data(3, 2), data(4, 2)], 5, True, id="a log that ends before"),
    ],
)
def test_a_log_is_kept_if_it_leads_up_to_the_snapshot(
    stored: list[Entry], last_index: int, is_reset: bool
) -> None:
    """A crash can come between installing a snapshot and removing the log that it replaces."""
    raft = Raft(
        ONE,
        voter(1).directory,
        hard_state=HardState(3),
        snapshot=SNAPSHOT,
        entries=stored,
        settings=node()._settings,
        random=lambda: 0.5,
        now_ms=0,
    )
    ready = raft.take_ready()
    assert raft.last_index == last_index
    assert (ready.install == SNAPSHOT) is is_reset
    assert (ready.write is not None) is is_reset


def test_a_leader_of_an_earlier_term_takes_a_snapshot_of_a_later_one() -> None:
    raft = node(1, log_of(voters=voters_of(1)))
    raft.tick(0)
    flush(raft)
    assert role(raft) is Role.LEADER
    assert raft.install_snapshot(Snapshot(9, 7, voters_of(2)), 0)
    assert role(raft) is Role.FOLLOWER
    assert raft.term == 7


def test_compaction_keeps_voters_and_what_follows() -> None:
    raft = node(1, log_of(2, 2, 2), hard_state=HardState(2))
    raft.step(append(2, (4, 2), commit=3), 0)
    flush(raft)
    size = raft.log_bytes
    position = raft.snapshot_at(3)
    assert position == Snapshot(3, 2, voters_of(1, 2, 3))
    raft.compact(3)
    raft.compact(2)
    assert raft.snapshot == position
    assert raft.voters == voters_of(1, 2, 3)
    assert raft.last_index == 4
    assert 0 < raft.log_bytes < size
    with pytest.raises(AssertionError):
        raft.compact(4)
