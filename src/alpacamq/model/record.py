"""One record of a batch.

Apart from `records`, which is compiled: other nodes are sent records, and a compiled named tuple has no
annotations to decode them by.
"""

from typing import NamedTuple


class Header(NamedTuple):
    """A name and a value attached to a record."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """One record of a batch; the offset is absolute."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
