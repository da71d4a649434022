"""Dashboard of a cluster: controller, replicas, replication and links."""

from .panels import BROKERS, Dashboard, Panel, Query, Row, one, rate, stat, total


def _of_nodes(title: str, metric: str, unit: str = "short") -> Panel:
    return one(title, unit, f"{metric}{{{BROKERS}}}", "{{instance}}")


CLUSTER = Dashboard(
    "alpacamq-cluster",
    "AlpacaMQ: cluster",
    (
        Row(
            "Now",
            (
                stat("Nodes up", "none", f"sum(up{{{BROKERS}}})"),
                stat("Controllers", "none", f"sum(alpacamq_active_controller{{{BROKERS}}})"),
                stat("Fenced nodes", "none", f"sum(alpacamq_broker_fenced{{{BROKERS}}})"),
                stat("Offline partitions", "none", f"max(alpacamq_offline_partitions{{{BROKERS}}})"),
                stat("Below min ISR", "none", f"sum(alpacamq_under_min_isr_partitions{{{BROKERS}}})"),
                stat("Under-replicated", "none", f"sum(alpacamq_under_replicated_partitions{{{BROKERS}}})"),
            ),
        ),
        Row(
            "Partitions",
            (
                _of_nodes("Leaders", "alpacamq_leader_partitions"),
                _of_nodes("Replicas", "alpacamq_replica_partitions"),
                _of_nodes("Under-replicated, by leader", "alpacamq_under_replicated_partitions"),
                Panel(
                    "Being reassigned, and not led by their preferred replica",
                    "short",
                    (
                        Query(f"max(alpacamq_reassigning_partitions{{{BROKERS}}})", "reassigned"),
                        Query(f"max(alpacamq_not_preferred_partitions{{{BROKERS}}})", "not preferred"),
                    ),
                ),
                Panel(
                    "Changes of in-sync sets",
                    "cps",
                    (
                        Query(rate("alpacamq_isr_shrinks_total", "instance"), "{{instance}} shrinks"),
                        Query(rate("alpacamq_isr_expands_total", "instance"), "{{instance}} expands"),
                    ),
                ),
            ),
        ),
        Row(
            "Replication",
            (
                _of_nodes("Largest lag of a follower", "alpacamq_follower_max_lag_messages"),
                _of_nodes("Longest lag of a follower", "alpacamq_follower_max_lag_seconds", "s"),
                one(
                    "Fetched from leaders",
                    "Bps",
                    rate("alpacamq_replication_received_bytes_total", "instance"),
                    "{{instance}}",
                ),
                one(
                    "Sent to followers",
                    "Bps",
                    rate("alpacamq_replication_sent_bytes_total", "instance"),
                    "{{instance}}",
                ),
            ),
        ),
        Row(
            "Metadata and links",
            (
                _of_nodes("Controller", "alpacamq_active_controller"),
                one(
                    "Elections of a controller",
                    "short",
                    f"increase(alpacamq_controller_changes_total{{{BROKERS}}}[$__rate_interval])",
                    "{{instance}}",
                ),
                _of_nodes("Term", "alpacamq_metadata_term"),
                Panel(
                    "Metadata log",
                    "short",
                    (
                        Query(f"alpacamq_metadata_commit_index{{{BROKERS}}}", "{{instance}} committed"),
                        Query(f"alpacamq_metadata_applied_index{{{BROKERS}}}", "{{instance}} applied"),
                    ),
                ),
                one("Links to other nodes", "short", total("alpacamq_peer_links", "state"), "{{state}}"),
                _of_nodes("Calls in flight to other nodes", "alpacamq_peer_calls_in_flight"),
            ),
        ),
    ),
    {},
)
