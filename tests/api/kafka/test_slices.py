"""Handlers stop for every entry that a client names, and what they leave behind is freed in slices."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.handlers import (
    committed_offsets,
    configs,
    groups,
    metadata,
    offsets,
    topics,
    transactions,
)
from alpacamq.api.kafka.requests import FREED_AT_ONCE, _freed, error_codes
from alpacamq.broker.access import ANONYMOUS_CALLER
from alpacamq.protocol.messages import cluster as cluster_wire
from alpacamq.protocol.messages import committed_offsets as committed_wire
from alpacamq.protocol.messages import configs as config_wire
from alpacamq.protocol.messages import groups as group_wire
from alpacamq.protocol.messages import offsets as offset_wire
from alpacamq.protocol.messages import topics as topic_wire
from alpacamq.protocol.messages import transactions as txn_wire
from alpacamq.protocol.notation import Message
from tests.broker.open_brokers import running

ENTRIES = 200
NAMES = [f"t{number}" for number in range(ENTRIES)]


class Stops:
    """Counts the stops of a handler."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1


@pytest.mark.parametrize(
    ("handler", "request_", "version"),
    [
        pytest.param(
            offsets.list_offsets,
            offset_wire.ListOffsetsRequest(
                topics=[offset_wire.ListOffsetsTopic(name=name, partitions=[]) for name in NAMES]
            ),
            7,
            id="ListOffsets",
        ),
        pytest.param(
            offsets.offset_for_leader_epoch,
            offset_wire.OffsetForLeaderEpochRequest(
                topics=[offset_wire.OffsetForLeaderTopic(topic=name, partitions=[]) for name in NAMES]
            ),
            3,
            id="OffsetForLeaderEpoch",
        ),
        pytest.param(
            offsets.delete_records,
            topic_wire.DeleteRecordsRequest(
                topics=[topic_wire.DeleteRecordsTopic(name=name, partitions=[]) for name in NAMES]
            ),
            2,
            id="DeleteRecords",
        ),
        pytest.param(
            committed_offsets.offset_commit,
            committed_wire.OffsetCommitRequest(
                group_id="g", topics=[committed_wire.OffsetCommitRequestTopic(name=name) for name in NAMES]
            ),
            8,
            id="OffsetCommit",
        ),
        pytest.param(
            committed_offsets.offset_fetch,
            committed_wire.OffsetFetchRequest(
                group_id="g", topics=[committed_wire.OffsetFetchRequestTopic(name=name) for name in NAMES]
            ),
            7,
            id="OffsetFetch",
        ),
        pytest.param(
            committed_offsets.offset_delete,
            committed_wire.OffsetDeleteRequest(
                group_id="g",
                topics=[committed_wire.OffsetDeleteRequestTopic(name=name, partitions=[]) for name in NAMES],
            ),
            0,
            id="OffsetDelete",
        ),
        pytest.param(
            transactions.describe_producers,
            txn_wire.DescribeProducersRequest(
                topics=[txn_wire.DescribeProducersTopic(name=name, partition_indexes=[]) for name in NAMES]
            ),
            0,
            id="DescribeProducers",
        ),
        pytest.param(
            metadata.describe_log_dirs,
            cluster_wire.DescribeLogDirsRequest(
                topics=[cluster_wire.DescribableLogDirTopic(topic=name, partitions=[]) for name in NAMES]
            ),
            4,
            id="DescribeLogDirs",
        ),
        pytest.param(
            groups.describe_groups,
            group_wire.DescribeGroupsRequest(groups=["one group"] * ENTRIES),
            5,
            id="DescribeGroups, one again and again",
        ),
    ],
)
async def test_a_handler_stops_for_every_entry(
    handler: Any, request_: Message, version: int, tmp_path: Path
) -> None:
    stops = Stops()
    async with running(tmp_path) as broker:
        await handler(
            Backend(broker=broker, host="h", port=1), request_, Call(version, "c", ANONYMOUS_CALLER, stops)
        )
    assert stops.count >= ENTRIES


@pytest.mark.parametrize(
    ("handler", "request_", "text"),
    [
        pytest.param(
            configs.alter_configs,
            config_wire.AlterConfigsRequest(
                resources=[
                    config_wire.AlterConfigsResource(
                        resource_type=2,
                        resource_name="t",
                        configs=[config_wire.AlterableConfig(name=f"c{n}", value="1") for n in range(1001)],
                    )
                ]
            ),
            "1000 settings",
            id="settings",
        ),
        pytest.param(
            topics.create_topics,
            topic_wire.CreateTopicsRequest(
                topics=[
                    topic_wire.CreatableTopic(
                        name="t",
                        num_partitions=-1,
                        replication_factor=-1,
                        assignments=[topic_wire.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])]
                        * 20_000,
                    )
                ]
            ),
            "limit of this cluster is 10000",
            id="assignments",
        ),
    ],
)
async def test_more_than_there_can_be_is_refused(
    handler: Any, request_: Message, text: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as broker:
        answer = await handler(
            Backend(broker=broker, host="h", port=1), request_, Call(1, "c", ANONYMOUS_CALLER, Stops())
        )
    (result,) = answer.responses if hasattr(answer, "responses") else answer.topics
    assert text in result.error_message


async def test_entries_are_named_once_in_their_order() -> None:
    call = Call(0, "c", ANONYMOUS_CALLER, stops := Stops())
    assert list(await call.each_once(["b", "a", "b"], str)) == ["b", "a"]
    assert stops.count == 3


def test_messages_are_freed_in_slices_and_stay_whole_for_others() -> None:
    partitions = [offset_wire.ListOffsetsPartition(partition_index=0, timestamp=-1) for _ in range(500)]
    topic = offset_wire.ListOffsetsTopic(name="t", partitions=partitions)
    request = offset_wire.ListOffsetsRequest(topics=[topic] * 2)
    used: deque[object] = deque((request,))
    stops = sum(1 for _ in _freed(used))
    assert stops >= 2 * len(partitions) // FREED_AT_ONCE
    assert not used
    assert len(request.topics[1].partitions) == 500


def test_errors_are_counted_with_a_stop_for_every_part() -> None:
    parts = [offset_wire.ListOffsetsTopicResponse(name=name, partitions=[]) for name in NAMES]
    codes = list(error_codes(offset_wire.ListOffsetsResponse(topics=parts)))
    assert len(codes) >= ENTRIES
    assert not any(codes)
