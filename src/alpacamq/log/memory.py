"""What a log knows beyond its batches: where producers are, and which transactions are open or aborted.

All of it follows from the batches; a copy of it at an offset spares reading those before again.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from alpacamq.model.batch import BatchHeader
from alpacamq.model.control import Marker

from .producers import ProducerState, ProducerStates, decode_states, encode_states
from .sealed_file import Unreadable
from .transactions import (
    PartitionTransactions,
    TransactionsSnapshot,
    decode_transactions,
    encode_transactions,
)


class Remembered(NamedTuple):
    """The memory as it was at some offset."""

    producers: Mapping[int, ProducerState] = {}
    transactions: TransactionsSnapshot = TransactionsSnapshot()

    @property
    def is_empty(self) -> bool:
        return not self.producers and self.transactions.is_empty


class Memory:
    """Kept in step with the batches of one log."""

    __slots__ = ("producers", "transactions")

    def __init__(self) -> None:
        self.producers = ProducerStates()
        self.transactions = PartitionTransactions()

    def appended(self, header: BatchHeader, base_offset: int, marker: Marker | None) -> None:
        """A transactional or control batch, whose producer was admitted, has been written."""
        self.transactions.appended(header, base_offset, marker)

    def replay(self, header: BatchHeader, marker: Marker | None, now_ms: int) -> None:
        """Take in a batch that is in the log already."""
        if header.producer_id >= 0:
            self.producers.replay(header, now_ms)
        if header.is_transactional or header.is_control:
            self.transactions.replay(header, marker)

    def copy(self) -> Remembered:
        """Everything as of now."""
        return Remembered(self.producers.copy(), self.transactions.snapshot())

    def reset(self, remembered: Remembered) -> None:
        """Go back to how it was."""
        self.producers.reset(remembered.producers)
        self.transactions.reset(remembered.transactions)


def encode_memory(remembered: Remembered) -> bytes:
    return msgspec.msgpack.encode(
        (encode_states(remembered.producers), encode_transactions(remembered.transactions))
    )


def decode_memory(body: bytes) -> Remembered:
    """What was encoded, or Unreadable."""
    try:
        producers, transactions = msgspec.msgpack.decode(body, type=tuple[bytes, bytes])
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from error
    return Remembered(decode_states(producers), decode_transactions(transactions))
