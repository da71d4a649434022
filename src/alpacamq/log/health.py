"""Health of a log after errors, and the exceptions that report it."""

import errno
from collections.abc import Callable
from pathlib import Path

from alpacamq.model.errors import AlpacaError, DataInDoubt, DiskFull, StorageFailed

from .handles import NO_DESCRIPTORS

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def storage_error(directory: Path, doing: str, error: OSError) -> StorageFailed:
    """Translate an OSError of the disk into StorageFailed or DiskFull."""
    kind = DiskFull if error.errno in NO_ROOM else StorageFailed
    return kind(f"{directory.name}: {doing} failed: {error.strerror or error}")


def is_out_of_descriptors(error: BaseException) -> bool:
    """Return whether an operation failed only for lack of file descriptors, so that it can be retried."""
    # Compiled modules raise an error without its cause; it is then the one that was handled.
    cause = error.__cause__ or error.__context__ if isinstance(error, AlpacaError) else error
    return isinstance(cause, OSError) and cause.errno in NO_DESCRIPTORS


class LogHealth:
    """Records damage, failed reads, a failed flush or truncation, or that the log was closed.

    Damage does not stop writes: new batches are appended behind it and are sound. Damage and a failed flush
    end when the log is emptied, a failed read also when the file can be read again. The others never end.
    """

    __slots__ = ("_directory", "_refusal", "in_doubt", "is_damaged", "on_failure", "unreadable")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Whether any segment has gaps; each segment keeps its own.
        self.is_damaged = False
        self.in_doubt: str | None = None
        # The files that could not be read, each with the error.
        self.unreadable: dict[Path, str] = {}
        # Called when a read or a flush has failed or damage was found, in any thread.
        self.on_failure: Callable[[], None] = lambda: None
        self._refusal: AlpacaError | None = None

    @property
    def is_writable(self) -> bool:
        return self._refusal is None

    def check_writable(self) -> None:
        """Raise the error that prevents writing, if any."""
        if self._refusal is not None:
            # The same instance is raised many times: drop the traceback, or it collects callers' frames.
            raise self._refusal.with_traceback(None)

    @property
    def is_restartable(self) -> bool:
        """Whether the log may be emptied: then it does not matter what a failed flush has left on disk."""
        return self._refusal is None or isinstance(self._refusal, DataInDoubt)

    def check_restartable(self) -> None:
        """Raise the error that prevents emptying the log, if any."""
        if not self.is_restartable:
            self.check_writable()

    def restarted(self) -> None:
        """Note that the log was emptied."""
        self.is_damaged = False
        self.unreadable.clear()
        self.in_doubt = self._refusal = None

    def fsync_error(self) -> DataInDoubt:
        assert self.in_doubt is not None
        return DataInDoubt(self.in_doubt)

    def flush_failed(self, error: OSError) -> None:
        """Stop writes: the state of the disk is unknown, and a second fsync would hide the error."""
        self.in_doubt = (
            f"{self._directory.name}: a flush failed ({error.strerror or error}), so what reached the disk "
            "is unknown; no writes until restart, or until it is fetched from another replica"
        )
        self._refusal = self.fsync_error()
        self.on_failure()

    def read_failed(self, path: Path, error: OSError) -> None:
        """Note that a file could not be read, unless only descriptors were missing. In any thread."""
        if error.errno not in NO_DESCRIPTORS and path not in self.unreadable:
            self.unreadable[path] = error.strerror or str(error)
            self.on_failure()

    def truncation_failed(self, error: Exception) -> None:
        """Stop writes for good: only recovery can tell how much of the log is left."""
        self._refusal = StorageFailed(
            f"{self._directory.name}: a truncation failed half-way ({error}); no writes until restart"
        )

    def close(self) -> None:
        self._refusal = StorageFailed(f"{self._directory.name} is closed")
