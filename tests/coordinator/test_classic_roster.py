"""Who leads a classic group, and which protocol its members choose."""

import pytest

from alpacamq.coordinator.classic.roster import Member, Roster
from alpacamq.coordinator.messages import Protocol


def known(*names: str) -> tuple[Protocol, ...]:
    return tuple(Protocol(name, b"") for name in names)


def member(name: str, *protocols: str, instance_id: str | None = None) -> Member:
    return Member(
        id=name,
        instance_id=instance_id,
        client_id="",
        client_host="",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocols=known(*protocols or ("range",)),
    )


def roster_of(*members: Member) -> Roster:
    roster = Roster()
    for each in members:
        roster.add(each)
    return roster


@pytest.mark.parametrize(
    ("choices", "elected"),
    [
        pytest.param(["range"], "range", id="there is one"),
        pytest.param(["sticky range", "range"], "range", id="what one does not know is no candidate"),
        pytest.param(["a b", "b a", "b a"], "b", id="most first choices win"),
        pytest.param(["a b", "b a"], "a", id="in doubt the eldest's choice"),
        pytest.param(["c a b", "d b a", "b a"], "b", id="the first choice among the candidates counts"),
        pytest.param(["a a b", "b"], "b", id="said twice is known once"),
    ],
)
def test_the_protocol_is_voted_on(choices: list[str], elected: str) -> None:
    roster = roster_of(*(member(str(index), *each.split()) for index, each in enumerate(choices)))
    assert roster.elect_protocol() == elected


def test_what_a_member_knew_before_does_not_bind_it() -> None:
    alone = member("a", "range")
    roster = roster_of(alone)
    assert roster.shares_protocol(known("sticky"), besides=alone)
    assert not roster.shares_protocol(known("sticky"), besides=None)
    roster.add(member("b", "range"))
    assert not roster.shares_protocol(known("sticky"), besides=alone)
    assert roster.shares_protocol(known("sticky", "range"), besides=alone)


def test_when_the_leader_goes_the_eldest_leads() -> None:
    first, second, third = member("a"), member("b"), member("c")
    roster = roster_of(first, second, third)
    roster.remove(first)
    assert roster.leader_id == "b"
    roster.remove(third)
    assert roster.leader_id == "b"
    roster.remove(second)
    assert roster.leader_id == ""


def test_only_one_who_has_joined_is_elected() -> None:
    first, second = member("a"), member("b")
    roster = roster_of(first, second)
    assert not roster.elect()
    second.has_joined = True
    assert roster.elect()
    assert roster.leader_id == "b"


def test_a_static_member_keeps_its_place_and_its_rank_under_a_new_id() -> None:
    first = member("a", instance_id="i")
    roster = roster_of(first, member("b"))
    roster.rename(first, "a2")
    assert roster.leader_id == "a2"
    assert [each.id for each in roster] == ["a2", "b"]
    assert roster.known("a2", "i") is roster.known("a2", None) is roster.of_instance("i")
    assert roster.get("a") is None


def test_sessions_end_one_after_the_other_but_not_while_a_reply_is_owed() -> None:
    early, late, waiting = member("a"), member("b"), member("c")
    roster = roster_of(early, late, waiting)
    for now_ms, each in enumerate((early, late, waiting)):
        roster.extend(each, now_ms)
    waiting.join_reply_to = "t"
    assert roster.next_end_ms == 10_000
    assert roster.end_sessions(10_000) == [early]
    assert roster.next_end_ms == 10_001
    roster.remove(early)
    assert roster.end_sessions(20_000) == [late]
    assert roster.next_end_ms is None
    roster.forget_request("t")
    assert roster.next_end_ms == 10_002
