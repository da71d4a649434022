"""Addresses, health and stats of a broker, over HTTP."""

from alpacamq.client.connect import parse_address
from alpacamq.client.errors import Unreachable
from alpacamq.model.address import Address
from alpacamq.wire.queues import QueueStats, ReliabilityStats
from alpacamq.wire.stats import ClusterDescription, GroupsStats, GroupStats, Stats, TopicsStats, TopicStats

from .connection import HttpApi, Problem

_UNKNOWN_PATH = "unknown-path"
# The fields of Stats that say what a broker holds.
HELD = (
    "uptime_ms",
    "topics",
    "partitions",
    "messages",
    "size_bytes",
    "groups",
    "queues",
    "delayed",
    "open_transactions",
)


def broker_addresses(api: HttpApi) -> ClusterDescription:
    return api.get(["cluster"], ClusterDescription)


def kafka_address(api: HttpApi) -> Address:
    """Return the advertised address of the Kafka API."""
    try:
        return parse_address(broker_addresses(api).addresses["kafka"])
    except (Problem, KeyError, ValueError) as error:
        if isinstance(error, Problem) and error.kind != _UNKNOWN_PATH:
            raise
        raise Unreachable(
            f"{api.address} does not report its Kafka address; set it with --broker HOST:PORT"
        ) from error


def health(api: HttpApi) -> str | None:
    """Return the failed health checks; None if all pass."""
    try:
        api.get(["healthz"], dict[str, object])
    except Problem as problem:
        return str(problem)
    return None


def broker_stats(api: HttpApi) -> Stats:
    return api.get(["stats"], Stats)


_LIMIT = 1000


def topic_stats(api: HttpApi) -> list[TopicStats]:
    return api.get(("stats", "topics"), TopicsStats, query={"limit": _LIMIT}).topics


def group_stats(api: HttpApi) -> list[GroupStats]:
    return api.get(("stats", "groups"), GroupsStats, query={"limit": _LIMIT}).groups


def queue_stats(api: HttpApi) -> list[QueueStats]:
    return api.get(("reliability", "stats"), ReliabilityStats, query={"limit": _LIMIT}).queues
