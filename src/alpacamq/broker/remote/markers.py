"""Transaction markers for the partitions of any broker.

Markers for partitions that another broker leads wait in an outbox for that broker and are sent together, with
a few calls at a time. A marker whose outcome is unknown may be sent again: the partition recognises it by the
number of its transaction.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from alpacamq.broker.partition.leader import append
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.link import Peers
from alpacamq.broker.peers.values import RemoteError, decode_error, encode_error
from alpacamq.broker.topics import Topics
from alpacamq.coordinator.messages import CompleteTransactionRequest
from alpacamq.model.control import NO_NUMBER, marker_batch
from alpacamq.model.errors import AlpacaError, FencedProducer, NotLeader, RequestTimedOut
from alpacamq.model.ids import BrokerId, TopicPartition
from alpacamq.model.ports import Clock
from alpacamq.model.state_machine import Request
from alpacamq.model.topics import OFFSETS_TOPIC

CALL_TIMEOUT_MS = 5000
# A leader answers this long before its caller gives up: most of a call may have been written.
MARGIN_SECONDS = 0.5
# Per broker.
MAX_CALLS = 4
MARKERS_PER_CALL = 1000


class TransactionEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of a producer's transaction, the same for all of its partitions."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    number: int = NO_NUMBER


class FailedMarker(msgspec.Struct, frozen=True, array_like=True):
    """A marker that was not written, or perhaps not, by its position in the call."""

    at: int
    error: RemoteError


class WrittenMarkers(msgspec.Struct, frozen=True):
    """The markers of a call are written, except these."""

    failed: tuple[FailedMarker, ...] = ()


class WriteTxnMarkers(Request[WrittenMarkers], frozen=True, kw_only=True, tag="write-txn-markers"):
    """End transactions in partitions that the called broker leads: the ends, and which of them for which."""

    ends: tuple[TransactionEnd, ...]
    partitions: tuple[tuple[TopicPartition, int], ...]


VALUES: tuple[type[msgspec.Struct], ...] = (WriteTxnMarkers,)


class CompletesTransactions(Protocol):
    """The group coordinators of this broker."""

    async def complete_transaction(self, partition: int, request: CompleteTransactionRequest) -> None:
        """Apply or drop the offsets of a transaction; returns once that is on disk."""
        ...


class _Waiting(NamedTuple):
    partition: TopicPartition
    end: TransactionEnd
    written: asyncio.Future[None]


class _Outbox:
    """The markers for the partitions of one broker."""

    def __init__(self, node_id: BrokerId, peers: Peers) -> None:
        self._node_id = node_id
        self._peers = peers
        self._waiting: deque[_Waiting] = deque()
        self._is_scheduled = False
        self._calls: set[asyncio.Task[None]] = set()

    async def send(self, partition: TopicPartition, end: TransactionEnd) -> None:
        """Write a marker with the next call."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._waiting.append(_Waiting(partition, end, written))
        if not self._is_scheduled:
            # Those of the same turn go with it.
            self._is_scheduled = True
            loop.call_soon(self._begin_calls)
        await written

    def _begin_calls(self) -> None:
        self._is_scheduled = False
        while self._waiting and len(self._calls) < MAX_CALLS:
            batch: list[_Waiting] = []
            while self._waiting and len(batch) < MARKERS_PER_CALL:
                if not (each := self._waiting.popleft()).written.done():  # else its coordinator has stopped
                    batch.append(each)
            if batch:
                call = asyncio.ensure_future(self._call(batch))
                self._calls.add(call)
                call.add_done_callback(self._call_ended)

    def _call_ended(self, call: "asyncio.Task[None]") -> None:
        self._calls.discard(call)
        self._begin_calls()

    async def _call(self, batch: list[_Waiting]) -> None:
        ends = {end: at for at, end in enumerate(dict.fromkeys(each.end for each in batch))}
        value = WriteTxnMarkers(
            ends=tuple(ends), partitions=tuple((each.partition, ends[each.end]) for each in batch)
        )
        failed: dict[int, AlpacaError] = {}
        try:
            reply = await self._peers.call(self._node_id, value, CALL_TIMEOUT_MS)
            failed = {each.at: decode_error(each.error) for each in reply.failed}
        except AlpacaError as error:
            failed = dict.fromkeys(range(len(batch)), error)
        except asyncio.CancelledError:
            for each in batch:
                each.written.cancel()
            raise
        for at, each in enumerate(batch):
            if each.written.done():
                continue
            if (failure := failed.get(at)) is None:
                each.written.set_result(None)
            else:
                each.written.set_exception(failure.with_traceback(None))


class Markers:
    """Writes markers to the partitions of this broker, and sends them to the leaders of others."""

    def __init__(
        self, topics: Topics, groups: CompletesTransactions, clock: Clock, peers: Peers | None
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._peers = peers
        self._outboxes: dict[BrokerId, _Outbox] = {}

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {WriteTxnMarkers: self._on_write}

    async def end(self, partition: TopicPartition, end: TransactionEnd) -> None:
        """End a transaction in a partition of any broker; returns once that is on disk.

        Raises the reason if it may not be ended there yet. It can be repeated at any time.
        """
        if self._topics.find(partition.topic.encode(), partition.partition) is not None:
            await self._end_here(partition, end)
            return
        error = self._topics.absence(partition.topic.encode(), partition.partition)
        if not isinstance(error, NotLeader) or error.leader is None or self._peers is None:
            raise error
        leader = BrokerId(error.leader)
        if (outbox := self._outboxes.get(leader)) is None:
            outbox = self._outboxes[leader] = _Outbox(leader, self._peers)
        await outbox.send(partition, end)

    async def write_here(self, partition: TopicPartition, end: TransactionEnd) -> None:
        """Write a marker to a partition that this broker leads; returns once it is on disk."""
        if partition.topic == OFFSETS_TOPIC:
            ended = CompleteTransactionRequest(
                producer_id=end.producer_id,
                producer_epoch=end.producer_epoch,
                committed=end.committed,
                number=end.number,
            )
            await self._groups.complete_transaction(partition.partition, ended)
            return
        batch = marker_batch(
            end.producer_id,
            end.producer_epoch,
            end.committed,
            end.coordinator_epoch,
            self._clock.now_ms(),
            end.number,
        )
        target = self._topics.partition(*partition)
        placed = await append(target, batch)
        await target.flush_to(placed.next_offset)

    async def _end_here(self, partition: TopicPartition, end: TransactionEnd) -> None:
        try:
            await self.write_here(partition, end)
        except FencedProducer:
            # A later epoch has ended it, perhaps just now.
            target = self._topics.partition(*partition)
            if target.open_transaction(end.producer_id) is not None:
                raise  # or has written here without ending it
            await target.flush_to(target.log.end_offset)

    async def _on_write(self, value: WriteTxnMarkers, peer: Peer) -> WrittenMarkers:
        assert peer.deadline is not None, "calls have one"
        until = peer.deadline - MARGIN_SECONDS
        errors = await asyncio.gather(
            *(self._end_until(partition, value.ends[at], until) for partition, at in value.partitions)
        )
        return WrittenMarkers(
            tuple(
                FailedMarker(at, encode_error(error)) for at, error in enumerate(errors) if error is not None
            )
        )

    async def _end_until(
        self, partition: TopicPartition, end: TransactionEnd, until: float
    ) -> AlpacaError | None:
        try:
            async with asyncio.timeout_at(until):
                await self._end_here(partition, end)
        except TimeoutError:
            return RequestTimedOut(f"the marker in {partition} is not on all replicas in sync yet")
        except AlpacaError as error:
            return error
        return None
