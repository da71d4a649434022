"""Finds the last record of a key in a partition, near its end."""

import time

from alpacamq.client.errors import ErrorCode, Refused
from alpacamq.client.kafka.fetch import PartitionFetcher
from alpacamq.model.records import Record, read_records

from .errors import ReadStalled
from .retry import RETRY_TIMEOUT_S, retry

_FIRST_LOOK = 256


def last_record(fetcher: PartitionFetcher, key: bytes) -> Record | None:
    """Return the last committed record of a key, or None. Searches backwards, further each time."""
    end = until = retry(lambda: fetcher.edge(is_end=True))
    # That of a compacted log is nearly always 0.
    beginning, look = 0, _FIRST_LOOK
    while True:
        start = max(beginning, end - look)
        try:
            found = _last_between(fetcher, key, start, until)
        except Refused as refused:
            if refused.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            before, beginning = beginning, retry(lambda: fetcher.edge(is_end=False))
            if beginning == before:
                raise
            continue
        if found is not None or start == beginning:
            return found
        look, until = 8 * look, start


def _last_between(fetcher: PartitionFetcher, key: bytes, start: int, end: int) -> Record | None:
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
            raise ReadStalled(f"{fetcher.partition} cannot be read to {end}, only to {position}")
    return found
