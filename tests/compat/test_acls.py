"""Access rules with unmodified clients: administration, and clients that may do only some things."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
)
from kafka.admin import ACLOperation as KafkaPythonOperation
from kafka.admin import ResourceType as KafkaPythonType
from kafka.errors import TopicAuthorizationFailedError

from alpacamq.security.acls import AclFilter, Operation
from alpacamq.security.acls import ResourceType as Kind
from tests.secured import ADMIN, ALICE, SecuredBroker, rule
from tests.waiting import eventually

from .client import DEADLINE_S

PRINCIPAL = f"User:{ALICE}"


@pytest.fixture
def admin(secured: SecuredBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": secured.address(ADMIN)})


@pytest.fixture
def made(admin: AdminClient, topic: str) -> str:
    """A topic of the test's own."""
    admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S)
    return topic


def binding(topic: str, operation: AclOperation = AclOperation.READ) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        PRINCIPAL,
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


def about(topic: str | None) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.ANY,
        topic,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def produce(secured: SecuredBroker, name: str, topic: str, **settings: Any) -> KafkaError | None:
    """Produce a record and return its error."""
    producer = Producer({"bootstrap.servers": secured.address(name), **settings})
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    producer.flush(DEADLINE_S)
    return errors[0]


@pytest.fixture
def consumer_of(secured: SecuredBroker) -> Iterator[Callable[..., Consumer]]:
    """Return a function that subscribes alice as a member of a group."""
    opened: list[Consumer] = []

    def consume(topic: str, **settings: Any) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": secured.address(),
                "group.id": topic,
                "auto.offset.reset": "earliest",
                **settings,
            }
        )
        opened.append(consumer)
        consumer.subscribe([topic])
        return consumer

    yield consume
    for consumer in opened:
        consumer.close()


def polled(consumer: Consumer) -> Any:
    """Return the next record or error."""
    message = eventually(lambda: consumer.poll(0.5))
    return message.value() if message.error() is None else message.error().code()


def test_confluent_kafka_creates_describes_and_deletes_rules(admin: AdminClient, topic: str) -> None:
    rules = [binding(topic), binding(topic, AclOperation.WRITE)]
    for future in admin.create_acls(rules).values():
        future.result(DEADLINE_S)
    assert set(admin.describe_acls(about(topic)).result(DEADLINE_S)) == set(rules)
    (deleting,) = admin.delete_acls([about(topic)]).values()
    assert set(deleting.result(DEADLINE_S)) == set(rules)
    assert admin.describe_acls(about(None)).result(DEADLINE_S) == []


def test_kafka_python_creates_describes_and_deletes_rules(secured: SecuredBroker, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=secured.address(ADMIN))
    try:
        acl = ACL(
            principal=PRINCIPAL,
            host="*",
            operation=KafkaPythonOperation.READ,
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(KafkaPythonType.TOPIC, topic),
        )
        assert admin.create_acls([acl])["failed"] == []
        wanted = ACLFilter(
            principal=None,
            host="*",
            operation=KafkaPythonOperation.ANY,
            permission_type=ACLPermissionType.ANY,
            resource_pattern=ResourcePatternFilter(
                KafkaPythonType.TOPIC, topic, ACLResourcePatternType.LITERAL
            ),
        )
        described, _ = admin.describe_acls(wanted)
        assert described == [acl]
        ((_, deleted, _),) = admin.delete_acls([wanted])
        assert deleted == [acl]
    finally:
        admin.close()


def test_an_invalid_rule_is_refused_with_a_reason(admin: AdminClient, topic: str) -> None:
    wrong = binding(topic, AclOperation.CLUSTER_ACTION)
    (future,) = admin.create_acls([wrong]).values()
    with pytest.raises(KafkaException) as refused:
        future.result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
    assert "no operation CLUSTER_ACTION on TOPIC" in refused.value.args[0].str()


def test_rules_are_administered_only_with_a_right_to_the_cluster(
    secured: SecuredBroker, admin: AdminClient, topic: str
) -> None:
    for future in admin.create_acls([binding("other")]).values():
        future.result(DEADLINE_S)
    alice = AdminClient({"bootstrap.servers": secured.address()})
    # The client does not report the error of a description; test_rights.py looks at the code.
    assert alice.describe_acls(about(None)).result(DEADLINE_S) == []
    (creating,) = alice.create_acls([binding(topic)]).values()
    (deleting,) = alice.delete_acls([about("other")]).values()
    for refused in (creating, deleting):
        with pytest.raises(KafkaException) as raised:
            refused.result(DEADLINE_S)
        assert raised.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert admin.describe_acls(about(None)).result(DEADLINE_S) == [binding("other")]


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_producer_writes_once_it_may(secured: SecuredBroker, made: str, idempotent: bool) -> None:
    secured.allow(Operation.DESCRIBE, Kind.TOPIC, made)
    settings = {"enable.idempotence": idempotent, "message.timeout.ms": 5000}
    if not idempotent:
        error = produce(secured, ALICE, made, **settings)
        assert error is not None
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    secured.allow(Operation.WRITE, Kind.TOPIC, made)
    assert produce(secured, ALICE, made, **settings) is None


def test_a_transactional_producer_needs_the_right_to_its_id(secured: SecuredBroker, made: str) -> None:
    secured.allow(Operation.WRITE, Kind.TOPIC, made)
    settings = {"bootstrap.servers": secured.address(), "transactional.id": made}
    with pytest.raises(KafkaException) as refused:
        Producer(settings).init_transactions(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    secured.allow(Operation.WRITE, Kind.TRANSACTIONAL_ID, made)
    producer = Producer(settings)
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(made, b"v")
    producer.commit_transaction(DEADLINE_S)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_needs_rights_to_its_group_and_topic(
    secured: SecuredBroker, consumer_of: Callable[..., Consumer], made: str, protocol: str
) -> None:
    assert produce(secured, ADMIN, made) is None
    secured.allow(Operation.READ, Kind.TOPIC, made)
    without_group = consumer_of(made, **{"group.protocol": protocol})
    assert polled(without_group) == KafkaError.GROUP_AUTHORIZATION_FAILED
    secured.allow(Operation.READ, Kind.GROUP, made)
    assert polled(consumer_of(made, **{"group.protocol": protocol})) == b"v"


def test_a_consumer_learns_that_it_may_not_read_or_know_a_topic(
    secured: SecuredBroker, consumer_of: Callable[..., Consumer], made: str
) -> None:
    secured.allow(Operation.READ, Kind.GROUP, made)
    assert polled(consumer_of(made)) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_consumer_that_loses_its_right_receives_nothing_more(
    secured: SecuredBroker, consumer_of: Callable[..., Consumer], made: str
) -> None:
    secured.allow(Operation.READ, Kind.GROUP, made)
    secured.create(rule(Operation.READ, Kind.TOPIC, made), rule(Operation.DESCRIBE, Kind.TOPIC, made))
    assert produce(secured, ADMIN, made) is None
    consumer = consumer_of(made)
    assert polled(consumer) == b"v"
    secured.revoke(AclFilter(operation=Operation.READ, resource_type=Kind.TOPIC))
    assert produce(secured, ADMIN, made) is None
    assert polled(consumer) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_topics_without_a_right_are_not_listed(secured: SecuredBroker, admin: AdminClient, made: str) -> None:
    alice = AdminClient({"bootstrap.servers": secured.address()})
    assert made not in alice.list_topics(timeout=DEADLINE_S).topics
    assert made in admin.list_topics(timeout=DEADLINE_S).topics
    secured.allow(Operation.DESCRIBE, Kind.TOPIC, made)
    assert made in alice.list_topics(timeout=DEADLINE_S).topics


def test_kafka_python_consumers_and_producers_are_told_why(secured: SecuredBroker, made: str) -> None:
    secured.allow(Operation.DESCRIBE, Kind.TOPIC, made)
    producer = KafkaProducer(bootstrap_servers=secured.address(), enable_idempotence=False)
    try:
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send(made, b"v").get(DEADLINE_S)
    finally:
        producer.close()
    consumer = KafkaConsumer(
        made,
        bootstrap_servers=secured.address(),
        auto_offset_reset="earliest",
        consumer_timeout_ms=5000,
        group_id=None,
    )
    try:
        with pytest.raises(TopicAuthorizationFailedError):
            next(consumer)
    finally:
        consumer.close()
