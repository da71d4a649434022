"""Virtual time, a network and nodes with faults, all from one seed.

A scenario subclasses `SimNode`, adds nodes to a `Simulation`, injects faults (by hand or with `Chaos`), and
checks its invariants after every event (`simulation.after_event`). The same seed gives the same events in
the same order, and the same `trace_hash`. Time is counted in microseconds; nodes see milliseconds of their
own clock, which may run slower or faster than the others.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol

from tests.simulation.disk import SimDisk

SECOND_US = 1_000_000
MS_US = 1000


class Violation(AssertionError):
    """An invariant does not hold, or something did not happen in time."""


@dataclass(slots=True)
class Network:
    """How messages fare on links that are not cut. Probabilities are per message."""

    min_delay_us: int = 200
    max_delay_us: int = 5_000
    # A few messages are much later than the rest.
    late: float = 0.01
    max_late_us: int = 400_000
    loss: float = 0.0
    duplicates: float = 0.0
    # Messages of a link arrive in order, as on one connection; otherwise each has its own delay.
    is_ordered: bool = False


class SimNode(ABC):
    """A process with a clock, one timer and a disk. Only the disk survives a crash."""

    def __init__(self, simulation: "Simulation", node_id: int) -> None:
        self.simulation = simulation
        self.id = node_id
        self.disk = SimDisk(self)
        self.is_up = False
        self.is_paused = False
        # Counts starts: what was begun before a crash does not end after it.
        self.incarnation = 0
        self.clock_rate = 1.0
        self.clock_offset_ms = 0
        self._timer_at_us: int | None = None
        self._missed: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        simulation.nodes[node_id] = self

    # What a scenario implements.

    @abstractmethod
    def on_start(self) -> None:
        """Begin with nothing but the disk."""

    @abstractmethod
    def on_message(self, sender: int, message: Any) -> None:
        """Take a message."""

    @abstractmethod
    def on_timer(self) -> None:
        """Do what is due: the time given to `set_timer` has come."""

    # What a scenario calls.

    @property
    def now_ms(self) -> int:
        """The time on the node's own clock."""
        return int(self.simulation.now_us * self.clock_rate) // MS_US + self.clock_offset_ms

    def send(self, to: int, message: Any) -> None:
        self.simulation.send(self.id, to, message)

    def set_timer(self, at_ms: int) -> None:
        """Ask for `on_timer` at a time of the node's clock. Replaces the earlier request."""
        # One more, so that rounding never wakes the node before the time on its own clock.
        at_us = int((at_ms - self.clock_offset_ms) * MS_US / self.clock_rate) + 1
        at_us = max(at_us, self.simulation.now_us)
        if at_us != self._timer_at_us:
            self._timer_at_us = at_us
            self.simulation.at(at_us, self._fire_timer, at_us, self.incarnation)

    def later(self, delay_us: int, call: Callable[..., None], *args: Any) -> None:
        """Call back after a while, unless the node crashes before; a paused node when it resumes."""
        self.simulation.at(self.simulation.now_us + delay_us, self._call_back, self.incarnation, call, args)

    def perform(self, call: Callable[..., None], *args: Any) -> None:
        """Let the node act now, or when it resumes."""
        if self.is_paused:
            self._missed.append((call, args))
        elif self.is_up:
            call(*args)

    # Faults.

    def start(self) -> None:
        assert not self.is_up
        self.simulation.trace("start", self.id)
        self.is_up = True
        self.incarnation += 1
        self.on_start()

    def crash(self) -> None:
        """End the process and lose what was not synced, or a part of it."""
        if not self.is_up:
            return
        self.simulation.trace("crash", self.id)
        self.is_up = self.is_paused = False
        self._timer_at_us = None
        self._missed.clear()
        self.disk.crash()

    def crash_for(self, max_us: int) -> None:
        """Crash, and start again within a time."""
        self.crash()
        self.simulation.after(self.simulation.random.randrange(1, max_us), self.start_if_down)

    def start_if_down(self) -> None:
        if not self.is_up:
            self.start()

    def pause(self) -> None:
        """Stop the process as SIGSTOP does: messages and disk go on, and are seen when it resumes."""
        if self.is_up and not self.is_paused:
            self.simulation.trace("pause", self.id)
            self.is_paused = True

    def resume(self) -> None:
        if not self.is_paused:
            return
        self.simulation.trace("resume", self.id)
        self.is_paused = False
        missed, self._missed = self._missed, []
        for number, (call, args) in enumerate(missed):
            if not self.is_up:
                return
            if self.is_paused:
                self._missed = missed[number:] + self._missed
                return
            call(*args)

    def _fire_timer(self, at_us: int, incarnation: int) -> None:
        if incarnation != self.incarnation or at_us != self._timer_at_us or not self.is_up:
            return
        self._timer_at_us = None
        self.simulation.trace("timer", self.id)
        self.perform(self.on_timer)

    def _call_back(self, incarnation: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if incarnation == self.incarnation and self.is_up:
            self.perform(call, *args)


class Simulation:
    """The event loop, the network and the trace."""

    def __init__(self, seed: int, *, trace_lines: int = 200) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_us = 0
        self.events = 0
        self.network = Network()
        self.nodes: dict[int, SimNode] = {}
        self.after_event: Callable[[], None] | None = None
        # The last events, for a person; the hash is of all of them.
        self.lines: deque[str] = deque(maxlen=trace_lines)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._cuts: set[tuple[int, int]] = set()
        self._last_arrival_us: dict[tuple[int, int], int] = {}
        self._hash = hashlib.blake2b(digest_size=8)

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def trace(self, kind: str, *details: object) -> None:
        line = f"{self.now_us} {kind} {' '.join(map(str, details))}"
        self._hash.update(line.encode())
        self.lines.append(line)

    def at(self, at_us: int, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call."""
        self._sequence += 1
        heappush(self._heap, (at_us, self._sequence, call, args))

    def after(self, delay_us: int, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now_us + delay_us, call, *args)

    def run_until(self, at_us: int) -> None:
        """Let everything happen that is due by a time."""
        heap = self._heap
        while heap and heap[0][0] <= at_us:
            self._run_next()
        self.now_us = max(self.now_us, at_us)

    def run_for(self, duration_us: int) -> None:
        self.run_until(self.now_us + duration_us)

    def run_to(self, condition: Callable[[], bool], *, within_us: int, what: str) -> None:
        """Go on until a condition holds; it must within a bounded time."""
        end_us = self.now_us + within_us
        while not condition():
            if not self._heap or self._heap[0][0] > end_us:
                raise Violation(f"not within {within_us / SECOND_US} s: {what}")
            self._run_next()

    def _run_next(self) -> None:
        at_us, _, call, args = heappop(self._heap)
        self.now_us = max(self.now_us, at_us)
        self.events += 1
        call(*args)
        if self.after_event is not None:
            self.after_event()

    # The network.

    def send(self, sender: int, to: int, message: object) -> None:
        network, random = self.network, self.random
        self.trace("send", sender, to, message)
        if (sender, to) in self._cuts or (network.loss and random.random() < network.loss):
            return
        copies = 2 if network.duplicates and random.random() < network.duplicates else 1
        for _ in range(copies):
            delay_us = random.randrange(network.min_delay_us, network.max_delay_us)
            if network.late and random.random() < network.late:
                delay_us += random.randrange(network.max_late_us)
            at_us = self.now_us + delay_us
            if network.is_ordered:
                at_us = max(at_us, self._last_arrival_us.get((sender, to), 0))
                self._last_arrival_us[sender, to] = at_us
            self.at(at_us, self._deliver, sender, to, message)

    def _deliver(self, sender: int, to: int, message: object) -> None:
        node = self.nodes.get(to)
        # A cut also loses what was under way.
        if node is None or not node.is_up or (sender, to) in self._cuts:
            return
        self.trace("deliver", sender, to)
        node.perform(node.on_message, sender, message)

    def cut(self, senders: Iterable[int], receivers: Iterable[int]) -> None:
        """Lose all messages from `senders` to `receivers`, one way."""
        receivers = list(receivers)
        for sender in senders:
            for receiver in receivers:
                if sender != receiver:
                    self._cuts.add((sender, receiver))
        self.trace("cut", sorted(self._cuts))

    def partition(self, *groups: Iterable[int]) -> None:
        """Lose all messages between groups, both ways."""
        sides = [list(group) for group in groups]
        for side in sides:
            for other in sides:
                if side is not other:
                    self.cut(side, other)

    def isolate(self, node_id: int) -> None:
        self.partition([node_id], [other for other in self.nodes if other != node_id])

    def heal_network(self) -> None:
        self.trace("heal")
        self._cuts.clear()

    def is_cut(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) in self._cuts


class Fault(Protocol):
    """Something bad that happens. Draws what it needs from the simulation's random numbers."""

    def __call__(self, simulation: Simulation, /) -> None: ...


def _a_node(simulation: Simulation, condition: Callable[[SimNode], bool]) -> SimNode | None:
    nodes = [node for node in simulation.nodes.values() if condition(node)]
    return simulation.random.choice(nodes) if nodes else None


def _two_sides(simulation: Simulation) -> tuple[list[int], list[int]]:
    ids = sorted(simulation.nodes)
    simulation.random.shuffle(ids)
    middle = simulation.random.randrange(1, len(ids)) if len(ids) > 1 else 0
    return ids[:middle], ids[middle:]


def crash_one(simulation: Simulation) -> None:
    """Crash a node; it is started again after a while."""
    if node := _a_node(simulation, lambda node: node.is_up):
        node.crash_for(2 * SECOND_US)


def crash_all(simulation: Simulation) -> None:
    """Cut the power of every node at once."""
    for node in simulation.nodes.values():
        if node.is_up:
            node.crash_for(SECOND_US)


def pause_one(simulation: Simulation) -> None:
    """Stop a node for up to two seconds, as SIGSTOP does."""
    if node := _a_node(simulation, lambda node: node.is_up and not node.is_paused):
        node.pause()
        simulation.after(simulation.random.randrange(1, 2 * SECOND_US), node.resume)


def split(simulation: Simulation) -> None:
    """Divide the nodes into two groups."""
    simulation.heal_network()
    simulation.partition(*_two_sides(simulation))


def cut_one_way(simulation: Simulation) -> None:
    """Lose what some nodes send to others, but not the answers."""
    simulation.cut(*_two_sides(simulation))


def cut_one_link(simulation: Simulation) -> None:
    """Lose what one node sends to another, both ways or one way."""
    ids = sorted(simulation.nodes)
    if len(ids) > 1:
        one, other = simulation.random.sample(ids, 2)
        simulation.cut([one], [other])
        if simulation.random.random() < 0.5:
            simulation.cut([other], [one])


def heal_network(simulation: Simulation) -> None:
    """End all cuts."""
    simulation.heal_network()


def stall_disk(simulation: Simulation) -> None:
    """Let the syncs of a node take up to a second, for a while."""
    if node := _a_node(simulation, lambda node: node.disk.stalled_until_us <= simulation.now_us):
        node.disk.stalled_until_us = simulation.now_us + simulation.random.randrange(1, SECOND_US)


def fail_disk(simulation: Simulation) -> None:
    """Let the next sync of a node fail."""
    if node := _a_node(simulation, lambda node: node.is_up):
        node.disk.fail_next_sync = True


class Chaos:
    """Injects weighted faults at random times until it is stopped."""

    def __init__(self, simulation: Simulation, faults: Mapping[Fault, float], *, mean_gap_us: int) -> None:
        self._simulation = simulation
        self._faults = list(faults)
        self._weights = list(faults.values())
        self._mean_gap_us = mean_gap_us
        self._is_running = True
        self._schedule()

    def _schedule(self) -> None:
        gap_us = int(self._simulation.random.expovariate(1 / self._mean_gap_us)) + 1
        self._simulation.after(gap_us, self._strike)

    def _strike(self) -> None:
        if not self._is_running:
            return
        (fault,) = self._simulation.random.choices(self._faults, self._weights)
        fault(self._simulation)
        self._schedule()

    def stop(self) -> None:
        """End all faults: heal the network and the disks, and bring every node back."""
        self._is_running = False
        simulation = self._simulation
        simulation.heal_network()
        simulation.network.loss = simulation.network.duplicates = simulation.network.late = 0.0
        for node in list(simulation.nodes.values()):
            node.disk.heal()
            node.resume()
            node.start_if_down()


def randomize_clocks(simulation: Simulation, *, max_drift: float, max_offset_ms: int) -> None:
    """Give every node a clock that runs at its own rate and starts at its own time."""
    for node in simulation.nodes.values():
        node.clock_rate = simulation.random.uniform(1 - max_drift, 1 + max_drift)
        node.clock_offset_ms = simulation.random.randrange(max_offset_ms + 1)
