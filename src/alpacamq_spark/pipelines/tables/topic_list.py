"""Lists the tables of topics with what their runner has reported; needs no Spark."""

from collections.abc import Mapping

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import committed_offsets_of
from alpacamq_spark.pipelines.reporting import last_report
from alpacamq_spark.pipelines.run import Plain
from alpacamq_spark.pipelines.timestamps import format_timestamp

from .topic_settings import enabled_tables, lags

NEW = "new"


def listed_tables(cluster: Cluster, namespace: str) -> list[Mapping[str, Plain]]:
    """Return all enabled tables with their state and lag, by topic."""
    tables = enabled_tables(cluster, namespace)
    groups = {each.topic: f"pipeline-{each.pipeline}" for each in tables}
    reached = committed_offsets_of(cluster, sorted(groups.values())) if groups else {}
    behind = lags(cluster, [(each, reached[groups[each.topic]]) for each in tables])
    rows: list[Mapping[str, Plain]] = []
    for each in tables:
        report = last_report(cluster, each.pipeline)
        rows.append(
            {
                "topic": each.topic,
                "table": each.table,
                "mode": each.mode,
                "key": ",".join(each.key) or None,
                "state": NEW if report is None else report.state,
                "lag": behind[each.topic],
                "rows": None if report is None else report.rows,
                "malformed": None if report is None else report.malformed,
                "last_batch_at": None
                if report is None or report.batch_at is None
                else format_timestamp(report.batch_at),
                "error": report.error if report is not None and report.error else None,
            }
        )
    return rows
