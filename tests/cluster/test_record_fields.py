"""The fields of metadata records, each with the feature level from which on it is written.

A controller that rewrites a record drops fields that its version does not know. A field that is added needs a
default, a new level, and code that gives it another value only in a cluster at that level: brokers that lack
it are not in such a cluster. Then it is listed here. No field is ever removed or renamed.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from alpacamq.cluster import image
from alpacamq.cluster.image import CURRENT_LEVEL

# By the struct's name, the fields that each level has added.
FIELDS: dict[str, dict[int, set[str]]] = {
    "Topic": {1: {"name", "id", "partitions", "overrides"}},
    "PartitionState": {
        1: {
            "replicas",
            "isr",
            "elr",
            "leader",
            "leader_epoch",
            "partition_epoch",
            "adding",
            "removing",
            "last_leader",
        }
    },
    "BrokerRegistration": {
        1: {
            "id",
            "incarnation_id",
            "directory_id",
            "epoch",
            "active_epoch",
            "rack",
            "roles",
            "endpoints",
            "features",
            "is_fenced",
            "is_draining",
            "keeps_replicas",
            "is_shutting_down",
            "software_version",
        }
    },
    "Endpoint": {1: {"listener", "host", "port"}},
    "FeatureRange": {1: {"min_level", "max_level"}},
    "User": {2: {"name", "credentials"}},
    "Credential": {2: {"salt", "iterations", "stored_key", "server_key"}},
    "Acl": {
        2: {"resource_type", "name", "pattern_type", "principal", "host", "operation", "permission"},
        3: {"tenant"},
    },
    "ApiKey": {
        2: {"id", "owner", "aws_secret", "created_ms", "expires_ms", "scopes", "description"},
    },
    "ClientQuota": {3: {"entity", "values"}},
    "DelegationToken": {
        3: {
            "id",
            "owner",
            "requester",
            "renewers",
            "issued_ms",
            "expires_ms",
            "max_ms",
            "hmac_hash",
            "credentials",
        }
    },
    "Tenant": {3: {"id", "created_ms", "status", "reason", "description", "limits"}},
    "TenantLimits": {
        3: {
            "topics",
            "partitions",
            "storage_bytes",
            "message_bytes",
            "connections",
            "groups",
            "group_members",
            "retention_ms",
            "delay_ms",
            "produce_bytes_per_second",
            "fetch_bytes_per_second",
            "produce_messages_per_second",
            "fetch_messages_per_second",
        }
    },
    "Member": {3: {"principal", "tenant", "is_admin"}},
    "EndedSessions": {3: {"user", "sessions", "began_by_ms", "end_ms"}},
    "EndedSession": {3: {"id", "began_ms", "end_ms"}},
}


def structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    """Yield a type and those in its fields, as far as they are structs."""
    if isinstance(kind, inspect.StructType):
        yield kind
        for each in kind.fields:
            yield from structs(each.type)
    for name in ("key_type", "value_type", "item_type"):
        if (inner := getattr(kind, name, None)) is not None:
            yield from structs(inner)
    for name in ("types", "item_types"):
        for inner in getattr(kind, name, ()):
            yield from structs(inner)


DECODERS = (msgspec.json.Decoder, msgspec.msgpack.Decoder)
STRUCTS: dict[str, Any] = {
    each.cls.__name__: each
    for decoder in vars(image).values()
    if isinstance(decoder, DECODERS)
    for each in structs(inspect.type_info(decoder.type))
}


def test_every_kind_of_record_is_listed() -> None:
    assert STRUCTS.keys() == FIELDS.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_has_a_level(name: str) -> None:
    struct, levels = STRUCTS[name], FIELDS[name]
    assert {each.name for each in struct.fields} == set().union(*levels.values())
    assert max(levels) <= CURRENT_LEVEL
    assert sum(map(len, levels.values())) == len(struct.fields), "each field has one level"
    added = set().union(*(fields for level, fields in levels.items() if level != min(levels)))
    assert not {each.name for each in struct.fields if each.required} & added, "an added field has a default"
    if struct.array_like:
        first = len(levels[min(levels)])
        assert {each.name for each in struct.fields[:first]} == levels[min(levels)], "added at the end"
