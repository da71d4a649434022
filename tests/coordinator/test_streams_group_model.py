"""Streams groups under random events: joins, leaves, crashes, lost replies, topic changes and restarts.

No active task runs at two clients, no process runs a task twice, and the group becomes stable.
"""

from itertools import count
from random import Random

import pytest

from alpacamq.coordinator.streams.assignment import each_task
from alpacamq.coordinator.streams.messages import StreamsGroupSettings, StreamsGroupState

from .consumer_clients import Topics
from .streams_clients import Client, Host

STEPS = 200
MAX_CLIENTS = 6


class Simulation:
    """A group, its clients, and random events."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        standbys = self.random.randint(0, 2)
        self.host = Host(Topics(lines=3), StreamsGroupSettings(num_standby_replicas=standbys))
        self.clients: list[Client] = []
        self.ids = count(1)

    def run(self) -> None:
        """Run random events, then wait until the group is stable."""
        weights = {
            self.beat: 30,
            self.lose: 4,
            self.stop: 10,
            self.start: 15,
            self.add: 3,
            self.leave: 1,
            self.crash: 1,
            self.create: 5,
            self.delete: 1,
            self.pass_time: 4,
            self.restart: 2,
        }
        for action in self.random.choices(list(weights), list(weights.values()), k=STEPS):
            if self.clients or action == self.add:
                action()
            self.check()
        self.settle()

    @property
    def some(self) -> Client:
        return self.random.choice(self.clients)

    def beat(self) -> None:
        self.some.beat(self.host)

    def lose(self) -> None:
        self.some.beat(self.host, is_lost=True)

    def stop(self) -> None:
        self.some.stop_revoked()

    def start(self) -> None:
        self.some.start_assigned()

    def add(self) -> None:
        if len(self.clients) < MAX_CLIENTS:
            process = f"p{self.random.randint(1, 4)}"
            self.clients.append(Client(member_id=f"m{next(self.ids)}", process_id=process))
            self.clients[-1].beat(self.host)

    def leave(self) -> None:
        client = self.some
        client.leave(self.host)
        self.clients.remove(client)

    def crash(self) -> None:
        self.clients.remove(self.some)

    def create(self) -> None:
        self.host.create_missing()

    def delete(self) -> None:
        name = self.random.choice(["words", "counts"])
        if self.host.topics.get(name) is not None:
            self.host.topics.delete(name)

    def pass_time(self) -> None:
        self.host.advance(self.random.choice([1_000, 5_000, 20_000]))
        for client in self.clients:
            client.notice(self.host.now_ms)

    def restart(self) -> None:
        self.random.choice(
            [self.host.restart, self.host.restart_from_snapshot, self.host.restart_from_compacted]
        )()

    def check(self) -> None:
        """Check that no task runs where it must not."""
        active = [task for client in self.clients for task in each_task(client.runs.active)]
        assert len(active) == len(set(active)), "an active task runs twice"
        for process in {client.process_id for client in self.clients}:
            held = [
                task
                for client in self.clients
                if client.process_id == process
                for tasks in (client.runs.active, client.runs.standby)
                for task in each_task(tasks)
            ]
            assert len(held) == len(set(held)), "a task runs twice in a process"

    def settle(self) -> None:
        """Exchange heartbeats until the group is stable."""
        for _ in range(40):
            self.host.create_missing()
            self.host.advance(3_000)
            for client in self.clients:
                client.notice(self.host.now_ms)
                client.beat(self.host)
                client.start_assigned()
                self.check()
        if not self.clients:
            return
        group = self.host.group.describe()
        assert group.state is StreamsGroupState.STABLE
        running = [task for client in self.clients for task in each_task(client.runs.active)]
        assert len(running) == 6


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_no_task_runs_twice_and_the_group_becomes_stable(first: int) -> None:
    for seed in range(first, first + 25):
        Simulation(seed).run()
