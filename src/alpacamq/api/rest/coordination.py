"""Asking the coordinators of groups and transactions, as every API does."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from alpacamq.broker.broker import Broker
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.transactions.coordinator import TransactionCoordinator
from alpacamq.coordinator.transactions.transaction import TransactionOutcome
from alpacamq.model.outcome import Outcome


class OfOneGroup(Protocol):
    """A request about one group."""

    @property
    def group(self) -> str: ...


class OfOneTransaction(Protocol):
    """A request about one transactional id."""

    @property
    def transactional_id(self) -> str: ...


G = TypeVar("G", bound=OfOneGroup)
T = TypeVar("T", bound=OfOneTransaction)


async def ask_group(
    broker: Broker, event: Callable[[GroupCoordinator, G, object, int], Outcome], request: G
) -> Any:
    """The coordinator's reply; an error is raised."""
    return await broker.coordinators.ask_group(
        request.group, lambda machine, ticket, now_ms: event(machine, request, ticket, now_ms)
    )


async def ask_transaction(
    broker: Broker, event: Callable[[TransactionCoordinator, T, object, int], TransactionOutcome], request: T
) -> Any:
    """The coordinator's reply; an error is raised."""
    return await broker.coordinators.ask_transaction(
        request.transactional_id, lambda machine, ticket, now_ms: event(machine, request, ticket, now_ms)
    )
