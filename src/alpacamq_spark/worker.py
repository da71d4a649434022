"""What a Python worker of Spark keeps from one task to the next.

Spark reuses its workers. In a short micro-batch, what a task does besides its rows is most of its time.
"""

import gc
import sys


class _Frozen:
    """The modules that garbage collections skip."""

    def __init__(self) -> None:
        self.modules = 0


_frozen = _Frozen()


def skip_modules_in_collections() -> None:
    """Exclude the modules loaded so far from garbage collections.

    Spark collects all garbage after every task. With the modules of Spark, Arrow and the connector that takes
    50 ms of CPU time, more than the rest of a small task, and finds nothing in them.
    """
    if len(sys.modules) != _frozen.modules:
        gc.freeze()
        _frozen.modules = len(sys.modules)
