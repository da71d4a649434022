"""The values of calls to partitions and state machines of other brokers."""

import msgspec

REMOTE_VALUES: tuple[type[msgspec.Struct], ...] = ()
