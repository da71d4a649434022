"""The client interface of the compat tests, so that one test states a behaviour for all clients.

Each client has an adapter beside this module that implements it with that client's API.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

DEADLINE_S = 20.0

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("0", "1", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as a client writes or reads it; without a timestamp, the client's clock is used."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a client sees of the brokers."""

    id: str
    controller: int
    brokers: Mapping[int, str]


def replicas_for(address: str) -> int:
    """Return the replication factor of test topics: one replica per node of the address, up to three."""
    return min(3, len(address.split(",")))


class Refused(Exception):
    """The broker returned an error: Kafka's error code and the message."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{code}: {words}")
        self.code = code
        self.words = words


class Client(Protocol):
    """Produces and reads."""

    name: ClassVar[str]
    sets_timestamps: ClassVar[bool]

    def __init__(self, address: str) -> None: ...

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int] | None:
        """Return the assigned offsets, or None if the client cannot know them; raises Refused."""
        ...

    def read(
        self,
        topic: str,
        *,
        count: int,
        partition: int = 0,
        start: int = 0,
        reset: str | None = None,
    ) -> list[Record]:
        """Read `count` records from `start`; `reset` decides what happens if that is out of range."""
        ...

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        """Return the first offset whose record is not older than a timestamp, or None."""
        ...

    def partition_count(self, topic: str) -> int:
        """Return the count from the metadata; raises Refused if the topic does not exist."""
        ...


class Admin(Client, Protocol):
    """Manages topics."""

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int | None = None,
        settings: Mapping[str, str] | None = None,
        only_check: bool = False,
    ) -> None:
        """Create a topic, by default with `replicas_for` its broker."""
        ...

    def delete_topic(self, topic: str) -> None: ...

    def topics(self) -> set[str]: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def settings(self, topic: str) -> dict[str, str]: ...

    def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        """Replace all settings: those not named get their defaults."""
        ...

    def delete_records(self, topic: str, *, before: int, partition: int = 0) -> int:
        """Delete records; return the new log start offset."""
        ...

    def ends(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """Return the first offset and the offset of the next record."""
        ...

    def cluster(self) -> Cluster: ...
