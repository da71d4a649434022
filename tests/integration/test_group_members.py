"""Groups of unmodified clients under load: members join, leave, crash and return; no record is missed."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.compat.confluent import Confluent
from tests.conftest import NewBroker
from tests.ports import lasting_address
from tests.waiting import eventually

from .group_member import SESSION_MS, Kind
from .journal import Revoked
from .membership import Group, Member
from .traffic import Writer

TOPIC = "load"
PARTITIONS = 6
# At most 600 records a second over all partitions: more would only take processor time from other tests.
PAUSE_S = 0.01
# For members whose sessions the broker decides on; classic ones request the same.
SHORT_SESSIONS = f"[groups]\nsession_timeout_ms = {SESSION_MS}\n"
# How long a member may get no records in a rebalance that takes none of its partitions.
ALLOWED_NS = 1_000_000_000
CHANGES = 40
CLASSIC = [kind for kind in Kind if kind is not Kind.CONSUMER]


class Workload:
    """A broker, a topic with a running writer, and groups that read it."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self.groups: list[Group] = []
        self._directory = directory
        Confluent(broker.address).create_topic(TOPIC, partitions=PARTITIONS)
        places = [(TOPIC, partition) for partition in range(PARTITIONS)]
        self.writer = Writer(broker.address, places, pause_s=PAUSE_S)
        self.writer.start()

    def group(self, name: str) -> Group:
        group = Group(self.broker.address, TOPIC, PARTITIONS, name, self._directory)
        self.groups.append(group)
        return group

    def wait_for_records(self, records: int) -> None:
        """Wait until `records` more records have been written."""
        goal = self.writer.total + records
        eventually(lambda: self.writer.total >= goal, what="records are written", within_s=60)
        assert not self.writer.failures, self.writer.failures

    def finish(self, group: Group) -> None:
        """Stop the writer and check that all records were delivered and committed, by one owner at a time."""
        self.writer.stop()
        counts = list(self.writer.promised().values())
        group.wait_for_everything(counts)
        for member in group.running:
            member.leave()
        assert group.committed() == dict(enumerate(counts))
        lost = group.check_nothing_is_owned_twice()
        print(
            f"{group.id}: {sum(counts)} records, {group.repeated(counts)} delivered again, {lost} stays lost"
        )

    def end(self) -> None:
        for group in self.groups:
            group.end()
        self.writer.abandon()


@pytest.fixture
def workload(new_broker: NewBroker, tmp_path: Path) -> Iterator[Workload]:
    broker = new_broker(kafka=lasting_address(), config=SHORT_SESSIONS).start()
    workload = Workload(broker, tmp_path)
    yield workload
    workload.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The effect of a rebalance on a member that kept partitions."""

    member: str
    longest_gap_ns: int
    # The same member's longest gap before the rebalance.
    calm_gap_ns: int
    # Whether records written during the rebalance reached it during the rebalance. If the rebalance is
    # shorter than the allowed pause, none need have reached it.
    went_on: bool

    def is_within(self, allowed_ns: int) -> bool:
        """Return whether the pause is short, or not much longer than the longest gap before the rebalance."""
        return self.longest_gap_ns < max(allowed_ns, 4 * self.calm_gap_ns)


def rebalance(workload: Workload, group: Group, change: Callable[[], object]) -> list[Pause]:
    """Change the membership, wait until it is settled, and measure the members that kept partitions."""
    calm_from_ns = time.monotonic_ns()
    workload.wait_for_records(600)
    owned = {member.name: member.owned for member in group.running}
    began_ns, began_ms = time.monotonic_ns(), time.time_ns() // 1_000_000
    change()
    group.settle()
    ended_ns = time.monotonic_ns()
    workload.wait_for_records(60)  # so that journals have the deliveries
    pauses = []
    for member in group.running:
        kept = owned.get(member.name, set()) - given_up(member, began_ns)
        if kept:
            went_on = ended_ns - began_ns < ALLOWED_NS or any(
                run.partition in kept and run.created_ms >= began_ms and run.ended_ns <= ended_ns
                for run in member.deliveries
            )
            pauses.append(
                Pause(
                    member=member.name,
                    longest_gap_ns=member.longest_gap_ns(kept, began_ns, ended_ns),
                    calm_gap_ns=member.longest_gap_ns(kept, calm_from_ns, began_ns),
                    went_on=went_on,
                )
            )
    for pause in pauses:
        print(
            f"{pause.member}: longest gap {pause.longest_gap_ns / 1e6:.0f} ms in a rebalance of "
            f"{(ended_ns - began_ns) / 1e6:.0f} ms, {pause.calm_gap_ns / 1e6:.0f} ms before it"
        )
    return pauses


def given_up(member: Member, since_ns: int) -> set[int]:
    revoked = [move for move in member.moves if isinstance(move, Revoked) and move.at_ns >= since_ns]
    return {partition for move in revoked for partition in move.partitions}


@pytest.mark.parametrize("kind", Kind)
def test_members_join_and_leave_and_every_record_is_delivered(workload: Workload, kind: Kind) -> None:
    group = workload.group(kind.value)
    first, second = group.add(kind), group.add(kind)
    group.settle()

    pauses = rebalance(workload, group, lambda: group.add(kind))
    pauses += rebalance(workload, group, second.leave)
    pauses += rebalance(workload, group, first.kill)

    if kind.is_incremental:
        assert len(pauses) == 2 + 2 + 1, "members that stay keep partitions"
        assert all(pause.went_on for pause in pauses), pauses
    workload.finish(group)


def test_members_with_different_clients_share_a_group(workload: Workload) -> None:
    group = workload.group("mixed")
    for kind in (Kind.EAGER, Kind.KAFKA_PYTHON, Kind.AIOKAFKA):
        group.add(kind)
    group.settle()
    workload.wait_for_records(600)
    group.members[0].leave()
    group.settle()
    workload.finish(group)


@pytest.mark.parametrize("kind", CLASSIC)
def test_a_killed_static_member_returns_without_a_rebalance(workload: Workload, kind: Kind) -> None:
    group = workload.group(kind.value)
    # The one that stays leads: a leader that joins twice, as kafka-python may on a busy machine, rebalances.
    other = group.add(kind, instance_id="one", session_ms=60_000)
    group.settle()
    # A killed member keeps its partitions for a session, in which the next one has to start.
    killed = group.add(kind, instance_id="two", session_ms=60_000)
    group.settle()
    workload.wait_for_records(300)
    moves, owned = len(other.moves), killed.owned

    killed.kill()
    again = group.add(kind, instance_id="two", session_ms=60_000)
    group.settle()
    workload.wait_for_records(300)

    assert again.owned == owned
    assert len(other.moves) == moves, other.moves
    workload.finish(group)


def test_a_static_member_of_the_new_protocol_restarts_without_a_rebalance(workload: Workload) -> None:
    group = workload.group("static")
    other = group.add(Kind.CONSUMER, instance_id="one", session_ms=60_000)
    restarted = group.add(Kind.CONSUMER, instance_id="two", session_ms=60_000)
    group.settle()
    workload.wait_for_records(300)
    moves, owned = len(other.moves), restarted.owned

    restarted.leave()
    again = group.add(Kind.CONSUMER, instance_id="two", session_ms=60_000)
    group.settle()
    workload.wait_for_records(300)

    assert again.owned == owned
    assert len(other.moves) == moves, other.moves
    workload.finish(group)


def test_groups_continue_after_a_kill_of_the_broker(workload: Workload) -> None:
    groups = [workload.group(kind.value) for kind in Kind]
    for group, kind in zip(groups, Kind, strict=True):
        for _ in range(2):
            # Members give up partitions when they have not reached the broker for a session. Clients wait
            # longer before each attempt to connect, so it has to be several times the time of a start.
            group.add(kind, session_ms=30_000)
    for group in groups:
        group.settle()
    workload.wait_for_records(600)

    workload.broker.kill()
    moves = {member.name: len(member.moves) for group in groups for member in group.members}
    committed = [[member.committed() for member in group.members] for group in groups]
    workload.broker.start()
    for group, of_members in zip(groups, committed, strict=True):
        found = group.committed()
        for offsets in of_members:
            assert all(found[partition] >= offset for partition, offset in offsets.items()), group.id

    restarted_ms = time.time_ns() // 1_000_000
    workload.wait_for_records(600)
    for group in groups:
        for member in group.members:
            eventually(
                lambda member=member: member.deliveries[-1].created_ms > restarted_ms,  # type: ignore[misc]
                what=f"{member.name} goes on",
            )
            assert len(member.moves) == moves[member.name], f"{member.name}: {member.moves}"
    for group in groups:
        workload.finish(group)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", Kind)
def test_random_membership_changes_miss_no_record(workload: Workload, kind: Kind) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    group = workload.group(kind.value)
    group.add(kind)
    group.add(kind)
    group.settle()
    pauses: list[Pause] = []
    for number in range(CHANGES):
        change = any_change(group, kind, dice)
        if dice.random() < 0.5:
            group.settle()
            pauses += rebalance(workload, group, change)
        else:
            # The next change starts while this one is still in progress.
            change()
            workload.wait_for_records(dice.randrange(10, 1500))
        if number % 8 == 7:
            workload.broker.kill()
            workload.broker.start()
    group.settle()
    workload.finish(group)
    if kind.is_incremental:
        # After a classic rebalance librdkafka's fetcher may sleep for up to a second before it notices that
        # it may continue, with any broker.
        allowed_ns = ALLOWED_NS + (500_000_000 if kind is Kind.COOPERATIVE else 0)
        too_long = [pause for pause in pauses if not pause.is_within(allowed_ns)]
        assert not too_long, f"seed {seed}: {too_long}"
        assert all(pause.went_on for pause in pauses), f"seed {seed}: {pauses}"


def any_change(group: Group, kind: Kind, dice: random.Random) -> Callable[[], object]:
    """Return a random change of membership that leaves between 1 and 5 members."""
    # kafka-python's range assignor forgets members if static and dynamic ones alternate.
    is_static = kind is not Kind.KAFKA_PYTHON and dice.random() < 0.3
    instance_id = f"static-{len(group.members)}" if is_static else None
    come: Callable[[], object] = partial(group.add, kind, instance_id=instance_id)
    if len(group.running) < 2:
        return come
    member = dice.choice(group.running)
    changes: list[Callable[[], object]] = [member.leave, member.kill]
    if len(group.running) < 5:
        changes += [come] * 3
    if member.settings.instance_id is not None:
        changes += [partial(restart, group, member)] * 3
    return dice.choice(changes)


def restart(group: Group, member: Member) -> None:
    """Replace a static member's process by another."""
    if member.settings.kind is Kind.CONSUMER:
        # A killed one would have to wait for the end of its own session.
        member.leave()
    else:
        member.kill()
    group.add(member.settings.kind, instance_id=member.settings.instance_id)
