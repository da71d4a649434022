"""`alpacamq verify` on real data directories."""

from pathlib import Path

import pytest

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.partition.leader import append
from alpacamq.model.errors import DataDirectoryInUse, InvalidConfig
from alpacamq.model.ids import BrokerId
from alpacamq.model.records import Record, write_batch
from alpacamq.node.repair import verify


async def written(path: Path) -> Path:
    """A data directory with one topic of a few batches, and its segment file."""
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=path))
    broker.open()
    await broker.topics.create("orders", partitions=1)
    partition = broker.topics.partition("orders", 0)
    for number in range(5):
        await append(partition, write_batch([Record(0, 1000 + number, b"k", b"v" * 100)]))
    await broker.close()
    return next(partition.log.directory.glob("*.log"))


async def test_valid_data_is_reported_as_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await written(tmp_path)
    assert verify(tmp_path) == 0
    out = capsys.readouterr().out
    assert "orders-0" in out
    assert "offsets 0 to 5: ok" in out


async def test_a_flipped_bit_is_reported_with_file_and_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = await written(tmp_path)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    assert verify(tmp_path) == 1
    out = capsys.readouterr().out
    assert f"DAMAGED: {segment} at byte " in out
    assert "1 damaged" in out


async def test_a_torn_tail_is_not_reported_as_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = await written(tmp_path)
    with segment.open("ab") as file:
        file.write(b"\0" * 100)
    assert verify(tmp_path) == 0
    assert "torn tail" in capsys.readouterr().out


async def test_data_of_a_running_broker_is_rejected(tmp_path: Path) -> None:
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path))
    broker.open()
    try:
        with pytest.raises(DataDirectoryInUse):
            verify(tmp_path)
    finally:
        await broker.close()


def test_any_other_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="data-dir"):
        verify(tmp_path)
