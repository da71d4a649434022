"""What holds for all batches: how many entries, with which ids, and what becomes of one that fails."""

import re
from collections.abc import Sequence
from typing import Protocol

from .errors import EMPTY_BATCH, ENTRY_IDS_NOT_DISTINCT, INVALID_ENTRY_ID, TOO_MANY_ENTRIES, Fault
from .results import Failure

MAX_ENTRIES = 10

_ENTRY_ID = re.compile(r"[a-zA-Z0-9_-]{1,80}")


class Entry(Protocol):
    """One of a batch; its id tells its result from the others."""

    @property
    def id(self) -> str: ...


def check_entries(entries: Sequence[Entry], kind: str) -> None:
    """Refuse a batch that is empty, too large, or whose entries cannot be told apart."""
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
                "It can be at most 80 letters long.",
            )
        if entry.id in seen:
            raise Fault(ENTRY_IDS_NOT_DISTINCT, f"Id {entry.id} repeated.")
        seen.add(entry.id)


def failure(entry_id: str, fault: Fault) -> Failure:
    """One entry that was refused."""
    return Failure(
        id=entry_id, sender_fault=fault.kind.is_senders, code=fault.kind.code, message=fault.message
    )
