"""Where the queries of a pipeline begin, as offsets in its checkpoint.

Spark stores the end of the first batch, and asks for its start again after a crash. The beginning or the end
of the log may be elsewhere by then: the batch would have other records, and nobody would notice.
"""

from collections.abc import Callable

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.model.ids import TopicPartition
from alpacamq_spark.read.positions import (
    EARLIEST,
    LATEST,
    Json,
    Offsets,
    Positions,
    from_json,
    offsets_option,
    to_json,
)
from alpacamq_spark.retry import FIRST_CONTACT_TIMEOUT_S, retry

from .checkpoint import STREAM
from .run import PipelineRun
from .sources import Topics, matching_topics, reach

_OPTION = "startingOffsets"
# Of the pipeline's own query, by source; and of those for dead letters, by query.
_BEGINNINGS = "begin.json"
_OF_DEAD_LETTERS = "dead-letters-begin.json"


def beginning(run: PipelineRun, source: Topics, start: str, name: str = STREAM) -> dict[str, str]:
    """Return where the pipeline's query begins to read a source, `name` of several: "earliest" or "latest".

    Once a batch is complete, Spark has the position.
    """
    if run.checkpoint.position() is not None:
        return {_OPTION: start}
    with reach(run.broker, run.access) as cluster:
        return {_OPTION: offsets_option(_beginning(run, cluster, source, start, name))}


def dead_letters_beginning(
    run: PipelineRun, query: str, source: Topics, start: str, name: str = STREAM
) -> dict[str, str]:
    """Return where a query for dead letters begins: where the pipeline does, or where it is if it has run."""
    with reach(run.broker, run.access) as cluster:

        def first() -> Offsets:
            position = run.checkpoint.position()
            if position is None:
                return _beginning(run, cluster, source, start, name)
            places = _places(cluster, source)
            return {place: offset for place, offset in position.offsets.items() if place in places}

        return {_OPTION: offsets_option(_stored(run, cluster, _OF_DEAD_LETTERS, query, source, first))}


def _beginning(run: PipelineRun, cluster: Cluster, source: Topics, start: str, name: str) -> Offsets:
    edge = LATEST if start == "latest" else EARLIEST
    return _stored(
        run, cluster, _BEGINNINGS, name, source, lambda: dict.fromkeys(_places(cluster, source), edge)
    )


def _stored(
    run: PipelineRun, cluster: Cluster, file: str, key: str, source: Topics, first: Callable[[], Offsets]
) -> Offsets:
    """Return the offsets stored under a key, or store the first; partitions added since begin at theirs."""
    stored = run.checkpoint.recall(file, dict[str, Json]) or {}
    known = from_json(stored[key]) if key in stored else first()
    wanted = {place: known.get(place, EARLIEST) for place in _places(cluster, source)}
    there = retry(
        lambda: extents(cluster, list(wanted), Isolation.COMMITTED), timeout_s=FIRST_CONTACT_TIMEOUT_S
    )
    begin = Positions(option=_OPTION, offsets=wanted).resolve(cluster, there)
    kept = to_json({**known, **begin})
    if stored.get(key) != kept:
        run.checkpoint.remember(file, {**stored, key: kept})
    return begin


def _places(cluster: Cluster, source: Topics) -> list[TopicPartition]:
    return [place for topic in matching_topics(cluster, source) for place in topic.all_partitions()]
