"""What a log can still do after things went wrong, and the errors that say so."""

import errno
from pathlib import Path

from alpacamq.model.errors import AlpacaError, DamagedLog, DataInDoubt, DiskFull, StorageFailed

from .handles import NO_DESCRIPTORS
from .recovery import Damage
from .scan import Violation
from .segment import Segment

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def refused(directory: Path, doing: str, error: OSError) -> StorageFailed:
    """The disk's refusal in our words."""
    kind = DiskFull if error.errno in NO_ROOM else StorageFailed
    return kind(f"{directory.name}: {doing} failed: {error.strerror or error}")


def is_out_of_descriptors(error: BaseException) -> bool:
    """Whether something failed only because no file could be opened: it can be tried again."""
    cause = error.__cause__ if isinstance(error, AlpacaError) else error
    return isinstance(cause, OSError) and cause.errno in NO_DESCRIPTORS


class Condition:
    """Damage found, a flush that failed, or the end of the log's life: each for good."""

    __slots__ = ("_directory", "_refusal", "damage", "in_doubt", "is_flushable")

    def __init__(self, directory: Path, damage: Damage | None) -> None:
        self._directory = directory
        self.damage = damage
        self.in_doubt: str | None = None
        # Damage found while the log is in use does not keep newer batches from being flushed.
        self.is_flushable = damage is None
        self._refusal: AlpacaError | None = None if damage is None else damage.error

    @property
    def is_sound(self) -> bool:
        return self._refusal is None

    def check_writable(self) -> None:
        """Raise what stands against writing."""
        if self._refusal is not None:
            # The same error is raised many times: it must not collect every caller's frames.
            raise self._refusal.with_traceback(None)

    def doubt(self) -> DataInDoubt:
        assert self.in_doubt is not None
        return DataInDoubt(self.in_doubt)

    def flush_failed(self, error: OSError) -> None:
        """Nobody knows what is on the medium, and asking again would only hide that."""
        self.in_doubt = (
            f"{self._directory.name}: a flush failed ({error.strerror or error}), so what reached the disk "
            "is unknown; no writes until restart"
        )
        self._refusal = self.doubt()
        self.is_flushable = False

    def found_damage(self, segment: Segment, violation: Violation) -> DamagedLog:
        """Durable data is broken at `violation`; in any thread."""
        error = DamagedLog(segment.path, violation.position, violation.reason)
        if self.damage is None or violation.offset < self.damage.offset:
            self.damage = Damage(error, violation.offset)
            self._refusal = error
        return error

    def close(self) -> None:
        self._refusal = StorageFailed(f"{self._directory.name} is closed")
        self.is_flushable = False
