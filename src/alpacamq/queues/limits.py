"""How much the queue engine may hold."""

import msgspec


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine may hold at most."""

    max_queues: int = 10_000
    max_waiting_receives: int = 10_000
    max_indexed_runs: int = 100_000  # per queue and partition
    max_blocked_messages: int = 20_000  # per queue and partition: read ahead in key order


def fits(name: str, max_bytes: int) -> bool:
    """Whether a name can be stored."""
    try:
        return len(name.encode()) <= max_bytes
    except UnicodeEncodeError:
        return False
