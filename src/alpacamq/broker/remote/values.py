"""The values of calls to partitions and state machines of other brokers."""

import msgspec

from .status import STATUS_VALUES

REMOTE_VALUES: tuple[type[msgspec.Struct], ...] = (*STATUS_VALUES,)
