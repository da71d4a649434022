"""Every metric that AlpacaMQ shows: its name, what it is, its labels, and what it says.

The one list of them: what is shown, the guide's table and the tests of dashboards and alerts follow it. Names
are as Prometheus wants them: base units, `_total` where a number only grows.
"""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """How a number behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric, with all the labels that its samples have."""

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
    "Always 1; the labels say which broker this is.",
    *("version", "python", "node_id", "cluster_id"),
)
HEALTH = _gauge("alpacamq_health", "1 while a check of /healthz passes, else 0.", "check")
SERIES_DROPPED = _gauge(
    "alpacamq_metrics_series_dropped",
    "Topics, groups and queues that have no figures of their own here: see [metrics] max_topics, max_groups.",
    "label",
)

CPU_SECONDS = _counter("process_cpu_seconds_total", "Processor time of the broker.")
RESIDENT_MEMORY = _gauge("process_resident_memory_bytes", "Memory that the broker has in use.")
VIRTUAL_MEMORY = _gauge("process_virtual_memory_bytes", "Address space of the broker.")
OPEN_FDS = _gauge("process_open_fds", "File descriptors that are open.")
MAX_FDS = _gauge("process_max_fds", "File descriptors that may be open.")
START_TIME = _gauge("process_start_time_seconds", "When the broker started, in seconds since 1970.")
DISK_FREE = _gauge("alpacamq_disk_free_bytes", "Room left for data where the data directory is.")
DISK_SIZE = _gauge("alpacamq_disk_size_bytes", "Size of the file system that the data directory is on.")

LOOP_LAG = _histogram(
    "alpacamq_event_loop_lag_seconds",
    "How late the event loop wakes a task that sleeps; measured all the time.",
)
LOOP_STALLS = _counter(
    "alpacamq_event_loop_stalls_total", "Times the event loop stood still for 2 s or more."
)
FLUSH_SECONDS = _histogram("alpacamq_flush_seconds", "How long flushes (fsync) of partitions took.")
FLUSH_FAILURES = _counter(
    "alpacamq_flush_failures_total",
    "Flushes that failed; each stops the writes of a partition until a restart.",
)
FLUSHES_POSTPONED = _counter(
    "alpacamq_flushes_postponed_total",
    "Flushes tried again later because no file descriptor was left.",
)

CONNECTIONS = _gauge("alpacamq_connections", "Connections that are open.", "door")
CONNECTIONS_OPENED = _counter("alpacamq_connections_opened_total", "Connections let in.", "door")
CONNECTIONS_REFUSED = _counter(
    "alpacamq_connections_refused_total", "Connections turned away at max_connections.", "door"
)
CONNECTIONS_EVICTED = _counter(
    "alpacamq_connections_evicted_total",
    "Idle connections closed at max_connections to let another client in.",
    "door",
)
RECEIVED_BYTES = _counter("alpacamq_received_bytes_total", "Bytes that clients sent.", "door")
SENT_BYTES = _counter(
    "alpacamq_sent_bytes_total", "Bytes sent to clients; those of Kafka clients show within 5 s.", "door"
)
KAFKA_SECONDS = _histogram(
    "alpacamq_kafka_request_seconds",
    "From the arrival of a request to its answer, without the time that a Fetch asked to wait for messages.",
    "api",
)
KAFKA_ERRORS = _counter("alpacamq_kafka_errors_total", "Errors told to Kafka clients.", "api", "error")
HTTP_SECONDS = _histogram(
    "alpacamq_http_request_seconds",
    "From a whole request of the JSON API to its answer, the time it asked to wait included.",
    *("method", "path"),
)
HTTP_REQUESTS = _counter(
    "alpacamq_http_requests_total",
    "Requests of the JSON API, by the answer's status.",
    "method",
    "path",
    "status",
)
SQS_SECONDS = _histogram(
    "alpacamq_sqs_request_seconds",
    "From a whole SQS request to its answer, the time it asked to wait included.",
    "action",
)
SQS_ERRORS = _counter("alpacamq_sqs_errors_total", "Errors told to SQS clients.", "action", "error")

TOPICS = _gauge("alpacamq_topics", "Topics, internal ones included.")
PARTITIONS = _gauge("alpacamq_partitions", "Partitions of all topics.")
TOPIC_PARTITIONS = _gauge("alpacamq_topic_partitions", "Partitions of a topic.", "topic")
TOPIC_SIZE = _gauge("alpacamq_topic_size_bytes", "What a topic takes on disk.", "topic")
TOPIC_MESSAGES = _gauge(
    "alpacamq_topic_messages", "Offsets between the start and the end of a topic's partitions.", "topic"
)
TOPIC_DAMAGED = _gauge(
    "alpacamq_topic_damaged_partitions",
    "Partitions that do not serve all they should: see the broker's log.",
    "topic",
)
TOPIC_SKIPPED = _counter(
    "alpacamq_topic_skipped_batches_total",
    "Times a stored batch was passed over by a reader because it is damaged or does not unpack.",
    "topic",
)
TOPIC_WRITTEN = _counter(
    "alpacamq_topic_messages_written_total", "Messages ever written to a topic, markers included.", "topic"
)
TOPIC_WRITTEN_BYTES = _counter(
    "alpacamq_topic_written_bytes_total", "Bytes of batches written to a topic, as they are on disk.", "topic"
)
TOPIC_WRITTEN_BATCHES = _counter(
    "alpacamq_topic_written_batches_total", "Batches written to a topic.", "topic"
)
TOPIC_FETCHED = _counter(
    "alpacamq_topic_messages_fetched_total", "Messages sent in answers to Fetch requests.", "topic"
)
TOPIC_FETCHED_BYTES = _counter(
    "alpacamq_topic_fetched_bytes_total", "Bytes of batches sent in answers to Fetch requests.", "topic"
)

GROUPS = _gauge("alpacamq_groups", "Groups with members or committed offsets, by state.", "state")
GROUP_MEMBERS = _gauge("alpacamq_group_members", "Members of a group.", "group")
GROUP_REBALANCES = _counter(
    "alpacamq_group_rebalances_total", "Times that a group's members or their parts were changed.", "group"
)
GROUP_LAG = _gauge(
    "alpacamq_group_lag", "Messages behind the committed offsets of a group.", "group", "topic"
)

QUEUES = _gauge("alpacamq_queues", "Groups that use a topic as a queue.")
QUEUE_READY = _gauge("alpacamq_queue_ready", "Messages that can be received.", "group", "topic")
QUEUE_IN_FLIGHT = _gauge("alpacamq_queue_in_flight", "Messages received and not settled.", "group", "topic")
QUEUE_RESTING = _gauge("alpacamq_queue_resting", "Messages that wait for their next try.", "group", "topic")
QUEUE_WAITING = _gauge(
    "alpacamq_queue_waiting_receives", "Receives that wait for a message.", "group", "topic"
)
QUEUE_OLDEST = _gauge(
    "alpacamq_queue_oldest_age_seconds",
    "How long ago the oldest message was written that is not done; 0 if all are.",
    *("group", "topic"),
)
QUEUE_RECEIVED = _counter("alpacamq_queue_received_total", "Deliveries.", "group", "topic")
QUEUE_ACKED = _counter("alpacamq_queue_acked_total", "Messages acknowledged.", "group", "topic")
QUEUE_NACKED = _counter("alpacamq_queue_nacked_total", "Deliveries given back as failed.", "group", "topic")
QUEUE_REJECTED = _counter("alpacamq_queue_rejected_total", "Messages rejected.", "group", "topic")
QUEUE_EXPIRED = _counter(
    "alpacamq_queue_expired_leases_total", "Deliveries nobody settled in time.", "group", "topic"
)
QUEUE_DEAD_LETTERED = _counter("alpacamq_queue_dead_lettered_total", "Messages set aside.", "group", "topic")
QUEUE_REDELIVERED = _counter(
    "alpacamq_queue_redelivered_total", "Deliveries after the first.", "group", "topic"
)
LANE_READY = _gauge(
    "alpacamq_queue_lane_ready", "Messages of a lane that can be received.", "group", "topic", "lane"
)
LANE_IN_FLIGHT = _gauge(
    "alpacamq_queue_lane_in_flight", "Messages of a lane received and not settled.", "group", "topic", "lane"
)
LANE_ENQUEUED = _counter(
    "alpacamq_queue_lane_enqueued_total", "Messages that came into a lane.", "group", "topic", "lane"
)
LANE_DELIVERED = _counter(
    "alpacamq_queue_lane_delivered_total", "Deliveries of a lane.", "group", "topic", "lane"
)

DELAYED = _gauge("alpacamq_delayed_messages", "Messages that wait for their time.")
DELAYED_SCHEDULED = _counter("alpacamq_delayed_scheduled_total", "Messages delayed.")
DELAYED_DELIVERED = _counter("alpacamq_delayed_delivered_total", "Delayed messages delivered.")
DELAYED_CANCELLED = _counter("alpacamq_delayed_cancelled_total", "Delayed messages cancelled.")
DELAYED_DROPPED = _counter("alpacamq_delayed_dropped_total", "Delayed messages whose topic was deleted.")
DELAYED_LATE = _histogram(
    "alpacamq_delayed_lateness_seconds", "How long after their time delayed messages were delivered."
)

TRANSACTIONAL_IDS = _gauge(
    "alpacamq_transactional_ids", "Transactional ids by the state of their transaction.", "state"
)
TRANSACTIONS_ENDED = _counter(
    "alpacamq_transactions_ended_total", "Transactions brought to their end, committed or aborted.", "outcome"
)
OLDEST_TRANSACTION = _gauge(
    "alpacamq_oldest_transaction_seconds",
    "How long the oldest transaction has been open that is; 0 if none is.",
)

HANGING_TRANSACTIONS = _gauge(
    "alpacamq_hanging_transactions",
    "Transactions open in a partition that no coordinator will end; read-committed consumers wait for them.",
)

CATALOGUE: tuple[Metric, ...] = tuple(each for each in globals().values() if isinstance(each, Metric))


def metrics_page() -> str:
    """The table of the guide."""
    rows = []
    for metric in CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "| metric | kind | labels | what it says |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
