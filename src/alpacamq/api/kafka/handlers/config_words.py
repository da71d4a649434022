"""The numbers by which requests name kinds of settings, where values come from and how they change."""

from collections.abc import Mapping
from enum import IntEnum

from alpacamq.model.topics import ConfigKind


class Resource(IntEnum):
    """What a setting can belong to."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class Source(IntEnum):
    """Where a setting's value comes from."""

    TOPIC = 1
    BROKER_FILE = 4
    DEFAULT = 5
    GROUP = 8


class Operation(IntEnum):
    """How an incremental change changes a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


TYPES: Mapping[ConfigKind, int] = {
    ConfigKind.BOOLEAN: 1,
    ConfigKind.STRING: 2,
    ConfigKind.INT: 3,
    ConfigKind.LONG: 5,
    ConfigKind.DOUBLE: 6,
    ConfigKind.LIST: 7,
}
