"""Brokers in this process, each on a directory of its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.clock import SystemClock
from alpacamq.broker.partition.leader import append
from alpacamq.broker.publishing import Message, Published
from alpacamq.log.disk import SystemDisk
from alpacamq.model.batch import FRAME_BYTES, read_header
from alpacamq.model.ids import BrokerId, TimestampMs
from alpacamq.model.ports import Buffer, Clock
from alpacamq.model.records import Record, read_records, write_batch
from alpacamq.telemetry.metrics import Metrics


class BreakableDisk(SystemDisk):
    """The real disk with switchable failures of segment writes."""

    full = False

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().write(descriptor, buffers, position)


@asynccontextmanager
async def running(
    path: Path,
    *,
    clock: Clock | None = None,
    disk: SystemDisk | None = None,
    metrics: Metrics | None = None,
    **settings: Any,
) -> AsyncIterator[Broker]:
    """Run a broker on `path` and close it cleanly at the end."""
    broker = Broker(
        BrokerSettings(node_id=BrokerId(1), data_directory=path / "data", **settings),
        clock=clock,
        disk=disk,
        metrics=metrics,
    )
    broker.open()
    work = asyncio.create_task(broker.run())
    await asyncio.sleep(0)
    try:
        yield broker
    finally:
        work.cancel()
        await asyncio.wait([work])
        await broker.close()


def stored(broker: Broker, topic: str, partition: int = 0) -> list[Record]:
    """Return every record of a partition except markers, including aborted ones."""
    records: list[Record] = []
    log = broker.topics.partition(topic, partition).log
    offset = log.start_offset
    while (part := log.read(offset, 1 << 20, log.end_offset)) is not None:
        with part.segment.descriptor() as descriptor:
            data = SystemDisk().read(descriptor, part.length, part.position)
        part.release()
        at = 0
        while at < len(data):
            header = read_header(data, at)
            end = at + FRAME_BYTES + header.batch_length
            if not header.is_control:
                records += [record for record in read_records(data[at:end]) if record.offset >= offset]
            at = end
        offset = part.next_offset
    return records


class SettableClock(SystemClock):
    """The system clock with an adjustable lead."""

    ahead_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(super().now_ms() + self.ahead_ms)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_ms / 1000


async def sent(broker: Broker, topic: str, *values: bytes, **fields: Any) -> None:
    """Publish messages and assert that they were accepted."""
    for result in await broker.publisher.publish(topic, [Message(value=value, **fields) for value in values]):
        assert isinstance(result, Published), result


async def batch_sent(broker: Broker, topic: str, records: Sequence[Record], **fields: Any) -> None:
    """Append a batch unchanged to the first partition."""
    await append(broker.topics.partition(topic, 0), write_batch(records, **fields))
