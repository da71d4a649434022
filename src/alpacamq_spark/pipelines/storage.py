"""File operations besides Spark's own reading and writing, on this machine or in Spark's file systems.

A place is a path or a URI. Local files are handled in Python, without starting Spark; others through
the file systems of the session's JVM.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from .errors import InvalidPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHUNK_BYTES = 1 << 20
MAX_READ_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """Number and size of the data files below a directory, without marks and hidden files."""

    files: int
    size: int


class Storage(Protocol):
    """Files below one place; names are relative to it, with slashes."""

    def names(self, directory: str = "") -> list[str]:
        """List the names in a directory, sorted; empty if it does not exist."""

    def exists(self, name: str) -> bool:
        """Return whether a file or directory exists."""

    def read(self, name: str) -> bytes | None:
        """Read a file; None if it does not exist."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""

    def delete(self, name: str) -> None:
        """Remove a file or a directory with its contents, if it exists."""

    def content(self, directory: str) -> Content:
        """Measure the data below a directory."""


def local_path(place: str) -> Path | None:
    """Return the local path of a place; None if it is elsewhere."""
    parts = urlsplit(place)
    if not parts.scheme:
        return Path(place)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def storage_at(place: str, spark: "SparkSession | None" = None) -> Storage:
    """Return the storage of a place. Raises InvalidPipeline if it needs a session that is not available."""
    if (path := local_path(place)) is not None:
        return LocalStorage(path)
    # A Spark Connect session has no access to the JVM.
    jvm = getattr(spark, "_jvm", None) if type(spark).__module__ == "pyspark.sql.session" else None
    if jvm is None:
        raise InvalidPipeline(
            f"{place} is not on this machine; reading it needs a session on a Spark master, "
            "not on Spark Connect"
        )
    return SparkStorage(spark, place)


def is_hidden(name: str) -> bool:
    """Return whether Spark ignores a file of this name."""
    return name.startswith(("_", "."))


class LocalStorage:
    """A directory on this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, directory: str = "") -> list[str]:
        try:
            return sorted(entry.name for entry in (self._root / directory).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        # Without this sync a crash can lose the new file's name.
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def delete(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def content(self, directory: str) -> Content:
        files = size = 0
        for path in (self._root / directory).rglob("*"):
            if not is_hidden(path.name) and path.is_file():
                files += 1
                size += path.stat().st_size
        return Content(files, size)


class SparkStorage:
    """A directory in a file system that Spark's JVM supports."""

    def __init__(self, spark: "SparkSession", place: str) -> None:
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._settings: Any = spark._jsparkSession.sessionState().newHadoopConf()
        root = self._jvm.org.apache.hadoop.fs.Path(place)
        self._files: Any = root.getFileSystem(self._settings)
        self._root: Any = self._files.makeQualified(root)

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root

    def names(self, directory: str = "") -> list[str]:
        place = self._at(directory)
        if not self._files.exists(place) or not self._files.getFileStatus(place).isDirectory():
            return []
        return sorted(each.getPath().getName() for each in self._files.listStatus(place))

    def exists(self, name: str) -> bool:
        return bool(self._files.exists(self._at(name)))

    def read(self, name: str) -> bytes | None:
        place = self._at(name)
        if not self._files.exists(place):
            return None
        if self._files.getFileStatus(place).getLen() > MAX_READ_BYTES:
            raise InvalidPipeline(
                f"{place} is larger than {MAX_READ_BYTES} bytes, too large for a file of a pipeline"
            )
        stream = self._files.open(place)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, data: bytes) -> None:
        place, draft = self._at(name), self._at(f"{name}.draft")
        stream = self._files.create(draft, True)
        try:
            for at in range(0, len(data), _CHUNK_BYTES):
                stream.write(bytearray(data[at : at + _CHUNK_BYTES]))
        finally:
            stream.close()
        # The only Hadoop interface that replaces a file atomically.
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._root.toUri(), self._settings
        )
        overwrite = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename").OVERWRITE
        options = self._gateway.new_array(getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename"), 1)
        options[0] = overwrite
        context.rename(draft, place, options)

    def delete(self, name: str) -> None:
        place = self._at(name)
        if self._files.exists(place):
            self._files.delete(place, True)

    def content(self, directory: str) -> Content:
        place = self._at(directory)
        files = size = 0
        if self._files.exists(place):
            found = self._files.listFiles(place, True)
            while found.hasNext():
                each = found.next()
                if not is_hidden(each.getPath().getName()):
                    files += 1
                    size += each.getLen()
        return Content(files, size)
