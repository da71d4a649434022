"""Which batches of idempotent producers have had their delayed messages taken in.

A producer's batch may hold messages for now and messages for later, and those go to different logs.
If a crash comes between the two the producer sends the batch again, and its delayed messages must not
wait twice; nor may one be for now by then that was for later.
"""

from collections import OrderedDict
from collections.abc import Iterator

from alpacamq.model.outcome import Change

from .delay_messages import Source
from .delay_records import SourceBatch, SourceState, source_change

# As many batches of a producer may be under way.
WINDOW = 5
IDLE_LIMIT_MS = 24 * 3_600_000
MAX_SOURCES = 10_000
# Forgotten per batch taken in, so that there is never much to do at once.
_FORGOTTEN_AT_ONCE = 4


class Sources:
    """The last batches of each producer and target, least recently heard first."""

    def __init__(self) -> None:
        self._states: OrderedDict[tuple[int, int], SourceState] = OrderedDict()

    def parted_ms(self, target: int, source: Source) -> int | None:
        """When this batch was parted, if it came before."""
        batch = self._batch(target, source)
        return None if batch is None else batch.parted_ms

    def knows(self, target: int, source: Source) -> bool:
        """Whether this portion of this batch was taken in before."""
        batch = self._batch(target, source)
        return batch is not None and source.portion < batch.portions

    def note(self, target: int, source: Source, now_ms: int) -> Iterator[Change]:
        """Remember a portion of a batch; what is to be written for that, and to forget others."""
        key = target, source.producer_id
        known = self._states.get(key)
        batches = known.batches if known is not None and known.epoch == source.epoch else ()
        former = self._batch(target, source)
        batch = SourceBatch(source.first_sequence, source.last_sequence, source.parted_ms, source.portion + 1)
        batches = (*(other for other in batches if other is not former), batch)[-WINDOW:]
        state = self._states[key] = SourceState(source.epoch, batches, now_ms)
        self._states.move_to_end(key)
        yield source_change(*key, state)
        for _ in range(_FORGOTTEN_AT_ONCE):
            oldest, state = next(iter(self._states.items()))
            if len(self._states) <= MAX_SOURCES and now_ms - state.updated_ms <= IDLE_LIMIT_MS:
                return
            del self._states[oldest]
            yield source_change(*oldest, None)

    def _batch(self, target: int, source: Source) -> SourceBatch | None:
        known = self._states.get((target, source.producer_id))
        if known is None or known.epoch != source.epoch:
            return None
        wanted = source.first_sequence, source.last_sequence
        return next((b for b in known.batches if (b.first_sequence, b.last_sequence) == wanted), None)

    def forget_target(self, target: int) -> Iterator[Change]:
        for key in [key for key in self._states if key[0] == target]:
            del self._states[key]
            yield source_change(*key, None)

    def restore(self, target: int, producer_id: int, state: SourceState | None) -> None:
        self._states.pop((target, producer_id), None)
        if state is not None:
            self._states[target, producer_id] = state

    def snapshot(self) -> Iterator[Change]:
        for key, state in self._states.items():
            yield source_change(*key, state)
