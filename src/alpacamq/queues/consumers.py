"""How many messages each consumer of a queue holds, and all of them together."""


class Consumers:
    """Counts of leased messages. A consumer without a name is held to no limit but the queue's."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self.total = 0

    def acquire(self, consumer: str, count: int) -> None:
        self._held[consumer] = self._held.get(consumer, 0) + count
        self.total += count

    def release(self, consumer: str, count: int) -> None:
        self.total -= count
        left = self._held[consumer] - count
        if left:
            self._held[consumer] = left
        else:
            del self._held[consumer]

    def holds_any(self, consumer: str) -> bool:
        return consumer in self._held

    def room(self, consumer: str, max_each: int, max_total: int) -> int:
        """How many more this consumer may lease."""
        room = max_total - self.total
        if consumer:
            room = min(room, max_each - self._held.get(consumer, 0))
        return max(room, 0)
