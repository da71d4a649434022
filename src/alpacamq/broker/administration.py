"""Operations on the cluster that take several commands to the controller."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress

from alpacamq.cluster.broker_config import ALL_BROKERS, FOLLOWER_RATE, LEADER_RATE
from alpacamq.cluster.commands import (
    MAX_NAMED_PARTITIONS,
    AlterTenant,
    ConfigureBroker,
    ElectionKind,
    ElectLeaders,
    NamedPartition,
    PartitionResult,
    Reassign,
    Reassignment,
    RemoveVoter,
    UnregisterBroker,
)
from alpacamq.cluster.tenants import check_without_topics
from alpacamq.cluster.topics import EditOperation, SettingEdit
from alpacamq.model.errors import (
    InvalidRequest,
    NotController,
    PolicyViolation,
    RequestTimedOut,
    UnknownBroker,
    UnknownTenant,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.names import split_id
from alpacamq.security.tenants import TenantStatus

from .access import Access
from .groups import Groups
from .metadata.metadata import Metadata

# How often to look whether a vote was removed, where the reply was lost with the controller that gave it up.
_ATTEMPTS = 100
_PAUSE_SECONDS = 0.1


async def elect(
    metadata: Metadata, kind: ElectionKind, partitions: Sequence[NamedPartition]
) -> list[PartitionResult]:
    """Elect leaders of these partitions; return the results in their order."""
    results: list[PartitionResult] = []
    for first in range(0, len(partitions), MAX_NAMED_PARTITIONS):
        some = tuple(partitions[first : first + MAX_NAMED_PARTITIONS])
        results += (await metadata.ask(ElectLeaders(kind=kind, partitions=some))).results
    return results


async def elect_all(metadata: Metadata, kind: ElectionKind) -> list[PartitionResult]:
    """Elect leaders of all partitions that need it."""
    results: list[PartitionResult] = []
    while True:
        some = (await metadata.ask(ElectLeaders(kind=kind))).results
        results += (each for each in some if each.failure is None)
        if len(some) < MAX_NAMED_PARTITIONS or some[-1].failure is not None:
            # Those that cannot have it come last.
            results += (each for each in some if each.failure is not None)
            return results


async def reassign(metadata: Metadata, reassignments: Sequence[Reassignment]) -> list[PartitionResult]:
    """Begin or cancel reassignments; return the results in their order."""
    results: list[PartitionResult] = []
    for first in range(0, len(reassignments), MAX_NAMED_PARTITIONS):
        some = tuple(reassignments[first : first + MAX_NAMED_PARTITIONS])
        results += (await metadata.ask(Reassign(reassignments=some))).results
    return results


async def throttle(metadata: Metadata, rate: int | None) -> None:
    """Limit the bytes a second that each broker sends and fetches for reassignments; None: no limit.

    The limit is that of all brokers, and replaces those of single ones.
    """
    names = (LEADER_RATE, FOLLOWER_RATE)
    operation = EditOperation.DELETE if rate is None else EditOperation.SET
    value = None if rate is None else str(rate)
    edits = tuple(SettingEdit(operation, name, value) for name in names)
    await metadata.ask(ConfigureBroker(name=ALL_BROKERS, edits=edits))
    removal = tuple(SettingEdit(EditOperation.DELETE, name) for name in names)
    for resource in [str(broker_id) for broker_id in metadata.image.brokers]:
        if any(name in metadata.image.broker_overrides(resource) for name in names):
            await metadata.ask(ConfigureBroker(name=resource, edits=removal))


async def remove_node(metadata: Metadata, node_id: BrokerId, *, is_forced: bool = False) -> None:
    """Give up the vote of a node and unregister its broker. The node must be drained and stopped first.

    With `is_forced` it may still have replicas, as long as none of them is the only complete one: for a node
    that is lost, where no other can take its replicas.
    """
    image = metadata.image
    broker = image.brokers.get(node_id)
    is_voter = any(voter.id == node_id for voter in metadata.quorum.voters)
    if broker is None and not is_voter:
        raise UnknownBroker(f"no node has the id {node_id}")
    if broker is not None:
        replicas = len(image.replicas_on(node_id))
        if replicas and not is_forced:
            raise InvalidRequest(f"node {node_id} has {replicas} replicas; drain it first")
        if broker.is_running and not broker.is_leaving:
            # As a running node it would get its vote back.
            raise InvalidRequest(f"node {node_id} is running; drain it first")
    if is_voter:
        await remove_vote(metadata, node_id)
    if broker is not None:
        await metadata.ask(UnregisterBroker(broker_id=node_id))


async def remove_vote(metadata: Metadata, node_id: BrokerId) -> None:
    """Remove the vote of a node, also if that is the controller."""
    voter = next(each for each in metadata.quorum.voters if each.id == node_id)
    try:
        await metadata.ask(RemoveVoter(node_id=node_id, directory_id=voter.directory))
    except (NotController, RequestTimedOut):
        # The controller resigns when it has given up its vote.
        for _ in range(_ATTEMPTS):
            if voter not in metadata.quorum.voters and metadata.controller_id is not None:
                return
            await asyncio.sleep(_PAUSE_SECONDS)
        raise


async def delete_tenant(metadata: Metadata, access: Access, groups: Groups, tenant_id: str) -> None:
    """Delete a tenant that has no topics and no groups: another tenant of this id must not find them.

    A group could be created after the last look. So the tenant is disabled first, and coordinators answer
    which groups there are when they know: from then on they create none. If the deletion is not possible,
    the tenant is as it was; if this broker fails meanwhile, it stays disabled.
    """
    former = access.tenant(tenant_id)
    check_without_topics(metadata.image, tenant_id)
    _check_unused(tenant_id, await groups.names_in_use(0))
    try:
        if former.status is not TenantStatus.DISABLED:
            await access.alter_tenant(
                AlterTenant(id=tenant_id, status=TenantStatus.DISABLED, reason="it is being deleted")
            )
        _check_unused(tenant_id, await groups.names_in_use(metadata.applied_index))
        await access.delete_tenant(tenant_id)
    except BaseException:
        if former.status is not TenantStatus.DISABLED:
            with suppress(UnknownTenant):
                await access.alter_tenant(
                    AlterTenant(id=tenant_id, status=former.status, reason=former.reason)
                )
        raise


def _check_unused(tenant_id: str, groups: Collection[str]) -> None:
    names = sorted(name for owner, name in map(split_id, groups) if owner == tenant_id)
    if names:
        raise PolicyViolation(
            f"tenant {tenant_id!r} has groups, or settings of groups, such as {names[0]!r}; delete them first"
        )
