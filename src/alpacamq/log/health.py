"""What a log can still do after things went wrong, and the errors that say so."""

import errno
from pathlib import Path

from alpacamq.model.errors import AlpacaError, DataInDoubt, DiskFull, StorageFailed

from .handles import NO_DESCRIPTORS

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
    """Damage found, a flush that failed, or the end of the log's life: each for good.

    Damage is no reason to refuse writes: what is appended lies behind it and is sound.
    """

    __slots__ = ("_directory", "_refusal", "in_doubt", "is_damaged")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Whether some segment has gaps; the segments know which.
        self.is_damaged = False
        self.in_doubt: str | None = None
        self._refusal: AlpacaError | None = None

    @property
    def is_writable(self) -> bool:
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

    def close(self) -> None:
        self._refusal = StorageFailed(f"{self._directory.name} is closed")
