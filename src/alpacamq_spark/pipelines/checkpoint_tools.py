"""Shows, rewinds and moves checkpoints of pipelines that do not run.

A rewind replaces the end offsets of the last complete batch, in one file of Spark's checkpoint. The next
batch begins there, under the next number: every sink knows it as a new batch, and writes it exactly once.
"""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from alpacamq.client.errors import NotFound
from alpacamq.model.ids import TopicPartition
from alpacamq_spark.read.positions import to_json

from .checkpoint import MOVED, STREAM, Checkpoint, StreamPosition, offsets_in
from .errors import InvalidPipeline, PipelineFailed
from .storage import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .pipeline import Pipeline

_STATE = f"{STREAM}/state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """A change of the position of a pipeline, by partition."""

    before: Mapping[TopicPartition, int]
    after: Mapping[TopicPartition, int]

    @property
    def again(self) -> int:
        """Count the offsets that are processed again."""
        return sum(max(0, self.before[place] - offset) for place, offset in self.after.items())

    @property
    def skipped(self) -> int:
        """Count the offsets that are never processed."""
        return sum(max(0, offset - self.before[place]) for place, offset in self.after.items())


def position_of(pipeline: "Pipeline") -> StreamPosition:
    """Return the position to rewind from. Raises NotFound or InvalidPipeline if there is none."""
    if not pipeline.definition.is_stream:
        raise InvalidPipeline(f"a pipeline of kind {pipeline.definition.kind} has no position in topics")
    position = _local(pipeline).position()
    if position is None:
        raise NotFound("position: no batch is complete, in the checkpoint", pipeline.checkpoint_place)
    return position


def check_rewindable(pipeline: "Pipeline") -> None:
    """Check that a position can be changed without making something else wrong. Raises PipelineFailed."""
    checkpoint = _local(pipeline)
    position = position_of(pipeline)
    if checkpoint.storage.names(_STATE):
        raise PipelineFailed(
            f"the query of {pipeline.name} has state (windows, joins or aggregations), which contains the "
            "records before its position: a rewind would count them twice. Set another checkpoint instead, "
            "to begin with all records that the topics still have"
        )
    if position.is_batch_open:
        raise PipelineFailed(
            f"batch {position.batch + 1} of {pipeline.name} was begun and is not complete, and may be in the "
            "sink: run the pipeline until it is, then rewind"
        )


def rewind(pipeline: "Pipeline", after: Mapping[TopicPartition, int]) -> Rewind:
    """Set the position of some partitions. Raises PipelineBusy while the pipeline runs."""
    checkpoint = _local(pipeline)
    with _idle(pipeline, checkpoint):
        check_rewindable(pipeline)
        position = position_of(pipeline)
        name = f"{STREAM}/offsets/{position.batch}"
        stored = checkpoint.storage.read(name)
        assert stored is not None
        # The checksum beside it, which Hadoop's local file system compares.
        checkpoint.storage.delete(f"{STREAM}/offsets/.{position.batch}.crc")
        checkpoint.storage.write(name, _replaced(stored, after))
    return Rewind(before=position.offsets, after=after)


def _replaced(stored: bytes, after: Mapping[TopicPartition, int]) -> bytes:
    """Return an entry of Spark's offset log with other offsets."""
    lines = stored.decode().split("\n")
    for number, line in enumerate(lines):
        found = offsets_in(line) if number >= 2 else {}
        if found:
            # Formatted as the source does: Spark compares texts to find out whether there are new records.
            changed = {place: after.get(place, offset) for place, offset in found.items()}
            lines[number] = json.dumps(to_json(changed))
    return "\n".join(lines).encode()


def move(pipeline: "Pipeline", place: str) -> str:
    """Move a checkpoint; return its new place. The old one refuses to run from then on."""
    checkpoint = _local(pipeline)
    old = local_path(checkpoint.place)
    new = local_path(pipeline.place(place))
    if new is None:
        raise InvalidPipeline(
            f"{place} is not on this machine: copy the checkpoint with a tool of its storage"
        )
    assert old is not None
    if not old.exists():
        raise NotFound("checkpoint", checkpoint.place)
    if new.exists():
        raise PipelineFailed(f"{new} exists; choose a directory that does not")
    if new.is_relative_to(old):
        raise PipelineFailed(f"{new} is inside the checkpoint {old}")
    with _idle(pipeline, checkpoint):
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            old.rename(new)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(old, new)
            shutil.rmtree(old)
    # A run with the old setting would begin a new checkpoint, and process everything again.
    Checkpoint(checkpoint.place).storage.write(MOVED, f"{new}\n".encode())
    return str(new)


def _copy(old: Path, new: Path) -> None:
    """Copy a directory to another file system; it has its name only when it is complete."""
    draft = new.with_name(f".{new.name}.{os.getpid()}")
    try:
        shutil.copytree(old, draft)
        os.sync()
        draft.rename(new)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


@contextmanager
def _idle(pipeline: "Pipeline", checkpoint: Checkpoint) -> "Iterator[None]":
    """Keep the pipeline from running. Raises PipelineBusy if it does, or is started."""
    pipeline.service.check_idle()
    with checkpoint.held():
        yield


def _local(pipeline: "Pipeline") -> Checkpoint:
    if local_path(pipeline.checkpoint_place) is None:
        raise InvalidPipeline(f"{pipeline.checkpoint_place} is not on this machine")
    return Checkpoint(pipeline.checkpoint_place)
