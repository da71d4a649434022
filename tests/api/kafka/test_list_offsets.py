"""ListOffsets at a leader that does not know yet what its predecessors have committed."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.handlers.offsets import Timestamp, list_offsets
from alpacamq.broker.access import ANONYMOUS_CALLER
from alpacamq.log.reader import TimestampOffset
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic


class NewLeader:
    """A partition whose high watermark is at 5, with former epochs that may reach further."""

    identity = "orders-0"
    start_offset, high_watermark, last_stable_offset, leader_epoch = 2, 5, 5, 7
    covers_former_epochs = False

    def check_epoch(self, _epoch: int) -> None: ...

    def epoch_at(self, _offset: int) -> int:
        return 6

    def offset_for_timestamp(self, timestamp_ms: int, _limit: int) -> TimestampOffset | None:
        return TimestampOffset(3, timestamp_ms, 6) if timestamp_ms < 1000 else None


async def listed(partition: NewLeader, timestamp_ms: int, version: int) -> tuple[int, int]:
    """Return error code and offset."""

    async def pause() -> None: ...

    broker: Any = SimpleNamespace(
        topics=SimpleNamespace(partition=lambda _name, _index: partition),
        access=SimpleNamespace(check_topic=lambda *_: None),
        work_threads=None,
    )
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=[wanted])])
    backend = cast("Backend", SimpleNamespace(broker=broker))
    response = await list_offsets(backend, request, Call(version, "", ANONYMOUS_CALLER, pause))
    [result] = response.topics[0].partitions
    return result.error_code, result.offset


@pytest.mark.parametrize(
    ("timestamp_ms", "version", "expected"),
    [
        pytest.param(Timestamp.LATEST, 5, (ErrorCode.OFFSET_NOT_AVAILABLE, -1), id="end"),
        pytest.param(Timestamp.LATEST, 4, (ErrorCode.LEADER_NOT_AVAILABLE, -1), id="end, old client"),
        pytest.param(2000, 5, (ErrorCode.OFFSET_NOT_AVAILABLE, -1), id="nothing found before the end"),
        pytest.param(500, 5, (ErrorCode.NONE, 3), id="found before the end"),
        pytest.param(Timestamp.EARLIEST, 5, (ErrorCode.NONE, 2), id="start"),
    ],
)
async def test_the_end_is_not_known_until_the_watermark_covers_former_epochs(
    timestamp_ms: int, version: int, expected: tuple[int, int]
) -> None:
    assert await listed(NewLeader(), timestamp_ms, version) == expected


async def test_the_end_is_the_watermark_once_it_covers_former_epochs() -> None:
    partition = NewLeader()
    partition.covers_former_epochs = True
    assert await listed(partition, Timestamp.LATEST, 5) == (ErrorCode.NONE, 5)
    assert await listed(partition, 2000, 5) == (ErrorCode.NONE, -1)
