"""The values of calls to partitions and state machines of other brokers."""

import msgspec

from alpacamq.broker import transactional_appends

from . import appends, moves, views
from .read_values import READ_VALUES

REMOTE_VALUES: tuple[type[msgspec.Struct], ...] = (
    *appends.VALUES,
    *transactional_appends.VALUES,
    *READ_VALUES,
    *views.VALUES,
    *moves.VALUES,
)
