"""A driver of a pipeline into a table, in a process of its own that is killed at a step of a batch.

Prints a line for every batch. With `worker` as step, it is the executor that is killed, while it writes
the files of a batch.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from inspect import stack
from pathlib import Path
from typing import Any

import psutil
from deltalake import DeltaTable
from pyiceberg.table import Transaction

from alpacamq_spark.pipelines import load
from alpacamq_spark.pipelines.run import ProgressListener
from alpacamq_spark.pipelines.tables import writer
from alpacamq_spark.pipelines.tables.table import LakeTable

WORKER = "worker"
_POLL_S = 0.01


@dataclass(frozen=True)
class Step:
    """A function of a batch, and whether it is done when the driver ends."""

    owner: Any
    function: str
    is_done: bool


# The commit of a batch in a table.
COMMITS: dict[str, tuple[Any, str]] = {
    "iceberg": (Transaction, "commit_transaction"),
    "delta": (DeltaTable, "create_write_transaction"),
}


def steps(form: str) -> dict[str, Step]:
    """Return every step of a batch at which a driver can die."""
    owner, function = COMMITS[form]
    return {
        "before the files": Step(writer, "write_files", is_done=False),
        "between files and commit": Step(writer, "write_files", is_done=True),
        "before the commit": Step(owner, function, is_done=False),
        "after the commit": Step(owner, function, is_done=True),
        "before the clean-up": Step(LakeTable, "discard_other_attempts", is_done=False),
    }


def ending_at(step: Step, end: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that takes the place of a step's function and ends there."""
    original: Callable[..., Any] = getattr(step.owner, step.function)

    def ending(*arguments: Any, **named: Any) -> Any:
        # Only in a batch, not where the table is claimed.
        if not any(frame.function == "__call__" and "writer.py" in frame.filename for frame in stack()):
            return original(*arguments, **named)
        if step.is_done:
            original(*arguments, **named)
        end()
        return None

    return ending


def kill_all() -> None:
    """Kill Python and Java at once."""
    os.killpg(0, signal.SIGKILL)


def losing_a_worker(*arguments: Any) -> None:
    """Write the files of a batch, and kill the executor as soon as it has begun to."""
    directory = Path(arguments[1])
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.wait(_POLL_S):
            if any(directory.glob("_temporary/*/_temporary/*")):
                for child in psutil.Process().children(recursive=True):
                    # Other processes may end meanwhile.
                    with contextlib.suppress(psutil.Error):
                        if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                            child.kill()
                            print("killed a worker", flush=True)
                            return

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        _write_files(*arguments)
    finally:
        is_over.set()
        killing.join()


_write_files = writer.write_files


def main(form: str, file: str, broker: str, step: str) -> None:
    if step == WORKER:
        setattr(writer, _write_files.__name__, losing_a_worker)
    elif step in steps(form):
        chosen = steps(form)[step]
        setattr(chosen.owner, chosen.function, ending_at(chosen, kill_all))
    listener = ProgressListener(batch=lambda done: print("batch", done.batch, flush=True))
    print("rows", load(file, broker=broker).run(listener=listener).rows, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
