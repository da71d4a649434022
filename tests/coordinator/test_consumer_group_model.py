"""Consumer groups under random events: joins, leaves, crashes, lost replies, topic changes and restarts.

No partition ever has two owners, no member stops reading without need, and the group becomes stable.
"""

from itertools import count
from random import Random
from typing import TYPE_CHECKING

import pytest

from alpacamq.coordinator.consumer.assignment import common, minus
from alpacamq.coordinator.consumer.messages import (
    ConsumerGroupState,
    ConsumerHeartbeatRequest,
    ConsumerMemberDescription,
    Partitions,
)

from .consumer_clients import SETTINGS, Client, Host, Subscription, Topics

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("a", "b", "c")
PATTERNS = {"a|b": {"a", "b"}, ".*": set(NAMES), "[bc]": {"b", "c"}, "": set[str]()}
MAX_CLIENTS = 5
STEPS = 250


class Simulation:
    """A group, its clients, and random events."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.host = Host(Topics(**{name: self.random.randint(1, 6) for name in NAMES}))
        self.assignor = self.random.choice([None, None, None, "range"])
        self.has_equal_subscriptions = self.random.random() < 0.5
        self.clients: list[Client] = []
        self.late: list[ConsumerHeartbeatRequest] = []
        self.ids = count(1)

    def run(self) -> None:
        """Run random events, then wait until the group is stable."""
        weights: dict[Callable[[], None], float] = {
            self.exchange_heartbeat: 30,
            self.send_heartbeat: 10,
            self.deliver_heartbeat: 10,
            self.deliver_answer: 10,
            self.lose_heartbeat: 3,
            self.deliver_late: 3,
            self.adopt: 10,
            self.revoke: 10,
            self.start_client: 3,
            self.leave: 1,
            self.crash: 0.5,
            self.bounce: 1.5,
            self.change_subscription: 2,
            self.grow_topic: 0.5,
            self.delete_topic: 0.2,
            self.pass_time: 3,
            self.restart: 1,
        }
        for action in self.random.choices(list(weights), list(weights.values()), k=STEPS):
            if self.clients or action in (self.start_client, self.restart, self.pass_time):
                action()
            self.check_owners()
        self.become_stable()

    @property
    def some_client(self) -> Client:
        return self.random.choice(self.clients)

    def some_subscription(self) -> Subscription:
        if self.has_equal_subscriptions:
            return Subscription(("a", "b"))
        if self.random.random() < 0.3:
            return Subscription((), self.random.choice([pattern for pattern in PATTERNS if pattern]))
        return Subscription(tuple(self.random.sample([*NAMES, "missing"], self.random.randint(0, 3))))

    def start_client(self) -> None:
        if len(self.clients) < MAX_CLIENTS:
            number = next(self.ids)
            instance_id = f"i{number}" if self.random.random() < 0.3 else None
            self.clients.append(self.new_client(number, self.some_subscription(), instance_id))
            self.exchange(self.clients[-1])

    def new_client(self, number: int, subscription: Subscription, instance_id: str | None) -> Client:
        return Client(
            member_id=f"m{number}",
            subscription=subscription,
            instance_id=instance_id,
            assignor=self.assignor,
        )

    def exchange_heartbeat(self) -> None:
        client = self.some_client
        if self.random.random() < 0.6:
            client.adopt()
        if self.random.random() < 0.4:
            client.revoke()
        self.exchange(client)

    def send_heartbeat(self) -> None:
        client = self.some_client
        if client.in_flight is None:
            client.heartbeat(self.host.now_ms)

    def deliver_heartbeat(self) -> None:
        """Deliver a heartbeat, sometimes twice.

        Not twice if it reports fewer partitions than are assigned: the client may have taken them since, and
        the second delivery would confirm that it does not own them.
        """
        client = self.some_client
        sent = client.in_flight
        if sent is not None and client.answer is None:
            self.process(client)
            may_come_twice = sent.owned is None or not minus(client.assigned, sent.owned)
            if may_come_twice and self.random.random() < 0.2:
                self.process(client)
                client.has_missed_answers = True

    def deliver_answer(self) -> None:
        client = self.some_client
        if client.answer is not None:
            client.take_answer()

    def lose_heartbeat(self) -> None:
        client = self.some_client
        lost = client.in_flight
        if lost is not None and lost.owned is None and lost.subscribed_topics is None:
            self.late.append(lost)
        client.lose_heartbeat()

    def deliver_late(self) -> None:
        """Deliver a heartbeat that its client has abandoned.

        Not one with owned partitions: these may have changed, which the protocol cannot detect. Nor while
        another heartbeat of the client is in flight.
        """
        if self.late:
            request = self.late.pop(self.random.randrange(len(self.late)))
            if all(each.in_flight is None for each in self.clients if each.member_id == request.member_id):
                self.host.ask(request)

    def adopt(self) -> None:
        self.some_client.adopt()

    def revoke(self) -> None:
        self.some_client.revoke()

    def change_subscription(self) -> None:
        self.some_client.subscribe(self.some_subscription())

    def leave(self) -> None:
        client = self.some_client
        self.clients.remove(client)
        self.host.ask(client.leave_request())

    def crash(self) -> None:
        self.clients.remove(self.some_client)

    def bounce(self) -> None:
        """Replace a process by a new one, as the same instance if it is static."""
        client = self.some_client
        self.clients.remove(client)
        self.host.ask(client.leave_request())
        self.clients.append(self.new_client(next(self.ids), client.subscription, client.instance_id))

    def grow_topic(self) -> None:
        name = self.random.choice(NAMES)
        topic = self.host.topics.get(name)
        before = topic.partitions if topic is not None else 0
        self.host.topics.put(name, before + self.random.randint(1, 3))

    def delete_topic(self) -> None:
        name = self.random.choice(NAMES)
        if self.host.topics.get(name) is not None:
            self.host.topics.delete(name)

    def pass_time(self) -> None:
        self.wait(self.random.choice([100, 1_000, 3_000, 15_000]))

    def wait(self, ms: int) -> None:
        for client in self.clients:
            client.notice(self.host.now_ms + ms)
        self.host.advance(ms)
        assert self.host.group.is_empty == (self.host.group.next_deadline_ms is None)

    def restart(self) -> None:
        before = self.host.group.describe()
        self.random.choice(
            [self.host.restart, self.host.restart_from_snapshot, self.host.restart_from_compacted]
        )()
        after = self.host.group.describe()
        assert {each.member_id: each for each in after.members} == {
            each.member_id: each for each in before.members
        }
        assert (after.epoch, after.assignment_epoch, after.state) == (
            before.epoch,
            before.assignment_epoch,
            before.state,
        )

    def exchange(self, client: Client) -> None:
        """Send a heartbeat and deliver its reply, unless one is in flight."""
        if client.in_flight is None:
            client.heartbeat(self.host.now_ms)
            self.process(client)
            client.take_answer()

    def process(self, client: Client) -> None:
        """Pass a heartbeat to the group; check that it does not revoke partitions of the target."""
        assert client.in_flight is not None
        before = self.members()
        client.answer = self.host.ask(client.in_flight)
        after = self.members()
        for member_id in before.keys() & after.keys():
            taken = minus(before[member_id].assignment, after[member_id].assignment)
            assert not common(taken, after[member_id].target_assignment)
            if member_id != client.member_id and before[member_id].member_epoch > 0:
                assert not taken, "only a member's own heartbeat takes anything from it"

    def members(self) -> dict[str, ConsumerMemberDescription]:
        return {member.member_id: member for member in self.host.group.describe().members}

    def check_owners(self) -> None:
        held: dict[tuple[object, int], str] = {}
        for client in self.clients:
            for topic, indexes in client.owns.items():
                for index in indexes:
                    other = held.setdefault((topic, index), client.member_id)
                    assert other == client.member_id, f"{index} is in the hands of both"

    def become_stable(self) -> None:
        """Check that without further events all partitions are assigned and owned."""
        for client in self.clients:
            if client.in_flight is not None and client.answer is None:
                self.process(client)
            if client.answer is not None:
                client.take_answer()
        for round_ in range(2 * SETTINGS.session_timeout_ms // SETTINGS.heartbeat_interval_ms):
            for client in self.clients:
                client.revoke()
                client.adopt()
                self.exchange(client)
                self.check_owners()
                # A client that missed both the assignment and the revocation of a partition confirms nothing;
                # the group removes it after its timeout.
                if round_ >= 2 and not client.has_missed_answers:
                    assert client.epoch, "a member that follows the protocol is not removed"
            self.wait(SETTINGS.heartbeat_interval_ms)
        for client in self.clients:
            client.adopt()
        group = self.host.group.describe()
        assert group.state is (ConsumerGroupState.STABLE if self.clients else ConsumerGroupState.EMPTY)
        members = self.members()
        assert members.keys() == {client.member_id for client in self.clients}
        for client in self.clients:
            member = members[client.member_id]
            assert client.owns == client.assigned == member.assignment == member.target_assignment
            assert client.epoch == group.epoch
        self.check_shares()

    def check_shares(self) -> None:
        topics = {name: topic for name in NAMES if (topic := self.host.topics.get(name)) is not None}
        reads = [
            frozenset({*client.subscription.topics, *PATTERNS[client.subscription.regex]} & topics.keys())
            for client in self.clients
        ]
        loads = [load(client.owns) for client in self.clients]
        assert sum(loads) == sum(topics[name].partitions for name in frozenset().union(*reads))
        if self.assignor is None and len(set(reads)) == 1:
            assert max(loads) - min(loads) <= 1


def load(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_no_partition_has_two_owners_and_the_group_becomes_stable(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            error.add_note(f"in the simulation of seed {seed}")
            raise
