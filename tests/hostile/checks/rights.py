"""Checks 24 to 33: what clients may not do, names that are none, and rights that are withdrawn."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

from alpacamq.model.batch import CONTROL
from alpacamq.model.records import Record, write_batch
from alpacamq.model.topics import INTERNAL_TOPICS
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.acls import DeleteAclsFilter, DeleteAclsRequest
from alpacamq.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from alpacamq.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from alpacamq.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from alpacamq.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TransactionTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from alpacamq.security.acls import Operation, PatternType, ResourceType
from tests.api.http.serving import Answer, Client
from tests.api.kafka.share_member import Member
from tests.hostile.target import ADMIN, CLOSED, GROUP, MALLORY, MIB, OPEN, Target, http_request

from . import Check
from .wire import create, produced

_TOPIC_KIND = 2
OWN_ID = "the-transactional-id-of-another"
OFFSETS = "__consumer_offsets"


def name_of(code: int) -> str:
    return ErrorCode(code).name


# 24: replicas.


def _as_replica(version: int, request: FetchRequest) -> Callable[[Target], str]:
    def attack(target: Target) -> str:
        with target.kafka(MALLORY) as wire:
            return name_of(wire.ask(request, version).error_code)

    return attack


def _offsets_as_replica(target: Target) -> str:
    """Ask for the end of the log of a topic as one of its followers."""
    wanted = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
    with target.kafka(MALLORY) as wire:
        response = wire.ask(
            ListOffsetsRequest(replica_id=1, topics=[ListOffsetsTopic(name=CLOSED, partitions=wanted)])
        )
    return name_of(response.topics[0].partitions[0].error_code)


# 25: control batches and markers.


def _control_batch(target: Target) -> str:
    batch = write_batch(
        [Record(0, 0, b"\0\0\0\1", b"\0\0\0\0\0\0")],
        attributes=CONTROL | 0x10,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
    )
    return produced(target, OPEN, bytes(batch))


def _marker(target: Target) -> str:
    marker = WritableTxnMarker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name=OPEN, partition_indexes=[0])],
        coordinator_epoch=0,
    )
    with target.kafka(MALLORY) as wire:
        response = wire.ask(WriteTxnMarkersRequest(markers=[marker]))
    return name_of(response.markers[0].topics[0].partitions[0].error_code)


# 26: internal topics, as the administrator.


def _have_offsets(target: Target) -> None:
    """Commit an offset, so that the topic of offsets exists."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = OffsetCommitRequestTopic(name=OPEN, partitions=[partition])
    with target.kafka(ADMIN) as wire:
        response = wire.ask(OffsetCommitRequest(group_id=ADMIN, topics=[topic]), 7)
    assert response.topics[0].partitions[0].error_code == 0, response


def _write_internal(target: Target) -> str:
    """Write to every internal topic, over every API."""
    _have_offsets(target)
    names = sorted(INTERNAL_TOPICS)
    batch = bytes(write_batch([Record(0, 0, b"k", b"v")]))
    answers = set()
    with target.kafka(ADMIN) as wire:
        for name in names:
            data = [PartitionProduceData(index=0, records=batch)]
            topic = TopicProduceData(name=name, partition_data=data)
            response = wire.ask(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
            code = response.responses[0].partition_responses[0].error_code
            assert code, name
            if name == OFFSETS:
                answers.add(name_of(code))
    for name in names:
        path = f"/topics/{name}/messages"
        answers.add(str(target.ask_http("POST", path, b'{"value": 1}', target.bearer(ADMIN)).status))
        sent = target.ask_sqs(target.signed("SendMessage", target.message(name), ADMIN))
        answers.add(sent.json["__type"].rpartition("#")[2])
    return ", ".join(sorted(answers))


def _destroy_internal(target: Target) -> str:
    """Delete an internal topic and its records, and add partitions to it."""
    _have_offsets(target)
    answers: dict[str, int] = {}
    with target.kafka(ADMIN) as wire:
        deleted = wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=OFFSETS)], timeout_ms=1000))
        answers["DeleteTopics"] = deleted.responses[0].error_code
        records = DeleteRecordsTopic(
            name=OFFSETS, partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)]
        )
        response = wire.ask(DeleteRecordsRequest(topics=[records], timeout_ms=1000))
        answers["DeleteRecords"] = response.topics[0].partitions[0].error_code
        grown = wire.ask(
            CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=OFFSETS, count=100)], timeout_ms=1000)
        )
        answers["CreatePartitions"] = grown.results[0].error_code
    assert all(answers.values()), answers
    headers = target.bearer(ADMIN)
    http = target.ask_http("DELETE", f"/topics/{OFFSETS}", headers=headers).status
    body = json.dumps({"QueueUrl": target.queue_url(OFFSETS)}).encode()
    for action in ("DeleteQueue", "PurgeQueue"):
        assert target.ask_sqs(target.signed(action, body, ADMIN)).status == 400, action
    return ", ".join(sorted({name_of(code) for code in answers.values()})) + f", {http}"


# 27: transactional ids of others.


def _foreign_transaction(target: Target) -> str:
    answers = set()
    with target.kafka(MALLORY) as wire:
        answers.add(
            wire.ask(
                InitProducerIdRequest(transactional_id=OWN_ID, transaction_timeout_ms=1000), 4
            ).error_code
        )
        answers.add(
            wire.ask(
                EndTxnRequest(transactional_id=OWN_ID, producer_id=1, producer_epoch=0, committed=True), 3
            ).error_code
        )
        answers.add(
            wire.ask(
                AddOffsetsToTxnRequest(
                    transactional_id=OWN_ID, producer_id=1, producer_epoch=0, group_id=GROUP
                ),
                3,
            ).error_code
        )
        added = wire.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=OWN_ID,
                v3_and_below_producer_id=1,
                v3_and_below_topics=[TransactionTopic(name=OPEN, partitions=[0])],
            ),
            3,
        )
        answers.add(added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
    for path in ("/producers/init", "/transactions/begin"):
        body = json.dumps({"transactional_id": OWN_ID}).encode()
        answer = target.ask_http("POST", path, body, target.bearer(MALLORY))
        assert answer.status in {400, 403}, answer
    return ", ".join(sorted(map(name_of, answers)))


# 28 to 30: topics, offsets and settings of others, and names.


def topic_id(target: Target, topic: str) -> UUID:
    with target.kafka(ADMIN) as wire:
        found = wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics[0].topic_id
    assert isinstance(found, UUID)
    return found


def _fetch_by_id(target: Target) -> str:
    """Fetch a topic by its id, and one that does not exist."""
    answers = []
    for wanted in (topic_id(target, CLOSED), uuid4()):
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)
        request = FetchRequest(topics=[FetchTopic(topic_id=wanted, partitions=[partition])])
        with target.kafka(MALLORY) as wire:
            response = wire.ask(request, 13)
        answers.append(name_of(response.responses[0].partitions[0].error_code))
    return " as ".join(answers)


def _offsets_of_others(target: Target) -> str:
    answers = []
    for group in ("group-of-another", "no-such-group"):
        topics = [OffsetFetchRequestTopics(name=CLOSED, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
        with target.kafka(MALLORY) as wire:
            answers.append(name_of(wire.ask(request, 9).groups[0].error_code))
        http = target.ask_http("GET", f"/groups/{group}/offsets", headers=target.bearer(MALLORY))
        assert http.status == 403, http
    return " as ".join(answers)


def _configs_of_others(target: Target) -> str:
    answers = []
    for topic in (CLOSED, "no-such-topic"):
        resource = DescribeConfigsResource(resource_type=_TOPIC_KIND, resource_name=topic)
        with target.kafka(MALLORY) as wire:
            response = wire.ask(DescribeConfigsRequest(resources=[resource]))
        answers.append(name_of(response.results[0].error_code))
        http = target.ask_http("GET", f"/topics/{topic}", headers=target.bearer(MALLORY))
        assert http.status == 403, http
    return " as ".join(answers)


BAD_NAMES = ("../x", "..", ".", "%2e%2e", "a\0b", "x" * 250, "t2/orders", "a b", "<script>", "")


def _names(target: Target) -> str:
    """Create topics of names that are none, over every API."""
    before = {path.name for path in target.broker.data_dir.parent.rglob("*")}
    codes, statuses = set(), set()
    with target.kafka(ADMIN) as wire:
        for name in BAD_NAMES:
            new = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            codes.add(name_of(wire.ask(CreateTopicsRequest(topics=[new])).topics[0].error_code))
    for name in BAD_NAMES:
        body = json.dumps({"name": name}).encode()
        statuses.add(target.ask_http("POST", "/topics", body, target.bearer(ADMIN)).status)
        body = json.dumps({"QueueName": name}).encode()
        statuses.add(target.ask_sqs(target.signed("CreateQueue", body, ADMIN)).status)
    after = {path.name for path in target.broker.data_dir.parent.rglob("*")}
    assert not {name for name in after - before if "script" in name or ".." in name}
    return f"{', '.join(sorted(codes))}, {', '.join(map(str, statuses))}"


def _paths(target: Target) -> str:
    """Read files through the paths of the HTTP API and of the console."""
    statuses = set()
    for path in (
        "/topics/..%2f..%2fetc%2fpasswd/messages",
        "/topics/%2e%2e/messages",
        "/topics/a%00b/messages",
        "/console/../../../etc/passwd",
        "/console/%2e%2e/%2e%2e/app.py",
        "/console/..%2f..%2fapp.py",
        "/console/pages/../../app.py",
        "/groups/..%2f/offsets",
        "/topics/%ff/messages",
    ):
        statuses.add(target.ask_http("GET", path, headers=target.bearer(MALLORY)).status)
    assert statuses <= {400, 403, 404}, statuses
    return "400, 403 or 404"


def _colliding(target: Target) -> str:
    create(target, f"{OPEN}.a.b")
    new = CreatableTopic(name=f"{OPEN}_a.b", num_partitions=1, replication_factor=1)
    with target.kafka(MALLORY) as wire:
        return name_of(wire.ask(CreateTopicsRequest(topics=[new])).topics[0].error_code)


# 31 to 33: rights that are withdrawn while a client waits.


@contextmanager
def granted(target: Target, topic: str) -> Iterator[Callable[[], None]]:
    """Let Mallory read a closed topic for a while; yields what withdraws the right."""
    create(target, topic)
    target.allow((MALLORY, Operation.READ, ResourceType.TOPIC, topic))

    def withdraw() -> None:
        wanted = DeleteAclsFilter(
            resource_type_filter=ResourceType.TOPIC,
            resource_name_filter=topic,
            pattern_type_filter=PatternType.LITERAL,
            principal_filter=None,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=1,
        )
        with target.kafka(ADMIN) as wire:
            assert len(wire.ask(DeleteAclsRequest(filters=[wanted])).filter_results[0].matching_acls) == 1

    yield withdraw


def publish(target: Target, topic: str) -> None:
    """Publish a message that Mallory must not see."""
    answer = target.ask_http(
        "POST", f"/topics/{topic}/messages", b'{"value": "secret"}', target.bearer(ADMIN)
    )
    assert answer.status in {200, 201}, answer


def _long_poll(target: Target) -> str:
    """Fetch with Kafka's protocol, and wait."""
    topic = f"{CLOSED}-long-poll"
    with granted(target, topic) as withdraw, target.kafka(MALLORY) as wire:
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)
        request = FetchRequest(
            max_wait_ms=20_000, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[partition])]
        )
        wire.send(request, 12)
        waiting(target)
        withdraw()
        publish(target, topic)
        (answer,) = wire.receive(FetchRequest, 12).responses[0].partitions
    assert not answer.records
    return name_of(answer.error_code)


def waiting(target: Target) -> None:
    """Have the broker answer another request first, so that the one before is under way."""
    for _ in range(3):
        target.ask_http("GET", "/readyz")


def _share_session(target: Target) -> str:
    """Acquire records in a share session, with rights that are withdrawn meanwhile."""
    topic = f"{CLOSED}-share"
    with granted(target, topic) as withdraw, target.kafka(MALLORY) as wire:
        member = Member(wire, topic, f"{GROUP}-share").join()
        member.fetch(0)
        withdraw()
        publish(target, topic)
        got = member.fetch(max_wait_ms=500)[0]
    assert not got.records
    assert not got.ranges
    return name_of(got.error)


def _http_poll(path: str) -> Callable[[Target], str]:
    """Wait for messages over HTTP, with rights that are withdrawn meanwhile."""

    def attack(target: Target) -> str:
        topic = f"{CLOSED}-http-{len(path)}"
        with granted(target, topic) as withdraw, Client(target.http) as client:
            client.send(http_request("GET", path.format(topic=topic), b"", target.bearer(MALLORY)))
            waiting(target)
            withdraw()
            publish(target, topic)
            answer = client.answer()
        return _without_secret(answer)

    return attack


def _without_secret(answer: Answer) -> str:
    assert b"secret" not in answer.body, answer
    return str(answer.status)


def _sqs_poll(target: Target) -> str:
    topic = f"{CLOSED}-sqs"
    with granted(target, topic) as withdraw, Client(target.sqs) as client:
        body = json.dumps({"QueueUrl": target.queue_url(topic), "WaitTimeSeconds": 20}).encode()
        client.send(target.signed("ReceiveMessage", body, MALLORY))
        waiting(target)
        withdraw()
        publish(target, topic)
        answer = client.answer()
    _without_secret(answer)
    return str(answer.json["__type"].rpartition("#")[2])


CHECKS = [
    Check(24, "a Fetch with a replica id", "INVALID_REQUEST", _as_replica(12, FetchRequest(replica_id=1))),
    Check(
        24,
        "a Fetch with the state of a replica",
        "INVALID_REQUEST",
        _as_replica(17, FetchRequest(replica_state=ReplicaState(replica_id=1, replica_epoch=5))),
    ),
    Check(24, "ListOffsets with a replica id", "TOPIC_AUTHORIZATION_FAILED", _offsets_as_replica),
    Check(25, "a control batch of a client", "INVALID_RECORD", _control_batch),
    Check(25, "a transaction marker of a client", "CLUSTER_AUTHORIZATION_FAILED", _marker),
    Check(
        26,
        "a record for each internal topic, as administrator",
        "422, INVALID_TOPIC_EXCEPTION, QueueDoesNotExist",
        _write_internal,
    ),
    Check(
        26,
        "deleting and growing an internal topic, as administrator",
        "POLICY_VIOLATION, 403",
        _destroy_internal,
    ),
    Check(27, "a transactional id of another", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _foreign_transaction),
    Check(28, "a Fetch by topic id without the right", "UNKNOWN_TOPIC_ID as UNKNOWN_TOPIC_ID", _fetch_by_id),
    Check(
        29,
        "offsets of a group of another",
        "GROUP_AUTHORIZATION_FAILED as GROUP_AUTHORIZATION_FAILED",
        _offsets_of_others,
    ),
    Check(
        29,
        "settings of a topic of another",
        "TOPIC_AUTHORIZATION_FAILED as TOPIC_AUTHORIZATION_FAILED",
        _configs_of_others,
    ),
    Check(
        30,
        "topic names `../x`, `%2e%2e`, NUL, 250 characters, `t2/orders`",
        "INVALID_TOPIC_EXCEPTION, 400, 422",
        _names,
    ),
    Check(30, "`../`, `%2e%2e` and NUL in paths", "400, 403 or 404", _paths),
    Check(30, "topic `open_a.b` beside `open.a.b`", "INVALID_TOPIC_EXCEPTION", _colliding),
    Check(31, "a right withdrawn during a Fetch that waits", "TOPIC_AUTHORIZATION_FAILED", _long_poll),
    Check(
        31,
        "a right withdrawn during a read that waits, HTTP",
        "403",
        _http_poll("/topics/{topic}/messages?wait_ms=20000"),
    ),
    Check(32, "a right withdrawn during a share session", "UNKNOWN_TOPIC_ID", _share_session),
    Check(
        33,
        "a right withdrawn during a receive that waits, HTTP",
        "403",
        _http_poll("/groups/mallory-group/poll?topic={topic}&wait_ms=20000"),
    ),
    Check(33, "a right withdrawn during a receive that waits, SQS", "AccessDeniedException", _sqs_poll),
]
