"""Dashboard of topics, consumer groups, queues and delayed messages."""

from .panels import BROKERS, GROUP, TOPIC, Dashboard, Panel, Query, Row, latency, one, rate, total

TOPICS = Dashboard(
    "alpacamq-topics",
    "AlpacaMQ: topics and queues",
    (
        Row(
            "Topics",
            (
                one(
                    "Messages written",
                    "cps",
                    rate("alpacamq_topic_messages_written_total", "topic", TOPIC),
                    "{{topic}}",
                ),
                one(
                    "Messages fetched",
                    "cps",
                    rate("alpacamq_topic_messages_fetched_total", "topic", TOPIC),
                    "{{topic}}",
                ),
                one(
                    "Bytes written",
                    "Bps",
                    rate("alpacamq_topic_written_bytes_total", "topic", TOPIC),
                    "{{topic}}",
                ),
                one("Size on disk", "bytes", total("alpacamq_topic_size_bytes", "topic", TOPIC), "{{topic}}"),
                one(
                    "Messages stored", "short", total("alpacamq_topic_messages", "topic", TOPIC), "{{topic}}"
                ),
                one(
                    "Messages per batch",
                    "short",
                    f"{rate('alpacamq_topic_messages_written_total', 'topic', TOPIC)} / "
                    f"({rate('alpacamq_topic_written_batches_total', 'topic', TOPIC)} > 0)",
                    "{{topic}}",
                ),
            ),
        ),
        Row(
            "Consumer groups",
            (
                one(
                    "Lag",
                    "short",
                    total("alpacamq_group_lag", "group, topic", GROUP),
                    "{{group}} in {{topic}}",
                ),
                one(
                    "Members",
                    "short",
                    total("alpacamq_group_members", "group", ', group=~"$group"'),
                    "{{group}}",
                ),
                one(
                    "Rebalances",
                    "cps",
                    rate("alpacamq_group_rebalances_total", "group", ', group=~"$group"'),
                    "{{group}}",
                ),
            ),
        ),
        Row(
            "Queues",
            (
                one(
                    "Ready",
                    "short",
                    total("alpacamq_queue_ready", "group, topic", GROUP),
                    "{{group}} of {{topic}}",
                ),
                one(
                    "In flight",
                    "short",
                    total("alpacamq_queue_in_flight", "group, topic", GROUP),
                    "{{group}} of {{topic}}",
                ),
                one(
                    "Oldest message",
                    "s",
                    f"max by (group, topic) (alpacamq_queue_oldest_age_seconds{{{BROKERS}{GROUP}}})",
                    "{{group}} of {{topic}}",
                ),
                Panel(
                    "Deliveries and what became of them",
                    "cps",
                    tuple(
                        Query(rate(f"alpacamq_queue_{each}_total", "", GROUP), each.replace("_", " "))
                        for each in (
                            "received",
                            "acked",
                            "nacked",
                            "rejected",
                            "expired_leases",
                            "redelivered",
                            "dead_lettered",
                        )
                    ),
                ),
                one("Ready by lane", "short", total("alpacamq_queue_lane_ready", "lane", GROUP), "{{lane}}"),
                one(
                    "Deliveries by lane",
                    "cps",
                    rate("alpacamq_queue_lane_delivered_total", "lane", GROUP),
                    "{{lane}}",
                ),
            ),
        ),
        Row(
            "Delayed messages",
            (
                one("Waiting", "short", total("alpacamq_delayed_messages", "instance"), "{{instance}}"),
                Panel(
                    "Scheduled, delivered, cancelled",
                    "cps",
                    tuple(
                        Query(rate(f"alpacamq_delayed_{each}_total", ""), each)
                        for each in ("scheduled", "delivered", "cancelled", "dropped")
                    ),
                ),
                latency("Lateness", "alpacamq_delayed_lateness_seconds"),
            ),
        ),
    ),
    {"topic": "alpacamq_topic_partitions", "group": "alpacamq_group_members"},
)
