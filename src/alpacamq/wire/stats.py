"""The broker, its topics and its groups in numbers, as the HTTP API describes them."""

import msgspec


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that answers, and HOST:PORT of its open APIs: kafka, http, sqs."""

    cluster_id: str
    node_id: int
    version: str
    addresses: dict[str, str] = msgspec.field(name="doors")


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Version and identity of the broker."""

    version: str
    node_id: int
    cluster_id: str


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the broker; null where a part is unavailable."""

    version: str
    node_id: int
    uptime_ms: int
    topics: int
    partitions: int
    messages: int
    size_bytes: int
    groups: int | None
    queues: int
    delayed: int | None
    open_transactions: int | None
    requests: int


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. `written_total` counts since its creation, the other totals since the broker started."""

    topic: str
    partitions: int
    messages: int
    size_bytes: int
    written_total: int
    written_bytes_total: int
    fetched_total: int
    fetched_bytes_total: int


class TopicsStats(msgspec.Struct, frozen=True, kw_only=True):
    """Topics by name, and the number of all topics."""

    topics: list[TopicStats]
    total: int


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a topic: its lag, and the sum of its committed offsets."""

    group: str
    topic: str
    lag: int
    committed_total: int


class GroupsStats(msgspec.Struct, frozen=True, kw_only=True):
    """Groups with committed offsets by name, and the number of all groups."""

    groups: list[GroupStats]
    total: int
