"""Access rules over the Kafka API: requests that change them, and what clients see without a right."""

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from alpacamq.api.kafka import fetch
from alpacamq.api.kafka.fetch import PARTITIONS_AT_ONCE
from alpacamq.api.kafka.operations import AllowedTopics
from alpacamq.api.kafka.produce import BYTES_AT_ONCE
from alpacamq.broker.access import Caller
from alpacamq.broker.partition.leader import Partition
from alpacamq.model.errors import UnknownTopicId
from alpacamq.model.records import Record, write_batch
from alpacamq.model.version import is_compiled
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from alpacamq.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from alpacamq.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.security.acls import AclFilter, Operation, PatternType, Permission, ResourceType
from alpacamq.security.principals import user
from tests.secured import ADMIN, ALICE, SecuredBroker, rule, secured_broker
from tests.waiting import eventually

from .share_member import REJECT, Member, batch, publish
from .wire import Wire, versions, wired

ANY = 1
WAIT_S = 20.0
ON_TOPIC = {Operation.READ, Operation.DESCRIBE}


@pytest.fixture
def broker(secured: SecuredBroker) -> SecuredBroker:
    return secured


@pytest.fixture
def made(broker: SecuredBroker, topic: str) -> str:
    """A topic of the test's own."""
    broker.call(broker.broker.topics.create(topic, partitions=1))
    return topic


@pytest.fixture
def alice(broker: SecuredBroker) -> Iterator[Wire]:
    """A client that may do what rules allow."""
    with wired(broker.addresses[ALICE]) as wire:
        yield wire


@pytest.fixture
def admin(broker: SecuredBroker) -> Iterator[Wire]:
    """A client that may do everything."""
    with wired(broker.addresses[ADMIN]) as wire:
        yield wire


def creation(name: str, *, kind: int = ResourceType.TOPIC, operation: int = Operation.READ) -> AclCreation:
    return AclCreation(
        resource_type=kind,
        resource_name=name,
        principal="User:alice",
        host="*",
        operation=operation,
        permission_type=Permission.ALLOW,
    )


def everything() -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=ANY, pattern_type_filter=ANY, operation=ANY, permission_type=ANY
    )


@pytest.mark.parametrize("version", versions(CreateAclsRequest))
def test_rules_are_created_described_and_deleted(admin: Wire, topic: str, version: int) -> None:
    (created,) = admin.ask(CreateAclsRequest(creations=[creation(topic)]), version).results
    assert created.error_code == 0
    (resource,) = admin.ask(everything(), version).resources
    assert (resource.resource_type, resource.resource_name) == (ResourceType.TOPIC, topic)
    (described,) = resource.acls
    assert (described.principal, described.host) == ("User:alice", "*")
    assert (described.operation, described.permission_type) == (Operation.READ, Permission.ALLOW)
    wanted = DeleteAclsFilter(
        resource_type_filter=ResourceType.TOPIC,
        resource_name_filter=topic,
        pattern_type_filter=PatternType.MATCH,
        operation=ANY,
        permission_type=ANY,
    )
    (deleted,) = admin.ask(DeleteAclsRequest(filters=[wanted]), version).filter_results
    assert [each.resource_name for each in deleted.matching_acls] == [topic]
    assert admin.ask(everything(), version).resources == []


def test_an_invalid_rule_does_not_keep_the_others_from_being_created(admin: Wire, topic: str) -> None:
    asked = CreateAclsRequest(
        creations=[
            creation(topic),
            creation(topic, kind=99),
            creation("not-the-cluster", kind=ResourceType.CLUSTER, operation=Operation.ALTER),
            creation(topic, operation=Operation.CLUSTER_ACTION),
            creation(""),
        ]
    )
    results = admin.ask(asked).results
    assert [each.error_code for each in results] == [0, *[ErrorCode.INVALID_REQUEST] * 4]
    assert all(each.error_message for each in results[1:])
    assert [each.resource_name for each in admin.ask(everything()).resources] == [topic]


def test_an_invalid_filter_does_not_keep_the_others_from_being_applied(admin: Wire, topic: str) -> None:
    admin.ask(CreateAclsRequest(creations=[creation(topic)]))
    filters = [
        DeleteAclsFilter(resource_type_filter=0, operation=ANY, permission_type=ANY),
        DeleteAclsFilter(
            resource_type_filter=ANY, pattern_type_filter=ANY, operation=ANY, permission_type=ANY
        ),
    ]
    wrong, right = admin.ask(DeleteAclsRequest(filters=filters)).filter_results
    assert (wrong.error_code, len(right.matching_acls)) == (ErrorCode.INVALID_REQUEST, 1)


def test_an_invalid_description_of_rules_is_refused(admin: Wire) -> None:
    asked = DescribeAclsRequest(
        resource_type_filter=ANY, pattern_type_filter=ANY, operation=77, permission_type=ANY
    )
    assert admin.ask(asked).error_code == ErrorCode.INVALID_REQUEST


def test_a_rule_that_denies_wins(broker: SecuredBroker, alice: Wire, made: str) -> None:
    broker.create(
        rule(Operation.DESCRIBE, ResourceType.TOPIC, made[:5], PatternType.PREFIXED),
        rule(Operation.DESCRIBE, ResourceType.TOPIC, made, permission=Permission.DENY),
    )
    (denied,) = alice.ask(MetadataRequest(topics=[MetadataRequestTopic(name=made)])).topics
    assert denied.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.revoke(AclFilter(permission=Permission.DENY))
    (allowed,) = alice.ask(MetadataRequest(topics=[MetadataRequestTopic(name=made)])).topics
    assert allowed.error_code == 0


@pytest.mark.parametrize("version", [4, 12])
def test_a_forbidden_topic_looks_like_a_missing_one_in_metadata(alice: Wire, made: str, version: int) -> None:
    names = [made, "missing"]
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], include_topic_authorized_operations=True
    )
    forbidden, missing = alice.ask(asked, version).topics
    assert forbidden.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert forbidden == msgspec.structs.replace(missing, name=made)


def test_the_id_of_a_forbidden_topic_looks_like_an_unknown_one(
    broker: SecuredBroker, alice: Wire, made: str
) -> None:
    topic_id = broker.broker.topics.image.topic(made).id
    ids = [topic_id, uuid4()]
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=each) for each in ids])
    forbidden, missing = alice.ask(asked).topics
    assert (forbidden.error_code, forbidden.name) == (ErrorCode.UNKNOWN_TOPIC_ID, missing.name)
    for ask in (fetched, produced):
        assert [ask(alice, each) for each in ids] == [ErrorCode.UNKNOWN_TOPIC_ID] * 2
    # A client that may describe the topic knows that it exists, and why it cannot read.
    broker.allow(Operation.DESCRIBE, ResourceType.TOPIC, made)
    assert fetched(alice, topic_id) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_only_permitted_operations_are_returned(broker: SecuredBroker, alice: Wire, made: str) -> None:
    for operation in ON_TOPIC:
        broker.allow(operation, ResourceType.TOPIC, made)
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=made)], include_topic_authorized_operations=True
    )
    (topic,) = alice.ask(asked).topics
    assert topic.topic_authorized_operations == sum(1 << operation for operation in ON_TOPIC)
    asked = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
    assert alice.ask(asked, 10).cluster_authorized_operations == 0


@pytest.mark.skipif(is_compiled(), reason="compiled functions do not call a method that a test replaces")
@pytest.mark.parametrize("by_id", [False, True])
def test_a_right_removed_during_a_fetch_delivers_nothing(
    broker: SecuredBroker,
    alice: Wire,
    admin: Wire,
    made: str,
    by_id: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.allow(Operation.READ, ResourceType.TOPIC, made)
    waits = threading.Event()
    watch = Partition.watch

    def watched(partition: Partition, key: object, wake: Callable[[int], None]) -> None:
        watch(partition, key, wake)
        waits.set()

    monkeypatch.setattr(Partition, "watch", watched)
    key = broker.broker.topics.image.topic(made).id if by_id else made
    version = 17 if by_id else 12
    alice.send(fetching(key, max_wait_ms=60_000), version)
    assert waits.wait(WAIT_S)
    broker.revoke()
    # It is answered at once, without a message that would wake it.
    (part,) = alice.receive(FetchRequest, version).responses[0].partitions
    expected = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (part.error_code, bytes(part.records or b"")) == (expected, b"")


def test_a_fetch_that_begins_between_two_changes_of_rights_is_checked(
    broker: SecuredBroker, alice: Wire, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.allow(Operation.READ, ResourceType.TOPIC, made)
    waiting: queue.SimpleQueue[None] = queue.SimpleQueue()
    watch = Partition.watch

    def watched(partition: Partition, key: object, wake: Callable[[int], None]) -> None:
        watch(partition, key, wake)
        waiting.put(None)

    monkeypatch.setattr(Partition, "watch", watched)
    monkeypatch.setattr(fetch, "RIGHTS_DELAY_SECONDS", 1.0)
    with wired(broker.addresses[ALICE]) as other:
        other.send(fetching(made, max_wait_ms=60_000), 12)
        waiting.get(timeout=WAIT_S)
        broker.allow(Operation.WRITE, ResourceType.TOPIC, made)  # a check is due from now on
        alice.send(fetching(made, max_wait_ms=60_000), 12)
        waiting.get(timeout=WAIT_S)
        broker.revoke()
        for wire in (other, alice):
            (part,) = wire.receive(FetchRequest, 12).responses[0].partitions
            assert part.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_right_removed_during_a_share_fetch_delivers_nothing_and_keeps_the_record(
    broker: SecuredBroker, alice: Wire, admin: Wire, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.allow(Operation.READ, ResourceType.TOPIC, made)
    broker.allow(Operation.READ, ResourceType.GROUP, made)
    waits = threading.Event()
    wait_for_messages = broker.broker.queues.wait_for_messages

    async def waiting(*args: Any) -> None:
        waits.set()
        await wait_for_messages(*args)

    member = Member(alice, made, made).join()
    member.fetch(0)
    monkeypatch.setattr(broker.broker.queues, "wait_for_messages", waiting)
    member.send_fetch(max_wait_ms=60_000)
    assert waits.wait(WAIT_S)
    broker.revoke(AclFilter(resource_type=ResourceType.TOPIC))
    (part,) = member.receive_fetch().responses[0].partitions
    assert (part.error_code, bytes(part.records or b"")) == (ErrorCode.UNKNOWN_TOPIC_ID, b"")
    publish(admin, made, b"secret")
    broker.allow(Operation.READ, ResourceType.TOPIC, made)
    got = member.fetch(max_wait_ms=10_000)[0]
    assert (got.values, got.ranges) == ([b"secret"], [(0, 0, 1)])


def test_the_right_to_the_group_removed_during_a_share_fetch_ends_it(
    broker: SecuredBroker, alice: Wire, admin: Wire, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.allow(Operation.READ, ResourceType.TOPIC, made)
    broker.allow(Operation.READ, ResourceType.GROUP, made)
    member = Member(alice, made, made).join()
    member.fetch(0)
    waits = threading.Event()
    wait_for_messages = broker.broker.queues.wait_for_messages

    async def waiting(*args: Any) -> None:
        waits.set()
        await wait_for_messages(*args)

    monkeypatch.setattr(broker.broker.queues, "wait_for_messages", waiting)
    member.send_fetch(max_wait_ms=60_000)
    assert waits.wait(WAIT_S)
    broker.revoke(AclFilter(resource_type=ResourceType.GROUP))
    response = member.receive_fetch()
    assert response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert not response.responses


def test_rejecting_shared_records_needs_the_right_to_write_dead_letters(
    broker: SecuredBroker, alice: Wire, admin: Wire, made: str
) -> None:
    broker.allow(Operation.READ, ResourceType.TOPIC, made)
    broker.allow(Operation.READ, ResourceType.GROUP, made)
    dead_letters = f"{made}.dlq"
    member = Member(alice, made, made).join()
    member.fetch(0)
    publish(admin, made, b"poison")
    assert member.fetch(max_wait_ms=10_000)[0].offsets == [0]
    rejected = {0: [batch(0, 0, REJECT)]}
    assert member.acknowledge(rejected) == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    broker.allow(Operation.WRITE, ResourceType.TOPIC, dead_letters)
    assert member.acknowledge(rejected) == {0: ErrorCode.NONE}


def test_requests_with_many_partitions_are_refused_topic_by_topic(
    broker: SecuredBroker, alice: Wire, made: str
) -> None:
    """They are served in slices."""
    allowed = f"{made}-allowed"
    broker.call(broker.broker.topics.create(allowed, partitions=1))
    for operation in (Operation.READ, Operation.WRITE):
        broker.allow(operation, ResourceType.TOPIC, allowed)
    many = range(2 * PARTITIONS_AT_ONCE)
    wanted = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1) for index in many]
    topics = [FetchTopic(topic=made, partitions=wanted), FetchTopic(topic=allowed, partitions=wanted[:1])]
    response = alice.ask(FetchRequest(max_bytes=1 << 20, topics=topics), 12)
    refused, served = [{part.error_code for part in topic.partitions} for topic in response.responses]
    assert (refused, served) == ({ErrorCode.TOPIC_AUTHORIZATION_FAILED}, {0})
    batch = bytes(write_batch([Record(0, 0, b"k", b"v" * 100_000)]))
    data = [PartitionProduceData(index=index, records=batch) for index in range(50)]
    assert sum(len(each.records or b"") for each in data) > BYTES_AT_ONCE
    named = [
        TopicProduceData(name=made, partition_data=data),
        TopicProduceData(name=allowed, partition_data=data[:1]),
    ]
    response = alice.ask(ProduceRequest(acks=1, timeout_ms=5000, topic_data=named), 9)
    refused, served = [
        {part.error_code for part in topic.partition_responses} for topic in response.responses
    ]
    assert (refused, served) == ({ErrorCode.TOPIC_AUTHORIZATION_FAILED}, {0})


def test_a_pattern_assigns_only_topics_that_the_member_may_describe(
    broker: SecuredBroker, alice: Wire, made: str
) -> None:
    allowed = f"{made}-allowed"
    broker.call(broker.broker.topics.create(allowed, partitions=1))
    broker.allow(Operation.DESCRIBE, ResourceType.TOPIC, allowed)
    broker.allow(Operation.READ, ResourceType.GROUP, made)
    request = ConsumerGroupHeartbeatRequest(
        group_id=made,
        member_id="me",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[],
        subscribed_topic_regex=f"{made}.*",
        topic_partitions=[],
    )
    found: set[UUID] = set()

    def is_assigned() -> bool:
        answer = alice.ask(request)
        assert answer.error_code == 0, answer.error_message
        if answer.assignment is not None:
            found.update(each.topic_id for each in answer.assignment.topic_partitions)
        return bool(found)

    assert eventually(is_assigned)
    assert found == {broker.broker.topics.image.topic(allowed).id}


def test_without_rules_producing_and_fetching_ask_for_no_decision(
    tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(*_: Any) -> bool:
        raise AssertionError("a decision without rules")

    with secured_broker(tmp_path, acls=False) as broker, wired(broker.addresses[ALICE]) as wire:
        topic_id = broker.call(broker.broker.topics.create(topic, partitions=1)).id
        monkeypatch.setattr(broker.broker.access, "may", decide)
        assert (produced(wire, topic_id), fetched(wire, topic_id)) == (0, 0)


def test_a_decision_is_kept_until_rights_change(
    broker: SecuredBroker, alice: Wire, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = broker.broker.topics.image.topic(made).id
    access = broker.broker.access
    asked: list[Operation] = []

    def may(caller: Caller, operation: Operation, kind: ResourceType, name: str) -> bool:
        asked.append(operation)
        return access.sees(caller, operation, kind, name)

    monkeypatch.setattr(access, "may", may)
    broker.allow(Operation.READ, ResourceType.TOPIC, made)
    broker.allow(Operation.WRITE, ResourceType.TOPIC, made)
    for _ in range(3):
        assert (produced(alice, topic_id), fetched(alice, topic_id)) == (0, 0)
    assert asked == [Operation.WRITE, Operation.READ]
    broker.revoke(AclFilter(operation=Operation.WRITE))
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (produced(alice, topic_id), fetched(alice, topic_id)) == (denied, 0)
    broker.revoke()
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert (produced(alice, topic_id), fetched(alice, topic_id)) == (unknown, unknown)


class AuditOfWrites:
    """Counts decisions about writing."""

    def __init__(self) -> None:
        self.decisions = 0

    def records_allowed(self, operation: Operation) -> bool:
        return operation is Operation.WRITE

    def decided(self, _caller: Caller, operation: Operation, *_: Any, allowed: bool) -> None:
        self.decisions += allowed and operation is Operation.WRITE


def test_every_write_is_recorded_if_writes_are_audited(
    broker: SecuredBroker, alice: Wire, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.allow(Operation.WRITE, ResourceType.TOPIC, made)
    audit = AuditOfWrites()
    monkeypatch.setattr(broker.broker.access, "audit", audit)
    topic_id = broker.broker.topics.image.topic(made).id
    assert [produced(alice, topic_id) for _ in range(3)] == [0, 0, 0]
    assert audit.decisions == 3
    monkeypatch.undo()  # before the rule is removed


def test_a_kept_decision_is_about_one_client_and_one_way_to_name_topics(
    broker: SecuredBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic[:16].ljust(16, "-")  # as long as an id
    made = broker.call(broker.broker.topics.create(name, partitions=1))
    broker.allow(Operation.READ, ResourceType.TOPIC, name)
    key = name.encode()
    allowed = AllowedTopics(broker.broker.access, broker.broker.topics, Operation.READ)
    alice, bob = Caller(user(ALICE), "127.0.0.1"), Caller(user("bob"), "127.0.0.1")
    assert allowed.refusal(alice, key, by_id=False) is None
    assert isinstance(allowed.refusal(alice, key, by_id=True), UnknownTopicId)
    assert allowed.refusal(alice, made.id.bytes, by_id=True) is None
    assert isinstance(allowed.refusal(bob, made.id.bytes, by_id=True), UnknownTopicId)
    monkeypatch.setattr("alpacamq.api.kafka.operations.MAX_ALLOWED_TOPICS", 1)
    broker.allow(Operation.READ, ResourceType.TOPIC, "*")
    for asked in (b"a", b"b", b"a"):
        assert allowed.refusal(alice, asked, by_id=False) is None
    assert len(allowed.keys) == 1


def test_a_name_in_place_of_an_id_gets_round_no_rule(broker: SecuredBroker, admin: Wire, alice: Wire) -> None:
    name = "sixteen-letters-"
    topic_id = broker.call(broker.broker.topics.create(name, partitions=1)).id
    publish(admin, name, b"secret")
    forged = UUID(bytes=name.encode())
    assert (fetched(alice, forged), produced(alice, forged)) == (ErrorCode.UNKNOWN_TOPIC_ID,) * 2
    broker.allow(Operation.READ, ResourceType.TOPIC, name)
    assert fetched(alice, topic_id) == 0


def test_an_id_in_place_of_a_name_gets_round_no_rule(
    broker: SecuredBroker, admin: Wire, alice: Wire, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few ids are text, and could be sent as names."""
    topic_id = UUID(bytes=b"abcdefA\xc2\xa1abcdefg")
    monkeypatch.setattr("alpacamq.broker.topics.uuid4", lambda: topic_id)
    broker.call(broker.broker.topics.create(topic, partitions=1))
    broker.allow(Operation.READ, ResourceType.TOPIC, "*")
    broker.create(rule(Operation.READ, ResourceType.TOPIC, topic, permission=Permission.DENY))
    publish(admin, topic, b"secret")
    (part,) = alice.ask(fetching(topic_id.bytes.decode()), 12).responses[0].partitions
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not part.records
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
    named = ListOffsetsTopic(name=topic_id.bytes.decode(), partitions=[wanted])
    (listed,) = alice.ask(ListOffsetsRequest(topics=[named])).topics[0].partitions
    assert listed.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def fetching(key: UUID | str, max_wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = (
        FetchTopic(topic_id=key, partitions=[wanted])
        if isinstance(key, UUID)
        else FetchTopic(topic=key, partitions=[wanted])
    )
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[topic])


def fetched(wire: Wire, topic_id: UUID) -> int:
    """Return the error of a fetch by id."""
    code: int = wire.ask(fetching(topic_id)).responses[0].partitions[0].error_code
    return code


def produced(wire: Wire, topic_id: UUID) -> int:
    """Return the error of a batch for a topic by id."""
    data = PartitionProduceData(index=0, records=bytes(write_batch([Record(0, 0, b"k", b"v")])))
    request = ProduceRequest(
        acks=1, timeout_ms=5000, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[data])]
    )
    code: int = wire.ask(request).responses[0].partition_responses[0].error_code
    return code
