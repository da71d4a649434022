"""Hosts a transaction coordinator in memory, step by step.

Tests decide when changes become durable; replies and effects follow, and a crash loses everything that is not
durable.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

from alpacamq.coordinator.transactions.coordinator import TransactionCoordinator, TransactionSettings
from alpacamq.coordinator.transactions.transaction import (
    MarkersWritten,
    Transaction,
    WriteMarkers,
    decode_value,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.state_machine import Change, Outcome, Pending, Request

START_MS = 1_000_000


def partition(number: int) -> TopicPartition:
    return TopicPartition(TopicName("orders"), number)


def contents(changes: Iterator[Change] | list[Change]) -> dict[bytes, bytes]:
    """Return the contents of a compacted log of `changes`."""
    latest = {change.key: change.value for change in changes}
    return {key: value for key, value in latest.items() if value is not None}


class Host:
    """A coordinator with its log and pending effects."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.now_ms = START_MS
        self.log: list[Change] = []
        self.in_flight: list[Outcome] = []
        self.to_write: list[WriteMarkers] = []
        self.answered: list[tuple[object, object]] = []
        self._settings = settings
        self._producer_ids = count(1)
        self.machine = self._new_machine()

    def submit(self, request: Request[Any], handle: object) -> None:
        """Pass a request to the coordinator; its outcome is in flight then."""
        self.in_flight.append(self.machine.handle([Pending(request, handle)], self.now_ms))

    def ask(self, request: Request[Any]) -> object:
        """Return the reply to a request, None if it is pending."""
        handle = object()
        self.submit(request, handle)
        self.settle()
        return next((answer for to, answer in self.answered if to is handle), None)

    def settle(self, outcomes: int | None = None) -> None:
        """Make the oldest outcomes in flight durable; by default all of them."""
        settled = self.in_flight[:outcomes]
        del self.in_flight[:outcomes]
        for outcome in settled:
            self.log += outcome.changes
            self.answered += (reply for reply in outcome.replies if reply.to is not None)
            self.to_write += outcome.effects

    def markers_written(self, markers: WriteMarkers) -> None:
        if markers in self.to_write:
            self.to_write.remove(markers)
        self.submit(MarkersWritten(transactional_id=markers.transactional_id, markers=markers), None)

    def complete(self) -> list[WriteMarkers]:
        """Write all pending markers."""
        self.settle()
        written = []
        while self.to_write:
            written.append(self.to_write[0])
            self.markers_written(self.to_write[0])
            self.settle()
        return written

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.in_flight.append(self.machine.tick(self.now_ms))

    def crash(self) -> None:
        self.in_flight.clear()
        self.to_write.clear()
        self.machine = self.replayed(self.log)
        self.in_flight.append(self.machine.loaded(self.now_ms))

    def replayed(self, changes: list[Change]) -> TransactionCoordinator:
        machine = self._new_machine()
        for change in changes:
            machine.replay(*change)
        return machine

    def store(self, transaction: Transaction, change: Change) -> None:
        """Add a transaction to the log."""
        assert change.value is not None
        assert decode_value(change.value) == transaction
        self.log.append(change)
        self.machine.replay(*change)

    def _new_machine(self) -> TransactionCoordinator:
        # Producer ids taken by a crashed coordinator are not reused.
        return TransactionCoordinator(lambda: next(self._producer_ids), self._settings)
