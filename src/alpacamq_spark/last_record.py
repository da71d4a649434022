"""Finds the last record of a key in a partition, near its end."""

import time

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.fetch import PartitionFetcher
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.model.ids import TopicPartition
from alpacamq.model.records import Record, read_records

from .errors import ReadStalled
from .retry import RETRY_TIMEOUT_S, retry

_FIRST_LOOK = 256


def last_record(cluster: Cluster, partition: TopicPartition, key: bytes) -> Record | None:
    """Return the last committed record of a key, or None. Searches backwards, further each time."""
    extent = retry(lambda: extents(cluster, [partition]))[partition]
    look, end = _FIRST_LOOK, extent.end
    while True:
        start = max(extent.start, extent.end - look)
        found = _last_between(cluster, partition, key, start, end)
        if found is not None or start == extent.start:
            return found
        look, end = 8 * look, start


def _last_between(
    cluster: Cluster, partition: TopicPartition, key: bytes, start: int, end: int
) -> Record | None:
    fetcher = PartitionFetcher(cluster, partition, Isolation.COMMITTED)
    found = None
    position = start
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    while position < end:
        at = position
        fetched = retry(lambda at=at: fetcher.fetch(at))  # type: ignore[misc]
        for batch in fetched.batches:
            if batch.is_visible:
                for record in read_records(batch.data):
                    if record.key == key and start <= record.offset < end:
                        found = record
            position = max(position, batch.header.next_offset)
        # A pending record of another key in the same partition blocks reading.
        if position < end and time.monotonic() > deadline:
            raise ReadStalled(f"{partition} cannot be read to {end}, only to {position}")
    return found
