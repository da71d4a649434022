"""DeleteMessage, ChangeMessageVisibility, and batches of both."""

import re
from collections.abc import Sequence
from typing import Protocol

from alpacamq.broker.later import Later
from alpacamq.broker.queue.service import Queues, Receipted
from alpacamq.model.errors import AlpacaError, InvalidReceipt, StaleReceipt
from alpacamq.queues.messages import Action
from alpacamq.telemetry.tracing import ClientApi

from .directory import Queue, QueueDirectory
from .errors import (
    EMPTY_BATCH,
    ENTRY_IDS_NOT_DISTINCT,
    INVALID_ENTRY_ID,
    INVALID_RECEIPT,
    TOO_MANY_ENTRIES,
    Fault,
    fault_of,
    invalid_value,
    missing,
)
from .receiving import check_visibility
from .requests import (
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    DeleteMessage,
    DeleteMessageBatch,
)
from .results import NOTHING, Answer, Caller, Done, Failure, SettleBatchResult

MAX_ENTRIES = 10

_ENTRY_ID = re.compile(r"[a-zA-Z0-9_-]{1,80}")


class Entry(Protocol):
    """An entry of a batch, identified by its id."""

    @property
    def id(self) -> str: ...


def check_entries(entries: Sequence[Entry], kind: str) -> None:
    """Refuse a batch that is empty, too large, or has duplicate ids."""
    if not entries:
        raise Fault(EMPTY_BATCH, f"There should be at least one {kind} in the request.")
    if len(entries) > MAX_ENTRIES:
        raise Fault(
            TOO_MANY_ENTRIES,
            f"Maximum number of entries per request are {MAX_ENTRIES}. You have sent {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        if not _ENTRY_ID.fullmatch(entry.id):
            raise Fault(
                INVALID_ENTRY_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                f"It can be at most 80 letters long. You have sent {entry.id[:100]!r}.",
            )
        if entry.id in seen:
            raise Fault(ENTRY_IDS_NOT_DISTINCT, f"Id {entry.id} repeated.")
        seen.add(entry.id)


def failure(entry_id: str, fault: Fault) -> Failure:
    """Return the result of a refused entry."""
    return Failure(
        id=entry_id, sender_fault=fault.kind.is_senders, code=fault.kind.code, message=fault.message
    )


_SHOWN_RECEIPT = 200


class Settling:
    """Ends leases, or changes their deadlines."""

    def __init__(self, queues: Queues, directory: QueueDirectory) -> None:
        self._queues = queues
        self._directory = directory

    def delete(self, request: DeleteMessage, _caller: Caller) -> Later[Answer]:
        queue = self._directory.by_url(request.queue_url)
        receipt = request.receipt_handle

        def deleted(errors: Sequence[AlpacaError | None]) -> Answer:
            if (fault := _deletion_fault(queue, receipt, errors[0])) is not None:
                raise fault
            return NOTHING

        return self._delete(queue, [receipt]).map(deleted)

    def delete_batch(self, request: DeleteMessageBatch, _caller: Caller) -> Later[SettleBatchResult]:
        queue = self._directory.by_url(request.queue_url)
        entries = request.entries
        check_entries(entries, "DeleteMessageBatchRequestEntry")

        def deleted(errors: Sequence[AlpacaError | None]) -> SettleBatchResult:
            return _settled(
                [entry.id for entry in entries],
                [
                    None if error is None else _deletion_fault(queue, entry.receipt_handle, error)
                    for entry, error in zip(entries, errors, strict=True)
                ],
            )

        return self._delete(queue, [entry.receipt_handle for entry in entries]).map(deleted)

    async def change_visibility(self, request: ChangeMessageVisibility, _caller: Caller) -> Answer:
        queue = self._directory.by_url(request.queue_url)
        settlement = _extension(request.receipt_handle, request.visibility_timeout)
        (error,) = await self._settle(queue, [settlement])
        if error is not None:
            raise _extension_fault(request.receipt_handle, error)
        return NOTHING

    async def change_visibility_batch(
        self, request: ChangeMessageVisibilityBatch, _caller: Caller
    ) -> SettleBatchResult:
        queue = self._directory.by_url(request.queue_url)
        check_entries(request.entries, "ChangeMessageVisibilityBatchRequestEntry")
        faults: list[Fault | None] = [None] * len(request.entries)
        fitting: list[tuple[int, Receipted]] = []
        for index, entry in enumerate(request.entries):
            try:
                fitting.append((index, _extension(entry.receipt_handle, entry.visibility_timeout)))
            except Fault as fault:
                faults[index] = fault
        errors = await self._settle(queue, [settlement for _, settlement in fitting])
        for (index, settlement), error in zip(fitting, errors, strict=True):
            if error is not None:
                faults[index] = _extension_fault(settlement.receipt, error)
        return _settled([entry.id for entry in request.entries], faults)

    def _delete(self, queue: Queue, receipts: Sequence[str]) -> Later[list[AlpacaError | None]]:
        return self._settle(queue, [Receipted(receipt=receipt, action=Action.ACK) for receipt in receipts])

    def _settle(self, queue: Queue, settlements: Sequence[Receipted]) -> Later[list[AlpacaError | None]]:
        """Settle messages and return the error of each; receipts of another queue are refused."""
        return self._queues.settle_later(settlements, only=queue.id, api=ClientApi.SQS)


def _extension(receipt: str, visibility_s: int | None) -> Receipted:
    if visibility_s is None:
        raise missing("VisibilityTimeout")
    check_visibility(visibility_s)
    return Receipted(receipt=receipt, action=Action.EXTEND, delay_ms=visibility_s * 1000)


def _extension_fault(receipt: str, error: AlpacaError) -> Fault:
    match error:
        case InvalidReceipt():
            return _invalid_receipt(receipt)
        case StaleReceipt(is_done=True):
            reason = "Message does not exist or is not available for visibility timeout change."
            return invalid_value(receipt[:_SHOWN_RECEIPT], "ReceiptHandle", reason)
        case _:
            return fault_of(error)


def _deletion_fault(queue: Queue, receipt: str, error: AlpacaError | None) -> Fault | None:
    if error is None:
        return None
    match error:
        case InvalidReceipt():
            return _invalid_receipt(receipt)
        case StaleReceipt() if queue.is_fifo:
            return invalid_value(receipt[:_SHOWN_RECEIPT], "ReceiptHandle", "The receipt handle has expired.")
        case StaleReceipt():
            return None  # another consumer has received it and will delete it
        case _:
            return fault_of(error)


def _invalid_receipt(receipt: str) -> Fault:
    return Fault(
        INVALID_RECEIPT,
        f'The input receipt handle "{receipt[:_SHOWN_RECEIPT]}" is not a valid receipt handle.',
    )


def _settled(ids: Sequence[str], faults: Sequence[Fault | None]) -> SettleBatchResult:
    result = SettleBatchResult(successful=[], failed=[])
    for entry_id, fault in zip(ids, faults, strict=True):
        if fault is None:
            result.successful.append(Done(id=entry_id))
        else:
            result.failed.append(failure(entry_id, fault))
    return result
