"""One delay log as its askers see it: its machine, its records, and what is on its way to partitions.

What is scheduled in one turn of the loop goes in as few events, so that many small requests cost one
write.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from alpacamq.model.errors import AlpacaError
from alpacamq.model.outcome import Outcome
from alpacamq.queues.delay_messages import DelayOutcome, Deliver, Dropped, ReadBlock, Source, ToSchedule
from alpacamq.queues.delays import DelayMachine
from alpacamq.queues.slots import Slot
from alpacamq.telemetry.logs import get_logger

from .delay_deliveries import Deliveries, DeliveryFigures
from .delay_records import DelayRecords
from .shard import Shard

log = get_logger(__name__)

# What is read again as a whole when one of its messages is due is kept small.
EVENT_MESSAGES = 200
EVENT_BYTES = 256 << 10
# A delay log is compacted when so many messages are done, or fewer in so large a log, but not before they
# are half as many as those that wait.
GARBAGE_MESSAGES = 50_000
GARBAGE_BYTES = 64 << 20
RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0


class _Call:
    """Messages that somebody wants scheduled together."""

    __slots__ = ("messages", "size_bytes", "source", "ticket")

    def __init__(self, messages: Sequence[ToSchedule], source: Source | None) -> None:
        self.messages = messages
        self.source = source
        self.size_bytes = sum(len(message.envelope) for message in messages)
        self.ticket: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class DelayShard:
    """Gathers what is scheduled, and carries out what the machine wants."""

    def __init__(
        self,
        shard: Shard[DelayMachine],
        records: DelayRecords,
        deliveries: Deliveries,
        figures: DeliveryFigures,
        tasks: Callable[[], asyncio.TaskGroup | None],
    ) -> None:
        self.shard = shard
        self.records = records
        self._deliveries = deliveries
        self._figures = figures
        self._tasks = tasks
        self._calls: list[_Call] = []
        self._is_due = False
        self._compacted_at = 0

    def holds_garbage(self) -> bool:
        """Whether compaction is worth while: it reads all that waits to find what no longer does."""
        if (machine := self.shard.machine) is None:
            return False
        spent = machine.tombstones - self._compacted_at
        if spent < 0:  # a machine that was rebuilt counts anew
            spent, self._compacted_at = machine.tombstones, 0
        is_much = spent >= GARBAGE_MESSAGES or self.shard.partition.log.size_bytes >= GARBAGE_BYTES
        if not is_much or spent * 2 < machine.pending or not spent:
            return False
        self._compacted_at = machine.tombstones
        return True

    async def schedule(self, messages: Sequence[ToSchedule], source: Source | None = None) -> list[int]:
        """The offsets of the messages, once they are on the medium; none if the source is known."""
        await self.shard.loaded()
        calls = [
            _Call(part, None if source is None else source._replace(portion=portion))
            for portion, part in enumerate(_parts(messages))
        ]
        self._calls += calls
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._hand_over)
        offsets: list[int] = []
        for answer in await asyncio.gather(*(call.ticket for call in calls)):
            if isinstance(answer, AlpacaError):
                raise answer.with_traceback(None)
            offsets += answer
        return offsets

    def _hand_over(self) -> None:
        self._is_due = False
        calls, self._calls = self._calls, []
        at = 0
        while at < len(calls):
            end, messages, size_bytes = at, 0, 0
            while end < len(calls) and (
                end == at
                or (
                    messages + len(calls[end].messages) <= EVENT_MESSAGES
                    and size_bytes + calls[end].size_bytes <= EVENT_BYTES
                )
            ):
                messages += len(calls[end].messages)
                size_bytes += calls[end].size_bytes
                end += 1
            self._submit(calls[at:end])
            at = end

    def _submit(self, calls: Sequence[_Call]) -> None:
        def event(machine: DelayMachine, now_ms: int) -> DelayOutcome:
            outcome = DelayOutcome()
            for call in calls:
                outcome += machine.schedule(call.messages, call.source, call.ticket, now_ms)
            return outcome

        self.shard.submit(event, [call.ticket for call in calls])

    def perform(self, outcome: Outcome) -> None:
        """Carry out what the machine wants."""
        tasks = self._tasks()
        if tasks is None or not isinstance(outcome, DelayOutcome):
            return
        for effect in outcome.effects:
            match effect:
                case Deliver():
                    self._deliveries.deliver(effect, tasks)
                case ReadBlock():
                    tasks.create_task(self._read_block(effect))
                case Dropped():
                    self._figures.dropped += effect.messages

    async def _read_block(self, block: ReadBlock) -> None:
        """Read a block, however often it takes: its messages are due in some days."""
        wait_seconds = RETRY_SECONDS
        content: Slot | None = None
        while content is None:
            try:
                content = await self.records.block(block.offset)
            except AlpacaError as error:
                log.error("block_not_read", partition=str(self.shard.partition.identity), reason=str(error))
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(wait_seconds * 2, MAX_RETRY_SECONDS)
        stored = content
        self.shard.tell(lambda machine, now_ms: machine.block_read(block, stored, now_ms))


def _parts(messages: Sequence[ToSchedule]) -> Iterator[Sequence[ToSchedule]]:
    """The messages in parts of the size of an event."""
    first = size_bytes = 0
    for at, message in enumerate(messages):
        if at - first == EVENT_MESSAGES or (at > first and size_bytes + len(message.envelope) > EVENT_BYTES):
            yield messages[first:at]
            first, size_bytes = at, 0
        size_bytes += len(message.envelope)
    yield messages[first:]
