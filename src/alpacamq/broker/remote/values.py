"""The values of calls to partitions and state machines of other brokers."""

import msgspec

from alpacamq.broker import transactional_appends

from . import appends, markers, read_values, shards

REMOTE_VALUES: tuple[type[msgspec.Struct], ...] = (
    *appends.VALUES,
    *markers.VALUES,
    *read_values.VALUES,
    *shards.VALUES,
    *transactional_appends.VALUES,
)
