"""Target partitions of delayed messages, each with a number small enough to be packed with a due time."""

from collections.abc import Iterator

from .messages import TargetName
from .records import DeliveryPath, TargetState
from .wheel import MAX_TARGETS

SEQUENCE_MASK = 0x7FFF_FFFF


class Target:
    """One partition: its pending messages, and the sequence numbers of its next batches."""

    __slots__ = ("index", "is_deleted", "name", "next_sequences", "pending")

    def __init__(self, index: int, name: TargetName | None) -> None:
        self.index = index
        self.name = name
        self.pending = 0
        self.next_sequences = [0 for _ in DeliveryPath]
        # The topic was deleted, or the record of this target was.
        self.is_deleted = name is None

    def advance(self, path: DeliveryPath, count: int) -> int:
        """Reserve `count` sequence numbers and return the first."""
        sequence = self.next_sequences[path]
        self.next_sequences[path] = (sequence + count) & SEQUENCE_MASK
        return sequence

    def state(self) -> TargetState:
        assert self.name is not None
        return TargetState(*self.name, tuple(self.next_sequences))


class Targets:
    """All targets of one delay log. Numbers are never reused."""

    def __init__(self) -> None:
        self.next_index = 0
        self.pending = 0  # messages of all targets
        self._by_index: dict[int, Target] = {}
        self._by_name: dict[tuple[bytes, int], Target] = {}

    def __iter__(self) -> Iterator[Target]:
        return iter(self._by_index.values())

    def get(self, index: int) -> Target:
        """Return the target with this number; an unknown one counts as deleted."""
        if (target := self._by_index.get(index)) is None:
            target = self._by_index[index] = Target(index, None)
            self.next_index = max(self.next_index, index + 1)
        return target

    def find(self, topic_id: bytes, partition: int) -> Target | None:
        return self._by_name.get((topic_id, partition))

    def create(self, name: TargetName) -> Target:
        assert self.next_index < MAX_TARGETS
        target = Target(self.next_index, name)
        self.next_index += 1
        self._by_index[target.index] = target
        self._by_name[name.topic_id, name.partition] = target
        return target

    def count(self, target: Target, change: int) -> None:
        """Add `change` to the number of pending messages of a target."""
        target.pending += change
        self.pending += change

    def deleted(self) -> list[Target]:
        return [target for target in self if target.is_deleted]

    def restore(self, index: int, state: TargetState | None) -> None:
        """Apply the stored record of a target."""
        if state is None:
            self.drop(index)
            return
        target = self.get(index)
        target.name = TargetName(state.topic_id, state.topic, state.partition)
        target.next_sequences = list(state.next_sequences)
        target.is_deleted = False
        self._by_name[state.topic_id, state.partition] = target

    def drop(self, index: int) -> None:
        target = self._by_index.pop(index, None)
        if target is not None and target.name is not None:
            self._by_name.pop((target.name.topic_id, target.name.partition), None)
