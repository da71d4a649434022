"""Collects all metrics for /metrics.

Names are chosen by users, and every name is a series that Prometheus stores: their number is bounded. A
selected name stays selected, because a series with gaps is of little use.
"""

import asyncio
import os
import platform
import resource
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from alpacamq.broker.broker import Broker
from alpacamq.broker.health import all_checks
from alpacamq.broker.peers.link import LinkState
from alpacamq.broker.pipelines import PipelineReports, is_silent
from alpacamq.broker.remote.status import count_partitions, follower_lags
from alpacamq.broker.slices import in_slices
from alpacamq.coordinator.groups import GroupStats
from alpacamq.coordinator.transactions.transaction import ListTransactions, Transaction
from alpacamq.model.batch import HEADER_BYTES, read_header
from alpacamq.model.errors import AlpacaError, UnknownTopic
from alpacamq.model.names import id_of, topic_of
from alpacamq.model.topics import DELAYS_TOPIC, TRANSACTIONS_TOPIC
from alpacamq.model.version import VERSION
from alpacamq.queues.messages import DescribeReply, QueueId
from alpacamq.security.tenants import TenantStatus
from alpacamq.telemetry import metrics_catalogue as m
from alpacamq.telemetry.metrics import Metrics, SeriesLimits
from alpacamq.wire.queues import QueueTotals

from . import requests
from .exposition import Exposition, Labels
from .requests import Traffic
from .stats import lanes_of, stats_of, totals_of

# No topic can have this name.
OTHER = "(other)"
# Tenants whose selections are kept; those of the least recently collected are made again.
MAX_TENANTS = 100


class Scope:
    """The resources to collect: all, under their stored names, or those of a tenant, under its names."""

    def __init__(self, tenant: str | None = None) -> None:
        self._topic_prefix = "" if tenant is None else topic_of(tenant, "")
        self._id_prefix = "" if tenant is None else id_of(tenant, "")

    def has_topic(self, stored: str) -> bool:
        return stored.startswith(self._topic_prefix)

    def has_group(self, stored: str) -> bool:
        return stored.startswith(self._id_prefix)

    def topic(self, stored: str) -> str:
        """Return the name of a topic of this scope."""
        return stored[len(self._topic_prefix) :]

    def group(self, stored: str) -> str:
        """Return the name of a group of this scope."""
        return stored[len(self._id_prefix) :]

    def queue(self, stored: QueueId) -> tuple[str, str]:
        """Return the names of the group and the topic of a queue of this scope."""
        return self.group(stored.group), self.topic(stored.topic)


K = TypeVar("K", bound=Hashable)


class Selection(Generic[K]):
    """A bounded set of names: the largest when selected, kept for as long as they exist."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chosen: set[K] = set()

    async def choose(self, sizes: Mapping[K, float]) -> set[K]:
        """Return the selected names of `sizes`; yields to the event loop."""
        self._chosen = {key for key in self._chosen if key in sizes}
        if (free := self._limit - len(self._chosen)) > 0:
            largest: list[K] = []
            async for some in in_slices(key for key in sizes if key not in self._chosen):
                largest = nlargest(free, largest + some, key=sizes.__getitem__)
            self._chosen.update(largest)
        return self._chosen


class Remainder(Generic[K]):
    """Sums of the counters of names that are not selected. Sums never decrease.

    A deleted name is not subtracted: Prometheus would take the lower sum for a restart of the broker, and
    count all of it as growth.
    """

    def __init__(self, width: int) -> None:
        self._sums = [0] * width
        self._seen: Mapping[K, Sequence[int]] = {}

    def add_up(self, counters: Mapping[K, Sequence[int]]) -> Sequence[int]:
        """Add the growth of these counters since the last call; return the sums."""
        none = [0] * len(self._sums)
        for key, counts in counters.items():
            for place, (before, now) in enumerate(zip(self._seen.get(key, none), counts, strict=True)):
                self._sums[place] += now - before if now >= before else now
        self._seen = counters
        return self._sums


# Batch headers read per collection; queues that are left out are read first in the next.
MAX_READS = 500

# Topic, partition and offset.
_Place = tuple[str, int, int]


class OldestMessages:
    """Timestamps of the oldest unprocessed messages of queues, cached by position."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._written_ms: dict[_Place, int] = {}

    async def ages(self, queues: Iterable[DescribeReply]) -> dict[QueueId, float]:
        """Return the age in seconds of the oldest message by queue, 0 for an empty queue."""
        places = {queue.queue: _places(queue) for queue in queues}
        wanted = {place for each in places.values() for place in each}
        known = {place: at for place, at in self._written_ms.items() if place in wanted}
        for place in list(wanted - known.keys())[:MAX_READS]:
            if (written_ms := await self._read(*place)) is not None:
                known[place] = written_ms
        self._written_ms = known
        now_ms = self._broker.clock.now_ms()
        ages: dict[QueueId, float] = {}
        for queue, of_queue in places.items():
            first_ms = min((known[place] for place in of_queue if place in known), default=now_ms)
            ages[queue] = max(now_ms - first_ms, 0) / 1000
        return ages

    async def _read(self, topic: str, index: int, offset: int) -> int | None:
        topics, key = self._broker.topics, topic.encode()
        # Without a replica here the age is left out: a scrape makes no calls to other brokers.
        if (partition := topics.find(key, index) or topics.followed(key, index)) is None:
            return None
        try:
            found = partition.read(offset, 1, partition.high_watermark, at_least_one=True)
            if found is None:
                return None
            loop = asyncio.get_running_loop()
            try:
                data = await loop.run_in_executor(
                    self._broker.work_threads, found.handle.read, HEADER_BYTES, found.position
                )
            finally:
                found.release()
            return read_header(data).base_timestamp
        except (AlpacaError, OSError):  # damaged or deleted meanwhile
            return None


def _places(queue: DescribeReply) -> list[_Place]:
    return [
        (queue.queue.topic, each.partition, each.oldest_offset)
        for each in queue.partitions
        if each.oldest_offset is not None
    ]


_QUEUE_LEVELS = {
    m.QUEUE_READY: "ready",
    m.QUEUE_IN_FLIGHT: "in_flight",
    m.QUEUE_RESTING: "resting",
    m.QUEUE_WAITING: "waiting_receives",
}
_QUEUE_COUNTS = {
    m.QUEUE_RECEIVED: "received_total",
    m.QUEUE_ACKED: "acked_total",
    m.QUEUE_NACKED: "nacked_total",
    m.QUEUE_REJECTED: "rejected_total",
    m.QUEUE_EXPIRED: "expired_leases_total",
    m.QUEUE_DEAD_LETTERED: "dead_lettered_total",
    m.QUEUE_REDELIVERED: "redelivered_total",
}


class QueueCollector:
    """Metrics of all queues; the longest have series of their own, including lanes and ages."""

    def __init__(self, broker: Broker, limit: int, scope: Scope) -> None:
        self._broker = broker
        self._scope = scope
        self._selection: Selection[QueueId] = Selection(limit)
        self._remainder: Remainder[QueueId] = Remainder(len(_QUEUE_COUNTS))
        self._oldest = OldestMessages(broker)

    async def collect(self, text: Exposition) -> int:
        """Add all metrics; return how many queues have no series of their own."""
        scope, label = self._scope, self._scope.queue
        found_queues = await self._broker.queues.stats()
        queues = {each.queue: each for each in found_queues if scope.has_group(each.queue.group)}
        totals = {queue: totals_of([stats]) for queue, stats in queues.items()}
        lengths = {queue: each.ready + each.in_flight for queue, each in totals.items()}
        chosen = await self._selection.choose(lengths)
        shown = sorted(chosen)
        others = queues.keys() - chosen
        text.one(m.QUEUES, len(queues))
        for metric, name in _QUEUE_LEVELS.items():
            samples: dict[Labels, float] = {label(queue): getattr(totals[queue], name) for queue in shown}
            if others:
                samples[OTHER, OTHER] = sum(getattr(totals[queue], name) for queue in others)
            text.add(metric, samples)
        sums = self._remainder.add_up({queue: _counts(totals[queue]) for queue in others})
        for place, (metric, name) in enumerate(_QUEUE_COUNTS.items()):
            samples = {label(queue): getattr(totals[queue], name) for queue in shown}
            if others or any(sums):
                samples[OTHER, OTHER] = sums[place]
            text.add(metric, samples)
        found = [queues[queue] for queue in shown]
        ages = await self._oldest.ages(found)
        text.add(m.QUEUE_OLDEST, {label(queue): age for queue, age in ages.items()})
        _lanes(text, found, label)
        return len(others)


def _counts(totals: QueueTotals) -> Sequence[int]:
    return [getattr(totals, name) for name in _QUEUE_COUNTS.values()]


def _lanes(
    text: Exposition, found: Sequence[DescribeReply], label: Callable[[QueueId], tuple[str, str]]
) -> None:
    lanes = {
        (*label(queue.queue), lane): stats
        for queue in found
        for lane, stats in lanes_of(queue.partitions).items()
    }
    text.add(m.LANE_READY, {labels: each.ready for labels, each in lanes.items()})
    text.add(m.LANE_IN_FLIGHT, {labels: each.in_flight for labels, each in lanes.items()})
    text.add(m.LANE_ENQUEUED, {labels: each.enqueued_total for labels, each in lanes.items()})
    text.add(m.LANE_DELIVERED, {labels: each.delivered_total for labels, each in lanes.items()})


# Partitions read before yielding to the event loop.
_PARTITIONS_AT_ONCE = 500


class _Levels(NamedTuple):
    """Levels of a topic."""

    partitions: int = 0
    size_bytes: int = 0
    messages: int = 0
    damaged: int = 0


class _Counts(NamedTuple):
    """Counters of a topic."""

    written: int = 0
    written_bytes: int = 0
    written_batches: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    skipped_batches: int = 0
    schema_checked: int = 0
    schema_refused: int = 0


_TOPIC_LEVELS = (m.TOPIC_PARTITIONS, m.TOPIC_SIZE, m.TOPIC_MESSAGES, m.TOPIC_DAMAGED)
_TOPIC_COUNTS = (
    m.TOPIC_WRITTEN,
    m.TOPIC_WRITTEN_BYTES,
    m.TOPIC_WRITTEN_BATCHES,
    m.TOPIC_FETCHED,
    m.TOPIC_FETCHED_BYTES,
    m.TOPIC_SKIPPED,
    m.TOPIC_SCHEMA_CHECKED,
    m.TOPIC_SCHEMA_REFUSED,
)


class TopicCollector:
    """Metrics of all topics; the largest have series of their own."""

    def __init__(self, broker: Broker, limit: int, scope: Scope) -> None:
        self._topics = broker.topics
        self._schema_checks = broker.schema_checks
        self._scope = scope
        self._selection: Selection[str] = Selection(limit)
        self._remainder: Remainder[str] = Remainder(len(_Counts()))

    async def collect(self, text: Exposition) -> int:
        """Add all metrics; return how many topics have no series of their own."""
        found = await self._stats()
        shown = await self._selection.choose({name: levels.size_bytes for name, (levels, _) in found.items()})
        levels = {name: found[name][0] for name in sorted(shown)}
        counts = {name: found[name][1] for name in levels}
        others = found.keys() - shown
        sums = self._remainder.add_up({name: found[name][1] for name in others})
        if others or any(sums):
            levels[OTHER] = _Levels(*map(sum, zip(*(found[name][0] for name in others), strict=True)))
            counts[OTHER] = _Counts(*sums)

        def label(name: str) -> str:
            return name if name == OTHER else self._scope.topic(name)

        text.one(m.TOPICS, len(found))
        text.one(m.PARTITIONS, sum(each.partitions for each, _ in found.values()))
        for place, metric in enumerate(_TOPIC_LEVELS):
            text.add(metric, {(label(name),): each[place] for name, each in levels.items()})
        for place, metric in enumerate(_TOPIC_COUNTS):
            text.add(metric, {(label(name),): each[place] for name, each in counts.items()})
        return len(others)

    async def _stats(self) -> dict[str, tuple[_Levels, _Counts]]:
        found: dict[str, tuple[_Levels, _Counts]] = {}
        looked_at = 0
        for name in list(filter(self._scope.has_topic, self._topics.image.topics)):
            # What each broker leads adds up to the cluster. Counters stay when a leader moves: they would
            # jump otherwise.
            replicas = self._topics.replicas_of(name)
            partitions = list(self._topics.ready_partitions_of(name).values())
            by_schema = self._schema_checks.topics.get(name)
            found[name] = (
                _Levels(
                    partitions=len(partitions),
                    size_bytes=sum(each.size_bytes for each in partitions),
                    messages=sum(each.high_watermark - each.start_offset for each in partitions),
                    damaged=sum(not each.is_sound for each in partitions),
                ),
                _Counts(
                    written=sum(each.written_messages for each in replicas),
                    written_bytes=sum(each.written_bytes for each in replicas),
                    written_batches=sum(each.written_batches for each in replicas),
                    fetched=sum(each.fetched_messages for each in replicas),
                    fetched_bytes=sum(each.fetched_bytes for each in replicas),
                    skipped_batches=sum(each.skipped_batches for each in replicas),
                    schema_checked=0 if by_schema is None else by_schema.checked,
                    schema_refused=0 if by_schema is None else by_schema.refused,
                ),
            )
            looked_at += len(replicas)
            if looked_at >= _PARTITIONS_AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)
        return found


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
# Field of /proc/self/stat after the name in parentheses: start of the process, in ticks since boot.
_STARTED_FIELD = 19


def collect_process(text: Exposition, broker: Broker) -> None:
    labels = (VERSION, platform.python_version(), str(broker.settings.node_id), broker.cluster_id)
    text.add(m.BUILD_INFO, {labels: 1})
    text.add(m.HEALTH, {(name,): int(check.is_ok) for name, check in all_checks(broker).items()})
    usage = resource.getrusage(resource.RUSAGE_SELF)
    text.one(m.CPU_SECONDS, usage.ru_utime + usage.ru_stime)
    with suppress(OSError):  # not available without /proc
        size_pages, resident_pages, *_ = Path("/proc/self/statm").read_text().split()
        text.one(m.RESIDENT_MEMORY, int(resident_pages) * _PAGE_BYTES)
        text.one(m.VIRTUAL_MEMORY, int(size_pages) * _PAGE_BYTES)
        text.one(m.OPEN_FDS, sum(1 for _ in Path("/proc/self/fd").iterdir()))
        text.one(m.START_TIME, _started_at())
    text.one(m.MAX_FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    with suppress(OSError):  # the health check reports the disk error; the other metrics are still needed
        room = os.statvfs(broker.settings.data_directory)
        text.one(m.DISK_FREE, room.f_bavail * room.f_frsize)
        text.one(m.DISK_SIZE, room.f_blocks * room.f_frsize)
    text.histograms(m.LOOP_LAG, [((), broker.event_loop.lag)])
    text.one(m.LOOP_STALLS, broker.event_loop.stalls)
    text.one(m.CLOCK_AHEAD, broker.clock_ahead_ms / 1000)
    if broker.metrics is not None:
        text.histograms(m.FLUSH_SECONDS, [((), broker.metrics.flushes.seconds)])
        text.one(m.FLUSH_FAILURES, broker.metrics.flushes.failed)
        text.one(m.FLUSHES_POSTPONED, broker.metrics.flushes.postponed)


def _started_at() -> float:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(boot_at + int(fields[_STARTED_FIELD]) / _TICKS, 2)


# Offsets read before yielding to the event loop.
_OFFSETS_AT_ONCE = 1000


class GroupCollector:
    """Metrics of all groups; those with the largest lag have series of their own."""

    def __init__(self, broker: Broker, limit: int, scope: Scope) -> None:
        self._broker = broker
        self._scope = scope
        self._groups: Selection[str] = Selection(limit)
        self._lags: Selection[tuple[str, str]] = Selection(limit)

    async def collect(self, text: Exposition) -> int:
        """Add all metrics; return how many groups, or groups in a topic, have no series of their own."""
        states: Counter[Labels] = Counter()
        sizes: dict[str, tuple[int, int]] = {}  # members and rebalances
        behind: dict[str, int] = {}
        lags: dict[tuple[str, str], int] = {}
        looked_at = 0
        async for some in self._broker.groups.stats():
            for each in some:
                if not self._scope.has_group(each.group.group):
                    continue
                name = self._scope.group(each.group.group)
                states[(each.group.state,)] += 1
                sizes[name] = each.members, each.rebalances
                by_topic = self._lags_of(each)
                behind[name] = sum(by_topic.values())
                lags.update({(name, topic): lag for topic, lag in by_topic.items()})
                looked_at += 1 + len(each.committed)
                if looked_at >= _OFFSETS_AT_ONCE:
                    looked_at = 0
                    await asyncio.sleep(0)
        shown = sorted(await self._groups.choose(behind))
        await asyncio.sleep(0)
        text.add(m.GROUPS, states or {("Empty",): 0})
        text.add(m.GROUP_MEMBERS, {(name,): sizes[name][0] for name in shown})
        text.add(m.GROUP_REBALANCES, {(name,): sizes[name][1] for name in shown})
        pairs = await self._lags.choose(lags)
        await asyncio.sleep(0)
        samples: dict[Labels, float] = {pair: lags[pair] for pair in sorted(pairs)}
        if len(lags) > len(pairs):
            samples[OTHER, OTHER] = sum(lags.values()) - sum(lags[pair] for pair in pairs)
        await asyncio.sleep(0)
        text.add(m.GROUP_LAG, samples)
        await asyncio.sleep(0)
        return max(len(sizes) - len(shown), len(lags) - len(pairs))

    def _lags_of(self, group: GroupStats) -> dict[str, int]:
        """Return the lag of a group in each topic."""
        find = self._broker.topics.find
        lags: dict[str, int] = {}
        for (topic, index), committed in group.committed.items():
            # To clients, a negative offset is none.
            is_set = committed.offset >= 0 and self._scope.has_topic(topic)
            # By id: the topic may have been deleted and created again.
            if is_set and (partition := find(committed.topic_id.bytes, index)) is not None:
                behind = max(partition.high_watermark - committed.offset, 0)
                name = self._scope.topic(topic)
                lags[name] = lags.get(name, 0) + behind
        return lags


async def collect_cluster(text: Exposition, broker: Broker) -> None:
    """Collect what this node has and does in its cluster."""
    _collect_metadata(text, broker)
    image, node_id = broker.metadata.image, broker.settings.node_id
    counts = (await count_partitions(image, node_id)).by_broker[node_id]
    text.one(m.LED_PARTITIONS, counts.leaders)
    text.one(m.REPLICAS, counts.replicas)
    text.one(m.UNDER_REPLICATED, counts.under_replicated)
    text.one(m.UNDER_MIN_ISR, counts.below_min_isr)
    text.one(m.OFFLINE_PARTITIONS, len(image.leaderless))
    text.one(m.REASSIGNING_PARTITIONS, len(image.moving))
    text.one(m.NOT_PREFERRED_PARTITIONS, len(image.not_preferred))
    replication = broker.replication
    text.one(m.ISR_SHRINKS, replication.stats.in_sync_shrinks)
    text.one(m.ISR_EXPANDS, replication.stats.in_sync_expands)
    lags = await follower_lags(list(replication.led_partitions))
    text.one(m.FOLLOWER_LAG, max((each.lag_messages for each in lags), default=0))
    text.one(m.FOLLOWER_LAG_SECONDS, max((each.lag_ms for each in lags), default=0) / 1000)
    text.one(m.REPLICATION_IN, replication.received_bytes)
    text.one(m.REPLICATION_OUT, replication.stats.sent_bytes)
    text.one(m.THROTTLED_IN, replication.follower_throttle.copied_bytes)
    text.one(m.THROTTLED_OUT, replication.leader_throttle.copied_bytes)
    _collect_links(text, broker)


def _collect_metadata(text: Exposition, broker: Broker) -> None:
    metadata, access = broker.metadata, broker.access
    text.one(m.FAILED_LOGINS, access.failed_logins)
    text.one(m.REFUSED_LOGINS, access.refused_logins)
    if broker.audit is not None:
        text.one(m.AUDIT_EVENTS, broker.audit.events)
        text.one(m.AUDIT_DROPPED, broker.audit.dropped)
    _collect_certificates(text, broker)
    text.one(m.USERS, len(metadata.image.users))
    text.one(m.ACLS, len(metadata.image.acls))
    text.one(m.API_KEYS, len(metadata.image.api_keys))
    text.one(m.QUOTAS, len(metadata.image.quotas))
    stats = broker.quotas.stats
    text.add(m.THROTTLED, {(str(key),): count for key, count in stats.requests.items()})
    text.add(m.THROTTLE_SECONDS, {(str(key),): seconds for key, seconds in stats.seconds.items()})
    text.one(m.DELEGATION_TOKENS, len(metadata.image.delegation_tokens))
    statuses = Counter(str(tenant.status) for tenant in metadata.image.tenants.values())
    text.add(m.TENANTS, {(str(status),): statuses[status] for status in TenantStatus})
    if access.tokens is not None:
        text.one(m.SIGNING_KEYS, len(access.tokens.keys.current))
        text.one(m.SIGNING_KEY_FAILURES, access.tokens.keys.failures)
    text.one(m.ACTIVE_CONTROLLER, int(metadata.is_controller))
    text.one(m.CONTROLLER_CHANGES, metadata.controller_changes)
    text.one(m.METADATA_TERM, metadata.quorum.term)
    text.one(m.METADATA_COMMITTED, metadata.quorum.commit_index)
    text.one(m.METADATA_APPLIED, metadata.applied_index)
    registered = metadata.image.brokers.get(broker.settings.node_id)
    # A broker that is cut off does not learn that it is fenced.
    is_fenced = registered is None or registered.is_fenced or not broker.registration.has_contact()
    text.one(m.BROKER_FENCED, int(is_fenced))


def _collect_certificates(text: Exposition, broker: Broker) -> None:
    if (certificates := broker.certificates) is not None:
        now_ms = broker.clock.now_ms()
        text.add(
            m.CERTIFICATE_EXPIRY,
            {(name,): (at - now_ms) / 1000 for name, at in certificates.expires_ms.items()},
        )
        text.one(m.CERTIFICATE_RELOADS, certificates.reloads)
        text.one(m.FAILED_CERTIFICATE_RELOADS, certificates.failed_reloads)


def _collect_links(text: Exposition, broker: Broker) -> None:
    links = [] if broker.member is None else broker.member.peers.statuses()
    states = Counter(link.state for link in links)
    text.add(m.PEER_LINKS, {(state.value,): states[state] for state in LinkState})
    text.one(m.PEER_CALLS, sum(link.calls_in_flight for link in links))


async def collect_delays(text: Exposition, broker: Broker) -> None:
    stats = await broker.delays.local_stats()
    text.one(m.DELAYED, stats.pending)
    text.one(m.DELAYED_SCHEDULED, stats.scheduled_total)
    text.one(m.DELAYED_DELIVERED, stats.fired_total)
    text.one(m.DELAYED_CANCELLED, stats.cancelled_total)
    text.one(m.DELAYED_DROPPED, stats.dropped_total)
    text.histograms(m.DELAYED_LATE, [((), broker.delays.late_seconds)])


async def collect_schema_checks(text: Exposition, broker: Broker) -> None:
    text.histograms(m.SCHEMA_CHECKS, [((), broker.schema_checks.seconds)])


async def collect_transactions(text: Exposition, broker: Broker) -> None:
    text.add(
        m.TRANSACTIONS_ENDED,
        {
            ("committed",): broker.transactions.committed,
            ("aborted",): broker.transactions.aborted,
        },
    )
    text.one(m.HANGING_TRANSACTIONS, len(broker.transactions.hanging.found))
    found = []
    if TRANSACTIONS_TOPIC in broker.topics.image.topics:
        found = await broker.transactions.find_here(ListTransactions())
    _add_transactions(text, broker, found)


def _add_transactions(text: Exposition, broker: Broker, found: list[Transaction]) -> None:
    stats = stats_of(found)
    text.add(m.TRANSACTIONAL_IDS, {(state,): count for state, count in stats.by_state.items()})
    now_ms = broker.clock.now_ms()
    oldest_ms = now_ms if stats.oldest_started is None else stats.oldest_started
    text.one(m.OLDEST_TRANSACTION, max(now_ms - oldest_ms, 0) / 1000)


async def collect_in_progress(text: Exposition, broker: Broker, scope: Scope) -> None:
    """Delayed messages and transactions of a tenant; what has ended is counted for all tenants together."""
    pending = 0
    if DELAYS_TOPIC in broker.topics.image.topics:
        for name in [each for each in broker.topics.image.topics if scope.has_topic(each)]:
            with suppress(UnknownTopic):  # deleted meanwhile
                pending += (await broker.delays.local_stats_of(name)).pending
    text.one(m.DELAYED, pending)
    found: list[Transaction] = []
    if TRANSACTIONS_TOPIC in broker.topics.image.topics:
        found = await broker.transactions.find_here(ListTransactions())
    _add_transactions(text, broker, [each for each in found if scope.has_group(each.transactional_id)])


# Pipelines with series of their own, and how long they have them after their last report.
MAX_PIPELINES = 200
PIPELINE_SHOWN_MS = 3_600_000


class PipelineCollector:
    """Metrics of data pipelines, by the last report of each; collected by the leader of their topic."""

    def __init__(self, broker: Broker, reports: PipelineReports) -> None:
        self._broker = broker
        self._reports = reports
        self._selection: Selection[str] = Selection(MAX_PIPELINES)

    async def collect(self, text: Exposition) -> int:
        """Add all metrics; return how many pipelines have none."""
        if not self._reports.is_here:
            return 0
        now_ms = self._broker.clock.now_ms()
        try:
            latest = await self._reports.latest()
        except (AlpacaError, OSError):
            return 0
        known = {each.name: each for each in latest if each.updated > now_ms - PIPELINE_SHOWN_MS}
        # The latest have precedence.
        chosen = sorted(await self._selection.choose({name: each.updated for name, each in known.items()}))
        shown = [known[name] for name in chosen]
        states: dict[Labels, float] = {}
        for each in shown:
            state = "silent" if is_silent(each, now_ms) else each.state.value
            states[each.name, each.kind, state] = 1
        text.add(m.PIPELINES, states)
        text.add(m.PIPELINE_LAG, {(each.name,): each.lag for each in shown if each.lag is not None})
        text.add(m.PIPELINE_ROWS, {(each.name,): each.rows for each in shown})
        text.add(m.PIPELINE_MALFORMED, {(each.name,): each.malformed for each in shown})
        text.add(m.PIPELINE_FAILURES, {(each.name,): each.failures for each in shown})
        text.add(
            m.PIPELINE_LAST_BATCH,
            {(each.name,): each.batch_at / 1000 for each in shown if each.batch_at is not None},
        )
        text.add(m.PIPELINE_LAST_REPORT, {(each.name,): each.updated / 1000 for each in shown})
        return len(known) - len(shown)


class NamedCollectors:
    """Metrics of topics, groups, queues and pipelines: all, or those of a tenant, without pipelines."""

    def __init__(
        self,
        broker: Broker,
        limits: SeriesLimits,
        tenant: str | None = None,
        pipelines: PipelineReports | None = None,
    ) -> None:
        scope = Scope(tenant)
        self._topics = TopicCollector(broker, limits.max_topics, scope)
        self._groups = GroupCollector(broker, limits.max_groups, scope)
        self._queues = QueueCollector(broker, limits.max_groups, scope)
        self._pipelines = None if pipelines is None else PipelineCollector(broker, pipelines)

    async def collect(self, text: Exposition) -> None:
        dropped: dict[Labels, float] = {
            ("topic",): await self._topics.collect(text),
            ("group",): await self._groups.collect(text),
            ("queue",): await self._queues.collect(text),
        }
        if self._pipelines is not None:
            dropped[("pipeline",)] = await self._pipelines.collect(text)
        text.add(m.SERIES_DROPPED, dropped)


class Collector:
    """Runs all collectors, one request at a time."""

    def __init__(
        self, broker: Broker, metrics: Metrics, traffic: Traffic, pipelines: PipelineReports
    ) -> None:
        self._broker = broker
        self._metrics = metrics
        self._traffic = traffic
        self._named = NamedCollectors(broker, metrics.limits, pipelines=pipelines)
        self._of_tenants: OrderedDict[str, NamedCollectors] = OrderedDict()
        # Collecting yields to other work; concurrent collections would interfere.
        self._collecting = asyncio.Lock()

    async def text(self) -> bytes:
        """Return all metrics in Prometheus' format."""
        async with self._collecting:
            text = Exposition()
            collect_process(text, self._broker)
            requests.collect(text, self._metrics, self._traffic)
            await asyncio.sleep(0)
            await self._named.collect(text)
            for part in (collect_cluster, collect_delays, collect_schema_checks, collect_transactions):
                # An unavailable part is left out: the others are useful without it.
                with suppress(AlpacaError):
                    await part(text, self._broker)
            await asyncio.sleep(0)
            return text.encode()

    async def text_of_tenant(self, tenant: str) -> bytes:
        """Return the metrics of what a tenant has, under the names that it uses."""
        async with self._collecting:
            if (named := self._of_tenants.get(tenant)) is None:
                named = self._of_tenants[tenant] = NamedCollectors(self._broker, self._metrics.limits, tenant)
                if len(self._of_tenants) > MAX_TENANTS:
                    self._of_tenants.popitem(last=False)
            self._of_tenants.move_to_end(tenant)
            text = Exposition()
            await named.collect(text)
            with suppress(AlpacaError):
                await collect_in_progress(text, self._broker, Scope(tenant))
            return text.encode()
