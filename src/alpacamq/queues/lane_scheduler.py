"""Which lane is served next: deficit round robin by weight, or strictly the most urgent.

Lanes take turns. At the beginning of its turn a lane is granted as many messages as its weight, and what it
has not used when a receive is full it uses in the next, so shares hold over time whatever the
sizes of receives. A lane that runs empty forfeits what is left of its turn. Where lanes have not been
competing, the first round begins with the most urgent.
"""

from alpacamq.model.lanes import WEIGHTS, Lane

ALL_LANES = tuple(Lane)
_QUANTA = tuple(WEIGHTS[lane] for lane in ALL_LANES)


class LaneScheduler:
    """The turns of one queue's lanes. `active` is always a mask of the lanes that have messages."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._deficits = [0] * len(ALL_LANES)
        self._turn = len(ALL_LANES) - 1
        # Since when each lane has had messages while others were served.
        self._waiting_since_ms: list[int | None] = [None] * len(ALL_LANES)
        self._is_contended = False

    def starved(self, active: int, now_ms: int, starvation_ms: int) -> list[Lane]:
        """Lanes that have waited too long, the longest first: each is to go first with one message."""
        if not active & (active - 1):
            if self._is_contended:
                self._begin()
            return []
        self._is_contended = True
        starved = []
        for lane in ALL_LANES:
            since_ms = self._waiting_since_ms[lane]
            if not active >> lane & 1:
                self._waiting_since_ms[lane] = None
            elif since_ms is None:
                self._waiting_since_ms[lane] = now_ms
            elif now_ms - since_ms >= starvation_ms:
                starved.append((since_ms, lane))
        return [lane for _, lane in sorted(starved)]

    def choose(self, active: int, room: int) -> tuple[Lane, int]:
        """The lane whose turn it is, and how many messages it may have of `room`."""
        if not active & (active - 1):
            return ALL_LANES[active.bit_length() - 1], room
        lane = self._turn
        while not active >> lane & 1 or self._deficits[lane] <= 0:
            lane = (lane + 1) % len(ALL_LANES)
            if active >> lane & 1:
                self._deficits[lane] += _QUANTA[lane]
        self._turn = lane
        return ALL_LANES[lane], min(room, self._deficits[lane])

    def served(self, lane: Lane, count: int, now_ms: int, *, is_empty: bool) -> None:
        """So many messages of the lane that was chosen have been delivered."""
        self._deficits[lane] = 0 if is_empty else max(self._deficits[lane] - count, 0)
        if count and self._is_contended:
            self._waiting_since_ms[lane] = now_ms


def most_urgent(active: int) -> Lane:
    """In strict order, the lane that goes first."""
    return ALL_LANES[(active & -active).bit_length() - 1]
