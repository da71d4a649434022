"""Priority lanes and their shares of deliveries."""

from collections.abc import Mapping
from enum import IntEnum

from .errors import InvalidLane


class Lane(IntEnum):
    """The lane a message is queued in; the lower number is the more urgent."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BACKGROUND = 4

    @property
    def text(self) -> str:
        return _TEXTS[self]


_TEXTS = tuple(lane.name.lower() for lane in Lane)
WEIGHTS: Mapping[Lane, int] = {
    Lane.CRITICAL: 50,
    Lane.HIGH: 25,
    Lane.NORMAL: 15,
    Lane.LOW: 7,
    Lane.BACKGROUND: 3,
}
LANES_BY_NAME: Mapping[str, Lane] = {lane.text: lane for lane in Lane}


def parse_lane(text: str) -> Lane:
    """Return the lane of this name. Raises InvalidLane with the valid names."""
    if (lane := LANES_BY_NAME.get(text.strip().lower())) is None:
        raise InvalidLane(f"{text!r} is not a priority; it is one of {', '.join(LANES_BY_NAME)}")
    return lane
