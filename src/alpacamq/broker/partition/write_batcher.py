"""Batches the appends of one turn of the event loop into one write per partition."""

import asyncio

from .leader import Partition


class WriteBatcher:
    """The partitions with appends waiting for `commit`."""

    __slots__ = ("_is_due", "_partitions")

    def __init__(self) -> None:
        self._partitions: list[Partition] = []
        self._is_due = False

    def stage(self, partition: Partition) -> None:
        """Register a partition with appends waiting."""
        self._partitions.append(partition)

    def commit(self) -> None:
        """Write everything staged since the last commit, before the acknowledgements are sent."""
        if not self._partitions:
            return
        staged, self._partitions = self._partitions, []
        errors: list[Exception] = []
        for partition in staged:
            try:
                partition.commit()
            except Exception as error:  # noqa: BLE001 - the other partitions must still be written
                errors.append(error)
        if errors:
            raise errors[0]

    def commit_soon(self) -> None:
        """Commit after the tasks that are ready to run have had a chance to stage more."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._commit_due)

    def _commit_due(self) -> None:
        self._is_due = False
        self.commit()
