"""Two tenants with the same names of topics, groups and transactional ids, with unmodified clients."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from msgspec.structs import asdict

from alpacamq.cluster.commands import AlterTenant
from alpacamq.security.tenants import TenantLimits, TenantStatus
from tests.secured import ADMIN, SecuredBroker, secured_broker
from tests.waiting import eventually

from .client import DEADLINE_S
from .share import Queue, drain

# One principal of each tenant.
ANNA, BORIS = "anna", "boris"
RED, BLUE = "red", "blue"
TENANTS = {ANNA: RED, BORIS: BLUE}
INVALID_TOPIC, POLICY_VIOLATION, UNKNOWN_TOPIC_ID = 17, 44, 100
TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED = 29, 31


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker with two tenants, whose principals may do everything in them."""
    with secured_broker(tmp_path_factory.mktemp("tenants"), users=(ADMIN, ANNA, BORIS)) as broker:
        access = broker.broker.access
        for name, tenant in TENANTS.items():
            broker.call(access.create_tenant(tenant, description="", limits=TenantLimits()))
            broker.call(access.add_member(tenant, f"User:{name}", is_admin=True))
        yield broker


@pytest.fixture
def secured(shared: SecuredBroker) -> Iterator[SecuredBroker]:
    yield shared
    for tenant in (RED, BLUE):
        change = AlterTenant(id=tenant, status=TenantStatus.ACTIVE, limits=asdict(TenantLimits()))
        shared.call(shared.broker.access.alter_tenant(change))


def admin_of(secured: SecuredBroker, name: str) -> Any:
    return AdminClient({"bootstrap.servers": secured.address(name), "log_level": 0})


def create(secured: SecuredBroker, name: str, topic: str) -> None:
    admin = admin_of(secured, name)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S)


@pytest.fixture
def both(secured: SecuredBroker, topic: str) -> str:
    """A topic that both tenants have under the same name."""
    for name in TENANTS:
        create(secured, name, topic)
    return topic


def produce(secured: SecuredBroker, name: str, topic: str, *values: str, **settings: Any) -> list[str]:
    """Produce values; return the topics that the client got them acknowledged for."""
    producer = Producer({"bootstrap.servers": secured.address(name), "log_level": 0, **settings})
    acknowledged: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        acknowledged.append(message.topic())

    for value in values:
        producer.produce(topic, value, on_delivery=delivered)
    producer.flush(DEADLINE_S)
    return acknowledged


def consume(
    secured: SecuredBroker, name: str, subscription: str, count: int, **settings: Any
) -> list[tuple[str, bytes]]:
    """Read as a member of the group `shared`, commit, and return topics and values."""
    consumer = Consumer(
        {
            "bootstrap.servers": secured.address(name),
            "group.id": "shared",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **settings,
        }
    )
    consumer.subscribe([subscription])
    found: list[tuple[str, bytes]] = []

    def poll() -> bool:
        if (message := consumer.poll(0.2)) is not None:
            assert message.error() is None, message.error()
            found.append((message.topic(), message.value()))
        return len(found) >= count

    with closing(consumer):
        eventually(poll, what=f"{count} messages")
        consumer.commit(asynchronous=False)
    return found


def refusal(future: Any) -> int:
    with pytest.raises(KafkaException) as refused:
        future.result(DEADLINE_S)
    code: int = refused.value.args[0].code()
    return code


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_each_tenant_reads_what_it_wrote_to_a_topic_of_the_same_name(
    secured: SecuredBroker, both: str, protocol: str
) -> None:
    for name in TENANTS:
        assert produce(secured, name, both, f"of {name}") == [both]
    for name in TENANTS:
        found = consume(secured, name, both, 1, **{"group.protocol": protocol})
        assert found == [(both, f"of {name}".encode())]
        wanted = [ConsumerGroupTopicPartitions("shared", [TopicPartition(both, 0)])]
        admin = admin_of(secured, name)
        offsets = admin.list_consumer_group_offsets(wanted)["shared"].result(DEADLINE_S)
        assert [each.offset for each in offsets.topic_partitions] == [1]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_pattern_matches_the_topics_of_the_tenant_only(
    secured: SecuredBroker, topic: str, protocol: str
) -> None:
    create(secured, BORIS, f"{topic}-blue")
    for name in TENANTS:
        produce(secured, name, topic, name)
    produce(secured, BORIS, f"{topic}-blue", "more")
    assert consume(secured, ANNA, f"^{topic}.*", 1, **{"group.protocol": protocol}) == [(topic, b"anna")]
    found = consume(secured, BORIS, f"^{topic}.*", 2, **{"group.protocol": protocol})
    assert sorted(found) == [(topic, b"boris"), (f"{topic}-blue", b"more")]


def test_lists_and_descriptions_show_the_resources_of_the_tenant(secured: SecuredBroker, topic: str) -> None:
    only_red = f"{topic}-red"
    admins = {name: admin_of(secured, name) for name in TENANTS}
    admins[ANNA].create_topics([NewTopic(only_red, 2)])[only_red].result(DEADLINE_S)
    produce(secured, ANNA, only_red, "1")
    consume(secured, ANNA, only_red, 1, **{"group.id": only_red})
    red, blue = (admins[name].list_topics(timeout=DEADLINE_S).topics for name in (ANNA, BORIS))
    assert only_red in red
    assert only_red not in blue
    assert not any(":" in name for name in {*red, *blue})
    groups = {
        name: {each.group_id for each in admins[name].list_consumer_groups().result(DEADLINE_S).valid}
        for name in TENANTS
    }
    assert only_red in groups[ANNA]
    assert not any("\x1f" in group or only_red == group for group in groups[BORIS])
    described = admins[ANNA].describe_consumer_groups([only_red])[only_red].result(DEADLINE_S)
    assert described.group_id == only_red
    resource = ConfigResource(ResourceType.TOPIC, only_red)
    assert admins[ANNA].describe_configs([resource])[resource].result(DEADLINE_S)
    # The same request about a topic that the tenant does not have is about one that does not exist.
    absent = ConfigResource(ResourceType.TOPIC, "absent")
    unknown = refusal(admins[BORIS].describe_configs([absent])[absent])
    assert refusal(admins[BORIS].describe_configs([resource])[resource]) == unknown


def test_administration_changes_the_topic_of_the_tenant_only(secured: SecuredBroker, both: str) -> None:
    anna, boris = (admin_of(secured, name) for name in TENANTS)
    anna.create_partitions([NewPartitions(both, 3)])[both].result(DEADLINE_S)
    entry = ConfigEntry("retention.ms", "1234567", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, both, incremental_configs=[entry])
    anna.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    wanted = ConfigResource(ResourceType.TOPIC, both)
    values = [
        admin.describe_configs([wanted])[wanted].result(DEADLINE_S)["retention.ms"].value
        for admin in (anna, boris)
    ]
    assert values[0] == "1234567"
    assert values[1] != "1234567"
    assert len(boris.list_topics(both, DEADLINE_S).topics[both].partitions) == 1
    anna.delete_topics([both])[both].result(DEADLINE_S)
    assert both in boris.list_topics(timeout=DEADLINE_S).topics


def test_transactions_of_the_same_id_do_not_fence_each_other(secured: SecuredBroker, both: str) -> None:
    producers = {}
    for name in TENANTS:
        producer = Producer(
            {
                "bootstrap.servers": secured.address(name),
                "transactional.id": "the-same",
                "log_level": 0,
            }
        )
        producer.init_transactions(DEADLINE_S)
        producers[name] = producer
    for name, producer in producers.items():
        producer.begin_transaction()
        producer.produce(both, f"of {name}")
        producer.flush(DEADLINE_S)
    producers[ANNA].commit_transaction(DEADLINE_S)
    producers[BORIS].abort_transaction(DEADLINE_S)
    produce(secured, BORIS, both, "after")
    group = {"group.id": both, "isolation.level": "read_committed"}
    assert consume(secured, ANNA, both, 1, **group) == [(both, b"of anna")]
    assert consume(secured, BORIS, both, 1, **group) == [(both, b"after")]
    with closing(KafkaAdminClient(bootstrap_servers=secured.address(ANNA))) as admin:
        listed = admin.list_transactions()
        assert "the-same" in str(listed)
        assert RED not in str(listed)


def test_share_groups_of_the_same_name_do_not_share(secured: SecuredBroker, topic: str) -> None:
    queues = {name: Queue(secured.address(name), topic).create() for name in TENANTS}
    for name, queue in queues.items():
        queue.publish(name)
    for name, queue in queues.items():
        with queue.consumer() as consumer:
            assert drain(consumer, 1) == [name]
        eventually(queue.is_done)


def test_aiokafka_and_kafka_python_notice_nothing(secured: SecuredBroker, both: str) -> None:
    async def exchange(name: str) -> list[tuple[str, bytes]]:
        producer = AIOKafkaProducer(bootstrap_servers=secured.address(name))
        await producer.start()
        try:
            await producer.send_and_wait(both, name.encode())
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(
            both,
            bootstrap_servers=secured.address(name),
            group_id=f"aio-{both}",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            message = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
            return [(message.topic, message.value)]
        finally:
            await consumer.stop()

    for name in TENANTS:
        assert asyncio.run(exchange(name)) == [(both, name.encode())]
        with closing(KafkaProducer(bootstrap_servers=secured.address(name))) as producer:
            assert producer.send(both, b"more").get(DEADLINE_S).topic == both
        with closing(KafkaConsumer(bootstrap_servers=secured.address(name))) as consumer:
            assert both in consumer.topics()
            consumer.assign([KafkaPythonPartition(both, 0)])
            consumer.seek_to_beginning()
            first = next(consumer)
            assert (first.topic, first.value) == (both, name.encode())


@pytest.mark.parametrize("forged", ["blue:orders", "blue\x1forders", "../blue:orders", ":orders", "red:x"])
def test_a_name_with_the_separator_reaches_no_other_tenant(
    secured: SecuredBroker, topic: str, forged: str
) -> None:
    admin = admin_of(secured, ANNA)
    assert refusal(admin.create_topics([NewTopic(forged, 1)])[forged]) == INVALID_TOPIC
    del topic


def test_the_cluster_is_not_for_tenants(secured: SecuredBroker, topic: str) -> None:
    admin = admin_of(secured, ANNA)
    brokers = ConfigResource(ResourceType.BROKER, "1")
    assert refusal(admin.describe_configs([brokers])[brokers]) == CLUSTER_AUTHORIZATION_FAILED
    for internal in ("__consumer_offsets", "__transaction_state"):
        assert internal not in admin.list_topics(timeout=DEADLINE_S).topics
        assert refusal(admin.create_topics([NewTopic(internal, 1)])[internal]) == INVALID_TOPIC
    del topic


def test_administrators_of_a_tenant_have_their_own_rules(secured: SecuredBroker, both: str) -> None:
    def rule(operation: AclOperation) -> Any:
        pattern, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        return AclBinding(ResourceType.TOPIC, both, pattern, "User:carl", "*", operation, allow)

    anna, boris = (admin_of(secured, name) for name in TENANTS)
    binding = rule(AclOperation.READ)
    anna.create_acls([binding])[binding].result(DEADLINE_S)
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert anna.describe_acls(everything).result(DEADLINE_S) == [binding]
    assert boris.describe_acls(everything).result(DEADLINE_S) == []
    operator = admin_of(secured, ADMIN)
    assert operator.describe_acls(everything).result(DEADLINE_S) == []
    assert boris.delete_acls([everything])[everything].result(DEADLINE_S) == []
    assert anna.delete_acls([everything])[everything].result(DEADLINE_S) == [binding]


def test_an_operator_sees_the_topics_of_all_tenants(secured: SecuredBroker, both: str) -> None:
    produce(secured, ANNA, both, "1")
    admin = admin_of(secured, ADMIN)
    names = admin.list_topics(timeout=DEADLINE_S).topics
    assert {f"{RED}:{both}", f"{BLUE}:{both}"} <= names.keys()
    assert consume(secured, ADMIN, f"{RED}:{both}", 1) == [(f"{RED}:{both}", b"1")]


def test_a_suspended_tenant_is_refused_at_once_and_the_other_is_not(
    secured: SecuredBroker, both: str
) -> None:
    access = secured.broker.access
    for name in TENANTS:
        produce(secured, name, both, "before")
    suspended = AlterTenant(id=RED, status=TenantStatus.SUSPENDED, reason="invoice 17 is not paid")
    secured.call(access.alter_tenant(suspended))
    with pytest.raises(KafkaException) as refused:
        produce(secured, ANNA, both, "during")
    assert refused.value.args[0].code() == TOPIC_AUTHORIZATION_FAILED
    produce(secured, BORIS, both, "during")
    admin = admin_of(secured, ANNA)
    assert both not in admin.list_topics(timeout=DEADLINE_S).topics
    secured.call(access.alter_tenant(AlterTenant(id=RED, status=TenantStatus.ACTIVE)))
    produce(secured, ANNA, both, "after")
    values = [value for _, value in consume(secured, ANNA, both, 2, **{"group.id": both})]
    assert values == [b"before", b"after"]


def test_a_tenant_has_as_many_topics_and_partitions_as_its_limits_say(
    secured: SecuredBroker, topic: str
) -> None:
    admin = admin_of(secured, ANNA)
    existing = len(admin.list_topics(timeout=DEADLINE_S).topics)
    limits = TenantLimits(topics=existing + 1, retention_ms=60_000)
    secured.call(secured.broker.access.alter_tenant(AlterTenant(id=RED, limits=asdict(limits))))
    for_ever = NewTopic(topic, 1, config={"retention.ms": "-1"})
    assert refusal(admin.create_topics([for_ever])[topic]) == POLICY_VIOLATION
    admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert settings["retention.ms"].value == "60000"
    assert refusal(admin.create_topics([NewTopic(f"{topic}-2", 1)])[f"{topic}-2"]) == POLICY_VIOLATION
    other = admin_of(secured, BORIS)
    other.create_topics([NewTopic(f"{topic}-2", 1)])[f"{topic}-2"].result(DEADLINE_S)


def test_a_tenant_that_stores_as_much_as_it_may_can_read_and_not_write(
    secured: SecuredBroker, both: str
) -> None:
    usage = secured.broker.tenant_usage
    for name in TENANTS:
        produce(secured, name, both, "before")
    limits = TenantLimits(storage_bytes=1)
    secured.call(secured.broker.access.alter_tenant(AlterTenant(id=RED, limits=asdict(limits))))
    secured.call(usage.measure())
    with pytest.raises(KafkaException) as refused:
        produce(secured, ANNA, both, "during")
    assert refused.value.args[0].code() == POLICY_VIOLATION
    assert consume(secured, ANNA, both, 1, **{"group.id": both}) == [(both, b"before")]
    produce(secured, BORIS, both, "during")
    secured.call(secured.broker.access.alter_tenant(AlterTenant(id=RED, limits=asdict(TenantLimits()))))
    secured.call(usage.measure())
    produce(secured, ANNA, both, "after")


def test_a_tenant_has_as_many_groups_as_its_limit_says(secured: SecuredBroker, both: str) -> None:
    usage = secured.broker.tenant_usage
    for name in TENANTS:
        produce(secured, name, both, "1", "2")
    consume(secured, ANNA, both, 1, **{"group.id": f"{both}-first"})
    count = secured.call(usage.of(RED)).groups
    limits = TenantLimits(groups=count)
    secured.call(secured.broker.access.alter_tenant(AlterTenant(id=RED, limits=asdict(limits))))
    secured.call(usage.measure())
    consumer = Consumer({"bootstrap.servers": secured.address(ANNA), "group.id": f"{both}-second"})
    with closing(consumer), pytest.raises(KafkaException) as refused:
        consumer.commit(offsets=[TopicPartition(both, 0, 1)], asynchronous=False)
    assert refused.value.args[0].code() == POLICY_VIOLATION
    settings = {"group.id": f"{both}-first", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": secured.address(ANNA), **settings})
    with closing(consumer):
        consumer.commit(offsets=[TopicPartition(both, 0, 1)], asynchronous=False)
    consume(secured, BORIS, both, 1, **{"group.id": f"{both}-second"})
