"""A log of sealed segments for the tests of compaction: written, compacted and read back.

Reads the files directly, without the log's own reader, and checks the guarantees of every log.
"""

from collections.abc import Sequence
from pathlib import Path

from alpacamq.log.compaction import Cleaned, SealedSegment, clean
from alpacamq.log.disk import SystemDisk
from alpacamq.model.batch import BatchHeader, check_batch, read_header
from alpacamq.model.ports import Buffer
from alpacamq.model.records import Record, read_records
from alpacamq.model.topics import TopicConfig, topic_config

CONFIG = topic_config({"cleanup.policy": "compact", "delete.retention.ms": "1000"})


class SealedLog:
    """Sealed segments in a directory, and how far they have been cleaned."""

    def __init__(self, directory: Path, config: TopicConfig = CONFIG, disk: SystemDisk | None = None) -> None:
        self.directory = directory
        self.config = config
        self.disk = disk or SystemDisk()
        self.segments: list[SealedSegment] = []
        self.first_dirty_offset = 0
        # The offsets of the batches that are the last of their producers, as the log's owner knows them.
        self.last_of_producers: set[int] = set()

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else 0

    def add_segment(self, *batches: Buffer) -> SealedSegment:
        """Seal a segment of batches that have their offsets already."""
        base_offset = read_header(batches[0]).base_offset
        data = b"".join(batches)
        segment = SealedSegment(
            path=self.directory / f"{base_offset:020d}.log",
            base_offset=base_offset,
            end_offset=read_header(batches[-1]).next_offset,
            size_bytes=len(data),
        )
        segment.path.write_bytes(data)
        self.segments.append(segment)
        return segment

    def clean(self, now_ms: int = 0, max_keys: int = 1000) -> Cleaned:
        """Clean once and put the cleaned segments in place."""
        cleaned = self.try_clean(now_ms, max_keys)
        for segment in cleaned.segments:
            first = self.segments.index(segment.replaces[0])
            assert tuple(self.segments[first : first + len(segment.replaces)]) == segment.replaces
            for replaced in segment.replaces:
                replaced.path.unlink()
            path = self.directory / f"{segment.base_offset:020d}.log"
            assert segment.path == self.directory / f"{segment.base_offset:020d}.log.cleaned"
            assert segment.path.stat().st_size == segment.size_bytes
            segment.path.rename(path)
            self.segments[first : first + len(segment.replaces)] = [
                SealedSegment(
                    path=path,
                    base_offset=segment.base_offset,
                    end_offset=segment.end_offset,
                    size_bytes=segment.size_bytes,
                )
            ]
        self.first_dirty_offset = cleaned.first_dirty_offset
        return cleaned

    def try_clean(self, now_ms: int = 0, max_keys: int = 1000) -> Cleaned:
        """Clean, and leave the cleaned segments where they are."""
        return clean(
            self.segments,
            first_dirty_offset=self.first_dirty_offset,
            config=self.config,
            now_ms=now_ms,
            disk=self.disk,
            directory=self.directory,
            is_last_of_producer=lambda header: header.base_offset in self.last_of_producers,
            max_keys=max_keys,
        )

    def batches(self) -> list[bytes]:
        """Every batch; fails unless offsets are contiguous and every checksum is right."""
        batches = []
        expected = self.segments[0].base_offset
        for segment in self.segments:
            assert segment.base_offset == expected
            data = segment.path.read_bytes()
            assert len(data) == segment.size_bytes
            while data:
                size = read_header(data).size
                header = check_batch(data[:size])
                assert header.base_offset == expected
                expected = header.next_offset
                batches.append(data[:size])
                data = data[size:]
            assert expected == segment.end_offset
        return batches

    def headers(self) -> list[BatchHeader]:
        return [read_header(batch) for batch in self.batches()]

    def records(self) -> list[Record]:
        return [record for batch in self.batches() for record in read_records(batch)]

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.directory.iterdir()}


def records(base_offset: int, pairs: Sequence[tuple[bytes | None, bytes | None]]) -> list[Record]:
    """Records of these keys and values, a millisecond apart."""
    return [
        Record(base_offset + index, 1000 + base_offset + index, key, value)
        for index, (key, value) in enumerate(pairs)
    ]
