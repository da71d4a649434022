"""Lists and changes quotas."""

from collections.abc import Iterable, Mapping, Sequence

from alpacamq.client.errors import check, only
from alpacamq.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)

# Re-exported: entities and their quotas.
from alpacamq.security.quotas import CLIENT_ID as CLIENT_ID
from alpacamq.security.quotas import IP as IP
from alpacamq.security.quotas import USER as USER
from alpacamq.security.quotas import ClientQuota as ClientQuota
from alpacamq.security.quotas import Entity as Entity
from alpacamq.security.quotas import EntityPart as EntityPart
from alpacamq.security.quotas import MatchType

from .cluster import Cluster, retry_transient


@retry_transient
def list_quotas(cluster: Cluster, wanted: Iterable[EntityPart] = ()) -> list[ClientQuota]:
    """Return the quotas of entities that have all the wanted names; None is the default of a type."""
    components = [
        ComponentData(
            entity_type=type_, match_type=MatchType.DEFAULT if name is None else MatchType.EXACT, match=name
        )
        for type_, name in wanted
    ]
    answer = cluster.any_broker().call(
        DescribeClientQuotasRequest(components=components), DescribeClientQuotasResponse
    )
    check("listing quotas", answer.error_code, answer.error_message)
    found = [
        ClientQuota(
            entity=tuple(EntityPart(each.entity_type, each.entity_name) for each in entry.entity),
            values={each.key: each.value for each in entry.values},
        )
        for entry in answer.entries or ()
    ]
    return sorted(found, key=lambda quota: [(type_, name or "") for type_, name in quota.entity])


@retry_transient
def set_quotas(cluster: Cluster, entity: Entity, values: Mapping[str, float]) -> None:
    """Set quotas of an entity; others that it has stay."""
    _alter(cluster, entity, [OpData(key=key, value=value) for key, value in values.items()])


@retry_transient
def remove_quotas(cluster: Cluster, entity: Entity, keys: Iterable[str]) -> None:
    """Remove quotas of an entity."""
    _alter(cluster, entity, [OpData(key=key, remove=True) for key in keys])


def _alter(cluster: Cluster, entity: Entity, ops: Sequence[OpData]) -> None:
    named = [EntityData(entity_type=type_, entity_name=name) for type_, name in entity]
    request = AlterClientQuotasRequest(entries=[AlterEntryData(entity=named, ops=ops)])
    answer = cluster.any_broker().call(request, AlterClientQuotasResponse)
    about = "changing quotas"
    result = only(about, answer.entries)
    check(about, result.error_code, result.error_message)
