"""Authorized operations as the bit sets of responses. Without access control, clients may do everything."""

from enum import IntEnum

from alpacamq.protocol.messages.metadata import OPERATIONS_NOT_ASKED_FOR


class AclOperation(IntEnum):
    """Kafka's ACL operations; each is the number of its bit."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


_OF_CONFIGS = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
_OF_TOPIC = _bits(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    *_OF_CONFIGS,
)
_OF_GROUP = _bits(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, *_OF_CONFIGS)
_OF_CLUSTER = _bits(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.IDEMPOTENT_WRITE,
    *_OF_CONFIGS,
)


def topic_operations(*, asked: bool = True) -> int:
    """Return the operations that the client may perform on a topic, if it asked for them."""
    return _OF_TOPIC if asked else OPERATIONS_NOT_ASKED_FOR


def group_operations(*, asked: bool) -> int:
    """Return the operations that the client may perform on a group, if it asked for them."""
    return _OF_GROUP if asked else OPERATIONS_NOT_ASKED_FOR


def cluster_operations(*, asked: bool) -> int:
    """Return the operations that the client may perform on the cluster, if it asked for them."""
    return _OF_CLUSTER if asked else OPERATIONS_NOT_ASKED_FOR
