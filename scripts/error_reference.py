"""Generates docs/reference/errors.md: every error of every API, its cause and its remedy.

The errors, their codes and their causes come from the code: the error tables of the APIs, and the docstrings
of the errors. The remedies are here; an error without one stops the generator.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from alpacamq.api.grpc import errors as grpc
from alpacamq.api.kafka import errors as kafka
from alpacamq.api.kafka import fetch_sessions as fetching
from alpacamq.api.kafka.share import sessions as sharing
from alpacamq.api.registry import errors as registry
from alpacamq.api.rest import errors as rest
from alpacamq.api.sqs import errors as sqs
from alpacamq.client import errors as client
from alpacamq.model import errors as e
from alpacamq.model.compression import TooMuchData
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ProtocolError
from alpacamq.registry import errors as r
from alpacamq.registry.schema import InvalidData, InvalidSchema

Remedies = Mapping[type[e.AlpacaError], str]

SOURCES = Path(__file__).parent.parent / "src" / "alpacamq" / "api"
# The SQS error of failures inside the broker; not listed for errors that no SQS request can cause.
_INTERNAL = sqs.INTERNAL_FAILURE


class MissingText(Exception):
    """An error has no cause or no remedy."""


# Headings in the order of the page, and the remedy of each error.
GROUPS: Mapping[str, Remedies] = {
    "Requests": {
        e.InvalidRequest: "Correct the value that the message names.",
        ProtocolError: "Update the client: it sends what Kafka's protocol does not allow. A client of another protocol on the Kafka "
        "port gets this, too: check the port.",
        rest.InvalidInput: "Correct the field or parameter that `field` names; the [HTTP reference](http.md) lists types and limits.",
        rest.ConflictingInput: "Leave out one of the fields that the message names, add the one it requires, or correct the value.",
        rest.UnsupportedMediaType: "Send `Content-Type: application/json`. Clients like `fetch` send `text/plain` for a string unless set "
        "otherwise.",
        rest.UnknownPath: "Correct the path; `GET /openapi.json` lists all.",
        rest.MethodNotAllowed: "Use a method of the header `Allow`.",
        rest.CrossOrigin: "Call the API from a page of the broker's own origin, or from a server.",
        rest.CsrfTokenMissing: "Reload the console. Programs log in with a password, key or token instead of the console's cookie.",
        registry.NotAcceptable: "Accept `application/vnd.schemaregistry.v1+json` or `application/json`.",
        grpc.InvalidField: "Correct the field that the message and `BadRequest` name.",
        grpc.Malformed: "Generate the client's code anew from the `.proto` files of the broker's version.",
        grpc.MessageTooLarge: "Send smaller messages, or raise `grpc.max_message_bytes`.",
        grpc.Unimplemented: "Check the method against the [gRPC reference](grpc.md), and the version of the broker. Messages may be compressed "
        "with gzip only.",
        grpc.UnknownService: "Request the health of a service that reflection lists, or of the empty name.",
        grpc.Expired: "Set a longer deadline, or find out [who is slow](../guide/who-is-slow.md).",
        grpc.InternalError: "Look into the broker's log and report it.",
    },
    "Records": {
        e.CorruptBatch: "Update a client older than Kafka 0.11: its batches have another format. Otherwise produce again; if it recurs, suspect the "
        "client's library, its memory or the network.",
        e.InvalidRecord: "Correct the record that the message names: a missing key in a compacted topic, a value that its "
        "[schema](../guide/schema-validation.md) does not allow, or a delivery time that is no time.",
        e.SchemasUnavailable: "Retry. If it lasts, look for `schema_worker_not_started` in the broker's log, and at the leader of `_schemas`: "
        "`alpacactl topics describe _schemas`.",
        e.InvalidTimestamp: "Send milliseconds since 1970. Correct the clock of the producer, or raise `message.timestamp.before.max.ms` and "
        "`message.timestamp.after.max.ms` of the topic.",
        e.BatchTooLarge: "Send smaller messages or batches (`batch.size`), or raise `max.message.bytes` of the topic.",
        TooMuchData: "Send smaller batches, or raise `log.unpacked_limit_bytes`.",
        e.UnsupportedCompression: "Use gzip, snappy, lz4, zstd or none; zstd needs Produce version 7.",
        e.InvalidRequiredAcks: "Set `acks` to 0, 1 or all.",
        e.OffsetOutOfRange: "Retention has deleted the offset, or the topic was deleted and created again: start at the earliest or latest offset "
        "(`auto.offset.reset`, `alpacactl groups reset`).",
    },
    "Topics and settings": {
        e.UnknownTopic: "Create the topic, or correct its name or the number of the partition: `alpacactl topics list`.",
        e.UnknownTopicId: "Nothing: clients refresh their metadata. The topic was deleted, and perhaps created again.",
        e.TopicExists: "Use the topic, or another name.",
        e.InvalidTopicName: "Use letters, digits, `.`, `_` and `-`, at most 249. Names that differ only in `.` and `_` collide.",
        e.InvalidPartitionCount: "Request at least 1 partition, more than the topic has, and no more than `topics.max_partitions` in all topics. Add "
        "thousands in steps.",
        e.InvalidReplication: "Use a replication factor of at most the number of running brokers, or start more of them: `alpacactl cluster status`.",
        e.InvalidReplicaAssignment: "Name existing brokers, each once for a partition, and as many for every partition.",
        e.InvalidConfig: "Correct the setting that the message names: [Topics and settings](../guide/topics-and-settings.md#settings).",
        e.PolicyViolation: "Delete records of a compacted topic with tombstones. Internal topics cannot be changed. Delete the topics and groups of "
        "a tenant before the tenant.",
        rest.NotCompacted: "Set `cleanup.policy=compact` on the topic.",
    },
    "Partitions, leaders and replicas": {
        e.PartitionNotReady: "Nothing: clients retry until the log is recovered.",
        e.NotLeader: "Nothing: clients ask for the leader and go on.",
        e.LeaderNotAvailable: "Wait for the failover. If it lasts, start a broker that holds a replica in sync: `alpacactl topics describe TOPIC`.",
        e.FencedLeaderEpoch: "Nothing: clients refresh their metadata.",
        e.UnknownLeaderEpoch: "Nothing: clients retry until this broker has heard of the new leader.",
        e.OffsetNotAvailable: "Nothing: clients retry.",
        e.NotEnoughReplicas: "Bring back the missing brokers, or lower `min.insync.replicas`: `alpacactl cluster status`.",
        e.NotEnoughReplicasAfterAppend: "As above. The records may be written twice if a producer without idempotence retries.",
        e.ElectionNotNeeded: "Nothing.",
        e.PreferredLeaderNotAvailable: "Start the broker and wait until it is in sync.",
        e.EligibleLeadersNotAvailable: "Start a broker that was in sync. The last resort is an unclean election, which loses records: "
        "[Clusters](../guide/cluster.md#disaster-recovery).",
        e.NoReassignmentInProgress: "Nothing: the reassignment has ended.",
    },
    "Cluster": {
        e.NotController: "Nothing: brokers forward the request to the controller.",
        e.PeerUnavailable: "Retry. If it lasts, look at the nodes and the network between them: `alpacactl cluster status`.",
        e.PeerFailed: "Look into the log of the other node, and compare the versions of the nodes.",
        e.RequestTimedOut: "Look whether it has taken effect, then retry; idempotent producers do by themselves. If it recurs, find out "
        "[who is slow](../guide/who-is-slow.md).",
        e.UnknownBroker: "Correct the id: `alpacactl cluster status`.",
        e.DuplicateBroker: "Give each node its own `node.id`, and start each once. After a crash, wait until the session of the former process has ended: "
        "`cluster.dead_ms`.",
        e.StaleBrokerEpoch: "Nothing: the broker registers again.",
        e.InvalidUpdateVersion: "Nothing: the leader reads the state again and repeats the change.",
        e.IneligibleReplica: "Nothing: the leader retries once the broker is running.",
        e.InconsistentClusterId: "Connect it to its own cluster, or use an empty data directory.",
        e.InvalidVoters: "Wait until the previous change has ended, and keep a majority: `alpacactl cluster status`.",
        e.FeatureUpdateFailed: "Upgrade every broker first. Levels cannot go back.",
        e.FeatureNotEnabled: "Run `alpacactl cluster upgrade` after all nodes run the new version.",
    },
    "Groups": {
        e.InvalidGroupId: "Set `group.id`. The name of a group of a queue has at most 255 bytes.",
        e.GroupIdNotFound: "Correct the name, or use the command for the group's type: `alpacactl groups list`.",
        e.TooManyGroups: "Delete groups that are not used: `alpacactl groups delete`. For queues, raise `queues.max_queues`; 10,000 groups per "
        "coordinator partition are a fixed limit.",
        e.GroupMaxSizeReached: "Run fewer members, or raise `groups.max_members`, or the limit of the tenant.",
        e.NonEmptyGroup: "Stop the members of the group first.",
        e.MemberIdRequired: "Nothing: clients join again with the id.",
        e.UnknownMember: "Nothing: clients join again. If it recurs, the member is too slow: raise `max.poll.interval.ms` or "
        "`session.timeout.ms`, or lower `max.poll.records`.",
        e.IllegalGeneration: "As above; the work since the last commit is delivered again.",
        e.RebalanceInProgress: "Nothing: clients join again. If it recurs, look for members that come and go: `alpacactl groups describe GROUP`.",
        e.InconsistentGroupProtocol: "Give all members a `partition.assignment.strategy` in common, and one `group.protocol`.",
        e.FencedInstanceId: "Give each process its own `group.instance.id`.",
        e.UnreleasedInstanceId: "Stop the other process, or give each its own `group.instance.id`.",
        e.InvalidSessionTimeout: "Choose a `session.timeout.ms` from 1 second to 30 minutes.",
        e.StaleMemberEpoch: "Nothing: clients heartbeat and retry.",
        e.FencedMemberEpoch: "Nothing: clients join again.",
        e.UnsupportedAssignor: "Use `uniform` or `range`.",
        e.InvalidRegularExpression: "Correct the pattern; it is in RE2 syntax, without look-around and back-references.",
        e.StreamsInvalidTopology: "Correct the topology that the message names.",
        e.GroupSubscribedToTopic: "Stop the members that consume the topic first.",
        e.OffsetMetadataTooLarge: "Store less with the offset: at most 4,096 bytes.",
        e.UnstableOffsetCommit: "Nothing: clients retry. If it lasts, end the transaction: `alpacactl transactions list`, then `alpacactl transactions abort`.",
        e.CoordinatorLoading: "Nothing: clients retry.",
        e.CoordinatorUnavailable: "Retry. If it lasts, look at the leaders of the internal topics: `alpacactl cluster status`.",
        e.NotCoordinator: "Nothing: clients look for the coordinator and go on.",
    },
    "Queues and delays": {
        e.InvalidLane: "Use `critical`, `high`, `normal`, `low` or `background`.",
        e.InvalidReceipt: "Send the receipt of the last delivery as it was received, to the queue it came from.",
        e.StaleReceipt: "Drop the result, or make the work idempotent: another delivery has the message. Raise "
        "`queue.visibility.timeout.ms` or extend leases during long work.",
        e.NotAcquired: "As above.",
        e.TooManyInFlight: "Acknowledge messages, or raise `queue.max.in.flight` and `queue.max.in.flight.total`.",
        e.TooManyWaiting: "Let fewer consumers wait at once, or raise `queues.max_waiting_receives`.",
        e.InvalidDelay: "Choose a delivery time within `delays.max_delay_ms`; over SQS, 15 minutes.",
        e.UnknownDelayed: "Nothing: look for the message in its topic.",
        e.TooManyDelayed: "Wait until messages are due, cancel some, or raise `delays.max_pending`.",
        rest.UnknownTask: "List the redrives: `alpacactl dlq redrives`. A broker keeps the last hundred, until it restarts.",
    },
    "Producers and transactions": {
        e.FencedProducer: "Stop the older instance; two may not share a transactional id.",
        e.ProducerFenced: "Stop the older instance; if there is none, its transaction lasted longer than `transaction.timeout.ms`: make a new producer.",
        e.OutOfOrderSequence: "Make a new producer, and send what was not acknowledged.",
        e.InvalidProducerIdMapping: "Make a new producer: the transactional id has expired or was initialised elsewhere.",
        e.TransactionCoordinatorFenced: "Nothing: the later coordinator has ended the transaction.",
        e.InvalidTransactionState: "Begin a transaction first, and do not use one producer from several threads.",
        e.ConcurrentTransactions: "Nothing: clients retry until the last transaction is complete.",
        e.InvalidTransactionTimeout: "Choose a `transaction.timeout.ms` of at most `transactions.max_timeout_ms`.",
        e.TransactionalIdNotFound: "Correct the id: `alpacactl transactions list`. Unused ids expire.",
        e.TransactionAbortable: "Abort the transaction and repeat it.",
        rest.UnknownProducer: "Call `POST /producers/init` again: the id is wrong or has expired.",
    },
    "Storage": {
        e.StorageFailed: "Look into the broker's log and at the disk (`dmesg`).",
        e.DiskFull: "Free or add space; writes resume by themselves: [Disk full](../guide/operations.md#disk-full).",
        e.DataInDoubt: "Replace the disk, then let the replica copy its data, or restart and check: [Repair](../guide/repair.md).",
        e.DamagedLog: "Run `alpacamq verify`, then `alpacamq repair`: [Repair](../guide/repair.md).",
        e.CorruptState: "Run `alpacamq verify`, then `alpacamq repair`: [Repair](../guide/repair.md).",
        e.DataDirectoryInUse: "Stop the other broker, or use another directory.",
    },
    "Limits and load": {
        e.RateLimited: "Slow down, and retry after the time that the answer names.",
        e.QuotaExceeded: "Slow down to the [quota](../guide/quotas.md), or have it raised: `alpacactl quota list`.",
        e.UnsupportedQuotaEntity: "Use `user`, `client-id` or `ip`.",
        grpc.Overloaded: "Retry later; let fewer or smaller requests be in flight.",
        grpc.ShuttingDown: "Nothing: clients continue with another broker.",
        rest.Degraded: "Read the checks in the body, and repair what fails.",
        rest.Recovering: "Wait until the logs are recovered.",
        rest.MetricsDisabled: "Set `metrics.enabled = true`.",
        rest.UnknownTrace: "Check that the topic is traced (`trace.sample`), and look for newer traces: `alpacactl trace`.",
        fetching.FetchSessionNotFound: "Nothing: clients begin a new session.",
        fetching.InvalidFetchSessionEpoch: "Nothing: clients begin a new session.",
        sharing.ShareSessionNotFound: "Nothing: clients begin a new session.",
        sharing.InvalidShareSessionEpoch: "Nothing: clients begin a new session.",
        sharing.ShareSessionLimitReached: "Run fewer share consumers on this broker.",
    },
    "Security": {
        e.AuthenticationFailed: "Check user, password, key or token, and the mechanism: [Security](../guide/security.md#wrong-passwords).",
        e.TopicNotAuthorized: "Add a rule: `alpacactl acl add`. [Rights](access-rights.md) lists what each request needs.",
        e.GroupNotAuthorized: "Add a rule for the group: `alpacactl acl add`.",
        e.ClusterNotAuthorized: "Use an administrator, or add a rule for the cluster: `alpacactl acl add`.",
        e.TransactionalIdNotAuthorized: "Add a rule for the transactional id: `alpacactl acl add`.",
        e.InvalidCredential: "Choose a password and a number of iterations within the limits that the message names.",
        e.InvalidPrincipal: "Write `User:NAME`, with a name without control characters that is not reserved.",
        e.UnknownUser: "Correct the name: `alpacactl user list`.",
        e.UnknownApiKey: "Correct the id: `alpacactl key list`.",
        rest.AlreadyExists: "Use another name, or change what exists: `PUT /users/{user}/password` for a password.",
        rest.UnknownAcl: "Correct the id: `GET /acls` lists the rules with their ids. It may have been deleted meanwhile.",
        e.InvalidAcl: "Correct the value that the message names.",
        e.SecurityDisabled: "Set `security.acls = true` and `security.super_users` for access rules, `security.authentication = true` for logins, and restart: "
        "[Security](../guide/security.md#turning-it-on).",
        e.DelegationTokensDisabled: "Set `security.delegation_token_secret_file` on every node: [Tokens](../guide/tokens.md).",
        e.DelegationTokenRequestNotAllowed: "Log in with a password or certificate; a token cannot make tokens.",
        e.DelegationTokenNotAuthorized: "Let the user create tokens for the owner: `alpacactl acl add --user-principal`.",
        e.DelegationTokenNotFound: "Make a new token: this one was deleted or has expired.",
        e.DelegationTokenOwnerMismatch: "Log in as the owner or a renewer of the token.",
        e.DelegationTokenExpired: "Make a new token, and renew it in time.",
        e.InvalidPrincipalType: "Write `User:NAME`.",
    },
    "Tenants": {
        e.InvalidTenant: "Correct the value that the message names: [Tenants](../guide/tenants.md).",
        e.UnknownTenant: "Correct the id: `alpacactl tenant list`.",
        e.TenantExists: "Use another id, or remove the principal from its tenant first.",
        e.TenantLimitReached: "Delete what is not used, or have the limit raised: `alpacactl tenant show` prints limits, `alpacactl tenant set` changes them.",
        e.TenantStorageFull: "Shorten retention or delete topics, or have the limit raised: `alpacactl tenant set`. Freed space counts after a few seconds.",
    },
    "Schemas": {
        r.SubjectNotFound: "Register a schema, or correct the subject: `alpacactl schema list`.",
        r.VersionNotFound: "Correct the version: `alpacactl schema get`.",
        r.SchemaNotFound: "Check that the client uses this registry, and that the schema was not deleted for good.",
        r.SubjectSoftDeleted: "Add `permanent=true`, or register a schema again.",
        r.SubjectNotSoftDeleted: "Delete it without `permanent=true` first.",
        r.VersionSoftDeleted: "Add `permanent=true`.",
        r.VersionNotSoftDeleted: "Delete it without `permanent=true` first.",
        r.ConfigNotFound: "Add `defaultToGlobal=true` to the request to read the global one.",
        r.ModeNotFound: "Add `defaultToGlobal=true` to the request to read the global one.",
        r.IncompatibleSchema: "Change the schema as the message says, or the level: `alpacactl schema check` tries it.",
        InvalidSchema: "Correct the schema at the line that the message names.",
        InvalidData: "Correct the value at the place that the message names.",
        r.InvalidVersion: "Use a number from 1, or `latest`.",
        r.InvalidCompatibilityLevel: "Use `BACKWARD`, `FORWARD`, `FULL`, their `_TRANSITIVE` forms, or `NONE`.",
        r.InvalidMode: "Use `READWRITE`, `READONLY`, `READONLY_OVERRIDE` or `IMPORT`.",
        r.OperationNotPermitted: "Set the mode of the subject to `READWRITE`, or to `IMPORT` for ids of your own: `alpacactl schema mode`. `IMPORT` needs an empty "
        "subject or `force=true`.",
        r.ReferenceExists: "Delete the schemas that refer to it first.",
        r.IdDoesNotMatch: "Import the schema under the id that it has.",
        r.InvalidSubject: "Use a name of at most 1,000 characters, without control characters, that is not reserved.",
        r.SchemaTooLarge: "Make the schema smaller, or split it by references.",
        r.InvalidRuleSet: "Correct the rule that the message names.",
        r.IdsExhausted: "Nothing helps: this registry takes no new schemas. Do not import ids near 2^31.",
    },
}

# Kafka's codes that answers contain without an error of the tables.
KAFKA_ONLY: Mapping[ErrorCode, tuple[str, str]] = {
    ErrorCode.DUPLICATE_RESOURCE: ("A request names a user and mechanism twice.", "Name each once."),
    ErrorCode.DUPLICATE_VOTER: ("The node is a voter already.", "Nothing."),
    ErrorCode.ILLEGAL_SASL_STATE: (
        "A request arrived before or in the middle of the login.",
        "Set `security.protocol` to `SASL_PLAINTEXT` or `SASL_SSL`: [Security](../guide/security.md).",
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: (
        "The topic is being created, its creation waits for a quota, or no replica in sync is running.",
        "Clients retry. If it lasts, start a broker that holds a replica: `alpacactl topics describe TOPIC`.",
    ),
    ErrorCode.LOG_DIR_NOT_FOUND: (
        "The broker has one log directory, and this is not it.",
        "Use the directory that `DescribeLogDirs` names.",
    ),
    ErrorCode.OPERATION_NOT_ATTEMPTED: (
        "Another partition of the same request failed.",
        "Repair that one, and repeat the request.",
    ),
    ErrorCode.REPLICA_NOT_AVAILABLE: (
        "The broker has no replica of the partition.",
        "Send the request to a broker that has one: `alpacactl topics partitions`.",
    ),
    ErrorCode.TELEMETRY_TOO_LARGE: (
        "The client sent more metrics in one request than the broker takes, which discards all of them.",
        "Set `enable.metrics.push=false`.",
    ),
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: (
        "The client sent metrics for a subscription that the broker did not give it.",
        "Set `enable.metrics.push=false`.",
    ),
    ErrorCode.UNKNOWN_SERVER_ERROR: ("A bug of the broker.", "Look into the broker's log and report it."),
    ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: (
        "A `DescribeCluster` request names another type of endpoint than brokers (1) and controllers (2).",
        "Update the client.",
    ),
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: (
        "The listener does not offer the mechanism, or a user cannot have a password of it.",
        "Use `SCRAM-SHA-256`, `SCRAM-SHA-512` or `PLAIN`; `OAUTHBEARER` needs a [provider](../guide/tokens.md).",
    ),
    ErrorCode.UNSUPPORTED_VERSION: (
        "The broker does not know the version of the request, or a value of it.",
        "Compare the client with the [supported requests](../guide/kafka-clients.md#supported-requests).",
    ),
    ErrorCode.VOTER_NOT_FOUND: ("The node is not a voter.", "Correct the id: `alpacactl cluster status`."),
}

# Errors of SQS that requests cause before they reach a queue.
SQS_ONLY: Mapping[str, tuple[str, str]] = {
    "BATCH_TOO_LONG": (
        "The entries of a batch are larger than 1 MiB together.",
        "Send fewer or smaller entries.",
    ),
    "EMPTY_BATCH": ("A batch has no entries.", "Send at least one."),
    "ENTRY_IDS_NOT_DISTINCT": ("Entries of a batch share an id.", "Give each entry its own `Id`."),
    "INCOMPLETE_SIGNATURE": (
        "The signature of the request is incomplete.",
        "Let the SDK sign; check a proxy that changes headers.",
    ),
    "INVALID_ACTION": ("No such action.", "See the [list of actions](../guide/sqs.md#actions)."),
    "INVALID_ADDRESS": ("The URL is not that of a queue.", "Use the URL of `GetQueueUrl`."),
    "INVALID_ATTRIBUTE_NAME": (
        "A queue has no such attribute.",
        "Correct the name: [Attributes](../guide/sqs.md#attributes-and-topic-settings).",
    ),
    "INVALID_ENTRY_ID": (
        "The id of an entry is too long or has invalid characters.",
        "Use up to 80 letters, digits, `-` and `_`.",
    ),
    "MALFORMED": (
        "The body is not what the protocol prescribes.",
        "Update the SDK; a client of another service does not work.",
    ),
    "MISDIRECTED": (
        "The request is for a host name that is not this broker's.",
        "Add the name to `sqs.hosts`, or use the address of the broker.",
    ),
    "MISSING_PARAMETER": ("A required parameter is missing.", "Add the parameter that the message names."),
    "MISSING_TOKEN": ("The request is not signed.", "Configure an access key in the SDK."),
    "NO_ACTION": (
        "A request of the query protocol names no action.",
        "Use an SDK; a browser gets this at the root.",
    ),
    "PURGE_IN_PROGRESS": ("The queue was purged within the last 60 seconds.", "Wait a minute."),
    "RESOURCE_NOT_FOUND": (
        "No queue has the ARN, or no task the handle; only active tasks can be cancelled.",
        "Correct the ARN, or list the tasks: `ListMessageMoveTasks`.",
    ),
    "TOO_MANY_ENTRIES": ("A batch has more than 10 entries.", "Send at most 10."),
    "WRONG_SIGNATURE": (
        "Secret, region or clock of the client differ.",
        "Check the secret key, `sqs.region`, and the clock, which may differ by 15 minutes.",
    ),
}

# Statuses of requests that no route has seen.
HTTP_ONLY: Mapping[int, tuple[str, str]] = {
    400: (
        "The request is not valid HTTP.",
        "Use HTTP/1.1 with one `Host` header; a TLS client needs a listener with TLS.",
    ),
    408: ("The request did not arrive in time.", "Send it faster, or in smaller parts."),
    413: (
        "The body is too large.",
        "Send smaller bodies, or raise `http.max_body_bytes`, `sqs.max_body_bytes` or `registry.max_body_bytes`.",
    ),
    414: ("The path and query are too long.", "Send fewer parameters."),
    417: ("The request expects something other than `100-continue`.", "Leave out the header `Expect`."),
    421: (
        "The `Host` is not a name of this broker.",
        "Use its address, or add the name to `http.hosts`, `sqs.hosts` or `registry.hosts`.",
    ),
    431: (
        "The headers are too many or too large.",
        "Send fewer; cookies of other programs on the same host count.",
    ),
    500: ("A bug of the broker.", "Look into the broker's log and report it."),
    501: ("The method is not one of HTTP.", "Use a method of the reference."),
    505: ("The version of HTTP is not supported.", "Use HTTP/1.1."),
}

# What the Python client and alpacactl raise by themselves.
CLIENT: Remedies = {
    client.UnusableCertificate: "Correct the path or the file: PEM, readable, and a key that belongs to the certificate.",
    client.Unreachable: "Start the broker, or correct the address and the [advertised address](../guide/troubleshooting.md#alpacactl-cannot-connect).",
    client.Untrusted: "Name the authority that signed it (`ca`), and connect by a name of the certificate.",
    client.Closed: "Use it inside its `with` block. The program may end while another of its tasks still sends.",
    client.BufferFull: "Wait for acknowledgements (`await room()`), or raise `buffer_bytes` of the producer.",
    client.RecordTooLarge: "Send less, or raise `batch_bytes` of the producer and `max.message.bytes` of the topic.",
    client.DeliveryTimedOut: "Look for missing brokers. If `is_sent`, look whether it was written before sending it again.",
    client.DelaysDisabled: "Set `message.delays=true` on the topic.",
    client.NotFound: "Use one of the names that the message suggests.",
    client.Refused: "Search this page for the name of Kafka's error.",
    client.LoginRefused: "Check user, password, key or token, and the mechanism.",
    client.NotAuthorized: "Add a rule: `alpacactl acl add`.",
    client.ProducerFenced: "Stop the other producer with this transactional id; if there is none, the transaction timed out: repeat it with a new producer.",
    client.SequenceLost: "Look whether the records were written, then send those that were not.",
    client.MemberFenced: "Join again; make processing shorter than the limit of the group.",
    client.OffsetOutOfRange: "Start at the earliest or latest offset.",
    client.RecordRejected: "Correct the record; the message has the reason.",
    client.TransactionAborted: "Repeat the transaction.",
}


def error_reference() -> str:
    """Return the whole page."""
    check_texts()
    parts = [_PREFACE]
    for heading, remedies in GROUPS.items():
        parts.append(f"## {heading}\n")
        rows = [
            f"| `{rest.problem_type(kind).rpartition(':')[2]}` | {codes_of(kind)} | {cause_of(kind)} | {remedy} |"
            for kind, remedy in remedies.items()
        ]
        parts.append(_table("error | codes | cause | what to do", rows))
    parts.append("## Only over the Kafka API\n")
    rows = [
        f"| `{code.name}` ({code.value}) | {cause} | {remedy} |"
        for code, (cause, remedy) in KAFKA_ONLY.items()
    ]
    parts.append(_table("code | cause | what to do", rows))
    parts.append("## Only over the SQS API\n")
    rows = [
        f"| {_sqs_name(getattr(sqs, name))} | {cause} | {remedy} |"
        for name, (cause, remedy) in SQS_ONLY.items()
    ]
    parts.append(_table("error | cause | what to do", rows))
    parts.append("## Requests that are no HTTP\n")
    parts.append("These apply to HTTP, SQS and the schema registry.\n")
    rows = [f"| {status} | {cause} | {remedy} |" for status, (cause, remedy) in HTTP_ONLY.items()]
    parts.append(_table("status | cause | what to do", rows))
    parts.append("## Errors of the Python client\n")
    parts.append(
        "Those of `alpacamq` and of `alpacactl`; `retriable` says whether the same call can succeed later.\n"
    )
    rows = [f"| `{kind.__name__}` | {cause_of(kind)} | {remedy} |" for kind, remedy in CLIENT.items()]
    parts.append(_table("error | cause | what to do", rows))
    return "\n".join(parts)


_PREFACE = """\
# Error reference

Every error of every API: its cause, and what to do. Search this page for the code that you see. This page is generated by `make docs`
from the error tables of the broker.

An error has one name in the broker. The HTTP API sends it as `type` (`urn:alpacamq:problem:unknown-topic`), the Kafka API as a code, the SQS API
as an AWS error, the schema registry as a number, gRPC as a status with Kafka's name as the reason. The text of an error
names the value that was wrong.

*Nothing* under "what to do" means that clients handle it by themselves. Messages of a broker that does not start are under
[Troubleshooting](../guide/troubleshooting.md#the-broker-does-not-start), exit codes of `alpacactl` in [its guide](../guide/alpacactl.md).
"""


def check_texts() -> None:
    """Raise MissingText for an error without a cause or remedy, and for a remedy without an error."""
    remedies = [kind for group in GROUPS.values() for kind in group]
    _compare("errors of the APIs", api_errors(), remedies)
    _compare("errors of the client", client_errors(), CLIENT)
    _compare("Kafka's codes", kafka_codes(), KAFKA_ONLY)
    _compare("errors of SQS", sqs_names(), SQS_ONLY)
    _compare("HTTP statuses", http_statuses(), HTTP_ONLY)
    for kind in [*remedies, *CLIENT]:
        cause_of(kind)


def _compare(what: str, found: Iterable[object], described: Iterable[object]) -> None:
    if missing := set(found) - set(described):
        raise MissingText(f"{what} without a remedy in {__name__}: {_names(missing)}")
    if unused := set(described) - set(found):
        raise MissingText(f"remedies in {__name__} for {what} that do not exist: {_names(unused)}")


def _names(objects: Iterable[object]) -> str:
    return ", ".join(sorted(getattr(each, "__name__", str(each)) for each in objects))


def api_errors() -> set[type[e.AlpacaError]]:
    """Return every error that a table of an API has."""
    return {*kafka.CODES, *rest.CODES, *sqs.CODES, *grpc.CODES, *registry.CODES}


def client_errors() -> set[type[e.AlpacaError]]:
    """Return the errors of the client, without their base."""
    return {
        kind
        for kind in vars(client).values()
        if isinstance(kind, type) and issubclass(kind, client.ClientError) and kind is not client.ClientError
    }


def kafka_codes() -> set[ErrorCode]:
    """Return the codes that handlers of the Kafka API send without an error of the table."""
    used = {
        ErrorCode[name]
        for path in (SOURCES / "kafka").rglob("*.py")
        for name in re.findall(r"ErrorCode\.([A-Z_]+)", path.read_text())
    }
    own = {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNSUPPORTED_VERSION}
    return (used - set(kafka.CODES.values()) - {ErrorCode.NONE}) | own


def sqs_names() -> set[str]:
    """Return the names of the errors of SQS that none of the broker's errors is mapped to."""
    kinds = {name: kind for name, kind in vars(sqs).items() if isinstance(kind, sqs.Kind)}
    return {name for name, kind in kinds.items() if kind not in sqs.CODES.values()}


def http_statuses() -> set[int]:
    """Return the statuses of requests that are refused before they reach a route."""
    sources = [path.read_text() for path in (SOURCES / "http").rglob("*.py")]
    return {int(status) for text in sources for status in re.findall(r"\bRefused\((\d+)", text)} | {421, 500}


def cause_of(kind: type[e.AlpacaError]) -> str:
    """Return the first paragraph of an error's docstring."""
    text = " ".join((kind.__dict__.get("__doc__") or "").partition("\n\n")[0].split())
    if not text:
        raise MissingText(f"{kind.__name__} has no docstring, which is its cause in the reference")
    return text


def codes_of(kind: type[e.AlpacaError]) -> str:
    """Return the codes of an error in all APIs that can answer with it."""
    codes = []
    if (code := kafka.CODES.get(kind)) is not None:
        codes.append(f"Kafka `{code.name}` ({code.value})")
    if (status := rest.CODES.get(kind)) is not None:
        codes.append(f"HTTP {status.value}")
    if (fault := sqs.CODES.get(kind)) is not None and fault is not _INTERNAL:
        codes.append(f"SQS {_sqs_name(fault)}")
    if (grpc_code := grpc.CODES.get(kind)) is not None:
        codes.append(f"gRPC `{grpc_code.name}`")
    number = registry.CODES.get(kind)
    if number is not None and number.error_code != status:
        codes.append(f"registry {number.error_code}")
    return ", ".join(codes)


def _sqs_name(kind: sqs.Kind) -> str:
    name = kind.type.rpartition("#")[2]
    return f"`{name}`" if kind.code == name else f"`{name}` (`{kind.code}`)"


def _table(head: str, rows: Iterable[str]) -> str:
    return "\n".join(_lines(head, rows)) + "\n"


def _lines(head: str, rows: Iterable[str]) -> Iterator[str]:
    yield f"| {head} |"
    yield "|" + "---|" * (head.count("|") + 1)
    yield from rows
