"""Settings of group members, and code shared by the members of all client libraries."""

import signal
import time
from collections.abc import Iterable
from enum import StrEnum
from types import FrameType
from typing import Any

import msgspec

POLL_S = 0.05
COMMIT_EVERY_S = 0.25
HEARTBEAT_MS = 500
SESSION_MS = 4000
MOST_AT_ONCE = 500


class Kind(StrEnum):
    """A client library and its group protocol."""

    COOPERATIVE = "confluent-cooperative"
    EAGER = "confluent-range"
    CONSUMER = "confluent-consumer"
    KAFKA_PYTHON = "kafka_python-range"
    KAFKA_PYTHON_COOPERATIVE = "kafka_python-cooperative"
    AIOKAFKA = "aiokafka-range"

    @property
    def library(self) -> str:
        return self.partition("-")[0]

    @property
    def is_incremental(self) -> bool:
        """Whether partitions that do not move are read during a rebalance."""
        return self in (Kind.COOPERATIVE, Kind.CONSUMER, Kind.KAFKA_PYTHON_COOPERATIVE)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a member process."""

    kind: Kind
    address: str
    topic: str
    group: str
    journal: str
    instance_id: str | None = None
    session_timeout_ms: int = SESSION_MS


class StopSignal:
    """Whether the process has been asked to stop."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, _number: int, _frame: FrameType | None) -> None:
        self.is_set = True


class CommitTimer:
    """Decides when to commit next."""

    def __init__(self) -> None:
        self._at = time.monotonic() + COMMIT_EVERY_S

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._at:
            return False
        self._at = now + COMMIT_EVERY_S
        return True


def numbers(places: Iterable[Any]) -> list[int]:
    """Return the numbers of partitions of the single topic."""
    return [place.partition for place in places]
