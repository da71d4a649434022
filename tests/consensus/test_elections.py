"""Who may vote for whom, who may campaign, and when."""

import pytest

from alpacamq.consensus.messages import (
    CampaignNow,
    Entry,
    EntryKind,
    HardState,
    Hello,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    Role,
    Snapshot,
    VoteRequest,
    VoteResponse,
    encode_voters,
)
from alpacamq.consensus.raft import Raft
from tests.consensus.raft_node import (
    FOUR,
    ONE,
    THREE,
    TIMEOUT_MS,
    TWO,
    accepted,
    append,
    elected,
    flush,
    log_of,
    node,
    pre_vote_request,
    role,
    vote_request,
)
from tests.consensus.raft_stage import SETTINGS, voters_of

ELECTION_MS = SETTINGS.election_ms


def answer(raft: Raft, message: Message, now_ms: int = 0) -> bool | None:
    """Return whether a vote or a pre-vote is granted, None without an answer."""
    raft.step(message, now_ms)
    answers = [sent for sent in flush(raft, now_ms) if isinstance(sent, VoteResponse | PreVoteResponse)]
    return answers[0].granted if answers else None


@pytest.mark.parametrize(
    ("last", "is_granted"),
    [
        pytest.param((4, 3), True, id="equal log"),
        pytest.param((5, 3), True, id="longer log"),
        pytest.param((3, 3), False, id="shorter log"),
        pytest.param((2, 4), True, id="shorter log of a later term"),
        pytest.param((9, 2), False, id="longer log of an earlier term"),
    ],
)
def test_votes_go_to_logs_that_are_at_least_as_complete(last: tuple[int, int], is_granted: bool) -> None:
    assert answer(node(1, log_of(1, 2, 3)), vote_request(6, last)) is is_granted
    assert answer(node(1, log_of(1, 2, 3)), pre_vote_request(6, last)) is is_granted


def test_one_vote_per_term() -> None:
    raft = node()
    assert answer(raft, vote_request(2)) is True
    assert answer(raft, vote_request(2)) is True  # the answer may have been lost
    assert answer(raft, vote_request(2, sender=THREE)) is False
    assert answer(raft, vote_request(3, sender=THREE)) is True
    assert raft.hard_state == HardState(3, THREE)


def test_a_vote_survives_a_restart() -> None:
    raft = node(hard_state=HardState(2, TWO))
    assert answer(raft, vote_request(2, sender=THREE)) is False
    assert answer(raft, vote_request(2, sender=TWO)) is True


def test_a_vote_is_sent_once_it_is_durable() -> None:
    raft = node()
    raft.step(vote_request(2), 0)
    ready = raft.take_ready()
    assert ready.messages == []
    assert ready.hard_state == HardState(2, TWO)
    assert ready.write is not None
    raft.flushed(ready.write, 0)
    (vote,) = raft.take_ready().messages
    assert vote == VoteResponse(term=2, sender=ONE, to=TWO, granted=True)


def test_a_refusal_is_sent_at_once_and_does_not_replace_a_vote() -> None:
    raft = node()
    raft.step(vote_request(2), 0)
    raft.step(vote_request(2, sender=THREE), 0)
    ready = raft.take_ready()
    assert ready.messages == [VoteResponse(term=2, sender=ONE, to=THREE, granted=False)]
    assert ready.write is not None
    raft.flushed(ready.write, 0)
    assert raft.take_ready().messages == [VoteResponse(term=2, sender=ONE, to=TWO, granted=True)]


def test_a_vote_that_was_not_durable_in_its_term_is_not_sent_later() -> None:
    raft = node()
    raft.step(vote_request(2), 0)
    first = raft.take_ready()
    raft.step(vote_request(3, sender=THREE), 0)
    assert first.write is not None
    raft.flushed(first.write, 0)
    assert [message.to for message in flush(raft)] == [THREE]


def test_a_vote_for_another_directory_is_refused() -> None:
    """A node that lost its disk has forgotten its votes and entries."""
    assert answer(node(), vote_request(2, directory=99)) is False
    assert answer(node(), pre_vote_request(1, directory=99)) is False


def test_an_empty_node_never_votes() -> None:
    assert answer(node(1, []), vote_request(2)) is False
    assert answer(node(1, []), pre_vote_request(2)) is False


def test_a_node_that_does_not_know_yet_that_it_votes_does() -> None:
    assert answer(node(4), vote_request(2, to=4)) is True
    assert answer(node(4), pre_vote_request(1, to=4)) is True


def test_an_earlier_term_is_refused_with_our_own() -> None:
    raft = node(hard_state=HardState(5))
    raft.step(vote_request(4), 0)
    assert flush(raft) == [VoteResponse(term=5, sender=ONE, to=TWO, granted=False)]


@pytest.mark.parametrize(("term", "is_granted"), [(4, False), (5, True), (6, True)])
def test_a_pre_vote_is_for_a_term_that_has_not_begun(term: int, is_granted: bool) -> None:
    raft = node(hard_state=HardState(5))
    assert answer(raft, pre_vote_request(term)) is is_granted
    assert raft.hard_state == HardState(5)


@pytest.mark.parametrize(("after_ms", "is_granted"), [(ELECTION_MS - 1, False), (ELECTION_MS, True)])
def test_nobody_votes_against_a_leader_that_was_heard(after_ms: int, is_granted: bool) -> None:
    raft = node()
    raft.step(append(2, (1, 1)), 100)
    flush(raft, 100)
    assert answer(raft, pre_vote_request(2, sender=THREE), 100 + after_ms) is is_granted
    assert answer(raft, vote_request(3, sender=THREE), 100 + after_ms) is (True if is_granted else None)
    assert raft.term == (3 if is_granted else 2)


def test_a_leader_can_have_another_elected() -> None:
    raft = node()
    raft.step(append(2, (1, 1)), 0)
    assert answer(raft, vote_request(3, sender=THREE, is_transfer=True)) is True


def test_a_leader_keeps_itself() -> None:
    raft = elected(node())
    assert answer(raft, pre_vote_request(9, (9, 9))) is False
    assert answer(raft, vote_request(9, (9, 9))) is None
    assert role(raft) is Role.LEADER
    assert answer(raft, vote_request(9, (9, 9), is_transfer=True)) is True
    assert role(raft) is Role.FOLLOWER


def test_messages_for_others_and_from_itself_are_ignored() -> None:
    raft = node()
    assert answer(raft, vote_request(2, to=3)) is None
    assert answer(raft, vote_request(2, sender=ONE)) is None
    assert raft.term == 1


# Campaigns.


def kinds(messages: list[Message]) -> list[tuple[str, int]]:
    return [(type(message).__name__, message.to) for message in messages]


def test_a_voter_that_hears_of_no_leader_asks_for_pre_votes() -> None:
    raft = node(contacts=[FOUR])
    assert raft.next_deadline_ms == TIMEOUT_MS
    raft.tick(TIMEOUT_MS - 1)
    assert flush(raft) == []
    raft.tick(TIMEOUT_MS)
    assert role(raft) is Role.PRE_CANDIDATE
    assert kinds(flush(raft)) == [("PreVoteRequest", TWO), ("PreVoteRequest", THREE), ("Hello", FOUR)]
    assert raft.next_deadline_ms == 2 * TIMEOUT_MS
    assert raft.term == 1


def pre_vote(
    raft: Raft, *, sender: int = 2, campaign_term: int = 2, granted: bool = True, term: int = 1
) -> None:
    raft.step(
        PreVoteResponse(
            term=term,
            sender={2: TWO, 3: THREE}[sender],
            to=ONE,
            campaign_term=campaign_term,
            granted=granted,
        ),
        TIMEOUT_MS,
    )


def test_votes_are_requested_after_a_majority_of_pre_votes_and_once_the_term_is_durable() -> None:
    raft = node()
    raft.tick(TIMEOUT_MS)
    flush(raft)
    pre_vote(raft, granted=False)
    pre_vote(raft, campaign_term=1)
    assert role(raft) is Role.PRE_CANDIDATE
    pre_vote(raft)
    assert role(raft) is Role.CANDIDATE
    ready = raft.take_ready()
    assert ready.hard_state == HardState(2, ONE)
    assert ready.messages == []
    assert kinds(flush(raft)) == []
    assert ready.write is not None
    raft.flushed(ready.write, TIMEOUT_MS)
    requests = flush(raft)
    assert kinds(requests) == [("VoteRequest", TWO), ("VoteRequest", THREE)]
    assert isinstance(requests[0], VoteRequest)
    assert (requests[0].term, requests[0].is_transfer) == (2, False)
    assert role(raft) is Role.CANDIDATE
    # Other writes do not repeat the requests.
    raft._log.append(log_of(1)[-1])
    assert kinds(flush(raft)) == []


def test_an_earlier_write_does_not_make_the_vote_durable() -> None:
    raft = node()
    raft.step(append(1, (1, 1), log_of(1)[-1]), 0)
    earlier = raft.take_ready()
    raft._campaign(is_transfer=False)
    raft.take_ready()
    assert earlier.write is not None
    raft.flushed(earlier.write, 0)
    assert raft.take_ready().messages == []


def test_a_pre_vote_may_come_from_an_earlier_term() -> None:
    raft = node(hard_state=HardState(7))
    raft.tick(TIMEOUT_MS)
    pre_vote(raft, campaign_term=8, term=3)
    assert role(raft) is Role.CANDIDATE
    assert raft.term == 8


def test_a_pre_vote_that_comes_late_changes_nothing() -> None:
    raft = node()
    raft.tick(TIMEOUT_MS)
    raft.step(append(1, (1, 1)), TIMEOUT_MS)
    pre_vote(raft)
    assert role(raft) is Role.FOLLOWER
    assert raft.term == 1


def vote(raft: Raft, sender: int, *, granted: bool = True) -> None:
    raft.step(
        VoteResponse(term=raft.term, sender={2: TWO, 3: THREE}[sender], to=ONE, granted=granted), TIMEOUT_MS
    )


def test_a_majority_of_votes_elects() -> None:
    raft = node(1, log_of(voters=voters_of(1, 2, 3, 4)))
    raft._campaign(is_transfer=False)
    flush(raft)
    vote(raft, 2)
    vote(raft, 2)
    vote(raft, 3, granted=False)
    assert role(raft) is Role.CANDIDATE
    vote(raft, 3)
    assert role(raft) is Role.LEADER
    assert raft.leader == ONE


def test_votes_of_others_than_voters_do_not_count() -> None:
    raft = node()
    raft._campaign(is_transfer=False)
    flush(raft)
    raft.step(VoteResponse(term=2, sender=FOUR, to=ONE, granted=True), 0)
    assert role(raft) is Role.CANDIDATE


def test_votes_that_come_after_a_leader_was_heard_change_nothing() -> None:
    raft = node()
    raft._campaign(is_transfer=False)
    flush(raft)
    raft.step(append(2, (1, 1)), 0)
    vote(raft, 2)
    assert role(raft) is Role.FOLLOWER
    # It has voted, and keeps to it.
    assert raft.hard_state == HardState(2, ONE)
    assert answer(raft, vote_request(2, sender=THREE)) is False


def test_a_candidate_without_a_majority_tries_again() -> None:
    raft = node()
    raft._campaign(is_transfer=False)
    flush(raft)
    raft.tick(TIMEOUT_MS)
    assert role(raft) is Role.PRE_CANDIDATE
    assert raft.term == 2


def test_a_sole_voter_leads_at_once() -> None:
    raft = node(1, log_of(1, voters=voters_of(1)))
    assert raft.next_deadline_ms == 0
    raft.tick(0)
    assert flush(raft) == []
    assert role(raft) is Role.LEADER
    assert raft.is_established
    assert raft.commit_index == raft.last_index == 3


def test_a_vote_restarts_the_election_timer_and_a_refusal_does_not() -> None:
    raft = node(1, log_of(1))
    assert answer(raft, vote_request(2, (1, 1)), 700) is False
    assert raft.next_deadline_ms == TIMEOUT_MS
    assert answer(raft, vote_request(2, (2, 1)), 700) is True
    assert raft.next_deadline_ms == 700 + TIMEOUT_MS


def test_an_observer_asks_voters_and_contacts_for_a_leader() -> None:
    raft = node(4, contacts=[TWO, FOUR])
    raft.tick(TIMEOUT_MS)
    assert kinds(flush(raft)) == [("Hello", ONE), ("Hello", TWO), ("Hello", THREE)]
    assert role(raft) is Role.FOLLOWER
    empty = node(4, [], contacts=[TWO])
    empty.tick(TIMEOUT_MS)
    assert kinds(flush(empty)) == [("Hello", TWO)]
    empty.set_contacts([THREE, FOUR])
    empty.tick(2 * TIMEOUT_MS)
    assert kinds(flush(empty)) == [("Hello", THREE)]


def removal(index: int, *left: int) -> Entry:
    return Entry(index, 1, EntryKind.VOTERS, encode_voters(voters_of(*left)))


def test_a_removed_voter_campaigns_until_its_removal_is_committed() -> None:
    """It can be the only one that has the entry, as in a cluster of two."""
    raft = node(1, [*log_of(voters=voters_of(1, 2)), removal(2, 2)])
    raft.tick(TIMEOUT_MS)
    (request,) = flush(raft)
    assert isinstance(request, PreVoteRequest)
    pre_vote(raft)
    flush(raft)
    assert role(raft) is Role.CANDIDATE
    vote(raft, 2)  # its own does not count, and is not needed
    assert role(raft) is Role.LEADER

    raft = node(1, [*log_of(voters=voters_of(1, 2)), removal(2, 2)])
    raft.step(append(1, (2, 1), commit=2), 0)
    raft.tick(TIMEOUT_MS)
    assert kinds(flush(raft))[1:] == [("Hello", TWO)]


def test_a_node_that_never_voted_does_not_campaign_for_others() -> None:
    raft = node(4, [*log_of(), removal(2, 1, 2)])
    raft.tick(TIMEOUT_MS)
    assert {type(message) for message in flush(raft)} == {Hello}


def test_a_voter_campaigns_at_once_when_the_leader_asks() -> None:
    raft = node()
    raft.step(CampaignNow(term=2, sender=TWO, to=ONE), 0)
    assert role(raft) is Role.CANDIDATE
    requests = flush(raft)
    assert all(isinstance(request, VoteRequest) and request.is_transfer for request in requests)
    observer = node(4)
    observer.step(CampaignNow(term=2, sender=TWO, to=FOUR), 0)
    assert role(observer) is Role.FOLLOWER
    late = node(hard_state=HardState(3))
    late.step(CampaignNow(term=2, sender=TWO, to=ONE), 0)
    assert role(late) is Role.FOLLOWER


# Restarts.


def test_a_term_that_only_the_log_knows_is_taken_from_it() -> None:
    raft = node(1, log_of(4), hard_state=HardState(3, TWO))
    assert raft.hard_state == HardState(4)
    known = node(1, log_of(4), hard_state=HardState(4, TWO))
    assert known.hard_state == HardState(4, TWO)


def test_a_snapshot_at_the_start_names_no_voters() -> None:
    with pytest.raises(AssertionError):
        node(1, [], snapshot=Snapshot(0, 0, voters_of(1)))


def test_a_higher_term_ends_leadership() -> None:
    raft = elected(node())
    message = accepted(raft, TWO, 1)
    raft.step(VoteResponse(term=raft.term + 1, sender=TWO, to=ONE, granted=False), 0)
    assert role(raft) is Role.FOLLOWER
    assert raft.leader is None
    assert raft.peers() == []
    raft.step(message, 0)
    assert raft.commit_index == 0


def test_voters_do_not_wait_for_a_leader_that_has_ended() -> None:
    raft = node(2)
    raft.step(append(1, (1, 1), sender=ONE, to=raft.node_id), 0)
    flush(raft)
    assert answer(raft, pre_vote_request(2, sender=THREE, to=2), 10) is False
    raft.node_ended(THREE, 10)
    assert answer(raft, pre_vote_request(2, sender=THREE, to=2), 10) is False
    raft.node_ended(ONE, 10)
    assert answer(raft, pre_vote_request(2, sender=THREE, to=2), 10) is True


@pytest.mark.parametrize(
    ("number", "delay_ms"),
    [
        pytest.param(2, ELECTION_MS // 10, id="first of those left"),
        pytest.param(3, ELECTION_MS // 10 + ELECTION_MS // 2, id="second"),
    ],
)
def test_voters_campaign_one_after_the_other_when_the_leader_has_ended(number: int, delay_ms: int) -> None:
    raft = node(number)
    raft.step(append(1, (1, 1), sender=ONE, to=raft.node_id), 0)
    flush(raft)
    raft.node_ended(ONE, 100)
    assert raft.next_deadline_ms == 100 + delay_ms
    raft.tick(100 + delay_ms - 1)
    assert role(raft) is Role.FOLLOWER
    raft.tick(100 + delay_ms)
    assert role(raft) is Role.PRE_CANDIDATE


def test_a_node_that_leads_campaigns_for_no_other_that_has_ended() -> None:
    raft = elected(node(1))
    deadline_ms = raft.next_deadline_ms
    raft.node_ended(TWO, 0)
    assert (role(raft), raft.next_deadline_ms) == (Role.LEADER, deadline_ms)


def test_a_voter_that_would_campaign_sooner_does_not_wait_for_its_place() -> None:
    raft = node(3)
    raft.step(append(1, (1, 1), sender=ONE, to=raft.node_id), 0)
    flush(raft)
    deadline_ms = raft.next_deadline_ms
    raft.node_ended(ONE, deadline_ms - 10)
    assert raft.next_deadline_ms == deadline_ms
