"""Decisions of the controller: changes to write, and the reply to give once they are committed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from alpacamq.model.state_machine import Change

from .image import ClusterImage
from .topics import BY_DEFAULT, TopicLimits

R = TypeVar("R")


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times and limits of the controller."""

    # Without a heartbeat for this long, a broker is fenced.
    dead_ms: int = 9000
    # Factor of topics that do not say; by default one replica on each rack, up to 3.
    replication_factor: int = BY_DEFAULT
    limits: TopicLimits = TopicLimits()
    # Defaults of topic settings in the configuration file.
    topic_defaults: Mapping[str, str] = {}
    # Leaders move back to preferred replicas: so many at once, at this interval.
    rebalance_ms: int = 5000
    rebalanced_at_once: int = 200
    # Partitions that move at the same time because their broker is drained, and how often to look for more.
    drained_at_once: int = 50
    drain_ms: int = 1000
    # A broker that stops waits at most this long for the others to learn of the new leaders.
    shutdown_ms: int = 5000
    record_time_ms: int = 10_000
    # How often expired delegation tokens are removed.
    token_check_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[R]):
    """Changes that have been decided, and the reply that waits until they are committed.

    An atomic decision is one entry of the metadata log. Others may be split into several, in order: each
    prefix leaves a state that is safe, and that the controller, or the next one, completes. Creating,
    deleting, growing and configuring topics are atomic, since a topic must not be seen with some of its
    partitions. Fencing and registering a broker, elections, changes of in-sync sets and reassignments are
    not: partitions leave a broker before its own record changes, and are elected to it afterwards.
    """

    changes: list[Change] = field(default_factory=list)
    reply: R
    is_atomic: bool = False

    def entries(self, max_changes: int) -> Iterator[list[Change]]:
        """Yield the changes of each entry."""
        if self.is_atomic:
            max_changes = max(len(self.changes), 1)
        for start in range(0, len(self.changes), max_changes):
            yield self.changes[start : start + max_changes]


class Pending:
    """The image with everything proposed so far, and the changes of the decision being made."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._changes: list[Change] = []

    def put(self, *changes: Change) -> None:
        """Propose changes; what is decided next sees them."""
        self.image.apply(changes)
        self._changes += changes

    def take(self) -> list[Change]:
        """Return the changes proposed since the last call."""
        changes, self._changes = self._changes, []
        return changes
