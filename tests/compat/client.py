"""What the compat tests ask of a client, so that one test states a behaviour for all of them.

Each client has an adapter beside this module that says the same thing in that client's own words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

DEADLINE_S = 20.0

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("0", "1", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as a client writes or reads it; no timestamp means the client's own clock."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a client learns of the brokers."""

    id: str
    controller: int
    brokers: Mapping[int, str]


class Refused(Exception):
    """The broker said no: Kafka's error number and the words that came with it."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{code}: {words}")
        self.code = code
        self.words = words


class Client(Protocol):
    """Writing and reading."""

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
        """The offsets the broker gave, or None where the client cannot know; Refused when it refused one."""
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
        """`count` records from `start`; `reset` says where to go when that is out of range."""
        ...

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        """The first offset whose record is not older, or None."""
        ...

    def partition_count(self, topic: str) -> int:
        """From the metadata; Refused when there is no such topic."""
        ...


class Admin(Client, Protocol):
    """Managing topics."""

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication: int = 1,
        settings: Mapping[str, str] | None = None,
        only_check: bool = False,
    ) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def topics(self) -> set[str]: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def settings(self, topic: str) -> dict[str, str]: ...

    def replace_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        """These and no others: what is not named goes back to its default."""
        ...

    def delete_records(self, topic: str, *, before: int, partition: int = 0) -> int:
        """Where the log starts now."""
        ...

    def ends(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """The earliest offset and the one the next record will have."""
        ...

    def cluster(self) -> Cluster: ...
