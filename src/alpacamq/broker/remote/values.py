"""The values of calls to partitions and state machines of other brokers."""

import msgspec

from alpacamq.broker import transactional_appends

from . import appends, fifo, moves, read_values, redrives, shards, views

REMOTE_VALUES: tuple[type[msgspec.Struct], ...] = (
    *appends.VALUES,
    *fifo.VALUES,
    *moves.VALUES,
    *read_values.VALUES,
    *redrives.VALUES,
    *shards.VALUES,
    *transactional_appends.VALUES,
    *views.VALUES,
)
