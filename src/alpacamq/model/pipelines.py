"""What a data pipeline tells of its progress, and the topic where it does.

Pipelines run beside the broker, as its clients; this is all that the two know of each other.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from .ids import TopicName

# Compacted: the last word of each pipeline, by its name.
PIPELINES_TOPIC = TopicName("alpacamq-pipelines")
MAX_NAME_LENGTH = 255
MAX_ERROR_LENGTH = 2000


class PipelineState(StrEnum):
    """What a run is doing, or how it ended."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class PipelineProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come. Moments are in milliseconds since 1970; no lag where nothing waits."""

    name: Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]
    kind: Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]
    state: PipelineState
    started: int
    updated: int
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    batch: int | None = None
    error: Annotated[str, Meta(max_length=MAX_ERROR_LENGTH)] = ""
