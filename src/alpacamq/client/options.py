"""Values of requests that every client uses."""

from enum import IntEnum


class Acks(IntEnum):
    """Who has to have a record before it is acknowledged: no broker, the leader, or all in-sync replicas."""

    NONE = 0
    LEADER = 1
    ALL = -1


class Isolation(IntEnum):
    """Isolation level of a read."""

    UNCOMMITTED = 0
    COMMITTED = 1


class Coordinates(IntEnum):
    """Key type of a FindCoordinator request."""

    GROUP = 0
    TRANSACTION = 1
