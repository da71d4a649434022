"""The values of calls to partitions and state machines of other brokers."""

import msgspec

from alpacamq.broker import transactional_appends

from . import appends, markers, progress, read_values, shards, status

REMOTE_VALUES: tuple[type[msgspec.Struct], ...] = (
    *appends.VALUES,
    *markers.VALUES,
    *progress.VALUES,
    *read_values.VALUES,
    *shards.VALUES,
    *status.STATUS_VALUES,
    *transactional_appends.VALUES,
)
