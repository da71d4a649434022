"""Catalogue of all metrics: name, kind, help text and labels.

The exposition, the guide's table and the tests of dashboards and alerts are derived from this list. Names
follow the Prometheus conventions: base units, and the suffix `_total` for counters.
"""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Prometheus metric type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric and the labels of its samples."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, help: str, *labels: str) -> Metric:  # noqa: A002 - Prometheus' word
    return Metric(name, Kind.COUNTER, help, labels)


def _gauge(name: str, help: str, *labels: str) -> Metric:  # noqa: A002
    return Metric(name, Kind.GAUGE, help, labels)


def _histogram(name: str, help: str, *labels: str) -> Metric:  # noqa: A002
    return Metric(name, Kind.HISTOGRAM, help, labels)


BUILD_INFO = _gauge(
    "alpacamq_build_info",
    "Always 1; the labels identify the broker.",
    *("version", "python", "node_id", "cluster_id"),
)
HEALTH = _gauge("alpacamq_health", "1 while a check of /healthz passes, else 0.", "check")
SERIES_DROPPED = _gauge(
    "alpacamq_metrics_series_dropped",
    "Topics, groups, queues and pipelines without series of their own: see [metrics] max_topics, max_groups.",
    "label",
)

CPU_SECONDS = _counter("process_cpu_seconds_total", "CPU time of the broker.")
RESIDENT_MEMORY = _gauge("process_resident_memory_bytes", "Resident memory of the broker.")
VIRTUAL_MEMORY = _gauge("process_virtual_memory_bytes", "Virtual memory of the broker.")
OPEN_FDS = _gauge("process_open_fds", "Open file descriptors.")
MAX_FDS = _gauge("process_max_fds", "Limit of open file descriptors.")
START_TIME = _gauge("process_start_time_seconds", "Start time of the broker, in seconds since 1970.")
DISK_FREE = _gauge("alpacamq_disk_free_bytes", "Free space in the file system of the data directory.")
DISK_SIZE = _gauge("alpacamq_disk_size_bytes", "Size of the file system of the data directory.")

LOOP_LAG = _histogram(
    "alpacamq_event_loop_lag_seconds",
    "Delay with which the event loop wakes a sleeping task, measured continuously.",
)
LOOP_STALLS = _counter("alpacamq_event_loop_stalls_total", "Stalls of the event loop of 2 s or more.")
CLOCK_AHEAD = _gauge(
    "alpacamq_clock_ahead_seconds",
    "How far the clock of the machine is ahead of cluster time; 0 without other brokers.",
)
FLUSH_SECONDS = _histogram("alpacamq_flush_seconds", "Duration of partition flushes (fsync).")
FLUSH_FAILURES = _counter(
    "alpacamq_flush_failures_total",
    "Flushes that failed; each makes a partition read-only until a restart.",
)
FLUSHES_POSTPONED = _counter(
    "alpacamq_flushes_postponed_total",
    "Flushes retried later because no file descriptor was available.",
)

CONNECTIONS = _gauge("alpacamq_connections", "Open connections.", "door")
CONNECTIONS_OPENED = _counter("alpacamq_connections_opened_total", "Connections accepted.", "door")
CONNECTIONS_REFUSED = _counter(
    "alpacamq_connections_refused_total", "Connections refused at max_connections.", "door"
)
CONNECTIONS_EVICTED = _counter(
    "alpacamq_connections_evicted_total",
    "Idle connections closed at max_connections in favour of new ones.",
    "door",
)
CONNECTIONS_FILTERED = _counter(
    "alpacamq_connections_filtered_total",
    "Connections closed because the listener does not serve their address.",
    "door",
)
HANDSHAKES = _counter("alpacamq_tls_handshakes_total", "Completed TLS handshakes.", "door")
FAILED_HANDSHAKES = _counter("alpacamq_tls_failed_handshakes_total", "Failed TLS handshakes.", "door")
RECEIVED_BYTES = _counter("alpacamq_received_bytes_total", "Bytes received from clients.", "door")
SENT_BYTES = _counter(
    "alpacamq_sent_bytes_total", "Bytes sent to clients; updated every 5 s for Kafka clients.", "door"
)
KAFKA_SECONDS = _histogram(
    "alpacamq_kafka_request_seconds",
    "Time from the arrival of a request to its response, excluding the time a Fetch waits for messages.",
    "api",
)
KAFKA_ERRORS = _counter("alpacamq_kafka_errors_total", "Errors returned to Kafka clients.", "api", "error")
HTTP_SECONDS = _histogram(
    "alpacamq_http_request_seconds",
    "Time from a complete request of the JSON API to its response, including long polling.",
    *("method", "path"),
)
HTTP_REQUESTS = _counter(
    "alpacamq_http_requests_total",
    "Requests of the JSON API, by response status.",
    "method",
    "path",
    "status",
)
SQS_SECONDS = _histogram(
    "alpacamq_sqs_request_seconds",
    "Time from a complete SQS request to its response, including long polling.",
    "action",
)
SQS_ERRORS = _counter("alpacamq_sqs_errors_total", "Errors returned to SQS clients.", "action", "error")
REGISTRY_SECONDS = _histogram(
    "alpacamq_registry_request_seconds",
    "Time from a complete request to the schema registry to its response.",
    "request",
)
REGISTRY_ERRORS = _counter(
    "alpacamq_registry_errors_total",
    "Errors returned to clients of the schema registry, by the code in the response.",
    "request",
    "error",
)
GRPC_SECONDS = _histogram(
    "alpacamq_grpc_call_seconds",
    "Duration of gRPC calls; of streams, as long as they are open.",
    "method",
)
GRPC_CALLS = _counter(
    "alpacamq_grpc_calls_total", "gRPC calls that have ended, by their status code.", "method", "code"
)
GRPC_OPEN = _gauge("alpacamq_grpc_calls_open", "gRPC calls in progress, streams among them.")
FORWARDED_SECONDS = _histogram(
    "alpacamq_forwarded_request_seconds",
    "Time until another broker has answered a request about a group, transaction, queue or delayed message "
    "that it coordinates, including long polling.",
    "request",
)
FORWARDED_ERRORS = _counter(
    "alpacamq_forwarded_errors_total",
    "Such requests that failed; those that could be sent again are counted each time.",
    "request",
    "error",
)

TOPICS = _gauge("alpacamq_topics", "Topics, including internal ones.")
PARTITIONS = _gauge("alpacamq_partitions", "Partitions of all topics.")
TOPIC_PARTITIONS = _gauge("alpacamq_topic_partitions", "Partitions of a topic.", "topic")
TOPIC_SIZE = _gauge("alpacamq_topic_size_bytes", "Size of a topic on disk.", "topic")
TOPIC_MESSAGES = _gauge(
    "alpacamq_topic_messages", "Offsets between the start and the end of a topic's partitions.", "topic"
)
TOPIC_DAMAGED = _gauge(
    "alpacamq_topic_damaged_partitions",
    "Partitions with damaged data: see the broker's log.",
    "topic",
)
TOPIC_SKIPPED = _counter(
    "alpacamq_topic_skipped_batches_total",
    "Stored batches skipped by readers because they are damaged or cannot be decompressed.",
    "topic",
)
TOPIC_SCHEMA_CHECKED = _counter(
    "alpacamq_topic_schema_checked_total",
    "Records that were checked against the schemas of a topic.",
    "topic",
)
TOPIC_SCHEMA_REFUSED = _counter(
    "alpacamq_topic_schema_refused_total",
    "Records that do not match the schemas of a topic; their batches were refused.",
    "topic",
)
SCHEMA_CHECKS = _histogram(
    "alpacamq_schema_check_seconds", "Time to check a batch against schemas, including waits."
)
TOPIC_WRITTEN = _counter(
    "alpacamq_topic_messages_written_total",
    "Messages ever written to a topic, including transaction markers.",
    "topic",
)
TOPIC_WRITTEN_BYTES = _counter(
    "alpacamq_topic_written_bytes_total", "Bytes of batches written to a topic, as stored on disk.", "topic"
)
TOPIC_WRITTEN_BATCHES = _counter(
    "alpacamq_topic_written_batches_total", "Batches written to a topic.", "topic"
)
TOPIC_FETCHED = _counter(
    "alpacamq_topic_messages_fetched_total", "Messages sent in Fetch responses.", "topic"
)
TOPIC_FETCHED_BYTES = _counter(
    "alpacamq_topic_fetched_bytes_total", "Bytes of batches sent in Fetch responses.", "topic"
)

GROUPS = _gauge("alpacamq_groups", "Groups with members or committed offsets, by state.", "state")
GROUP_MEMBERS = _gauge("alpacamq_group_members", "Members of a group.", "group")
GROUP_REBALANCES = _counter(
    "alpacamq_group_rebalances_total", "Changes of a group's members or their assignments.", "group"
)
GROUP_LAG = _gauge("alpacamq_group_lag", "Messages after the committed offsets of a group.", "group", "topic")

QUEUES = _gauge("alpacamq_queues", "Groups that use a topic as a queue.")
QUEUE_READY = _gauge("alpacamq_queue_ready", "Messages that can be received.", "group", "topic")
QUEUE_IN_FLIGHT = _gauge("alpacamq_queue_in_flight", "Messages leased and not settled.", "group", "topic")
QUEUE_RESTING = _gauge(
    "alpacamq_queue_resting", "Messages in backoff before their next delivery.", "group", "topic"
)
QUEUE_WAITING = _gauge("alpacamq_queue_waiting_receives", "Receives waiting for a message.", "group", "topic")
QUEUE_OLDEST = _gauge(
    "alpacamq_queue_oldest_age_seconds",
    "Age of the oldest message that is not done; 0 if all are.",
    *("group", "topic"),
)
QUEUE_RECEIVED = _counter("alpacamq_queue_received_total", "Deliveries.", "group", "topic")
QUEUE_ACKED = _counter("alpacamq_queue_acked_total", "Messages acknowledged.", "group", "topic")
QUEUE_NACKED = _counter("alpacamq_queue_nacked_total", "Deliveries nacked.", "group", "topic")
QUEUE_REJECTED = _counter("alpacamq_queue_rejected_total", "Messages rejected.", "group", "topic")
QUEUE_EXPIRED = _counter("alpacamq_queue_expired_leases_total", "Leases that expired.", "group", "topic")
QUEUE_DEAD_LETTERED = _counter(
    "alpacamq_queue_dead_lettered_total", "Messages dead-lettered.", "group", "topic"
)
QUEUE_REDELIVERED = _counter(
    "alpacamq_queue_redelivered_total", "Deliveries after the first.", "group", "topic"
)
LANE_READY = _gauge(
    "alpacamq_queue_lane_ready", "Messages of a lane that can be received.", "group", "topic", "lane"
)
LANE_IN_FLIGHT = _gauge(
    "alpacamq_queue_lane_in_flight", "Messages of a lane leased and not settled.", "group", "topic", "lane"
)
LANE_ENQUEUED = _counter(
    "alpacamq_queue_lane_enqueued_total", "Messages added to a lane.", "group", "topic", "lane"
)
LANE_DELIVERED = _counter(
    "alpacamq_queue_lane_delivered_total", "Deliveries of a lane.", "group", "topic", "lane"
)

DELAYED = _gauge("alpacamq_delayed_messages", "Delayed messages that are pending.")
DELAYED_SCHEDULED = _counter("alpacamq_delayed_scheduled_total", "Messages delayed.")
DELAYED_DELIVERED = _counter("alpacamq_delayed_delivered_total", "Delayed messages delivered.")
DELAYED_CANCELLED = _counter("alpacamq_delayed_cancelled_total", "Delayed messages cancelled.")
DELAYED_DROPPED = _counter("alpacamq_delayed_dropped_total", "Delayed messages whose topic was deleted.")
DELAYED_LATE = _histogram(
    "alpacamq_delayed_lateness_seconds", "Delay between due time and delivery of delayed messages."
)

TRANSACTIONAL_IDS = _gauge(
    "alpacamq_transactional_ids", "Transactional ids by the state of their transaction.", "state"
)
TRANSACTIONS_ENDED = _counter(
    "alpacamq_transactions_ended_total", "Transactions committed or aborted.", "outcome"
)
OLDEST_TRANSACTION = _gauge(
    "alpacamq_oldest_transaction_seconds",
    "Age of the oldest open transaction; 0 if none is open.",
)

HANGING_TRANSACTIONS = _gauge(
    "alpacamq_hanging_transactions",
    "Transactions open in a partition that no coordinator will end; they block read_committed consumers.",
)

FAILED_LOGINS = _counter(
    "alpacamq_failed_logins_total",
    "Logins and requests with a wrong password, an unknown API key or a token that is not accepted.",
)
REFUSED_LOGINS = _counter(
    "alpacamq_refused_logins_total", "Logins refused unchecked: too many from the address had failed."
)
AUDIT_EVENTS = _counter("alpacamq_audit_events_total", "Audit events recorded.")
AUDIT_DROPPED = _counter(
    "alpacamq_audit_dropped_events_total",
    "Audit events that could not be written to the topic or the file.",
)
CERTIFICATE_EXPIRY = _gauge(
    "alpacamq_certificate_expiry_seconds",
    "Time until the first certificate in a file expires; of tls.crl, until its next update.",
    "setting",
)
CERTIFICATE_RELOADS = _counter(
    "alpacamq_certificate_reloads_total", "Changes of certificate files that were loaded."
)
FAILED_CERTIFICATE_RELOADS = _counter(
    "alpacamq_certificate_reloads_failed_total",
    "Changes of certificate files that were refused; the former certificates stay in use.",
)
USERS = _gauge("alpacamq_users", "Users of the cluster.")
ACLS = _gauge("alpacamq_acls", "Access rules of the cluster.")
API_KEYS = _gauge("alpacamq_api_keys", "API keys of the cluster.")
QUOTAS = _gauge("alpacamq_quotas", "Users, client ids and addresses with quotas, and defaults of these.")
THROTTLED = _counter(
    "alpacamq_throttled_requests_total",
    "Requests throttled or refused, and connections refused, because of a quota.",
    "quota",
)
THROTTLE_SECONDS = _counter(
    "alpacamq_throttle_seconds_total", "Time for which clients were throttled because of a quota.", "quota"
)
TENANTS = _gauge("alpacamq_tenants", "Tenants of the cluster, by status.", "status")
DELEGATION_TOKENS = _gauge("alpacamq_delegation_tokens", "Delegation tokens of the cluster.")
SIGNING_KEYS = _gauge(
    "alpacamq_signing_keys", "Keys of the OAuth provider that bearer tokens are verified with."
)
SIGNING_KEY_FAILURES = _counter(
    "alpacamq_signing_key_failures_total", "Failures to load the keys of the OAuth provider."
)

ACTIVE_CONTROLLER = _gauge("alpacamq_active_controller", "1 on the node that is the controller, else 0.")
CONTROLLER_CHANGES = _counter(
    "alpacamq_controller_changes_total", "Elections of a controller that this node has seen."
)
METADATA_TERM = _gauge("alpacamq_metadata_term", "Term of the metadata log.")
METADATA_COMMITTED = _gauge(
    "alpacamq_metadata_commit_index", "Last entry of the metadata log known to be committed."
)
METADATA_APPLIED = _gauge("alpacamq_metadata_applied_index", "Last entry of the metadata log applied.")
BROKER_FENCED = _gauge(
    "alpacamq_broker_fenced", "1 while this broker is fenced, or not registered: it cannot lead then."
)
LED_PARTITIONS = _gauge("alpacamq_leader_partitions", "Partitions led by this broker.")
REPLICAS = _gauge("alpacamq_replica_partitions", "Partitions of which this broker has a replica.")
UNDER_REPLICATED = _gauge(
    "alpacamq_under_replicated_partitions",
    "Partitions led by this broker with replicas not in sync.",
)
UNDER_MIN_ISR = _gauge(
    "alpacamq_under_min_isr_partitions",
    "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas.",
)
OFFLINE_PARTITIONS = _gauge(
    "alpacamq_offline_partitions", "Partitions of the cluster without a leader; each node reports all."
)
REASSIGNING_PARTITIONS = _gauge(
    "alpacamq_reassigning_partitions", "Partitions of the cluster being reassigned; each node reports all."
)
NOT_PREFERRED_PARTITIONS = _gauge(
    "alpacamq_not_preferred_partitions",
    "Partitions of the cluster led by another than their preferred replica; each node reports all.",
)
ISR_SHRINKS = _counter("alpacamq_isr_shrinks_total", "In-sync sets that shrank, of partitions led here.")
ISR_EXPANDS = _counter("alpacamq_isr_expands_total", "In-sync sets that grew, of partitions led here.")
FOLLOWER_LAG = _gauge(
    "alpacamq_follower_max_lag_messages", "Largest lag of a follower behind this broker, in messages."
)
FOLLOWER_LAG_SECONDS = _gauge(
    "alpacamq_follower_max_lag_seconds",
    "Longest time for which a follower has been behind this broker; 0 if all have caught up.",
)
REPLICATION_IN = _counter("alpacamq_replication_received_bytes_total", "Bytes fetched from leaders.")
REPLICATION_OUT = _counter("alpacamq_replication_sent_bytes_total", "Bytes of batches sent to followers.")
THROTTLED_IN = _counter(
    "alpacamq_replication_throttled_received_bytes_total",
    "Bytes fetched from leaders under follower.replication.throttled.rate.",
)
THROTTLED_OUT = _counter(
    "alpacamq_replication_throttled_sent_bytes_total",
    "Bytes of batches sent to followers under leader.replication.throttled.rate.",
)
PEER_LINKS = _gauge("alpacamq_peer_links", "Connections to other nodes, by state.", "state")
PEER_CALLS = _gauge("alpacamq_peer_calls_in_flight", "Calls to other nodes that wait for a reply.")

PIPELINES = _gauge(
    "alpacamq_pipeline",
    "1 for the state of a data pipeline: running, silent (no report for a minute), done, stopped or failed.",
    *("pipeline", "kind", "state"),
)
PIPELINE_LAG = _gauge(
    "alpacamq_pipeline_lag", "Messages after the last batch of a data pipeline, at its end.", "pipeline"
)
PIPELINE_ROWS = _counter(
    "alpacamq_pipeline_rows_total", "Records that the current run of a data pipeline has read.", "pipeline"
)
PIPELINE_MALFORMED = _counter(
    "alpacamq_pipeline_malformed_total",
    "Values that the current run of a data pipeline could not decode.",
    "pipeline",
)
PIPELINE_FAILURES = _counter(
    "alpacamq_pipeline_failures_total", "Runs of a data pipeline that failed or were killed.", "pipeline"
)
PIPELINE_LAST_BATCH = _gauge(
    "alpacamq_pipeline_last_batch_timestamp_seconds",
    "When the last batch of a data pipeline was complete.",
    "pipeline",
)
PIPELINE_LAST_REPORT = _gauge(
    "alpacamq_pipeline_last_report_timestamp_seconds",
    "When a data pipeline last reported; its metrics end an hour later.",
    "pipeline",
)

CATALOGUE: tuple[Metric, ...] = tuple(each for each in globals().values() if isinstance(each, Metric))


def metrics_page() -> str:
    """Render the table of the guide."""
    rows = []
    for metric in CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "| metric | kind | labels | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
