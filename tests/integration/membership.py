"""Groups of member processes, controlled by a test and checked by their journals."""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests.waiting import eventually

from .group_member import SESSION_MS, Kind, Settings
from .journal import Assigned, Committed, Delivered, Event, JournalReader, Refused, Revoked
from .processes import Program

SETTLE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """A period in which a member owned a partition."""

    partition: int
    member: str
    generation: int
    from_ns: int
    # None: until the end.
    until_ns: int | None
    was_lost: bool


class Member:
    """One member process, from its start to its end."""

    def __init__(self, name: str, settings: Settings, log: Path) -> None:
        self.name = name
        self.settings = settings
        self.ended_ns: int | None = None
        self._journal = JournalReader(Path(settings.journal))
        self._program = Program(
            "tests.integration.member_process", msgspec.json.encode(settings).decode(), log=log
        ).start()

    @property
    def events(self) -> Sequence[Event]:
        events = self._journal.read_more()
        assert self.ended_ns is not None or self._program.is_running, (
            f"{self.name} ended by itself:\n{self._program.last_output()}"
        )
        return events

    @property
    def owned(self) -> set[int]:
        """The partitions it owns now."""
        owned: set[int] = set()
        if self.ended_ns is not None:
            return owned
        for event in self.events:
            if isinstance(event, Assigned):
                owned |= {*event.partitions}
            elif isinstance(event, Revoked):
                owned -= {*event.partitions}
        return owned

    @property
    def moves(self) -> list[Assigned | Revoked]:
        """All assignments and revocations."""
        return [event for event in self.events if isinstance(event, Assigned | Revoked)]

    @property
    def deliveries(self) -> list[Delivered]:
        return [event for event in self.events if isinstance(event, Delivered)]

    @property
    def refusals(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, Refused)]

    def committed(self) -> dict[int, int]:
        """The acknowledged committed offsets, the latest of each partition."""
        offsets: dict[int, int] = {}
        for event in self.events:
            if isinstance(event, Committed):
                offsets |= event.offsets
        return offsets

    def kill(self) -> None:
        """kill -9."""
        self._program.kill()
        self.ended_ns = time.monotonic_ns()

    def leave(self) -> None:
        """Stop cleanly."""
        self._program.stop()
        self.ended_ns = time.monotonic_ns()

    def end(self) -> None:
        self._program.end()

    def ownerships(self) -> Iterable[Ownership]:
        """Yield each period of ownership."""
        begun: dict[int, tuple[int, int]] = {}
        for event in self.moves:
            if isinstance(event, Assigned):
                begun |= dict.fromkeys(event.partitions, (event.at_ns, event.generation))
                continue
            for partition in event.partitions:
                if partition in begun:
                    yield self._stay(partition, begun.pop(partition), event.at_ns, event.was_lost)
        for partition, begin in begun.items():
            yield self._stay(partition, begin, self.ended_ns, False)

    def _stay(
        self, partition: int, begin: tuple[int, int], until_ns: int | None, was_lost: bool
    ) -> Ownership:
        return Ownership(
            partition=partition,
            member=self.name,
            generation=begin[1],
            from_ns=begin[0],
            until_ns=until_ns,
            was_lost=was_lost,
        )

    def longest_gap_ns(self, partitions: set[int], from_ns: int, until_ns: int) -> int:
        """Return the longest time between two deliveries from any of these partitions."""
        runs = sorted(
            (run.began_ns, run.ended_ns)
            for run in self.deliveries
            if run.partition in partitions and run.ended_ns >= from_ns and run.began_ns <= until_ns
        )
        ends = [(from_ns, from_ns), *runs, (until_ns, until_ns)]
        return max(later[0] - earlier[1] for earlier, later in pairwise(ends))


class Group:
    """All members that a group has had."""

    def __init__(self, address: str, topic: str, partitions: int, group: str, directory: Path) -> None:
        self.id = group
        self.members: list[Member] = []
        self._address = address
        self._topic = topic
        self._partitions = partitions
        self._directory = directory

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.ended_ns is None]

    def add(self, kind: Kind, *, instance_id: str | None = None, session_ms: int = SESSION_MS) -> Member:
        """Start one more member."""
        name = f"{self.id}-{len(self.members)}"
        settings = Settings(
            kind=kind,
            address=self._address,
            topic=self._topic,
            group=self.id,
            journal=str(self._directory / f"{name}.journal"),
            instance_id=instance_id,
            session_timeout_ms=session_ms,
        )
        member = Member(name, settings, self._directory / f"{name}.log")
        self.members.append(member)
        return member

    def settle(self) -> None:
        """Wait until the running members own all partitions, evenly distributed."""
        try:
            eventually(self._is_settled, what=f"{self.id} is settled", within_s=SETTLE_S)
        except AssertionError as failed:
            state = "\n".join(
                f"{member.name} has {sorted(member.owned)}, was refused {member.refusals[-3:]}"
                for member in self.running
            )
            raise AssertionError(f"{failed}\n{state}") from None

    def _is_settled(self) -> bool:
        owned = [member.owned for member in self.running]
        counts = [len(each) for each in owned]
        return (
            sum(counts) == self._partitions
            and set().union(*owned) == {*range(self._partitions)}
            and max(counts) - min(counts) <= 1
        )

    def committed(self) -> dict[int, int]:
        """Return the group's committed offsets from the broker."""
        admin = AdminClient({"bootstrap.servers": self._address, "log_level": 0})
        (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.id)]).values()
        places: list[Any] = answer.result(SETTLE_S).topic_partitions
        return {place.partition: place.offset for place in places}

    def end(self) -> None:
        for member in self.members:
            member.end()

    def wait_for_everything(self, counts: Sequence[int]) -> None:
        """Wait until all records have been delivered; `counts` is their number by partition."""
        eventually(lambda: not self.missing(counts), what=f"{self.id} got everything", within_s=SETTLE_S)

    def missing(self, counts: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        """Return the ranges of offsets by partition that no member received."""
        by_partition: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for member in self.members:
            for run in member.deliveries:
                by_partition[run.partition].append((run.first, run.last))
        missing: dict[int, list[tuple[int, int]]] = {}
        for partition, count in enumerate(counts):
            reached = 0
            gaps = []
            for first, last in sorted(by_partition[partition]):
                if first > reached:
                    gaps.append((reached, first))
                reached = max(reached, last + 1)
            if reached < count:
                gaps.append((reached, count))
            if gaps:
                missing[partition] = gaps
        return missing

    def repeated(self, counts: Sequence[int]) -> int:
        """Return the number of repeated deliveries."""
        delivered = sum(run.last + 1 - run.first for member in self.members for run in member.deliveries)
        return delivered - sum(counts)

    def check_nothing_is_owned_twice(self) -> int:
        """Check that periods of ownership do not overlap; return how many ended with a lost partition."""
        by_partition: dict[int, list[Ownership]] = defaultdict(list)
        for member in self.members:
            for stay in member.ownerships():
                by_partition[stay.partition].append(stay)
        for stays in by_partition.values():
            stays.sort(key=lambda stay: stay.from_ns)
            for earlier, later in pairwise(stays):
                if earlier.was_lost:
                    # Lost without notice: by the time the member learns of it, another generation may own it.
                    assert later.generation > earlier.generation, f"in one generation: {earlier}, {later}"
                else:
                    until_ns = earlier.until_ns
                    assert until_ns is not None, f"owned by two to the end: {earlier}, {later}"
                    assert until_ns <= later.from_ns, f"owned by two at a time: {earlier}, {later}"
        return sum(stay.was_lost for stays in by_partition.values() for stay in stays)
