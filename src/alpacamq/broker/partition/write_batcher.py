"""Appends that wait for the end of a turn of the event loop, so that all of a turn cost one write."""

import asyncio

from .leader import Partition


class WriteBatcher:
    """The partitions that have appends waiting for `commit`."""

    __slots__ = ("_is_due", "_partitions")

    def __init__(self) -> None:
        self._partitions: list[Partition] = []
        self._is_due = False

    def stage(self, partition: Partition) -> None:
        """Note that a partition has appends waiting."""
        self._partitions.append(partition)

    def commit(self) -> None:
        """Write everything staged since the last commit; before the acknowledgements go out."""
        if not self._partitions:
            return
        staged, self._partitions = self._partitions, []
        errors: list[Exception] = []
        for partition in staged:
            try:
                partition.commit()
            except Exception as error:  # noqa: BLE001 - what is staged elsewhere must not wait in memory
                errors.append(error)
        if errors:
            raise errors[0]

    def commit_soon(self) -> None:
        """Commit once everybody who is ready to run now has had the chance to stage something."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._commit_due)

    def _commit_due(self) -> None:
        self._is_due = False
        self.commit()
