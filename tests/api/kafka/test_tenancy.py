"""Names in requests and responses of tenants: every field that holds one is translated, and no other."""

from collections.abc import Iterator

import pytest

from alpacamq.api.kafka import tenancy
from alpacamq.model.errors import InvalidTenant
from alpacamq.model.names import check_tenant_id, localized, split_id, split_topic, topic_for_pattern
from alpacamq.protocol.apis import APIS, Api
from alpacamq.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.topics import CreatableTopicResult, CreateTopicsResponse, DeleteTopicsRequest
from alpacamq.protocol.notation import Array, Field, Message, Name, Prefixed, fields_of
from alpacamq.protocol.schema import run_to_end

# Texts that name no topic, group or transactional id, or name it as the tenant does.
NOT_NAMES = {
    # Of brokers, members and the protocol.
    "host", "rack", "rack_id", "cluster_id", "member_id", "group_instance_id", "instance_id", "leader",
    "protocol_type", "protocol_name", "protocol_data", "reason", "group_state", "group_type", "client_id",
    "client_host", "assignor_name", "server_assignor", "process_id", "subtopology_id", "log_dir", "path",
    "mechanism", "mechanisms", "client_software_name", "client_software_version", "requested_metrics",
    "states_filter", "types_filter", "state_filters", "unknown_state_filters", "transaction_state", "feature",
    "user", "documentation", "entity_type", "entity_name", "match",
    "owner_principal_type", "owner_principal_name", "principal_type", "principal_name", "token_id",
    "token_requester_principal_type", "token_requester_principal_name", "requester_principal_type",
    "requester_principal_name",
    "configuration_keys", "key", "value", "metadata", "committed_metadata",
    # Matched against the names of topics in the tenant.
    "subscribed_topic_regex", "source_topic_regex",
    # Rules are about names in the tenant.
    "resource_name_filter", "principal_filter", "host_filter", "principal",
}  # fmt: skip
# Of fields called `name` and the like, which mean a topic elsewhere.
NOT_NAMES_HERE = {
    ("JoinGroupRequestProtocol", "name"),
    ("SupportedFeatureKey", "name"),
    ("FinalizedFeatureKey", "name"),
    ("CreatableTopicConfig", "name"),
    ("CreatableTopicConfigs", "name"),
    ("DescribeConfigsResourceResult", "name"),
    ("DescribeConfigsSynonym", "name"),
    ("AlterableConfig", "name"),
    ("IncrementallyAlterableConfig", "name"),
    ("UserName", "name"),
    ("ScramCredentialDeletion", "name"),
    ("ScramCredentialUpsertion", "name"),
    ("Listener", "name"),
    ("DescribeAclsResource", "resource_name"),
    ("AclCreation", "resource_name"),
    ("DeleteAclsMatchingAcl", "resource_name"),
}


def texts_of(message: type[Message]) -> Iterator[tuple[type[Message], Field]]:
    for field in fields_of(message):
        element = field.type.element if isinstance(field.type, Array) else field.type
        if isinstance(element, type):
            yield from texts_of(element)
        elif element is Prefixed.STRING:
            yield message, field


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_text_of_an_api_is_a_name_that_is_translated_or_known_not_to_be_one(api: Api) -> None:
    for message, field in (*texts_of(api.request), *texts_of(api.response)):
        if field.names is None:
            is_known = field.name in NOT_NAMES or (message.__name__, field.name) in NOT_NAMES_HERE
            assert is_known, f"{message.__name__}.{field.name} may be a name: give it the type of one"
        elif field.names is Name.RESOURCE:
            assert tenancy.RESOURCE_TYPE in {each.name for each in fields_of(message)}


def test_names_get_the_tenant_and_absent_ones_do_not() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders"), MetadataRequestTopic(name=None)])
    translated = run_to_end(tenancy.stored("red", request))
    assert [topic.name for topic in translated.topics or ()] == ["red:orders", None]
    deletion = run_to_end(tenancy.stored("red", DeleteTopicsRequest(topic_names=["a", "b"])))
    assert deletion.topic_names == ["red:a", "red:b"]


def test_settings_of_brokers_are_not_those_of_the_tenant() -> None:
    names = [(2, "orders"), (32, "workers"), (4, "1")]
    resources = [DescribeConfigsResource(resource_type=kind, resource_name=name) for kind, name in names]
    translated = run_to_end(tenancy.stored("red", DescribeConfigsRequest(resources=resources)))
    assert [each.resource_name for each in translated.resources] == ["red:orders", "red\x1fworkers", "1"]


def test_responses_have_the_names_of_the_tenant_also_in_their_error_messages() -> None:
    message = "topic 'red:orders' of group 'red\\x1fworkers' is blue: see red:orders-0"
    result = CreatableTopicResult(name="red:orders", error_message=message)
    translated = run_to_end(tenancy.local("red", CreateTopicsResponse(topics=[result])))
    assert translated.topics[0].name == "orders"
    assert translated.topics[0].error_message == "topic 'orders' of group 'workers' is blue: see orders-0"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("orders", (None, "orders")),
        ("red:orders", ("red", "orders")),
        ("red:blue:orders", ("red", "blue:orders")),
        ("Red:orders", (None, "Red:orders")),
        (":orders", (None, ":orders")),
    ],
)
def test_the_first_separator_ends_the_tenant(name: str, parts: tuple[str | None, str]) -> None:
    assert split_topic(name) == parts
    tenant, local = split_id(name.replace(":", "\x1f"))
    assert (tenant, local.replace("\x1f", ":")) == parts


def test_patterns_match_names_of_the_same_tenant() -> None:
    assert topic_for_pattern("red\x1fworkers", "red:orders") == "orders"
    assert topic_for_pattern("red\x1fworkers", "blue:orders") is None
    assert topic_for_pattern("red\x1fworkers", "orders") is None
    assert topic_for_pattern("workers", "orders") == "orders"
    assert topic_for_pattern("workers", "red:orders") is None


@pytest.mark.parametrize("tenant", ["", "Red", "a" * 33, "a:b", "a/b", "a b", "ä"])
def test_ids_of_tenants_have_few_characters(tenant: str) -> None:
    with pytest.raises(InvalidTenant):
        check_tenant_id(tenant)


def test_texts_that_only_look_like_names_stay() -> None:
    assert localized("red", "the colour is red: see below") == "the colour is red: see below"
    assert localized("red", "infrared:x") == "infrared:x"
