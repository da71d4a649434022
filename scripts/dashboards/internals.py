"""Dashboard of broker internals: process, event loop, disk, APIs, coordinators."""

from .panels import BROKERS, Dashboard, Panel, Query, Row, latency, one, quantile, rate, total

INTERNALS = Dashboard(
    "alpacamq-internals",
    "AlpacaMQ: broker internals",
    (
        Row(
            "Process",
            (
                one(
                    "Processor",
                    "percentunit",
                    f"rate(process_cpu_seconds_total{{{BROKERS}}}[$__rate_interval])",
                    "{{instance}}",
                ),
                one("Memory", "bytes", f"process_resident_memory_bytes{{{BROKERS}}}", "{{instance}}"),
                Panel(
                    "File descriptors",
                    "short",
                    (
                        Query(f"process_open_fds{{{BROKERS}}}", "{{instance}}"),
                        Query(f"process_max_fds{{{BROKERS}}}", "{{instance}} limit"),
                    ),
                ),
                one("Up since", "s", f"time() - process_start_time_seconds{{{BROKERS}}}", "{{instance}}"),
                Panel(
                    "Disk",
                    "bytes",
                    (
                        Query(f"alpacamq_disk_free_bytes{{{BROKERS}}}", "{{instance}} free"),
                        Query(f"alpacamq_disk_size_bytes{{{BROKERS}}}", "{{instance}} size"),
                    ),
                ),
                one(
                    "Version", "none", f"count by (version) (alpacamq_build_info{{{BROKERS}}})", "{{version}}"
                ),
            ),
        ),
        Row(
            "Event loop and disk",
            (
                latency("Event loop lag", "alpacamq_event_loop_lag_seconds"),
                one(
                    "Event loop stalls",
                    "short",
                    f"increase(alpacamq_event_loop_stalls_total{{{BROKERS}}}[$__rate_interval])",
                    "{{instance}}",
                ),
                latency("Flush time", "alpacamq_flush_seconds"),
                one("Flushes", "cps", rate("alpacamq_flush_seconds_count", "instance"), "{{instance}}"),
                one(
                    "Failed flushes",
                    "cps",
                    rate("alpacamq_flush_failures_total", "instance"),
                    "{{instance}}",
                ),
                one(
                    "Batches written",
                    "cps",
                    rate("alpacamq_topic_written_batches_total", "instance"),
                    "{{instance}}",
                ),
            ),
        ),
        Row(
            "APIs",
            (
                one("Connections", "short", total("alpacamq_connections", "door"), "{{door}}"),
                Panel(
                    "Connections opened and refused",
                    "cps",
                    (
                        Query(rate("alpacamq_connections_opened_total", "door"), "{{door}} opened"),
                        Query(rate("alpacamq_connections_refused_total", "door"), "{{door}} refused"),
                    ),
                ),
                Panel(
                    "Bytes",
                    "Bps",
                    (
                        Query(rate("alpacamq_received_bytes_total", "door"), "{{door}} in"),
                        Query(rate("alpacamq_sent_bytes_total", "door"), "{{door}} out"),
                    ),
                ),
                one(
                    "Kafka requests", "reqps", rate("alpacamq_kafka_request_seconds_count", "api"), "{{api}}"
                ),
                one("Kafka p99", "s", quantile(0.99, "alpacamq_kafka_request_seconds", "api"), "{{api}}"),
                one(
                    "HTTP requests",
                    "reqps",
                    rate("alpacamq_http_requests_total", "method, path"),
                    "{{method}} {{path}}",
                ),
                one(
                    "HTTP p99",
                    "s",
                    quantile(0.99, "alpacamq_http_request_seconds", "method, path"),
                    "{{method}} {{path}}",
                ),
                one(
                    "SQS requests",
                    "reqps",
                    rate("alpacamq_sqs_request_seconds_count", "action"),
                    "{{action}}",
                ),
                one("SQS p99", "s", quantile(0.99, "alpacamq_sqs_request_seconds", "action"), "{{action}}"),
            ),
        ),
        Row(
            "Coordination",
            (
                one("Groups by state", "short", total("alpacamq_groups", "state"), "{{state}}"),
                one(
                    "Transactional ids by state",
                    "short",
                    total("alpacamq_transactional_ids", "state"),
                    "{{state}}",
                ),
                one(
                    "Transactions ended",
                    "cps",
                    rate("alpacamq_transactions_ended_total", "outcome"),
                    "{{outcome}}",
                ),
                one(
                    "Oldest open transaction",
                    "s",
                    f"max(alpacamq_oldest_transaction_seconds{{{BROKERS}}})",
                    "oldest",
                ),
                Panel(
                    "Topics, partitions, queues",
                    "short",
                    tuple(
                        Query(f"sum(alpacamq_{each}{{{BROKERS}}})", each)
                        for each in ("topics", "partitions", "queues")
                    ),
                ),
                one(
                    "Names without metrics of their own",
                    "short",
                    total("alpacamq_metrics_series_dropped", "label"),
                    "{{label}}",
                ),
            ),
        ),
    ),
    {},
)
