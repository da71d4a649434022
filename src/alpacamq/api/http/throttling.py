"""Quotas of HTTP requests: refused before any work while the client has to wait, and charged afterwards."""

from collections.abc import Awaitable, Callable, Generator
from time import monotonic
from types import coroutine
from typing import Any, TypeVar

from alpacamq.broker.access import Caller
from alpacamq.broker.quotas import ClientLimits, Quotas, TrafficLimit
from alpacamq.model.errors import QuotaExceeded
from alpacamq.security.quotas import QuotaKey

from .messages import Request

T = TypeVar("T")


def check(limits: ClientLimits, key: QuotaKey | None) -> None:
    """Raise QuotaExceeded if the client has to wait; `key` is what the request uses, besides time."""
    if limits.request is not None:
        limits.request.check()
    if (limit := _limit(limits, key)) is not None:
        limit.check()


def check_connection(quotas: Quotas, request: Request, caller: Caller) -> None:
    """Raise QuotaExceeded if the user of a request has too many connections; then this one is closed."""
    connection = request.connection
    if quotas.limits_connections and connection is not None and not connection.is_closed:
        try:
            quotas.check_connection(connection, caller.name)
        except QuotaExceeded:
            request.is_last = True
            raise


def charge(
    limits: ClientLimits, key: QuotaKey | None, request_bytes: int, response_bytes: int, seconds: float
) -> None:
    """Count what a request has used; the next one waits for what was too much."""
    if limits.request is not None:
        limits.request.charge(seconds)
    if (limit := _limit(limits, key)) is not None:
        limit.charge(request_bytes if key is QuotaKey.PRODUCE else response_bytes, 0)


def charge_messages(limits: ClientLimits, key: QuotaKey | None, messages: int) -> None:
    """Count the messages that a request has written or read."""
    if (limit := _limit(limits, key)) is not None:
        limit.charge(0, messages)


def _limit(limits: ClientLimits, key: QuotaKey | None) -> TrafficLimit | None:
    if key is QuotaKey.PRODUCE:
        return limits.produce
    return limits.fetch if key is QuotaKey.FETCH else None


async def measured(work: Awaitable[T]) -> tuple[T, float]:
    """Await something; return its result, and for how many seconds it has used the event loop."""
    used = 0.0

    def add(seconds: float) -> None:
        nonlocal used
        used += seconds

    result = await measuring(work, add)
    return result, used


@coroutine
def measuring(work: Awaitable[T], use: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Await something; report for how many seconds it has used the event loop whenever it waits or ends."""
    steps = work.__await__()
    error: BaseException | None = None
    while True:
        began_at = monotonic()
        try:
            waited_for = next(steps) if error is None else steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            error = None  # it references this frame
            use(monotonic() - began_at)
        try:
            yield waited_for
        except BaseException as raised:  # noqa: BLE001 - for the work to handle, a cancellation above all
            error = raised
