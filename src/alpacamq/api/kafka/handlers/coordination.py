"""Putting a request to the coordinator of its group or transactional id."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from alpacamq.api.kafka.call import Backend
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.transactions.coordinator import TransactionCoordinator
from alpacamq.coordinator.transactions.transaction import TransactionOutcome
from alpacamq.model.outcome import Outcome


class OfGroup(Protocol):
    """A request about one group."""

    @property
    def group(self) -> str: ...


class OfTransaction(Protocol):
    """A request about one transactional id."""

    @property
    def transactional_id(self) -> str: ...


G = TypeVar("G", bound=OfGroup)
T = TypeVar("T", bound=OfTransaction)


async def ask_group(
    backend: Backend, event: Callable[[GroupCoordinator, G, object, int], Outcome], request: G
) -> Any:
    """The coordinator's reply; an error is raised."""
    return await backend.broker.coordinators.ask_group(
        request.group, lambda machine, ticket, now_ms: event(machine, request, ticket, now_ms)
    )


async def ask_transaction(
    backend: Backend,
    event: Callable[[TransactionCoordinator, T, object, int], TransactionOutcome],
    request: T,
) -> Any:
    """The coordinator's reply; an error is raised."""
    return await backend.broker.coordinators.ask_transaction(
        request.transactional_id, lambda machine, ticket, now_ms: event(machine, request, ticket, now_ms)
    )
