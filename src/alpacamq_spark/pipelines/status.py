"""Where pipelines are, without Spark: by their checkpoints, their locks and their consumer groups."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from alpacamq.client.committed import committed_offsets
from alpacamq.client.offsets import extents
from alpacamq.client.topics import every_topic
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicPartition

from .checkpoint import Checkpoint, local_checkpoint
from .files import SUFFIXES
from .moments import show_moment
from .replay_plan import ReplayPlan, ReplayProgress
from .report import Plain, Report, Section
from .sources import reach

if TYPE_CHECKING:
    from .pipeline import Pipeline

NEW, RUNNING, CRASHED, UNKNOWN = "new", "running", "crashed", "unknown"


def state_of(checkpoint: Checkpoint | None) -> str:
    """new, running, done, stopped, failed, or crashed for a run that never said how it ended."""
    if checkpoint is None:
        return UNKNOWN
    if checkpoint.is_held():
        return RUNNING
    last = checkpoint.last_run()
    if last is None:
        return NEW
    return CRASHED if last.ended_ms is None else last.outcome


def status_of(pipeline: "Pipeline") -> Report:
    """A pipeline's state, its last run, its position and its lag."""
    checkpoint = local_checkpoint(pipeline.checkpoint_place)
    last = None if checkpoint is None else checkpoint.last_run()
    position = None if checkpoint is None else checkpoint.position()
    group = f"pipeline-{pipeline.name}"
    offsets: Mapping[TopicPartition, int] = position.offsets if position is not None else {}
    rows = _places(pipeline.broker, group, offsets) if pipeline.definition.is_stream else []
    lags = [row["lag"] for row in rows if isinstance(row["lag"], int)]
    lag = sum(lags) if lags else None
    run: dict[str, Plain] | None = None
    if last is not None:
        run = {
            "started_at": show_moment(last.started_ms),
            "ended_at": None if last.ended_ms is None else show_moment(last.ended_ms),
            "outcome": last.outcome,
            "rows": last.rows,
            "error": last.error,
        }
    state = state_of(checkpoint)
    replay = _replay(checkpoint)
    data: dict[str, Plain] = {
        "name": pipeline.name,
        "kind": pipeline.definition.kind,
        "state": state,
        "checkpoint": pipeline.checkpoint_place,
        "group": group if pipeline.definition.is_stream else None,
        "batch": None if position is None else position.batch,
        "lag": lag,
        "last_run": run,
        "partitions": rows,
        **({"replay": replay} if replay else {}),
    }
    sections = [
        Section(
            ["pipeline", "kind", "state", "batch", "lag"],
            [[pipeline.name, pipeline.definition.kind, state, data["batch"], lag]],
        )
    ]
    if run is not None:
        shown = [run["started_at"], run["ended_at"], run["outcome"], run["rows"]]
        sections.append(Section(["last run", "ended", "outcome", "rows"], [shown]))
    if replay:
        sections.append(Section(list(replay), [list(replay.values())], title="replay"))
    if pipeline.definition.is_stream:
        columns = ["topic", "partition", "done", "committed", "end", "lag"]
        sections.append(Section(columns, [[row[name] for name in columns] for row in rows], title="position"))
    notes = [f"the last run failed: {last.error}"] if last is not None and last.error else []
    return Report(data=data, sections=sections, notes=notes)


def _places(broker: str, group: str, done: Mapping[TopicPartition, int]) -> list[dict[str, Plain]]:
    """By the checkpoint, which is what counts, and as the group tells everyone else."""
    with reach(broker) as cluster:
        committed = committed_offsets(cluster, group)
        there = {place for topic in every_topic(cluster) for place in topic.all_partitions()}
        places = sorted(done.keys() | committed.keys())
        spans = extents(cluster, [place for place in places if place in there])
    rows: list[dict[str, Plain]] = []
    for place in places:
        end = spans[place].end if place in spans else None
        reached = done.get(place, committed.get(place))
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "done": done.get(place),
                "committed": committed.get(place),
                "end": end,
                "lag": None if end is None or reached is None else max(0, end - reached),
            }
        )
    return rows


def _replay(checkpoint: Checkpoint | None) -> dict[str, Plain]:
    plan = None if checkpoint is None else checkpoint.recall("replay-plan.json", ReplayPlan)
    if plan is None or checkpoint is None:
        return {}
    progress = checkpoint.recall("replay-progress.json", ReplayProgress) or ReplayProgress()
    return {
        "rows": progress.rows,
        "planned": plan.rows,
        "batches": progress.batches,
        "batches_planned": plan.batches,
    }


def listed(directory: Path) -> Report:
    """The pipelines of a directory, with their kinds and states; files that are none say why."""
    from .pipeline import load

    rows: list[dict[str, Plain]] = []
    for path in sorted(each for each in directory.iterdir() if each.suffix in SUFFIXES and each.is_file()):
        try:
            pipeline = load(path)
            checkpoint = local_checkpoint(pipeline.checkpoint_place)
            last = None if checkpoint is None else checkpoint.last_run()
            rows.append(
                {
                    "name": pipeline.name,
                    "kind": pipeline.definition.kind,
                    "state": state_of(checkpoint),
                    "last_run": None if last is None else show_moment(last.started_ms),
                    "file": str(path),
                    "error": None,
                }
            )
        except AlpacaError as error:
            rows.append(
                {
                    "name": path.stem,
                    "kind": None,
                    "state": "invalid",
                    "last_run": None,
                    "file": str(path),
                    "error": str(error),
                }
            )
    columns = ["pipeline", "kind", "state", "last run", "file"]
    return Report(
        data={"pipelines": rows},
        sections=[Section(columns, [list(row.values())[:5] for row in rows])],
        notes=[str(row["error"]) for row in rows if row["error"]],
    )
