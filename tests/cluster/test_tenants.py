"""Tenants and their members in the metadata, and the limits that the controller decides."""

from uuid import uuid4

import msgspec
import pytest

from alpacamq.cluster.brokers import FeatureRange
from alpacamq.cluster.commands import (
    AddMember,
    AddPartitions,
    AlterTenant,
    ConfigureTopic,
    CreateAcls,
    CreateTenant,
    CreateTopic,
    DeleteTenant,
    DeleteTopic,
    RemoveMember,
)
from alpacamq.cluster.image import difference
from alpacamq.model.dead_letters import dead_letter_topic
from alpacamq.model.errors import (
    AlpacaError,
    FeatureNotEnabled,
    InvalidPrincipal,
    InvalidTenant,
    InvalidTopicName,
    PolicyViolation,
    TenantExists,
    TenantLimitReached,
    UnknownTenant,
)
from alpacamq.security.acls import Acl, Authorizer, Operation, PatternType, Permission, ResourceType
from alpacamq.security.tenants import RATES, Member, Tenant, TenantLimits, TenantStatus

from .clusters import Cluster
from .test_access import ALICE_READS, errors, replayed

ALICE = Member(principal="User:alice", tenant="red", is_admin=True)


def with_tenants(*tenants: str, limits: TenantLimits | None = None) -> Cluster:
    cluster = Cluster(1)
    for tenant in tenants:
        created = Tenant(id=tenant, created_ms=1, limits=limits or TenantLimits())
        cluster.ask(CreateTenant(tenant=created))
    return cluster


def create(cluster: Cluster, name: str, partitions: int = 1, **overrides: str) -> None:
    settings = {key.replace("_", "."): text for key, text in overrides.items()}
    cluster.ask(CreateTopic(name=name, topic_id=uuid4(), partitions=partitions, overrides=settings))


def test_a_change_of_one_limit_leaves_the_others() -> None:
    """Whatever a broker knew of them when it sent the change."""
    cluster = with_tenants("red", limits=TenantLimits(topics=5, groups=7))
    cluster.ask(AlterTenant(id="red", limits={"topics": 6}))
    cluster.ask(AlterTenant(id="red", limits={"groups": None}))
    assert cluster.image.tenants["red"].limits == TenantLimits(topics=6)
    with pytest.raises(InvalidTenant, match="unknown limit 'wishes'"):
        cluster.ask(AlterTenant(id="red", limits={"wishes": 3}))


def test_tenants_and_members_are_part_of_a_snapshot() -> None:
    cluster = with_tenants("red", "blue")
    before = cluster.image.copy()
    cluster.ask(AddMember(member=ALICE))
    cluster.ask(AlterTenant(id="blue", status=TenantStatus.SUSPENDED, reason="unpaid"))
    assert difference(before, cluster.image).security
    copy = replayed(cluster.image)
    assert copy.tenants == cluster.image.tenants
    assert copy.members == {"User:alice": ALICE}
    assert copy.tenants["blue"].refusal == "the tenant is suspended: unpaid"
    cluster.ask(AlterTenant(id="blue", status=TenantStatus.ACTIVE))
    assert not cluster.image.tenants["blue"].reason


def test_a_principal_belongs_to_one_tenant() -> None:
    cluster = with_tenants("red", "blue")
    cluster.ask(AddMember(member=ALICE))
    with pytest.raises(TenantExists):
        cluster.ask(AddMember(member=Member(principal="User:alice", tenant="blue")))
    with pytest.raises(UnknownTenant):
        cluster.ask(RemoveMember(tenant="blue", principal="User:alice"))
    cluster.ask(RemoveMember(tenant="red", principal="User:alice"))
    cluster.ask(AddMember(member=Member(principal="User:alice", tenant="blue")))
    assert cluster.image.members["User:alice"].tenant == "blue"


@pytest.mark.parametrize(
    ("member", "error"),
    [
        (Member(principal="alice", tenant="red"), InvalidPrincipal),
        (Member(principal="User:*", tenant="red"), InvalidTenant),
        (Member(principal="User:ANONYMOUS", tenant="red"), InvalidTenant),
        (Member(principal="User:alice", tenant="green"), UnknownTenant),
    ],
)
def test_not_everything_can_be_a_member(member: Member, error: type[AlpacaError]) -> None:
    with pytest.raises(error):
        with_tenants("red").ask(AddMember(member=member))


def test_a_tenant_is_deleted_with_its_members_and_rules_but_not_with_topics() -> None:
    cluster = with_tenants("red")
    cluster.ask(AddMember(member=ALICE))
    rule = Acl(
        ResourceType.TOPIC,
        "orders",
        PatternType.LITERAL,
        "User:bob",
        "*",
        Operation.READ,
        Permission.ALLOW,
        "red",
    )
    assert errors(cluster.ask(CreateAcls(acls=(rule, ALICE_READS)))) == [None, None]
    create(cluster, "red:orders")
    with pytest.raises(PolicyViolation, match="red:orders"):
        cluster.ask(DeleteTenant(id="red"))
    cluster.ask(DeleteTopic(name="red:orders"))
    cluster.ask(DeleteTenant(id="red"))
    assert not cluster.image.tenants
    assert not cluster.image.members
    assert list(cluster.image.acls.values()) == [ALICE_READS]


def test_a_tenant_that_was_activated_during_its_deletion_stays() -> None:
    cluster = with_tenants("red")
    cluster.ask(AlterTenant(id="red", status=TenantStatus.DISABLED))
    cluster.ask(AlterTenant(id="red", status=TenantStatus.ACTIVE))
    with pytest.raises(PolicyViolation, match="activated"):
        cluster.ask(DeleteTenant(id="red", is_disabled=True))
    cluster.ask(AlterTenant(id="red", status=TenantStatus.DISABLED))
    cluster.ask(DeleteTenant(id="red", is_disabled=True))
    assert not cluster.image.tenants


def test_topics_of_tenants_that_do_not_exist_cannot_be_created() -> None:
    cluster = with_tenants("red")
    create(cluster, "red:orders")
    create(cluster, "orders")
    for name in ("blue:orders", "red:a:b", "red:", "red:__consumer_offsets", ":orders", "Red:orders"):
        with pytest.raises(InvalidTopicName):
            create(cluster, name)


def test_a_rule_of_an_unknown_tenant_is_refused() -> None:
    rule = Acl(
        ResourceType.TOPIC,
        "orders",
        PatternType.LITERAL,
        "User:bob",
        "*",
        Operation.READ,
        Permission.ALLOW,
        "red",
    )
    assert errors(Cluster(1).ask(CreateAcls(acls=(rule,)))) == ["InvalidAcl"]


def test_rules_without_a_tenant_keep_their_ids() -> None:
    of_tenant = msgspec.structs.replace(ALICE_READS, tenant="red")
    assert ALICE_READS.id == "2a99fccd84cc1bb0089149e6964c5bba"
    assert of_tenant.id != ALICE_READS.id


def test_limits_of_topics_partitions_and_settings() -> None:
    limits = TenantLimits(topics=2, partitions=4, retention_ms=1000, message_bytes=10_000)
    cluster = with_tenants("red", "blue", limits=limits)
    with pytest.raises(TenantLimitReached, match="partitions"):
        create(cluster, "red:a", partitions=5)
    with pytest.raises(TenantLimitReached, match="retention"):
        create(cluster, "red:a", retention_ms="1001")
    create(cluster, "red:a", partitions=2, retention_ms="500")
    assert cluster.image.topic("red:a").overrides == {"retention.ms": "500", "max.message.bytes": "10000"}
    with pytest.raises(TenantLimitReached, match="partitions"):
        cluster.ask(AddPartitions(name="red:a", partitions=5))
    create(cluster, "red:b")
    with pytest.raises(TenantLimitReached, match="topics"):
        create(cluster, "red:c")
    create(cluster, "blue:c")
    create(cluster, "c", partitions=50)
    with pytest.raises(TenantLimitReached, match="=-1"):
        cluster.ask(ConfigureTopic(name="red:a", overrides={"retention.ms": "-1"}))
    cluster.ask(AlterTenant(id="red", limits={"retention_ms": 100}))
    cluster.ask(ConfigureTopic(name="red:a", overrides={"retention.ms": "500", "cleanup.policy": "delete"}))
    assert cluster.image.topic("red:a").overrides["retention.ms"] == "100"


@pytest.mark.parametrize("name", RATES)
def test_a_rate_that_lets_nothing_pass_is_refused(name: str) -> None:
    cluster = with_tenants("red")
    with pytest.raises(InvalidTenant, match="at least 1"):
        cluster.ask(AlterTenant(id="red", limits={name: 0}))
    cluster.ask(AlterTenant(id="red", limits={name: 1}))


def test_a_cluster_of_several_brokers_needs_the_level() -> None:
    cluster = Cluster(0)
    for number in (1, 2):
        cluster.register(number, features=FeatureRange(1, 2))
    with pytest.raises(FeatureNotEnabled, match="tenants need level 3"):
        cluster.ask(CreateTenant(tenant=Tenant(id="red", created_ms=1)))


def test_a_rule_for_all_names_does_not_include_those_of_tenants() -> None:
    rules = [
        Acl(kind, "*", PatternType.LITERAL, "User:bob", "*", Operation.ALL, Permission.ALLOW)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    authorizer = Authorizer(rules)
    assert authorizer.may("User:bob", "h", Operation.READ, ResourceType.TOPIC, "orders")
    assert not authorizer.may("User:bob", "h", Operation.READ, ResourceType.TOPIC, "red:orders")
    assert not authorizer.may("User:bob", "h", Operation.READ, ResourceType.GROUP, "red\x1fworkers")


def test_dead_letters_go_to_a_topic_of_the_same_tenant() -> None:
    assert dead_letter_topic("red:orders", "dead") == "red:dead"
    assert dead_letter_topic("red:orders", "") == "red:orders.dlq"
    assert dead_letter_topic("red:orders", "orders") is None
    assert dead_letter_topic("orders", "dead") == "dead"
