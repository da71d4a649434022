"""How long does it take a group of 3, 50 and 500 members to settle when one comes or goes, and who notices?

One topic with two partitions per member. The members are connections with only the group protocol, with
heartbeats every 3 seconds in classic groups and as the server requests in those of KIP-848; one is a
confluent-kafka consumer that receives records all the time. Measured from the change, or from the start
of all members, until the last of them has its final partitions.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import uvloop

from . import commits, topics
from .members import ClassicMember, ConsumerMember, Member
from .observer import NAME, Observer
from .report import OURS, Floor, Report
from .roll import Roll
from .servers import START_S, Server
from .session import Session
from .usage import Meter, Usage

TOPIC = "read"
SIZES = (3, 50, 500)
PARTITIONS_EACH = 2
SETTLE_S = 300.0
PROTOCOLS: Mapping[str, type[Member]] = {"classic": ClassicMember, "consumer": ConsumerMember}
TITLES = {"classic": "cooperative-sticky", "consumer": "KIP-848"}
# The product's guarantee: the longest pause of a member that keeps its partitions.
FLOOR = Floor(at_most=1.0)


@dataclass(slots=True)
class Samples:
    """Samples of one kind of change."""

    took_s: list[float] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    moves_s: list[float] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)


def run(session: Session, report: Report) -> None:
    sizes = SIZES[:2] if session.is_quick else SIZES
    for contender in session.contenders:
        for protocol in PROTOCOLS:
            for size in sizes:
                with session.server(contender) as server:
                    _measure(session, report, server, protocol, size)


def _measure(session: Session, report: Report, server: Server, protocol: str, size: int) -> None:
    topics.create(server.address, TOPIC, size * PARTITIONS_EACH)
    # Creates coordinators, which no server has from the start.
    commits.commit(server.address, "warm-up", TOPIC, {0: 0}, START_S)
    session.settle()
    measured = uvloop.run(_changes(server, protocol, size, session.repeats))
    for change, samples in measured.items():
        case = f"{TITLES[protocol]}, {size} members, {change}"
        report(
            case=f"{case}, until all is settled",
            server=server.name,
            unit="s",
            samples=samples.took_s,
            usages=samples.usages,
        )
        if samples.pauses_s:
            report(
                case=f"{case}, longest pause of one that keeps its partitions",
                server=server.name,
                unit="s",
                samples=samples.pauses_s,
                floor=FLOOR if server.name == OURS else None,
            )
            report(
                case=f"{case}, longest time that a partition has no owner",
                server=server.name,
                unit="s",
                samples=samples.moves_s,
            )


async def _changes(server: Server, protocol: str, size: int, repeats: int) -> dict[str, Samples]:
    """Start all members; then repeatedly add and remove one."""
    starting, coming, going = Samples(), Samples(), Samples()
    roll = Roll(size * PARTITIONS_EACH)
    crowd = Crowd(server.address, protocol, "group", roll)
    async with crowd:
        with Meter(server.pid) as meter:
            began_at = time.monotonic()
            await crowd.add(size)
            starting.took_s.append(await roll.settled(size, SETTLE_S) - began_at)
        starting.usages.append(meter.usage)
        # One member leaves for the observer, without measurement.
        await crowd.remove_last()
        await crowd.observe()
        await roll.settled(size, SETTLE_S)
        for _ in range(repeats):
            await _change(server, crowd, coming, size + 1, crowd.add)
            await _change(server, crowd, going, size, crowd.remove_last)
    return {"all start at once": starting, "one comes": coming, "one goes": going}


async def _change(
    server: Server, crowd: "Crowd", measured: Samples, members: int, change: Callable[[], Awaitable[None]]
) -> None:
    roll = crowd.roll
    await crowd.observer.mark()
    roll.longest_move_s = 0.0
    with Meter(server.pid) as meter:
        began_at = time.monotonic()
        await change()
        measured.took_s.append(await roll.settled(members, SETTLE_S) - began_at)
    measured.usages.append(meter.usage)
    measured.pauses_s.append(await crowd.observer.longest_gap_s())
    measured.moves_s.append(roll.longest_move_s)


class Crowd:
    """The members of one group, each with its own task."""

    def __init__(self, address: str, protocol: str, group: str, roll: Roll) -> None:
        self.roll = roll
        self._address = address
        self._protocol = protocol
        self._group = group
        self._running: list[tuple[Member, asyncio.Task[None]]] = []
        self._started = 0
        self._observer: Observer | None = None
        self._tasks = asyncio.TaskGroup()

    @property
    def observer(self) -> Observer:
        assert self._observer is not None
        return self._observer

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._observer is not None:
            self._observer.end()
        for _, task in self._running:
            task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def add(self, count: int = 1) -> None:
        """Start members, all at once."""
        for _ in range(count):
            self._started += 1
            member = PROTOCOLS[self._protocol](f"member-{self._started}", self._group, TOPIC, self.roll)
            task = self._tasks.create_task(member.run(self._address))
            self._running.append((member, task))

    async def remove_last(self) -> None:
        """Make the member that joined last, which is never the leader, leave."""
        member, task = self._running.pop()
        task.cancel()
        await asyncio.wait([task])
        await member.leave()

    async def observe(self) -> None:
        """Make the observer join."""
        self.roll.enter(NAME)
        self._observer = Observer(
            self._address, TOPIC, self._group, self._protocol, lambda held: self.roll.note(NAME, held)
        )
