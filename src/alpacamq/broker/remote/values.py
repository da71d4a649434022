"""The values of calls to partitions and state machines of other brokers."""

import msgspec

from .read_values import READ_VALUES

REMOTE_VALUES: tuple[type[msgspec.Struct], ...] = (*READ_VALUES,)
