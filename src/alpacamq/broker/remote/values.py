"""The values of calls to partitions and state machines of other brokers."""

import msgspec

from . import (
    appends,
    fifo,
    history,
    markers,
    progress,
    read_values,
    redrives,
    shards,
    status,
    traces,
    transactional_appends,
    views,
)

REMOTE_VALUES: tuple[type[msgspec.Struct], ...] = (
    *appends.VALUES,
    *fifo.VALUES,
    *history.VALUES,
    *markers.VALUES,
    *progress.VALUES,
    *read_values.VALUES,
    *redrives.VALUES,
    *shards.VALUES,
    *status.VALUES,
    *traces.VALUES,
    *transactional_appends.VALUES,
    *views.VALUES,
)
