"""Replication, commitment, voters and transfers at a leader."""

from contextlib import nullcontext

import msgspec
import pytest

from alpacamq.consensus.messages import (
    AppendRequest,
    CampaignNow,
    EntryKind,
    HardState,
    Hello,
    Message,
    Role,
    SendSnapshot,
)
from alpacamq.consensus.raft import Raft
from alpacamq.model.errors import InvalidVoters, NotController, RateLimited
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Voters
from tests.consensus.raft_node import (
    FOUR,
    ONE,
    THREE,
    TWO,
    accepted,
    elected,
    flush,
    log_of,
    node,
    pre_vote_request,
    rejected,
    role,
)
from tests.consensus.raft_stage import SETTINGS, voter, voters_of

HEARTBEAT_MS = SETTINGS.heartbeat_ms
ELECTION_MS = SETTINGS.election_ms


def leader(*terms: int, voters: Voters = voters_of(1, 2, 3)) -> Raft:  # noqa: B008 - a constant
    """Return a new leader. Its first entry follows those of the earlier terms, and is on its way."""
    return elected(node(1, log_of(*terms, voters=voters)), [one.id for one in voters[1:]])


def appends(messages: list[Message]) -> list[tuple[int, int, list[int], int]]:
    """Return receiver, previous index, entries and commit index of appends."""
    return [
        (message.to, message.prev_index, [entry.index for entry in message.entries], message.commit)
        for message in messages
        if isinstance(message, AppendRequest)
    ]


def established(voters: Voters = voters_of(1, 2, 3)) -> Raft:  # noqa: B008 - a constant
    """Return a leader whose first entry, at index 2, is committed everywhere."""
    raft = leader(voters=voters)
    for one in voters[1:]:
        raft.step(accepted(raft, one.id, 2), 0)
    flush(raft)
    return raft


def test_a_leader_begins_with_an_empty_entry() -> None:
    raft = node()
    raft._campaign(is_transfer=False)
    flush(raft)
    raft.step(msgspec.structs.replace(accepted(raft, TWO, 1), term=raft.term), 0)
    assert role(raft) is Role.CANDIDATE
    raft = leader(1, 1)
    entry = raft._log.entries[-1]
    assert (entry.index, entry.term, entry.kind) == (4, 2, EntryKind.EMPTY)
    assert not raft.is_established


def test_entries_of_earlier_terms_are_committed_only_with_one_of_its_own() -> None:
    raft = leader(1, 1)
    raft.step(accepted(raft, TWO, 3), 0)
    raft.step(accepted(raft, THREE, 3), 0)
    assert raft.commit_index == 0
    raft.step(accepted(raft, TWO, 4), 0)
    assert raft.commit_index == 4
    assert raft.is_established


@pytest.mark.parametrize(
    ("voters", "acknowledged", "expected"),
    [
        pytest.param((1, 2, 3), {2: 3}, 3, id="two of three"),
        pytest.param((1, 2, 3), {}, 2, id="one of three"),
        pytest.param((1, 2, 3, 4), {2: 3}, 2, id="two of four"),
        pytest.param((1, 2, 3, 4), {2: 3, 3: 3}, 3, id="three of four"),
        pytest.param((1, 2, 3, 4, 5), {2: 3, 4: 3}, 3, id="three of five"),
        pytest.param((1, 2), {}, 2, id="one of two"),
        pytest.param((1, 2), {2: 3}, 3, id="both"),
    ],
)
def test_an_entry_is_committed_when_a_majority_has_it(
    voters: tuple[int, ...], acknowledged: dict[int, int], expected: int
) -> None:
    raft = established(voters_of(*voters))
    assert raft.propose(b"a", 0) == 3
    flush(raft)
    for number, index in acknowledged.items():
        raft.step(accepted(raft, BrokerId(number), index), 0)
    assert raft.commit_index == expected


def test_the_leader_counts_itself_once_its_entry_is_durable() -> None:
    raft = established()
    raft.propose(b"a", 0)
    ready = raft.take_ready()
    assert appends(list(ready.messages)) == [(2, 2, [3], 2), (3, 2, [3], 2)]
    raft.step(accepted(raft, TWO, 3), 0)
    assert raft.commit_index == 2
    assert ready.write is not None
    raft.flushed(ready.write, 0)
    assert raft.commit_index == 3


def test_a_voter_that_lost_its_disk_does_not_count() -> None:
    raft = established()
    raft.propose(b"a", 0)
    flush(raft)
    raft.step(accepted(raft, TWO, 3, directory=99), 0)
    assert raft.commit_index == 2
    (peer,) = [peer for peer in raft.peers() if peer.id == TWO]
    assert not peer.is_voter
    assert peer.match_index == 3


def test_observers_do_not_count() -> None:
    raft = established()
    raft.add_observer(FOUR, voter(4).directory, 0)
    raft.propose(b"a", 0)
    flush(raft)
    raft.step(accepted(raft, FOUR, 3), 0)
    assert raft.commit_index == 2


def test_what_is_committed_stays_so_when_a_voter_joins() -> None:
    raft = established()
    raft.add_observer(FOUR, voter(4).directory, 0)
    raft.propose(b"a", 0)
    raft.propose(b"b", 0)
    flush(raft)
    raft.step(accepted(raft, TWO, 4), 0)
    raft.step(accepted(raft, FOUR, 3), 0)
    raft.change_voters(voters_of(1, 2, 3, 4), 0)
    flush(raft)
    raft.step(accepted(raft, FOUR, 3), 0)
    assert raft.commit_index == 4


# Replication.


def test_one_message_with_entries_is_under_way_and_the_rest_goes_into_the_next() -> None:
    raft = established()
    raft.propose(b"a", 0)
    assert appends(flush(raft)) == [(2, 2, [3], 2), (3, 2, [3], 2)]
    raft.propose(b"b", 0)
    raft.propose(b"c", 0)
    assert appends(flush(raft)) == []
    raft.step(accepted(raft, TWO, 2), 0)  # the answer to an earlier heartbeat
    assert appends(flush(raft)) == []
    raft.step(accepted(raft, TWO, 3), 0)
    assert appends(flush(raft)) == [(2, 3, [4, 5], 3)]


def test_messages_are_bounded_but_carry_at_least_one_entry() -> None:
    raft = established()
    for size in (10, 120, 400, 10, 10):
        raft.propose(b"x" * size, 0)
    sent = []
    for _ in range(3):
        sent += [entries for to, _, entries, _ in appends(flush(raft)) if to == 2]
        raft.step(accepted(raft, TWO, sent[-1][-1]), 0)
    assert sent == [[3, 4], [5], [6, 7]]


def test_followers_hear_of_commits_at_once() -> None:
    raft = established()
    raft.propose(b"a", 0)
    flush(raft)
    raft.step(accepted(raft, TWO, 3), 0)
    assert appends(flush(raft)) == [(2, 3, [], 3)]
    raft.step(accepted(raft, TWO, 3), 0)
    assert appends(flush(raft)) == []
    raft.step(accepted(raft, THREE, 3), 0)
    assert appends(flush(raft)) == [(3, 3, [], 3)]


def test_a_heartbeat_does_not_tell_of_commits_after_what_the_follower_has() -> None:
    raft = established()
    raft.propose(b"a", 0)
    flush(raft)
    raft.step(accepted(raft, TWO, 3), 0)
    flush(raft)
    raft.tick(HEARTBEAT_MS)
    assert (3, 2, [], 3) in appends(flush(raft))
    raft.step(accepted(raft, THREE, 3), HEARTBEAT_MS)
    assert appends(flush(raft)) == [(3, 3, [], 3)]


def test_heartbeats_go_to_all_and_entries_without_an_answer_are_sent_again() -> None:
    raft = established()
    assert raft.next_deadline_ms == HEARTBEAT_MS
    raft.tick(HEARTBEAT_MS - 1)
    assert flush(raft) == []
    raft.tick(HEARTBEAT_MS)
    assert appends(flush(raft)) == [(2, 2, [], 2), (3, 2, [], 2)]
    assert raft.next_deadline_ms == 2 * HEARTBEAT_MS
    raft.propose(b"a", HEARTBEAT_MS)
    raft.propose(b"b", HEARTBEAT_MS)
    flush(raft)
    raft.propose(b"c", HEARTBEAT_MS)
    raft.step(accepted(raft, THREE, 4), HEARTBEAT_MS)
    flush(raft)
    raft.tick(2 * HEARTBEAT_MS)
    assert appends(flush(raft)) == [(2, 2, [], 4), (3, 4, [], 4)]
    raft.tick(3 * HEARTBEAT_MS)
    assert appends(flush(raft)) == [(2, 2, [3, 4, 5], 4), (3, 4, [5], 4)]


def test_a_rejection_moves_back_to_where_the_logs_can_be_equal() -> None:
    raft = leader(1, 1, 1)  # terms 1 1 1 1 2
    raft.step(rejected(raft, TWO, 4, (3, 1)), 0)
    assert appends(flush(raft)) == [(2, 3, [4, 5], 0)]
    raft.step(rejected(raft, TWO, 3, (1, 1)), 0)
    assert appends(flush(raft)) == [(2, 1, [2, 3, 4, 5], 0)]
    raft.step(rejected(raft, TWO, 1, (0, 0)), 0)
    assert appends(flush(raft)) == [(2, 0, [1, 2], 0)]


def test_a_hint_of_an_earlier_term_skips_the_leaders_entries_of_later_terms() -> None:
    raft = elected(node(1, log_of(1, 3, 3, 3)))
    raft.step(rejected(raft, TWO, 5, (5, 2)), 0)
    assert appends(flush(raft)) == [(2, 2, [3, 4, 5, 6], 0)]


def test_a_rejection_always_moves_back() -> None:
    raft = elected(node(1, log_of(1, 3, 3, 3)))
    raft.step(rejected(raft, TWO, 5, (9, 9)), 0)
    assert appends(flush(raft)) == [(2, 4, [5, 6], 0)]


def test_late_rejections_are_ignored() -> None:
    raft = leader(1, 1, 1)
    raft.step(rejected(raft, TWO, 3, (1, 1)), 0)
    assert appends(flush(raft)) == []
    raft.step(accepted(raft, TWO, 5), 0)
    flush(raft)
    raft.step(rejected(raft, TWO, 5, (1, 1)), 0)
    assert appends(flush(raft)) == []
    (peer,) = [peer for peer in raft.peers() if peer.id == TWO]
    assert peer.match_index == 5


def test_late_acknowledgements_take_nothing_back() -> None:
    raft = leader(1, 1, 1)
    raft.step(accepted(raft, TWO, 0), 0)  # the answer to a heartbeat
    raft.tick(2 * HEARTBEAT_MS)
    assert (2, 4, [5], 0) in appends(flush(raft))
    raft.step(accepted(raft, TWO, 5), 0)
    raft.step(accepted(raft, TWO, 3), 0)
    assert [peer.match_index for peer in raft.peers() if peer.id == TWO] == [5]


def test_answers_of_unknown_nodes_are_ignored() -> None:
    raft = established()
    raft.step(accepted(raft, FOUR, 2), 0)
    raft.step(rejected(raft, FOUR, 2, (1, 1)), 0)
    assert flush(raft) == []


def test_a_node_that_lost_what_it_acknowledged_is_not_asked_again_at_once() -> None:
    raft = established()
    raft.propose(b"a", 0)
    flush(raft)
    raft.step(rejected(raft, TWO, 2, (1, 1)), 0)
    assert flush(raft) == []


def test_a_rejection_does_not_move_back_before_what_was_acknowledged() -> None:
    raft = leader(1, 1, 1)
    raft.step(accepted(raft, TWO, 3), 0)
    raft.step(rejected(raft, TWO, 4, (1, 1)), 0)
    assert appends(flush(raft)) == [(2, 3, [4, 5], 0)]


def test_a_node_that_comes_back_empty_begins_anew() -> None:
    raft = established()
    raft.add_observer(TWO, voter(2, 99).directory, 0)
    assert appends(flush(raft)) == [(2, 2, [], 2)]
    assert [peer.match_index for peer in raft.peers() if peer.id == TWO] == [0]


def test_observers_are_added_by_their_hello_and_forgotten_when_silent() -> None:
    raft = established(voters_of(1))
    raft.step(Hello(term=0, sender=FOUR, to=ONE, directory=voter(4).directory), 0)
    assert appends(flush(raft)) == [(4, 2, [], 2)]
    raft.step(Hello(term=0, sender=FOUR, to=ONE, directory=voter(4).directory), 0)
    assert appends(flush(raft)) == [(4, 2, [], 2)]  # the first may have been lost
    raft.tick(10 * ELECTION_MS)
    assert [peer.id for peer in raft.peers()] == [4]
    raft.step(Hello(term=0, sender=FOUR, to=ONE, directory=voter(4).directory), 10 * ELECTION_MS)
    raft.tick(10 * ELECTION_MS + HEARTBEAT_MS)
    assert raft.peers() == []


def test_a_silent_voter_is_not_forgotten() -> None:
    raft = established()
    for now_ms in range(0, 12 * ELECTION_MS, ELECTION_MS // 2):
        raft.step(accepted(raft, TWO, 2), now_ms)
        raft.tick(now_ms)
    assert [peer.id for peer in raft.peers()] == [TWO, THREE]


def test_observers_are_limited() -> None:
    raft = established()
    raft.add_observer(ONE, voter(1).directory, 0)
    for number in range(4, 10):
        raft.add_observer(BrokerId(number), voter(number).directory, 0)
    assert [peer.id for peer in raft.peers()] == [2, 3, 4, 5, 6]
    raft.add_observer(FOUR, voter(4, 99).directory, 0)
    assert len(raft.peers()) == 5
    assert voter(4, 99).directory in [peer.directory for peer in raft.peers()]


def test_a_node_that_does_not_know_of_its_removal_is_told() -> None:
    raft = established()
    raft.step(pre_vote_request(2, sender=FOUR), 0)
    assert appends(flush(raft)) == [(4, 2, [], 2)]
    raft.step(pre_vote_request(2, sender=FOUR), 0)
    assert appends(flush(raft)) == []
    follower = node()
    follower.step(pre_vote_request(1, sender=FOUR), 0)
    assert follower.peers() == []


# Leadership.


def test_a_leader_without_a_majority_resigns_after_an_election_timeout() -> None:
    raft = established(voters_of(1, 2, 3, 4))
    raft.step(accepted(raft, TWO, 2), 100)
    raft.step(accepted(raft, THREE, 2), 100)
    raft.tick(99 + ELECTION_MS)
    assert role(raft) is Role.LEADER
    raft.step(accepted(raft, TWO, 2), 99 + ELECTION_MS)
    raft.tick(99 + ELECTION_MS + HEARTBEAT_MS)
    assert role(raft) is Role.FOLLOWER
    assert raft.leader is None


def test_hello_is_no_sign_that_a_voter_hears_the_leader() -> None:
    raft = established(voters_of(1, 2))
    raft.step(Hello(term=0, sender=TWO, to=ONE, directory=voter(2).directory), ELECTION_MS - 1)
    raft.tick(ELECTION_MS)
    assert role(raft) is Role.FOLLOWER


def test_only_a_leader_takes_proposals() -> None:
    raft = node()
    with pytest.raises(NotController) as refused:
        raft.propose(b"a", 0)
    assert refused.value.controller is None
    assert not raft.is_established


def test_proposals_that_wait_are_limited() -> None:
    raft = established()
    raft.propose(b"x" * 600, 0)
    raft.propose(b"x" * 400, 0)
    with pytest.raises(RateLimited):
        raft.propose(b"x", 0)
    flush(raft)
    raft.step(accepted(raft, TWO, 3), 0)
    raft.propose(b"x" * 600, 0)
    with pytest.raises(RateLimited):
        raft.propose(b"x", 0)
    raft.step(accepted(raft, TWO, 4), 0)
    raft.propose(b"x" * 400, 0)
    with pytest.raises(RateLimited):
        raft.propose(b"x", 0)


def test_leadership_goes_to_a_voter_that_has_everything() -> None:
    raft = established()
    raft.propose(b"a", 0)
    flush(raft)
    raft.transfer_leadership(TWO, 0)
    assert flush(raft) == []
    with pytest.raises(NotController) as refused:
        raft.propose(b"b", 0)
    assert refused.value.controller == TWO
    raft.step(accepted(raft, TWO, 3), 0)
    asked = [message for message in flush(raft) if isinstance(message, CampaignNow)]
    assert asked == [CampaignNow(term=2, sender=ONE, to=TWO)]
    raft.step(accepted(raft, TWO, 3), 0)
    assert not any(isinstance(message, CampaignNow) for message in flush(raft))
    # It is abandoned if nothing comes of it.
    raft.step(accepted(raft, THREE, 3), ELECTION_MS - HEARTBEAT_MS)
    raft.tick(ELECTION_MS - HEARTBEAT_MS)
    with pytest.raises(NotController):
        raft.propose(b"b", 0)
    raft.tick(ELECTION_MS)
    raft.propose(b"b", 0)


def test_leadership_goes_to_the_most_advanced_voter_if_none_is_named() -> None:
    raft = established()
    raft.propose(b"a", 0)
    flush(raft)
    raft.step(accepted(raft, THREE, 3), 0)
    flush(raft)
    raft.transfer_leadership(None, 0)
    assert flush(raft) == [CampaignNow(term=2, sender=ONE, to=THREE)]


@pytest.mark.parametrize("to", [1, 4])
def test_leadership_goes_to_other_voters_only(to: int) -> None:
    raft = established()
    raft.add_observer(FOUR, voter(4).directory, 0)
    with pytest.raises(InvalidVoters):
        raft.transfer_leadership(BrokerId(to), 0)
    raft.propose(b"a", 0)


def test_a_sole_voter_has_no_successor() -> None:
    with pytest.raises(InvalidVoters):
        established(voters_of(1)).transfer_leadership(None, 0)


# Voters.


def with_observer(match_index: int = 2) -> Raft:
    raft = established()
    raft.add_observer(FOUR, voter(4).directory, 0)
    flush(raft)
    raft.step(accepted(raft, FOUR, match_index), 0)
    return raft


def test_voters_are_in_force_when_appended() -> None:
    raft = with_observer()
    assert raft.change_voters(reversed(voters_of(1, 2, 3, 4)), 0) == 3
    assert raft.voters == voters_of(1, 2, 3, 4)
    flush(raft)
    raft.step(accepted(raft, TWO, 3), 0)
    assert raft.commit_index == 2
    with pytest.raises(InvalidVoters, match="in progress"):
        raft.change_voters(voters_of(1, 2, 3), 0)
    raft.step(accepted(raft, FOUR, 3), 0)
    assert raft.commit_index == 3
    raft.change_voters(voters_of(1, 2, 3), 0)


@pytest.mark.parametrize(
    "voters",
    [
        pytest.param(voters_of(1, 2, 3), id="no change"),
        pytest.param(voters_of(1), id="two removed"),
        pytest.param(voters_of(1, 2, 4), id="one replaced"),
        pytest.param((*voters_of(1, 2, 3), voter(3, 99)), id="one node twice"),
        pytest.param((), id="none left"),
    ],
)
def test_voters_change_by_one(voters: Voters) -> None:
    with pytest.raises(InvalidVoters, match="one at a time"):
        with_observer().change_voters(voters, 0)


def test_the_last_voter_is_not_removed() -> None:
    with pytest.raises(InvalidVoters, match="one at a time"):
        established(voters_of(1)).change_voters((), 0)


def test_voters_change_only_after_the_leader_has_committed_an_entry() -> None:
    raft = leader()
    with pytest.raises(InvalidVoters, match="of its term"):
        raft.change_voters(voters_of(1, 2), 0)
    with pytest.raises(NotController):
        node().change_voters(voters_of(1, 2), 0)


@pytest.mark.parametrize(
    ("match_index", "proposals", "is_taken"),
    [
        pytest.param(2, 0, True, id="level"),
        pytest.param(2, 2, True, id="close to the end"),
        pytest.param(2, 3, False, id="too far behind"),
        pytest.param(1, 0, False, id="without an entry of this term"),
    ],
)
def test_a_node_becomes_a_voter_when_it_has_caught_up(
    match_index: int, proposals: int, is_taken: bool
) -> None:
    raft = with_observer(match_index)
    for _ in range(proposals):
        raft.propose(b"a", 0)
    expected = nullcontext() if is_taken else pytest.raises(InvalidVoters, match="caught up")
    with expected:
        raft.change_voters(voters_of(1, 2, 3, 4), 0)


def test_a_node_becomes_a_voter_with_the_directory_that_has_caught_up() -> None:
    with pytest.raises(InvalidVoters, match="caught up"):
        with_observer().change_voters([*voters_of(1, 2, 3), voter(4, 99)], 0)
    with pytest.raises(InvalidVoters, match="caught up"):
        established().change_voters(voters_of(1, 2, 3, 4), 0)


def test_a_majority_of_the_new_voters_must_be_reachable() -> None:
    raft = established()
    raft.step(accepted(raft, TWO, 2), 500)
    with pytest.raises(InvalidVoters, match="reachable"):
        raft.change_voters(voters_of(1, 3), ELECTION_MS)
    raft.change_voters(voters_of(1, 2), ELECTION_MS)


def test_a_leader_that_removes_itself_goes_on_until_that_is_committed() -> None:
    raft = established()
    raft.propose(b"a", 0)
    raft.change_voters(voters_of(2, 3), 0)
    flush(raft)
    raft.step(accepted(raft, THREE, 4), 0)
    assert role(raft) is Role.LEADER
    assert raft.commit_index == 2
    raft.step(accepted(raft, TWO, 3), 0)
    assert role(raft) is Role.LEADER
    assert raft.commit_index == 3
    raft.step(accepted(raft, TWO, 4), 0)
    assert role(raft) is Role.FOLLOWER
    assert not raft.is_voter
    sent = flush(raft)
    assert [message.to for message in sent if isinstance(message, CampaignNow)] == [TWO]
    assert appends(sent) == [(2, 4, [], 4), (3, 4, [], 4)]


# Snapshots.


def compacted() -> Raft:
    """Return a leader whose log begins after index 4; node 3 has not been heard of."""
    raft = leader()
    raft.step(accepted(raft, TWO, 2), 0)
    for _ in range(3):
        raft.propose(b"a", 0)
    flush(raft)
    raft.step(accepted(raft, TWO, 5), 0)
    flush(raft)
    raft.compact(4)
    return raft


def snapshots(raft: Raft) -> list[SendSnapshot]:
    return list(raft.take_ready().snapshots)


def test_a_node_that_needs_what_is_gone_gets_a_snapshot() -> None:
    raft = compacted()
    raft.step(rejected(raft, THREE, 1, (0, 0)), 0)
    assert snapshots(raft) == [SendSnapshot(THREE, 4, 2)]
    assert snapshots(raft) == []
    # Meanwhile it gets heartbeats that fit any log.
    raft.step(rejected(raft, THREE, 1, (0, 0)), 0)
    raft.tick(HEARTBEAT_MS)
    assert appends(flush(raft)) == [(2, 5, [], 5), (3, 0, [], 5)]
    assert [peer.is_receiving_snapshot for peer in raft.peers()] == [False, True]
    raft.snapshot_sent(THREE, 3, HEARTBEAT_MS, installed=True)
    raft.snapshot_sent(FOUR, 4, HEARTBEAT_MS, installed=True)
    assert snapshots(raft) == []
    assert appends(flush(raft)) == []
    raft.snapshot_sent(THREE, 4, HEARTBEAT_MS, installed=True)
    assert appends(flush(raft)) == [(3, 4, [5], 5)]


def test_a_snapshot_that_did_not_arrive_is_sent_again_later() -> None:
    raft = compacted()
    raft.step(rejected(raft, THREE, 1, (0, 0)), 0)
    assert len(snapshots(raft)) == 1
    raft.snapshot_sent(THREE, 4, 0, installed=False)
    assert snapshots(raft) == []
    raft.tick(HEARTBEAT_MS)
    assert snapshots(raft) == []
    raft.tick(2 * HEARTBEAT_MS)
    assert snapshots(raft) == [SendSnapshot(THREE, 4, 2)]


def test_an_acknowledgement_of_the_snapshot_ends_it() -> None:
    raft = compacted()
    raft.step(rejected(raft, THREE, 1, (0, 0)), 0)
    flush(raft)
    raft.step(accepted(raft, THREE, 0), 0)
    assert snapshots(raft) == []
    assert [peer.is_receiving_snapshot for peer in raft.peers()] == [False, True]
    raft.step(accepted(raft, THREE, 4), 0)
    assert appends(flush(raft)) == [(3, 4, [5], 5)]
    raft.tick(HEARTBEAT_MS)
    assert appends(flush(raft)) == [(2, 5, [], 5), (3, 4, [], 5)]


def test_a_former_leader_ignores_the_end_of_a_snapshot() -> None:
    raft = node(hard_state=HardState(2))
    raft.snapshot_sent(THREE, 4, 0, installed=True)
    assert flush(raft) == []
