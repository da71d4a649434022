"""Delayed messages and transactions in figures."""

from alpacamq.api.rest.exposition import Exposition
from alpacamq.api.rest.handlers.transaction_list import all_transactions, stats_of
from alpacamq.broker.broker import Broker
from alpacamq.coordinator.transaction_messages import ListTransactions
from alpacamq.model.topics import TRANSACTIONS_TOPIC
from alpacamq.telemetry import metrics_catalogue as m


async def collect_delays(text: Exposition, broker: Broker) -> None:
    figures = await broker.delays.figures()
    text.one(m.DELAYED, figures.pending)
    text.one(m.DELAYED_SCHEDULED, figures.scheduled_total)
    text.one(m.DELAYED_DELIVERED, figures.fired_total)
    text.one(m.DELAYED_CANCELLED, figures.cancelled_total)
    text.one(m.DELAYED_DROPPED, figures.dropped_total)
    text.histograms(m.DELAYED_LATE, [((), broker.delays.late_seconds)])


async def collect_transactions(text: Exposition, broker: Broker) -> None:
    text.add(
        m.TRANSACTIONS_ENDED,
        {
            ("committed",): broker.coordinators.transactions_committed,
            ("aborted",): broker.coordinators.transactions_aborted,
        },
    )
    text.one(m.HANGING_TRANSACTIONS, len(broker.coordinators.hanging_transactions.found))
    found = []
    if TRANSACTIONS_TOPIC in broker.topics.image.topics:
        found = await all_transactions(broker, ListTransactions())
    stats = stats_of(found)
    text.add(m.TRANSACTIONAL_IDS, {(state,): count for state, count in stats.by_state.items()})
    now_ms = broker.clock.now_ms()
    oldest_ms = now_ms if stats.oldest_started is None else stats.oldest_started
    text.one(m.OLDEST_TRANSACTION, max(now_ms - oldest_ms, 0) / 1000)
