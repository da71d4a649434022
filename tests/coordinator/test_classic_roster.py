"""Leaders, protocols and sessions of classic groups."""

import pytest

from alpacamq.coordinator.classic.roster import Member, Roster
from alpacamq.coordinator.messages import Protocol


def supported(*names: str) -> tuple[Protocol, ...]:
    return tuple(Protocol(name, b"") for name in names)


def member(name: str, *protocols: str, instance_id: str | None = None) -> Member:
    return Member(
        id=name,
        instance_id=instance_id,
        client_id="",
        client_host="",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocols=supported(*protocols or ("range",)),
    )


def roster_of(*members: Member) -> Roster:
    roster = Roster()
    for each in members:
        roster.add(each)
    return roster


@pytest.mark.parametrize(
    ("choices", "elected"),
    [
        pytest.param(["range"], "range", id="the only one"),
        pytest.param(["sticky range", "range"], "range", id="all members must support it"),
        pytest.param(["a b", "b a", "b a"], "b", id="the most preferred wins"),
        pytest.param(["a b", "b a"], "a", id="on a tie the oldest member decides"),
        pytest.param(["c a b", "d b a", "b a"], "b", id="the first choice among the candidates counts"),
        pytest.param(["a a b", "b"], "b", id="duplicates count once"),
    ],
)
def test_the_most_preferred_common_protocol_is_elected(choices: list[str], elected: str) -> None:
    roster = roster_of(*(member(str(index), *each.split()) for index, each in enumerate(choices)))
    assert roster.elect_protocol() == elected


def test_a_member_can_change_its_protocols() -> None:
    alone = member("a", "range")
    roster = roster_of(alone)
    assert roster.shares_protocol(supported("sticky"), besides=alone)
    assert not roster.shares_protocol(supported("sticky"), besides=None)
    roster.add(member("b", "range"))
    assert not roster.shares_protocol(supported("sticky"), besides=alone)
    assert roster.shares_protocol(supported("sticky", "range"), besides=alone)


def test_the_oldest_member_replaces_a_leader_that_leaves() -> None:
    first, second, third = member("a"), member("b"), member("c")
    roster = roster_of(first, second, third)
    roster.remove(first)
    assert roster.leader_id == "b"
    roster.remove(third)
    assert roster.leader_id == "b"
    roster.remove(second)
    assert roster.leader_id == ""


def test_only_a_member_that_has_joined_is_elected() -> None:
    first, second = member("a"), member("b")
    roster = roster_of(first, second)
    assert not roster.elect_leader()
    second.has_joined = True
    assert roster.elect_leader()
    assert roster.leader_id == "b"


def test_a_static_member_keeps_its_position_with_a_new_id() -> None:
    first = member("a", instance_id="i")
    roster = roster_of(first, member("b"))
    roster.rename(first, "a2")
    assert roster.leader_id == "a2"
    assert [each.id for each in roster] == ["a2", "b"]
    assert roster.identify("a2", "i") is roster.identify("a2", None) is roster.of_instance("i")
    assert roster.get("a") is None


def test_sessions_end_in_order_but_not_while_a_request_is_pending() -> None:
    early, late, waiting = member("a"), member("b"), member("c")
    roster = roster_of(early, late, waiting)
    for now_ms, each in enumerate((early, late, waiting)):
        roster.renew_session(each, now_ms)
    waiting.join_reply_to = "t"
    assert roster.next_end_ms == 10_000
    assert roster.expire_sessions(10_000) == [early]
    assert roster.next_end_ms == 10_001
    roster.remove(early)
    assert roster.expire_sessions(20_000) == [late]
    assert roster.next_end_ms is None
    roster.cancel("t")
    assert roster.next_end_ms == 10_002
