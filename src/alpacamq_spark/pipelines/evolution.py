"""Goes on when the schema registry gets a later version of a subject while a stream runs."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from alpacamq_spark.errors import NewSchema

from .run import BatchDone, PipelineRun

T = TypeVar("T")


def through_new_schemas(run: PipelineRun, once: Callable[[PipelineRun], T]) -> tuple[T, int]:
    """Run a stream, again whenever it meets a later version: the columns are chosen when it begins.

    The batch that met it is repeated. Returns the result of the last part, and the rows of those before.
    """
    before = rows = 0

    def batch(done: BatchDone) -> None:
        nonlocal rows
        rows += done.rows
        run.listener.batch(replace(done, total_rows=before + done.total_rows))

    counting = replace(run, listener=replace(run.listener, batch=batch))
    while True:
        try:
            return once(counting), before
        except NewSchema as found:
            run.listener.say(f"{found}; starting again with its columns")
            before = rows
