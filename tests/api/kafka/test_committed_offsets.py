"""Committed offsets at the Kafka API: what each version of a request is answered."""

from typing import Any
from uuid import UUID

import pytest

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

from .test_groups import consumer_heartbeat
from .wire import Wire, versions


def id_of(wire: Wire, topic: str) -> UUID:
    (found,) = wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
    topic_id: UUID = found.topic_id
    return topic_id


def commit(wire: Wire, group: str, topic: str, offset: int, *, version: int = 9, **more: Any) -> int:
    """Commit for partition 0; the error."""
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="note"
    )
    named = OffsetCommitRequestTopic(
        name=topic, topic_id=id_of(wire, topic) if version >= 10 else UUID(int=0), partitions=[partition]
    )
    response = wire.ask(OffsetCommitRequest(group_id=group, topics=[named], **more), version)
    ((result,),) = [each.partitions for each in response.topics]
    code: int = result.error_code
    return code


def fetch(wire: Wire, group: str, topic: str, *, version: int = 9) -> tuple[int, str | None, int]:
    """The offset of partition 0, what was noted with it, and the error."""
    if version < 8:
        named = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        topics = wire.ask(OffsetFetchRequest(group_id=group, topics=named), version).topics
    else:
        topic_id = id_of(wire, topic) if version >= 10 else UUID(int=0)
        wanted = [OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0])]
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)])
        ((found),) = wire.ask(asked, version).groups
        topics = found.topics
    ((result,),) = [each.partitions for each in topics]
    return result.committed_offset, result.metadata, result.error_code


@pytest.mark.parametrize("version", versions(OffsetCommitRequest))
def test_an_offset_is_committed_in_every_version(wire: Wire, made: str, version: int) -> None:
    assert commit(wire, made, made, 7, version=version) == 0

    assert fetch(wire, made, made) == (7, "note", 0)


@pytest.mark.parametrize("offset", [-1, -2, -(2**63)])
def test_a_negative_offset_is_committed_as_it_is(wire: Wire, made: str, offset: int) -> None:
    """kafkajs resets a group with -1 and -2; refused, it waits for ever."""
    commit(wire, made, made, 7)

    assert commit(wire, made, made, offset) == 0

    assert fetch(wire, made, made) == (offset, "note", 0)


def test_commits_sent_together_are_answered_in_order_and_the_last_one_counts(wire: Wire, made: str) -> None:
    version = 9
    commit(wire, made, made, 0)
    requests = []
    for offset in range(1, 50):
        # Every seventh names a partition that does not exist.
        partition = OffsetCommitRequestPartition(
            partition_index=0 if offset % 7 else 9_999, committed_offset=offset
        )
        topic = OffsetCommitRequestTopic(name=made, partitions=[partition])
        requests.append(OffsetCommitRequest(group_id=made, topics=[topic]))
    for request in requests:
        wire.send(request, version)
    results = [
        result
        for _ in requests
        for topic in wire.receive(OffsetCommitRequest, version).topics
        for result in topic.partitions
    ]

    assert [(result.partition_index, result.error_code) for result in results] == [
        (0, 0) if offset % 7 else (9_999, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for offset in range(1, 50)
    ]
    assert fetch(wire, made, made) == (48, "", 0)


@pytest.mark.parametrize("version", versions(OffsetFetchRequest))
def test_an_offset_is_fetched_in_every_version(wire: Wire, made: str, version: int) -> None:
    assert fetch(wire, made, made, version=version) == (-1, "", 0)

    commit(wire, made, made, 7)

    assert fetch(wire, made, made, version=version) == (7, "note", 0)


@pytest.mark.parametrize("version", [2, 7, 8, 9, 10])
def test_all_offsets_are_fetched_when_no_topics_are_named(wire: Wire, made: str, version: int) -> None:
    commit(wire, made, made, 7)

    if version < 8:
        topics = wire.ask(OffsetFetchRequest(group_id=made, topics=None), version).topics
    else:
        group = OffsetFetchRequestGroup(group_id=made, topics=None)
        topics = wire.ask(OffsetFetchRequest(groups=[group]), version).groups[0].topics

    ((only,),) = [each.partitions for each in topics]
    assert (only.partition_index, only.committed_offset) == (0, 7)
    if version >= 10:
        assert topics[0].topic_id == id_of(wire, made)
    else:
        assert topics[0].name == made


@pytest.mark.parametrize("version", versions(OffsetCommitRequest))
def test_a_group_needs_a_name_to_commit(wire: Wire, made: str, version: int) -> None:
    assert commit(wire, "", made, 7, version=version) == ErrorCode.INVALID_GROUP_ID


def test_unknown_partitions_have_no_offsets(wire: Wire, made: str) -> None:
    def partitions(*indexes: int) -> list[OffsetCommitRequestPartition]:
        return [OffsetCommitRequestPartition(partition_index=each, committed_offset=3) for each in indexes]

    response = wire.ask(
        OffsetCommitRequest(
            group_id=made,
            topics=[
                OffsetCommitRequestTopic(name="no-such-topic", partitions=partitions(0)),
                OffsetCommitRequestTopic(name=made, partitions=partitions(99, 0, -1)),
            ],
        ),
        9,
    )

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = [[each.error_code for each in topic.partitions] for topic in response.topics]
    assert codes == [[unknown], [unknown, 0, unknown]]
    assert fetch(wire, made, made) == (3, "", 0)


def test_an_unknown_topic_id_has_an_error_of_its_own(wire: Wire, made: str) -> None:
    nowhere = UUID(int=12345)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    committing = OffsetCommitRequestTopic(topic_id=nowhere, partitions=[partition])
    (topic,) = wire.ask(OffsetCommitRequest(group_id=made, topics=[committing]), 10).topics
    assert [each.error_code for each in topic.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID]

    fetching = OffsetFetchRequestTopics(topic_id=nowhere, partition_indexes=[0, 1])
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=made, topics=[fetching])])
    (group,) = wire.ask(asked, 10).groups
    assert group.error_code == 0
    assert [each.error_code for each in group.topics[0].partitions] == [ErrorCode.UNKNOWN_TOPIC_ID] * 2


def test_each_group_of_a_fetch_has_its_own_error(wire: Wire, made: str) -> None:
    good, bad = f"{made}-good", f"{made}-bad"
    commit(wire, good, made, 7)
    assert wire.ask(consumer_heartbeat(bad, made)).error_code == 0

    wanted = [OffsetFetchRequestTopics(name=made, partition_indexes=[0])]
    groups = [
        OffsetFetchRequestGroup(group_id=bad, member_id="me", member_epoch=99, topics=wanted),
        OffsetFetchRequestGroup(group_id=good, topics=wanted),
    ]
    first, second = wire.ask(OffsetFetchRequest(groups=groups), 9).groups

    assert (first.group_id, first.error_code, first.topics) == (bad, ErrorCode.STALE_MEMBER_EPOCH, [])
    assert (second.group_id, second.error_code) == (good, 0)
    assert [each.committed_offset for each in second.topics[0].partitions] == [7]


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.UNSUPPORTED_VERSION), (9, ErrorCode.STALE_MEMBER_EPOCH)]
)
def test_a_consumer_that_is_behind_may_not_commit(
    wire: Wire, made: str, version: int, code: ErrorCode
) -> None:
    epoch = wire.ask(consumer_heartbeat(made, made)).member_epoch

    def commit_at(epoch: int) -> int:
        return commit(
            wire, made, made, 1, version=version, member_id="me", generation_id_or_member_epoch=epoch
        )

    assert commit_at(epoch) == 0
    assert commit_at(epoch + 1) == code


def test_offsets_are_deleted_where_there_are_any(wire: Wire, made: str) -> None:
    commit(wire, made, made, 7)
    topics = [
        OffsetDeleteRequestTopic(
            name=made, partitions=[OffsetDeleteRequestPartition(partition_index=each) for each in (0, 99)]
        )
    ]

    response = wire.ask(OffsetDeleteRequest(group_id=made, topics=topics))

    assert response.error_code == 0
    assert [each.error_code for each in response.topics[0].partitions] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert fetch(wire, made, made) == (-1, "", 0)


@pytest.mark.parametrize(
    ("group", "code"), [("", ErrorCode.INVALID_GROUP_ID), ("no such group", ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_group_that_is_not_there_has_no_offsets_to_delete(wire: Wire, group: str, code: ErrorCode) -> None:
    assert wire.ask(OffsetDeleteRequest(group_id=group)).error_code == code
