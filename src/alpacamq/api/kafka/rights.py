"""The rights that each request of the Kafka API needs when access rules are in force.

Documentation and tests are made from this table: the tests go through it row by row, each without a right
and with it. Handlers check the rights themselves.
"""

from enum import Enum
from typing import NamedTuple

from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.security.acls import Operation, ResourceType


class Denied(Enum):
    """The answer to a client without a right."""

    ERROR = "error of the resource"
    # Also for a topic that does not exist. A client that may describe the topic gets its error.
    UNKNOWN_ID = "UNKNOWN_TOPIC_ID"
    LEFT_OUT = "left out"


ERRORS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


class Right(NamedTuple):
    """An operation on the resource of a kind that a request names."""

    operation: Operation
    kind: ResourceType

    def __str__(self) -> str:
        return f"{self.operation.name} {self.kind.name.lower().replace('_', ' ')}"


class Need(NamedTuple):
    """A right that a request needs, or another right that is enough."""

    right: Right
    instead: Right | None = None
    denied: Denied = Denied.ERROR
    # Which resource it is about, if not one that the request names.
    resource: str = ""

    @property
    def error(self) -> ErrorCode | None:
        """The error without the right; None if the response leaves out the resource."""
        if self.denied is Denied.LEFT_OUT:
            return None
        return ErrorCode.UNKNOWN_TOPIC_ID if self.denied is Denied.UNKNOWN_ID else ERRORS[self.right.kind]


class Row(NamedTuple):
    """The rights that a request needs: all of them."""

    api: ApiKey
    needs: tuple[Need, ...] = ()
    # Which requests, if not all.
    when: str = ""


def _need(operation: Operation, kind: ResourceType, denied: Denied = Denied.ERROR) -> Need:
    return Need(Right(operation, kind), denied=denied)


_CLUSTER = ResourceType.CLUSTER
_GROUP = ResourceType.GROUP
_ID = ResourceType.TRANSACTIONAL_ID
_TOPIC = ResourceType.TOPIC

_ALTER_CLUSTER = _need(Operation.ALTER, _CLUSTER)
_DESCRIBE_CLUSTER = _need(Operation.DESCRIBE, _CLUSTER)
_CLUSTER_ACTION = _need(Operation.CLUSTER_ACTION, _CLUSTER)
_DESCRIBE_GROUP = _need(Operation.DESCRIBE, _GROUP)
_READ_GROUP = _need(Operation.READ, _GROUP)
_DELETE_GROUP = _need(Operation.DELETE, _GROUP)
_DESCRIBE_TOPIC = _need(Operation.DESCRIBE, _TOPIC)
_READ_TOPIC = _need(Operation.READ, _TOPIC)
_WRITE_TOPIC = _need(Operation.WRITE, _TOPIC)
_WRITE_DEAD_LETTERS = Need(Right(Operation.WRITE, _TOPIC), resource="for its dead letters")
_DESCRIBE_ID = _need(Operation.DESCRIBE, _ID)
_WRITE_ID = _need(Operation.WRITE, _ID)
_CREATE_TOPIC = Need(Right(Operation.CREATE, _TOPIC), Right(Operation.CREATE, _CLUSTER))

BY_ID = "by topic id"
LISTED = "of all"
REJECTING = "that rejects records"
FOR_ANOTHER = "for another owner"
OF_ANOTHER = "of tokens of others"

TABLE: tuple[Row, ...] = (
    Row(ApiKey.PRODUCE, (_WRITE_TOPIC,)),
    Row(ApiKey.PRODUCE, (_need(Operation.WRITE, _TOPIC, Denied.UNKNOWN_ID),), BY_ID),
    Row(ApiKey.PRODUCE, (_WRITE_ID, _WRITE_TOPIC), "in a transaction"),
    Row(ApiKey.FETCH, (_READ_TOPIC,)),
    Row(ApiKey.FETCH, (_need(Operation.READ, _TOPIC, Denied.UNKNOWN_ID),), BY_ID),
    Row(ApiKey.LIST_OFFSETS, (_DESCRIBE_TOPIC,)),
    Row(ApiKey.METADATA, (_DESCRIBE_TOPIC,)),
    Row(ApiKey.METADATA, (_need(Operation.DESCRIBE, _TOPIC, Denied.UNKNOWN_ID),), BY_ID),
    Row(ApiKey.METADATA, (_need(Operation.DESCRIBE, _TOPIC, Denied.LEFT_OUT),), LISTED),
    Row(ApiKey.METADATA, (_DESCRIBE_TOPIC, _CREATE_TOPIC), "that creates a topic"),
    Row(ApiKey.OFFSET_COMMIT, (_READ_GROUP, _READ_TOPIC)),
    Row(ApiKey.OFFSET_COMMIT, (_READ_GROUP, _need(Operation.READ, _TOPIC, Denied.UNKNOWN_ID)), BY_ID),
    Row(ApiKey.OFFSET_FETCH, (_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    Row(
        ApiKey.OFFSET_FETCH,
        (_DESCRIBE_GROUP, _need(Operation.DESCRIBE, _TOPIC, Denied.UNKNOWN_ID)),
        BY_ID,
    ),
    Row(
        ApiKey.OFFSET_FETCH,
        (_DESCRIBE_GROUP, _need(Operation.DESCRIBE, _TOPIC, Denied.LEFT_OUT)),
        LISTED,
    ),
    Row(ApiKey.FIND_COORDINATOR, (_DESCRIBE_GROUP,), "of a group"),
    Row(ApiKey.FIND_COORDINATOR, (_DESCRIBE_ID,), "of a transactional id"),
    Row(ApiKey.FIND_COORDINATOR, (_CLUSTER_ACTION,), "of the state of a share group"),
    Row(ApiKey.JOIN_GROUP, (_READ_GROUP,)),
    Row(ApiKey.HEARTBEAT, (_READ_GROUP,)),
    Row(ApiKey.LEAVE_GROUP, (_READ_GROUP,)),
    Row(ApiKey.SYNC_GROUP, (_READ_GROUP,)),
    Row(ApiKey.DESCRIBE_GROUPS, (_DESCRIBE_GROUP,)),
    Row(
        ApiKey.LIST_GROUPS,
        (Need(Right(Operation.DESCRIBE, _GROUP), Right(Operation.DESCRIBE, _CLUSTER), Denied.LEFT_OUT),),
    ),
    Row(ApiKey.API_VERSIONS),
    Row(ApiKey.CREATE_TOPICS, (_CREATE_TOPIC,)),
    Row(
        ApiKey.CREATE_TOPICS,
        (_CREATE_TOPIC, _need(Operation.DESCRIBE_CONFIGS, _TOPIC)),
        "with settings in the response",
    ),
    Row(ApiKey.DELETE_TOPICS, (_need(Operation.DELETE, _TOPIC),)),
    Row(ApiKey.DELETE_TOPICS, (_need(Operation.DELETE, _TOPIC, Denied.UNKNOWN_ID),), BY_ID),
    Row(ApiKey.DELETE_RECORDS, (_need(Operation.DELETE, _TOPIC),)),
    Row(
        ApiKey.INIT_PRODUCER_ID,
        (Need(Right(Operation.IDEMPOTENT_WRITE, _CLUSTER), Right(Operation.WRITE, _TOPIC)),),
        "without a transactional id",
    ),
    Row(ApiKey.INIT_PRODUCER_ID, (_WRITE_ID,), "with a transactional id"),
    Row(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        (Need(Right(Operation.DESCRIBE, _TOPIC), Right(Operation.CLUSTER_ACTION, _CLUSTER)),),
    ),
    Row(ApiKey.ADD_PARTITIONS_TO_TXN, (_WRITE_ID, _WRITE_TOPIC), "of clients (versions up to 3)"),
    Row(ApiKey.ADD_PARTITIONS_TO_TXN, (_CLUSTER_ACTION,), "of brokers (versions from 4)"),
    Row(ApiKey.ADD_OFFSETS_TO_TXN, (_WRITE_ID, _READ_GROUP)),
    Row(ApiKey.END_TXN, (_WRITE_ID,)),
    Row(
        ApiKey.WRITE_TXN_MARKERS,
        (Need(Right(Operation.CLUSTER_ACTION, _CLUSTER), Right(Operation.ALTER, _CLUSTER)),),
    ),
    Row(ApiKey.TXN_OFFSET_COMMIT, (_WRITE_ID, _READ_GROUP, _READ_TOPIC)),
    Row(ApiKey.SASL_HANDSHAKE),
    Row(ApiKey.SASL_AUTHENTICATE),
    Row(ApiKey.DESCRIBE_CLIENT_QUOTAS, (_need(Operation.DESCRIBE_CONFIGS, _CLUSTER),)),
    Row(ApiKey.ALTER_CLIENT_QUOTAS, (_need(Operation.ALTER_CONFIGS, _CLUSTER),)),
    Row(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (_DESCRIBE_CLUSTER,)),
    Row(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (_ALTER_CLUSTER,)),
    Row(ApiKey.CREATE_DELEGATION_TOKEN),
    Row(
        ApiKey.CREATE_DELEGATION_TOKEN,
        (_need(Operation.CREATE_TOKENS, ResourceType.USER),),
        FOR_ANOTHER,
    ),
    Row(ApiKey.RENEW_DELEGATION_TOKEN),
    Row(ApiKey.EXPIRE_DELEGATION_TOKEN),
    Row(ApiKey.DESCRIBE_DELEGATION_TOKEN),
    Row(
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        (
            Need(
                Right(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
                Right(Operation.DESCRIBE_TOKENS, ResourceType.USER),
                Denied.LEFT_OUT,
            ),
        ),
        OF_ANOTHER,
    ),
    Row(ApiKey.DESCRIBE_ACLS, (_DESCRIBE_CLUSTER,)),
    Row(ApiKey.CREATE_ACLS, (_ALTER_CLUSTER,)),
    Row(ApiKey.DELETE_ACLS, (_ALTER_CLUSTER,)),
    Row(ApiKey.DESCRIBE_CONFIGS, (_need(Operation.DESCRIBE_CONFIGS, _TOPIC),), "of a topic"),
    Row(ApiKey.DESCRIBE_CONFIGS, (_need(Operation.DESCRIBE_CONFIGS, _GROUP),), "of a group"),
    Row(ApiKey.DESCRIBE_CONFIGS, (_need(Operation.DESCRIBE_CONFIGS, _CLUSTER),), "of a broker"),
    Row(ApiKey.ALTER_CONFIGS, (_need(Operation.ALTER_CONFIGS, _TOPIC),), "of a topic"),
    Row(ApiKey.ALTER_CONFIGS, (_need(Operation.ALTER_CONFIGS, _GROUP),), "of a group"),
    Row(ApiKey.ALTER_CONFIGS, (_need(Operation.ALTER_CONFIGS, _CLUSTER),), "of a broker"),
    Row(ApiKey.ALTER_REPLICA_LOG_DIRS, (_ALTER_CLUSTER,)),
    Row(ApiKey.DESCRIBE_LOG_DIRS, (_DESCRIBE_CLUSTER,)),
    Row(ApiKey.CREATE_PARTITIONS, (_need(Operation.ALTER, _TOPIC),)),
    Row(ApiKey.DELETE_GROUPS, (_DELETE_GROUP,)),
    Row(ApiKey.ELECT_LEADERS, (_ALTER_CLUSTER,)),
    Row(ApiKey.INCREMENTAL_ALTER_CONFIGS, (_need(Operation.ALTER_CONFIGS, _TOPIC),), "of a topic"),
    Row(ApiKey.INCREMENTAL_ALTER_CONFIGS, (_need(Operation.ALTER_CONFIGS, _GROUP),), "of a group"),
    Row(ApiKey.INCREMENTAL_ALTER_CONFIGS, (_need(Operation.ALTER_CONFIGS, _CLUSTER),), "of a broker"),
    Row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (_ALTER_CLUSTER,)),
    Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, (_DESCRIBE_CLUSTER,)),
    Row(ApiKey.OFFSET_DELETE, (_DELETE_GROUP, _READ_TOPIC)),
    Row(ApiKey.DESCRIBE_QUORUM, (_DESCRIBE_CLUSTER,)),
    Row(ApiKey.UPDATE_FEATURES, (_ALTER_CLUSTER,)),
    Row(ApiKey.DESCRIBE_CLUSTER),
    Row(ApiKey.DESCRIBE_CLUSTER, (_ALTER_CLUSTER,), "of controllers"),
    Row(ApiKey.DESCRIBE_PRODUCERS, (_READ_TOPIC,)),
    Row(ApiKey.UNREGISTER_BROKER, (_ALTER_CLUSTER,)),
    Row(
        ApiKey.DESCRIBE_TRANSACTIONS,
        (_DESCRIBE_ID, _need(Operation.DESCRIBE, _TOPIC, Denied.LEFT_OUT)),
    ),
    Row(ApiKey.LIST_TRANSACTIONS, (_need(Operation.DESCRIBE, _ID, Denied.LEFT_OUT),)),
    Row(ApiKey.CONSUMER_GROUP_HEARTBEAT, (_READ_GROUP, _DESCRIBE_TOPIC)),
    Row(ApiKey.CONSUMER_GROUP_DESCRIBE, (_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    Row(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS),
    Row(ApiKey.PUSH_TELEMETRY),
    Row(ApiKey.LIST_CONFIG_RESOURCES, (_need(Operation.DESCRIBE_CONFIGS, _CLUSTER),)),
    Row(ApiKey.DESCRIBE_TOPIC_PARTITIONS, (_DESCRIBE_TOPIC,)),
    Row(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        (_need(Operation.DESCRIBE, _TOPIC, Denied.LEFT_OUT),),
        LISTED,
    ),
    Row(ApiKey.SHARE_GROUP_HEARTBEAT, (_READ_GROUP, _DESCRIBE_TOPIC)),
    Row(ApiKey.SHARE_GROUP_DESCRIBE, (_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    Row(ApiKey.SHARE_FETCH, (_READ_GROUP, _need(Operation.READ, _TOPIC, Denied.UNKNOWN_ID))),
    Row(
        ApiKey.SHARE_FETCH,
        (_READ_GROUP, _need(Operation.READ, _TOPIC, Denied.UNKNOWN_ID), _WRITE_DEAD_LETTERS),
        REJECTING,
    ),
    Row(ApiKey.SHARE_ACKNOWLEDGE, (_READ_GROUP, _need(Operation.READ, _TOPIC, Denied.UNKNOWN_ID))),
    Row(
        ApiKey.SHARE_ACKNOWLEDGE,
        (_READ_GROUP, _need(Operation.READ, _TOPIC, Denied.UNKNOWN_ID), _WRITE_DEAD_LETTERS),
        REJECTING,
    ),
    Row(ApiKey.ADD_RAFT_VOTER, (_ALTER_CLUSTER,)),
    Row(ApiKey.REMOVE_RAFT_VOTER, (_ALTER_CLUSTER,)),
    Row(ApiKey.STREAMS_GROUP_HEARTBEAT, (_READ_GROUP, _DESCRIBE_TOPIC)),
    Row(
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        (_READ_GROUP, _DESCRIBE_TOPIC, _CREATE_TOPIC),
        "that creates internal topics",
    ),
    Row(ApiKey.STREAMS_GROUP_DESCRIBE, (_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    Row(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, (_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    Row(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        (_DESCRIBE_GROUP, _need(Operation.DESCRIBE, _TOPIC, Denied.LEFT_OUT)),
        LISTED,
    ),
    Row(ApiKey.ALTER_SHARE_GROUP_OFFSETS, (_READ_GROUP, _READ_TOPIC)),
    Row(ApiKey.DELETE_SHARE_GROUP_OFFSETS, (_DELETE_GROUP, _READ_TOPIC)),
)


def rights_page() -> str:
    """Return the table as Markdown."""
    lines = ["| request | | right | without it |", "|---|---|---|---|"]
    for row in TABLE:
        name = APIS[row.api].name
        if not row.needs:
            lines.append(f"| {name} | {row.when} | none | |")
        for need in row.needs:
            right = str(need.right) if need.instead is None else f"{need.right}, or {need.instead}"
            right = f"{right} {need.resource}".rstrip()
            answer = Denied.LEFT_OUT.value if need.error is None else need.error.name
            lines.append(f"| {name} | {row.when} | {right} | {answer} |")
            name, row = "", row._replace(when="")
    return "\n".join(lines) + "\n"
