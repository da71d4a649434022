"""The numbers by which requests name kinds of settings, where values come from and how they change."""

from collections.abc import Mapping, Sequence
from enum import IntEnum

from alpacamq.model.errors import InvalidRequest
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

# Far more than there are; a client that names more would have the broker look at each of them.
MAX_SETTINGS = 1000


def check_settings_count(settings: Sequence[object]) -> None:
    """InvalidRequest for more settings of one thing than there can be."""
    if len(settings) > MAX_SETTINGS:
        raise InvalidRequest(f"a request may name {MAX_SETTINGS} settings of one resource at most")
