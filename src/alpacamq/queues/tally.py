"""How many messages of a partition are in which state."""

from alpacamq.model.lanes import Lane

from .chunks import State
from .consumers import Consumers
from .lane_scheduler import ALL_LANES


class Tally:
    """Counts per lane, of what was delivered and is not done. What is available is counted in the backlog."""

    def __init__(self, consumers: Consumers) -> None:
        self.in_flight = [0] * len(ALL_LANES)
        self.resting = [0] * len(ALL_LANES)
        self.moving = 0
        self._consumers = consumers

    def enter(self, state: State, lane: Lane, count: int, owner: str) -> None:
        """So many messages come into a state."""
        if state is State.ACQUIRED:
            self.in_flight[lane] += count
            self._consumers.acquire(owner, count)
        elif state is State.RESTING:
            self.resting[lane] += count
        elif state is State.MOVING:
            self.moving += count

    def leave(self, state: State, lane: Lane, count: int, owner: str) -> None:
        """So many messages leave a state."""
        if state is State.ACQUIRED:
            self.in_flight[lane] -= count
            self._consumers.release(owner, count)
        elif state is State.RESTING:
            self.resting[lane] -= count
        elif state is State.MOVING:
            self.moving -= count
