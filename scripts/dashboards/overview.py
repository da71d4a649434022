"""Overview dashboard: health, traffic and errors."""

from .panels import BROKERS, USERS, Dashboard, Panel, Query, Row, latency, one, rate, stat, total

OVERVIEW = Dashboard(
    "alpacamq-overview",
    "AlpacaMQ: overview",
    (
        Row(
            "Now",
            (
                stat("Brokers up", "none", f"sum(up{{{BROKERS}}})"),
                stat("Checks that fail", "none", f"count(alpacamq_health{{{BROKERS}}} == 0) or vector(0)"),
                stat("Messages in", "cps", rate("alpacamq_topic_messages_written_total", "", USERS)),
                stat("Messages fetched", "cps", rate("alpacamq_topic_messages_fetched_total", "")),
                stat("Stored", "bytes", f"sum(alpacamq_topic_size_bytes{{{BROKERS}}})"),
                stat(
                    "Disk left",
                    "percentunit",
                    f"min(alpacamq_disk_free_bytes{{{BROKERS}}} / alpacamq_disk_size_bytes{{{BROKERS}}})",
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                one(
                    "Messages written",
                    "cps",
                    rate("alpacamq_topic_messages_written_total", "instance", USERS),
                    "{{instance}}",
                ),
                one(
                    "Messages fetched",
                    "cps",
                    rate("alpacamq_topic_messages_fetched_total", "instance"),
                    "{{instance}}",
                ),
                Panel(
                    "Bytes written and fetched",
                    "Bps",
                    (
                        Query(rate("alpacamq_topic_written_bytes_total", ""), "written"),
                        Query(rate("alpacamq_topic_fetched_bytes_total", ""), "fetched"),
                    ),
                ),
                latency("Produce latency", "alpacamq_kafka_request_seconds", ', api="Produce"'),
                latency("Fetch latency", "alpacamq_kafka_request_seconds", ', api="Fetch"'),
                Panel(
                    "Requests by API",
                    "reqps",
                    tuple(
                        Query(rate(f"alpacamq_{api}_request_seconds_count", ""), api)
                        for api in ("kafka", "http", "sqs")
                    ),
                ),
            ),
        ),
        Row(
            "Trouble",
            (
                one(
                    "Errors told to Kafka clients",
                    "cps",
                    rate("alpacamq_kafka_errors_total", "api, error"),
                    "{{api}} {{error}}",
                ),
                one(
                    "HTTP answers by status",
                    "reqps",
                    rate("alpacamq_http_requests_total", "status"),
                    "{{status}}",
                ),
                one(
                    "Errors told to SQS clients",
                    "cps",
                    rate("alpacamq_sqs_errors_total", "action, error"),
                    "{{action}} {{error}}",
                ),
                one(
                    "Largest lag",
                    "short",
                    f"topk(10, {total('alpacamq_group_lag', 'group, topic')})",
                    "{{group}} in {{topic}}",
                ),
                one(
                    "Dead letters",
                    "cps",
                    rate("alpacamq_queue_dead_lettered_total", "group, topic"),
                    "{{group}} of {{topic}}",
                ),
                one("Health checks", "none", f"alpacamq_health{{{BROKERS}}}", "{{instance}} {{check}}"),
            ),
        ),
    ),
    {},
)
