"""Progress reports of data pipelines, and the topic they are written to.

Pipelines run beside the broker, as its clients; this is their only interface with it.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from .ids import TopicName

# Compacted: the last report of each pipeline, by its name.
PIPELINES_TOPIC = TopicName("alpacamq-pipelines")
MAX_NAME_LENGTH = 255
MAX_ERROR_LENGTH = 2000


class PipelineState(StrEnum):
    """The state of a run, or its result."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class PipelineProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run. Timestamps are milliseconds since 1970; no lag if there is no backlog."""

    name: Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]
    kind: Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]
    state: PipelineState
    started: int
    updated: int
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    batch: int | None = None
    # Values that could not be decoded.
    malformed: int = 0
    # When the last batch was complete.
    batch_at: int | None = None
    # Runs that failed or were killed since the pipeline first reported.
    failures: int = 0
    error: Annotated[str, Meta(max_length=MAX_ERROR_LENGTH)] = ""
