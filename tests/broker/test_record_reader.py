"""Reading a partition as records: committed messages, in pages, from any offset."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.broker.broker import Broker
from alpacamq.broker.partition.leader import append
from alpacamq.broker.read.record_reader import Limits, Page, RecordReader
from alpacamq.model.batch import TRANSACTIONAL, Codec
from alpacamq.model.control import marker_batch
from alpacamq.model.errors import OffsetOutOfRange
from alpacamq.model.records import Record, write_batch
from alpacamq.model.topics import INT64_MAX

from .open_brokers import running

PRODUCERS = 3


@dataclass
class Written:
    """The records that a reader of a partition should see."""

    broker: Broker
    end_offset: int = 0
    plain: dict[int, bytes] = field(default_factory=dict)
    committed: dict[int, bytes] = field(default_factory=dict)
    open: dict[int, dict[int, bytes]] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    async def batch(self, count: int, codec: Codec, producer: int | None = None) -> None:
        values = {self.end_offset + delta: f"{producer}-{delta}".encode() * 5 for delta in range(count)}
        records = [Record(delta, 1000, None, value) for delta, value in enumerate(values.values())]
        if producer is None:
            batch = write_batch(records, codec=codec)
            self.plain |= values
        else:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + count
            batch = write_batch(
                records,
                codec=codec,
                attributes=TRANSACTIONAL,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
            )
            self.open.setdefault(producer, {}).update(values)
        await append(self.broker.topics.partition("t", 0), batch)
        self.end_offset += count

    async def end(self, producer: int, *, committed: bool) -> None:
        await append(self.broker.topics.partition("t", 0), marker_batch(producer, 0, committed, 0, 1000))
        self.end_offset += 1
        ended = self.open.pop(producer, {})
        if committed:
            self.committed |= ended

    @property
    def stable_offset(self) -> int:
        return min((min(values) for values in self.open.values()), default=self.end_offset)

    def visible(self, offset: int) -> dict[int, bytes]:
        """Return the records that a committed reader gets from an offset on."""
        known = {**self.plain, **self.committed}
        return {at: known[at] for at in sorted(known) if offset <= at < self.stable_offset}


def limits(records: int = 1000, size_bytes: int = 1 << 20, before_offset: int = INT64_MAX) -> Limits:
    return Limits(records=records, size_bytes=size_bytes, before_offset=before_offset)


async def read_all(reader: RecordReader, broker: Broker, offset: int, wanted: Limits) -> dict[int, bytes]:
    """Read page after page to the end."""
    partition = broker.topics.partition("t", 0)
    found: dict[int, bytes] = {}
    while offset < min(partition.last_stable_offset, wanted.before_offset):
        page: Page = await reader.read(partition, offset, wanted, committed=True)
        assert page.next_offset > offset
        assert len(page.records) <= wanted.records
        offset = page.next_offset
        for record in page.records:
            assert record.offset not in found
            assert record.value is not None
            found[record.offset] = record.value
    return found


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "write", "commit", "abort"]),
        st.integers(0, PRODUCERS - 1),
        st.integers(1, 4),
        st.sampled_from([Codec.NONE, Codec.ZSTD]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25)
@given(STEPS, st.integers(1, 5), st.integers(1, 400))
def test_pages_from_any_offset_hold_the_committed_records(
    steps: list[tuple[str, int, int, Codec]], records: int, size_bytes: int
) -> None:
    async def story(path: Path) -> None:
        async with running(path) as broker:
            await broker.topics.create("t", partitions=1)
            written = Written(broker)
            for verb, producer, count, codec in steps:
                if verb in ("commit", "abort"):
                    await written.end(producer, committed=verb == "commit")
                else:
                    await written.batch(count, codec, producer if verb == "write" else None)
            reader = RecordReader(broker.work_threads, 1 << 20)
            for offset in range(written.end_offset + 1):
                wanted = limits(records, size_bytes)
                assert await read_all(reader, broker, offset, wanted) == written.visible(offset)
                before = {at: value for at, value in written.visible(0).items() if at < offset}
                assert await read_all(reader, broker, 0, limits(before_offset=offset)) == before

    with TemporaryDirectory() as directory:
        asyncio.run(story(Path(directory)))


async def test_uncommitted_records_are_read_on_request(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("t", partitions=1)
        written = Written(broker)
        await written.batch(2, Codec.NONE, producer=0)
        await written.end(0, committed=False)
        await written.batch(1, Codec.NONE, producer=1)
        reader = RecordReader(broker.work_threads, 1 << 20)
        page = await reader.read(broker.topics.partition("t", 0), 0, limits(), committed=False)
        assert [record.offset for record in page.records] == [0, 1, 3]
        assert page.next_offset == 4


async def test_a_highly_compressed_batch_is_read(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("t", partitions=1)
        packed = write_batch([Record(0, 1000, None, bytes(1 << 20))], codec=Codec.ZSTD)
        await append(broker.topics.partition("t", 0), packed)
        reader = RecordReader(broker.work_threads, 2 << 20)
        page = await reader.read(broker.topics.partition("t", 0), 0, limits(size_bytes=10), committed=True)
        assert [len(record.value or b"") for record in page.records] == [1 << 20]


async def test_data_of_an_earlier_run_is_verified_and_read(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("t", partitions=1)
        await Written(broker).batch(3, Codec.NONE)
    async with running(tmp_path) as broker:
        reader = RecordReader(broker.work_threads, 1 << 20)
        page = await reader.read(broker.topics.partition("t", 0), 1, limits(), committed=True)
        assert [record.offset for record in page.records] == [1, 2]


async def test_a_cancelled_reader_releases_the_file(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("t", partitions=1)
        batch = write_batch([Record(0, 1000, None, bytes(100_000))])
        await append(broker.topics.partition("t", 0), batch)
        reader = RecordReader(broker.work_threads, 1 << 20)
        reading = asyncio.create_task(
            reader.read(broker.topics.partition("t", 0), 0, limits(), committed=True)
        )
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        await broker.topics.delete("t")  # does not wait for readers


async def test_an_offset_outside_of_the_log_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create("t", partitions=1)
        reader = RecordReader(broker.work_threads, 1 << 20)
        with pytest.raises(OffsetOutOfRange):
            await reader.read(broker.topics.partition("t", 0), 5, limits(), committed=True)
