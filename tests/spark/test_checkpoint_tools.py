"""`alpacactl pipeline checkpoint`: the position of a pipeline is shown, rewound and moved."""

from collections import Counter
from pathlib import Path

import pytest

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.pipelines import Pipeline, load
from alpacamq_spark.pipelines.archive.queries import query_sink
from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.checkpoint_tools import check_rewindable
from alpacamq_spark.pipelines.errors import BadPlan, PipelineFailed
from tests.cli.command import Command

from .pipeline_files import HOUR_MS, NOON_MS, Sent, Workshop, send
from .topics import make_topic

ARCHIVE = """
kind = "archive"
schema = "id BIGINT"
source = {{ topics = ["{topic}"] }}
sink = {{ path = "archive" }}
{more}
"""
COUNTS = """
kind = "transform"
sql = "SELECT window.start AS hour, count(*) AS n FROM orders GROUP BY window(_timestamp, '1 hour')"

[sources.orders]
topic = "{topic}"
schema = "id BIGINT"
watermark = {{ delay = "1h" }}

[sink]
topic = "{topic}-counts"
"""


def run_over(workshop: Workshop, topic: str, *ids: int, more: str = "") -> Pipeline:
    """Write records, two in each partition an hour, and archive them."""
    send(
        workshop.broker,
        topic,
        [
            Sent(value=f'{{"id": {each}}}', partition=each % 2, timestamp_ms=NOON_MS + each // 2 * HOUR_MS)
            for each in ids
        ],
    )
    pipeline = workshop.pipeline(ARCHIVE.format(topic=topic, more=more), "archive.toml")
    workshop.run(pipeline)
    return pipeline


def archived(workshop: Workshop, pipeline: Pipeline) -> Counter[int]:
    rows = query_sink(pipeline, "SELECT data.id FROM archive", spark=workshop.spark).data["rows"]
    assert isinstance(rows, list)
    return Counter(row["id"] for row in rows)


def test_a_rewound_pipeline_processes_again_what_is_after_its_new_position(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    pipeline = run_over(workshop, topic, *range(10))
    alpacactl, file = Command(workshop.broker.address), str(workshop.directory / "archive.toml")

    def shown() -> list[int]:
        found = alpacactl.json("pipeline", "checkpoint", "show", file)
        assert (found["batch"], found["is_batch_open"], found["state"]) == (found["batch"], False, "done")
        return [row["offset"] for row in found["offsets"]]

    assert shown() == [5, 5]
    to_offset = ("pipeline", "checkpoint", "rewind", file, "--to-offset", "3", "--topic", f"{topic}:1")
    preview = alpacactl.json(*to_offset)
    change = {"topic": topic, "partition": 1, "before": 5, "after": 3}
    assert preview == {
        "pipeline": "archive", "executed": False, "again": 2, "skipped": 0, "offsets": [change],
    }  # fmt: skip
    assert shown() == [5, 5]
    assert alpacactl.json(*to_offset, "--execute") == {**preview, "executed": True}
    assert shown() == [5, 3]
    assert workshop.run(pipeline).rows == 2
    again = Counter(range(10)) + Counter((7, 9))
    assert archived(workshop, pipeline) == again
    # The records of the last two hours.
    to_time = ("--to-time", "2026-01-31T15:00:00Z")
    alpacactl.json("pipeline", "checkpoint", "rewind", file, *to_time, "--execute")
    assert shown() == [3, 3]
    send(workshop.broker, topic, [Sent(value='{"id": 10}')])
    assert workshop.run(pipeline).rows == 5
    assert archived(workshop, pipeline) == again + Counter(range(6, 11))


def test_positions_that_do_not_exist_are_refused(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    path = workshop.directory / "archive.toml"
    path.write_text(ARCHIVE.format(topic=topic, more=""))
    alpacactl = Command(workshop.broker.address)
    rewind = ("pipeline", "checkpoint", "rewind", str(path), "--to-offset", "0")
    for command, words in (
        (("pipeline", "checkpoint", "show", str(path)), "there is no checkpoint"),
        (rewind, "no batch is complete"),
    ):
        refused = alpacactl(*command)
        assert refused.code
        assert words in refused.errors
    pipeline = run_over(workshop, topic, 0, 1)
    assert "has no position in other" in alpacactl.fails(1, *rewind, "--topic", "other")
    with Checkpoint(pipeline.checkpoint_place).held():
        assert "already running" in alpacactl.fails(1, *rewind, "--execute")
    assert archived(workshop, pipeline) == Counter((0, 1))


def test_a_query_with_state_is_not_rewound(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    """Its counts have the records already, and would count them twice."""
    make_topic(cluster, topic)
    make_topic(cluster, f"{topic}-counts")
    send(workshop.broker, topic, [Sent(value='{"id": 1}')])
    pipeline = workshop.pipeline(COUNTS.format(topic=topic))
    workshop.run(pipeline)
    with pytest.raises(PipelineFailed, match="a rewind would count them twice"):
        check_rewindable(pipeline)


def test_a_moved_checkpoint_goes_on_in_its_new_place_only(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    pipeline = run_over(workshop, topic, *range(4))
    file = str(workshop.directory / "archive.toml")
    alpacactl = Command(workshop.broker.address)
    new = workshop.directory / "elsewhere" / "archive"
    assert alpacactl.json("pipeline", "checkpoint", "move", file, "elsewhere/archive") == {
        "pipeline": "archive",
        "from": pipeline.checkpoint_place,
        "to": str(new),
    }
    with pytest.raises(BadPlan, match=f"was moved to {new}: set checkpoint"):
        workshop.run(load(file, broker=workshop.broker.address))
    moved = run_over(workshop, topic, 4, 5, more='checkpoint = "elsewhere/archive"')
    assert Path(moved.checkpoint_place) == new
    assert archived(workshop, moved) == Counter(range(6))
    refused = alpacactl.fails(1, "pipeline", "checkpoint", "move", file, "elsewhere/archive")
    assert "exists; choose a directory that does not" in refused
