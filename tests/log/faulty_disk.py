"""A real disk on which chosen calls fail, for faults that cannot be had otherwise."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from alpacamq.log.disk import SystemDisk
from alpacamq.model.ports import Buffer


@dataclass
class Fault:
    """The call that fails: which method, after how many that pass, how, and how often."""

    method: str
    errno: int
    after: int = 0
    times: int = 1 << 30
    suffix: str = ""
    partial_bytes: int = 0


class FaultyDisk(SystemDisk):
    """Does what the system's disk does until a fault is due."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.calls: list[str] = []
        self._paths: dict[int, Path] = {}

    def fail(self, fault: Fault) -> None:
        self.faults.append(fault)

    def open(self, path: Path, *, create: bool = False) -> int:
        self._check("create" if create and not path.exists() else "open", path)
        descriptor = super().open(path, create=create)
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        def begin(size: int) -> None:
            os.pwrite(descriptor, b"".join(buffers)[:size], position)

        self._check("write", self._paths[descriptor], begin)
        super().write(descriptor, buffers, position)

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        self._check("read", self._paths[descriptor])
        return super().read(descriptor, size, position)

    def truncate(self, descriptor: int, size: int) -> None:
        self._check("truncate", self._paths[descriptor])
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        self._check("sync", self._paths[descriptor])
        super().sync(descriptor)

    def sync_directory(self, path: Path) -> None:
        self._check("sync_directory", path)
        super().sync_directory(path)

    def sync_filesystem(self, path: Path) -> bool:
        self._check("sync_filesystem", path)
        return super().sync_filesystem(path)

    def rename(self, source: Path, target: Path) -> None:
        self._check("rename", source)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._check("remove", path)
        super().remove(path)

    def _check(self, method: str, path: Path, begin: Callable[[int], None] | None = None) -> None:
        self.calls.append(method)
        for fault in self.faults:
            if fault.method == method and path.name.endswith(fault.suffix):
                if fault.after > 0:
                    fault.after -= 1
                elif fault.times > 0:
                    fault.times -= 1
                    if begin is not None and fault.partial_bytes:
                        begin(fault.partial_bytes)
                    raise OSError(fault.errno, os.strerror(fault.errno))
