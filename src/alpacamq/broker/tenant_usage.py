"""What tenants use, measured in the background, and the limits that depend on it.

Storage and groups of a tenant are spread over brokers: every broker measures both, and refuses what exceeds a
limit by the last measurement. Both are taken from the logs and the coordinators, so that they are exact after
a restart.
"""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from alpacamq.cluster.partition_state import PartitionId
from alpacamq.cluster.tenants import topics_by_tenant, topics_of
from alpacamq.model.errors import AlpacaError, TenantLimitReached, TenantStorageFull
from alpacamq.model.names import split_id, split_topic
from alpacamq.model.topics import Topic
from alpacamq.queues.messages import BUILT_IN_GROUP
from alpacamq.telemetry.logs import get_logger

from .groups import Groups
from .queue.service import Queues
from .remote.reads import RemoteReads
from .topics import Topics

log = get_logger(__name__)

INTERVAL_S = 1.0
# How long a measurement for an answer waits for brokers.
DESCRIBE_MS = 2000


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant uses. Storage is that of the leaders of its partitions."""

    topics: int
    partitions: int
    messages: int
    storage_bytes: int
    groups: int


class TenantUsage:
    """Measures tenants that have limits, and refuses what exceeds them."""

    def __init__(self, topics: Topics, groups: Groups, queues: Queues, reads: RemoteReads) -> None:
        self._topics = topics
        self._queues = queues
        self._groups = groups
        self._reads = reads
        # Tenants that store as much as they may, with their limits.
        self._full: dict[str, int] = {}
        # The groups of tenants that may not have more.
        self._groups_of: dict[str, frozenset[str]] = {}

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            try:
                await self.measure()
            except Exception:  # the last measurement is better than none
                log.exception("tenants_not_measured")
            await asyncio.sleep(INTERVAL_S)

    async def measure(self) -> None:
        """Measure the tenants with limits."""
        image = self._topics.image
        limits = {tenant.id: tenant.limits for tenant in image.tenants.values()}
        limited = {
            tenant: each.storage_bytes for tenant, each in limits.items() if each.storage_bytes is not None
        }
        full: dict[str, int] = {}
        topics = topics_by_tenant(image) if limited else {}
        for tenant, limit in limited.items():
            _, storage_bytes = await self._stored(topics.get(tenant, []), retry_ms=0)
            if storage_bytes >= limit:
                full[tenant] = limit
        self._report(full)
        self._full = full
        counted = {tenant: each.groups for tenant, each in limits.items() if each.groups is not None}
        self._groups_of = await self._groups_at_limit(counted) if counted else {}

    async def _groups_at_limit(self, limits: Mapping[str, int]) -> dict[str, frozenset[str]]:
        """Return the groups of tenants that have as many as they may."""
        found: dict[str, set[str]] = {tenant: set() for tenant in limits}
        for group in await self._all_groups():
            tenant, _ = split_id(group)
            if tenant in found:
                found[tenant].add(group)
        return {
            tenant: frozenset(groups) for tenant, groups in found.items() if len(groups) >= limits[tenant]
        }

    def _report(self, full: dict[str, int]) -> None:
        for tenant in full.keys() - self._full.keys():
            log.warning("tenant_storage_full", tenant=tenant, limit_bytes=full[tenant])
        for tenant in self._full.keys() - full.keys():
            log.info("tenant_has_room", tenant=tenant)

    async def of(self, tenant: str) -> Usage:
        """Measure a tenant now."""
        topics = topics_of(self._topics.image, tenant)
        messages, storage_bytes = await self._stored(topics, retry_ms=DESCRIBE_MS)
        return Usage(
            topics=len(topics),
            partitions=sum(each.partitions for each in topics),
            messages=messages,
            storage_bytes=storage_bytes,
            groups=len(await self.groups_of(tenant)),
        )

    async def groups_of(self, tenant: str) -> list[str]:
        """Return the groups of a tenant under their names in it, sorted."""
        groups = (split_id(group) for group in await self._all_groups())
        return sorted(name for owner, name in groups if owner == tenant)

    async def _all_groups(self) -> set[str]:
        """Return the groups of members and queues, without those that SQS clients have by themselves."""
        groups = {*await self._groups.group_ids(), *(queue.group for queue in await self._queues.queues())}
        return {group for group in groups if split_id(group)[1] != BUILT_IN_GROUP}

    async def _stored(self, topics: Iterable[Topic], retry_ms: int) -> tuple[int, int]:
        """Return the messages and bytes of topics, without partitions whose leaders do not answer."""
        places = [PartitionId(topic.id, index) for topic in topics for index in range(topic.partitions)]
        bounds = await self._reads.bounds(places, retry_ms=retry_ms)
        known = [each for each in bounds if not isinstance(each, AlpacaError)]
        return sum(each.messages for each in known), sum(each.size_bytes for each in known)

    def check_storage(self, topic: str) -> None:
        """Raise TenantStorageFull if the tenant of a topic stores as much as it may."""
        if self._full and (tenant := split_topic(topic)[0]) is not None:
            self.check_storage_of(tenant)

    def check_storage_of(self, tenant: str) -> None:
        """Raise TenantStorageFull if a tenant stores as much as it may."""
        if (limit := self._full.get(tenant)) is not None:
            raise TenantStorageFull(f"the tenant stores as much as it may: {limit} bytes")

    def check_group(self, tenant: str, group: str) -> None:
        """Raise TenantLimitReached for a new group of a tenant that has as many as it may."""
        groups = self._groups_of.get(tenant)
        if groups is not None and group not in groups and split_id(group)[1] != BUILT_IN_GROUP:
            raise TenantLimitReached(f"too many groups: the tenant has reached its limit with {len(groups)}")
