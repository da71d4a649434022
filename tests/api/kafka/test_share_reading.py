"""Which stored batches are sent for acquired records."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from alpacamq.api.kafka.share.fetch import Covering, cover, ranges
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.partition.leader import Partition, append
from alpacamq.model.errors import OffsetOutOfRange
from alpacamq.model.ids import BrokerId
from alpacamq.model.lanes import Lane
from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.share_fetch_codec import AcquiredRange
from alpacamq.queues.messages import Acquired

PLENTY = 1 << 30
BATCH_RECORDS = 3


@pytest.fixture
async def partition(tmp_path: Path) -> AsyncIterator[Partition]:
    """Thirty batches of three large records each, in several segments."""
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path))
    broker.open()
    await broker.topics.create("t", partitions=1, overrides={"segment.bytes": "700000"})
    partition = broker.topics.partition("t", 0)
    for _ in range(30):
        await append(partition, write_batch([Record(i, 1000, None, b"x" * 10_000) for i in range(3)]))
    yield partition
    await broker.close()


def spans(covering: Covering) -> list[tuple[int, int]]:
    """The batches that each slice holds, by their number."""
    batch_bytes = {part.length for part in covering.slices if part.next_offset == BATCH_RECORDS}
    size = batch_bytes.pop() if batch_bytes else 30_000
    found = []
    for part in covering.slices:
        end = part.next_offset // BATCH_RECORDS
        found.append((end - round(part.length / size), end))
    covering.release()
    return found


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        pytest.param([0], [(0, 1)], id="a record, its batch"),
        pytest.param([1, 2], [(0, 1)], id="neighbours, their batch once"),
        pytest.param([2, 3, 4, 5, 6], [(0, 3)], id="a run over batches, one slice"),
        pytest.param([0, 2, 8], [(0, 1), (2, 3)], id="what lies between is left out"),
        pytest.param([68, 69], [(22, 23), (23, 24)], id="two segments, two slices"),
        pytest.param([89], [(29, 30)], id="the last"),
        pytest.param([], [], id="nothing"),
    ],
)
async def test_batches_sent(
    partition: Partition, offsets: list[int], expected: list[tuple[int, int]]
) -> None:
    covering = cover(partition, offsets, PLENTY, 100, at_least_one=False)
    assert covering.count == len(offsets)
    assert spans(covering) == expected


async def test_only_as_much_as_fits_is_covered(partition: Partition) -> None:
    covering = cover(partition, list(range(30)), 100_000, 100, at_least_one=False)
    assert covering.count == 9
    assert covering.length <= 100_000
    covering.release()


async def test_at_least_one_batch_is_covered_if_that_is_wanted(partition: Partition) -> None:
    for at_least_one, count in ((True, 3), (False, 0)):
        covering = cover(partition, list(range(30)), 10, 100, at_least_one=at_least_one)
        assert covering.count == count
        covering.release()


async def test_the_number_of_slices_is_bounded(partition: Partition) -> None:
    covering = cover(partition, [0, 10, 20, 30], PLENTY, 2, at_least_one=False)
    assert (covering.count, len(covering.slices)) == (2, 2)
    covering.release()


async def test_an_error_leaves_no_file_open(partition: Partition) -> None:
    with pytest.raises(OffsetOutOfRange):
        cover(partition, [0, 500], PLENTY, 100, at_least_one=False)


def acquired(*entries: tuple[int, int]) -> list[Acquired]:
    return [Acquired(0, offset, count, Lane.NORMAL, 0, 0, 1) for offset, count in entries]


@pytest.mark.parametrize(
    ("entries", "most", "expected"),
    [
        pytest.param([(1, 1), (2, 1), (3, 1)], 10, [(1, 3, 1)], id="neighbours are one range"),
        pytest.param([(1, 1), (3, 1)], 10, [(1, 1, 1), (3, 3, 1)], id="a gap parts them"),
        pytest.param([(1, 1), (2, 2)], 10, [(1, 1, 1), (2, 2, 2)], id="and so does the delivery count"),
        pytest.param([(1, 1), (2, 1), (3, 1)], 2, [(1, 2, 1), (3, 3, 1)], id="and the length asked for"),
        pytest.param([], 10, [], id="nothing"),
    ],
)
def test_ranges(entries: list[tuple[int, int]], most: int, expected: list[tuple[int, int, int]]) -> None:
    assert ranges(acquired(*entries), most) == [AcquiredRange(*entry) for entry in expected]
