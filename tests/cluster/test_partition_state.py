"""The rules of one partition, as tables: elections, eligible leaders, epochs, reassignments."""

import pytest

from alpacamq.cluster.partition_state import (
    Electorate,
    PartitionState,
    Replicas,
    advance,
    eligible_leaders,
    is_reassignment_complete,
    min_isr,
    new_partition,
)

THREE = (1, 2, 3)


def electorate(
    running: str,
    *,
    leaving: str = "",
    configured: int | None = None,
    is_unclean: bool = False,
    wiped: str = "",
) -> Electorate:
    up, out = {int(each) for each in running}, {int(each) for each in leaving}
    return Electorate(
        can_lead=up.__contains__,
        should_lead=(up - out).__contains__,
        can_lead_uncleanly=up.__contains__,
        has_lost_data=set(map(int, wiped)).__contains__,
        min_isr=configured,
        is_unclean_allowed=is_unclean,
    )


def partition(isr: str, elr: str = "", leader: int | None = None, replicas: str = "123") -> PartitionState:
    return PartitionState(
        replicas=numbers(replicas),
        isr=numbers(isr),
        elr=numbers(elr),
        leader=leader,
        leader_epoch=5,
        partition_epoch=9,
    )


def numbers(text: str) -> Replicas:
    return tuple(map(int, text))


@pytest.mark.parametrize(
    ("configured", "factor", "expected"),
    [
        pytest.param(None, 1, 1, id="one replica"),
        pytest.param(None, 2, 1, id="with two, one may fail"),
        pytest.param(None, 3, 2, id="with three, two by default"),
        pytest.param(None, 5, 2, id="with more, still two"),
        pytest.param(1, 3, 1, id="as configured"),
        pytest.param(3, 2, 2, id="at most all"),
    ],
)
def test_min_isr(configured: int | None, factor: int, expected: int) -> None:
    assert min_isr(configured, factor) == expected


@pytest.mark.parametrize(
    ("before", "isr", "lost", "expected"),
    [
        pytest.param(partition("123"), "12", "", "", id="enough are in sync: the leader commits without it"),
        pytest.param(partition("12"), "1", "", "2", id="too few: who leaves stays eligible"),
        pytest.param(partition("123"), "1", "", "23", id="both that leave"),
        pytest.param(partition("1", "2"), "", "", "12", id="the last one"),
        pytest.param(partition("1", "2"), "1", "", "2", id="nothing changes"),
        pytest.param(partition("1", "2"), "12", "", "", id="enough again"),
        pytest.param(partition("1", "23"), "13", "", "", id="enough again, without one that was eligible"),
        pytest.param(partition("12"), "1", "2", "", id="one that lost its records"),
        pytest.param(partition("1", "2"), "1", "2", "", id="an eligible one that lost its records"),
    ],
)
def test_eligible_leaders(before: PartitionState, isr: str, lost: str, expected: str) -> None:
    assert eligible_leaders(before, numbers(isr), 2, numbers(lost)) == numbers(expected)


@pytest.mark.parametrize(
    ("before", "isr", "running", "leader", "isr_after", "elr_after"),
    [
        pytest.param(partition("123", leader=2), "123", "123", 2, "123", "", id="a leader that can goes on"),
        pytest.param(partition("123", leader=2), "13", "13", 1, "13", "", id="the preferred replica is next"),
        pytest.param(partition("123", leader=1), "23", "3", 3, "23", "", id="only who runs"),
        pytest.param(partition("12", leader=1), "2", "23", 2, "2", "1", id="none outside the in-sync set"),
        pytest.param(partition("1", "23", 1), "", "23", 2, "2", "13", id="eligible ones once it is empty"),
        pytest.param(partition("1", "23", 1), "", "3", 3, "3", "12", id="an eligible one that runs"),
        pytest.param(partition("1", "2", 1), "", "3", None, "", "12", id="no complete replica"),
        pytest.param(partition("2", "1"), "2", "12", 2, "2", "1", id="in-sync before eligible ones"),
        pytest.param(partition("", "12"), "", "2", 2, "2", "1", id="an eligible one comes back"),
        pytest.param(partition("", "12"), "", "3", None, "", "12", id="another one comes back"),
    ],
)
def test_elections(
    before: PartitionState, isr: str, running: str, leader: int | None, isr_after: str, elr_after: str
) -> None:
    after = advance(before, electorate(running), isr=numbers(isr))
    assert (after.leader, after.isr, after.elr) == (leader, numbers(isr_after), numbers(elr_after))
    assert after.leader_epoch == before.leader_epoch + (leader != before.leader)
    assert after.partition_epoch == before.partition_epoch + (after != before)


@pytest.mark.parametrize(
    ("isr", "leaving", "expected"),
    [
        pytest.param("123", "1", 2, id="another one takes over"),
        pytest.param("1", "1", 1, id="no other replica is in sync"),
        pytest.param("12", "12", 1, id="all are leaving"),
    ],
)
def test_a_broker_that_is_leaving_leads_only_if_no_other_can(isr: str, leaving: str, expected: int) -> None:
    before = partition(isr, leader=1)
    assert advance(before, electorate("123", leaving=leaving)).leader == expected


def test_with_a_minimum_of_one_an_elected_leader_commits_alone() -> None:
    after = advance(partition("", "12"), electorate("2", configured=1))
    assert (after.leader, after.isr, after.elr) == (2, (2,), ())


@pytest.mark.parametrize(
    ("before", "lost", "running", "expected"),
    [
        pytest.param(partition("1", leader=1), "", "23", 2, id="the first that runs"),
        pytest.param(partition("1", "3", 1), "", "23", 3, id="a complete one if there is one"),
        pytest.param(
            partition("2", leader=2), "2", "23", 2, id="the only one left, although it lost records"
        ),
    ],
)
def test_unclean_elections(before: PartitionState, lost: str, running: str, expected: int) -> None:
    after = advance(before, electorate(running, is_unclean=True), isr=(), lost=numbers(lost))
    assert after.leader == expected
    assert after.isr == (expected,)


def test_an_unclean_election_takes_the_last_leader_first() -> None:
    offline = advance(partition("3", leader=3), electorate(""), isr=())
    assert (offline.leader, offline.elr, offline.last_leader) == (None, (3,), 3)
    lost = advance(partition("3", leader=3), electorate(""), isr=(), lost=(3,))
    assert (lost.leader, lost.elr, lost.last_leader) == (None, (), None)
    assert advance(lost, electorate("123", is_unclean=True, wiped="13")).leader == 2
    assert advance(lost, electorate("13", is_unclean=True, wiped="13")).leader == 1
    no_isr = PartitionState(replicas=THREE, isr=(), last_leader=3)
    after = advance(no_isr, electorate("123", is_unclean=True))
    assert (after.leader, after.isr, after.elr, after.last_leader) == (3, (3,), (), None)


def test_the_preferred_replica_leads_again_on_request() -> None:
    before = partition("123", leader=2)
    assert advance(before, electorate("123")) is before
    after = advance(before, electorate("123"), prefers_first=True)
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, 6, 10)


@pytest.mark.parametrize(
    ("replicas", "removing", "isr", "expected"),
    [
        pytest.param("1234", "1", "1234", True, id="all that stay are in sync"),
        pytest.param("1234", "1", "123", False, id="the new one has not caught up"),
        pytest.param("1234", "1", "234", True, id="the old one is not needed"),
        pytest.param("21", "", "1", False, id="a new order, one is out of sync"),
    ],
)
def test_a_reassignment_is_complete(replicas: str, removing: str, isr: str, expected: bool) -> None:
    assert is_reassignment_complete(numbers(replicas), numbers(removing), numbers(isr)) == expected


def test_a_reassignment_completes_with_the_last_new_replica_in_sync() -> None:
    moving = advance(
        partition("123", leader=1),
        electorate("12345"),
        replicas=(4, 5, 1, 2, 3),
        adding=(4, 5),
        removing=THREE,
    )
    assert (moving.leader, moving.leader_epoch, moving.partition_epoch) == (1, 5, 10)
    one = advance(moving, electorate("12345"), isr=(4, 1, 2, 3))
    assert one.is_moving
    both = advance(one, electorate("12345"), isr=(4, 5, 1, 2, 3))
    assert (both.replicas, both.isr, both.leader) == ((4, 5), (4, 5), 4)
    assert (both.adding, both.removing) == ((), ())
    assert both.leader_epoch == 6


@pytest.mark.parametrize(
    ("target", "adding", "removing", "isr"),
    [
        pytest.param("1234", "4", "", "1234", id="a replica more"),
        pytest.param("12", "", "3", "123", id="a replica less"),
    ],
)
def test_a_reassignment_to_another_number_of_replicas_completes(
    target: str, adding: str, removing: str, isr: str
) -> None:
    after = advance(
        partition("123", leader=1),
        electorate("1234"),
        isr=numbers(isr),
        replicas=numbers(target + removing),
        adding=numbers(adding),
        removing=numbers(removing),
    )
    assert (after.replicas, after.isr, after.is_moving) == (numbers(target), numbers(target), False)


def test_a_leader_that_is_removed_is_not_elected_even_uncleanly() -> None:
    before = partition("1", leader=1)
    assert advance(before, electorate("1", is_unclean=True), isr=(), replicas=(2, 3)).leader is None


@pytest.mark.parametrize(
    ("adding", "removing", "expected"), [("", "", False), ("3", "", True), ("", "1", True), ("3", "1", True)]
)
def test_a_reassignment_is_in_progress_while_replicas_come_or_go(
    adding: str, removing: str, expected: bool
) -> None:
    state = PartitionState(replicas=THREE, isr=THREE, adding=numbers(adding), removing=numbers(removing))
    assert state.is_moving == expected


def test_a_replica_that_is_removed_ends_the_leader_epoch() -> None:
    # Its broker may be cut off and follow the old epoch for as long as it likes.
    after = advance(partition("123", leader=1), electorate("123"), replicas=(1, 2), removing=(), isr=(1, 2))
    assert (after.leader, after.leader_epoch) == (1, 6)


def test_a_new_partition_is_led_by_the_first_replica_that_runs() -> None:
    state = new_partition(THREE, {2, 3}.__contains__)
    assert (state.leader, state.isr, state.elr) == (2, (2, 3), ())
