"""Partition ownership as the members of a group see it."""

import asyncio
import time


class Roll:
    """The members of one group that reads one topic, and how long partitions had no owner."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        # The time of the last change.
        self.changed_at = 0.0
        # The longest time that a partition had no owner between two members.
        self.longest_move_s = 0.0
        self._held: dict[str, frozenset[int]] = {}
        self._free_since: dict[int, float] = {}
        self._changed = asyncio.Event()

    def enter(self, member: str) -> None:
        self._held.setdefault(member, frozenset())

    def note(self, member: str, partitions: frozenset[int]) -> None:
        """Set the partitions of `member`."""
        now = time.monotonic()
        before = self._held.get(member, frozenset())
        self._held[member] = partitions
        for partition in before - partitions:
            self._free_since[partition] = now
        for partition in partitions - before:
            if (since := self._free_since.pop(partition, None)) is not None:
                self.longest_move_s = max(self.longest_move_s, now - since)
        self.changed_at = now
        self._changed.set()

    def leave(self, member: str) -> None:
        self.note(member, frozenset())
        del self._held[member]

    async def settled(self, members: int, within_s: float) -> float:
        """Wait until `count` members share all partitions evenly; return the time of the last change."""
        async with asyncio.timeout(within_s):
            while not self._is_settled(members):
                self._changed.clear()
                await self._changed.wait()
        return self.changed_at

    def _is_settled(self, members: int) -> bool:
        counts = [len(partitions) for partitions in self._held.values()]
        return (
            len(counts) == members
            and sum(counts) == self.partitions
            and max(counts) - min(counts) <= 1
            and len(frozenset().union(*self._held.values())) == self.partitions
        )
