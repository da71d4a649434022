"""Where the APIs of a broker are, told by its HTTP API."""

import msgspec

from alpacamq.client.connect import parse_address
from alpacamq.client.errors import Unreachable
from alpacamq.model.address import Address

from .connection import HttpApi, Problem
from .queues import QueueTotals

_UNKNOWN_PATH = "unknown-path"


class BrokerAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """A broker, and HOST:PORT of its APIs by name."""

    cluster_id: str
    node_id: int
    version: str
    addresses: dict[str, str] = msgspec.field(name="doors")


def broker_addresses(api: HttpApi) -> BrokerAddresses:
    return api.get(["cluster"], BrokerAddresses)


def kafka_address(api: HttpApi) -> Address:
    """Where Kafka's protocol is spoken, as the broker tells its clients."""
    try:
        return parse_address(broker_addresses(api).addresses["kafka"])
    except (Problem, KeyError, ValueError) as error:
        if isinstance(error, Problem) and error.kind != _UNKNOWN_PATH:
            raise
        raise Unreachable(
            f"{api.address} does not say where Kafka's protocol is spoken; name it with --broker HOST:PORT"
        ) from error


class BrokerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A broker in a few numbers; None where a part cannot answer now."""

    uptime_ms: int
    topics: int
    partitions: int
    messages: int
    size_bytes: int
    groups: int | None = None
    queues: int = 0
    delayed: int | None = None
    open_transactions: int | None = None

    def plain(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


def health(api: HttpApi) -> str | None:
    """What is wrong with the broker; None if all is well."""
    try:
        api.get(["healthz"], dict[str, object])
    except Problem as problem:
        return str(problem)
    return None


def broker_stats(api: HttpApi) -> BrokerStats:
    return api.get(["stats"], BrokerStats)


_LIMIT = 1000


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    """A topic; totals only grow, unless the broker starts again."""

    topic: str
    partitions: int
    messages: int
    size_bytes: int
    written_total: int
    written_bytes_total: int
    fetched_total: int
    fetched_bytes_total: int


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a topic."""

    group: str
    topic: str
    lag: int
    committed_total: int


class QueueCounters(msgspec.Struct, frozen=True, kw_only=True):
    """A group that uses a topic as a queue."""

    group: str
    topic: str
    totals: QueueTotals


class _Topics(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[TopicStats]


class _Groups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[GroupStats]


class _Queues(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[QueueCounters]


def topic_stats(api: HttpApi) -> list[TopicStats]:
    return api.get(("stats", "topics"), _Topics, query={"limit": _LIMIT}).topics


def group_stats(api: HttpApi) -> list[GroupStats]:
    return api.get(("stats", "groups"), _Groups, query={"limit": _LIMIT}).groups


def queue_figures(api: HttpApi) -> list[QueueCounters]:
    return api.get(("reliability", "stats"), _Queues, query={"limit": _LIMIT}).queues
