"""The environment of a measurement: machine, commit, client libraries."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import confluent_kafka
import msgspec
import psutil

REPOSITORY = Path(__file__).parent.parent


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of the measurement."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    # Of the servers' data directory: an fsync to a RAM disk is meaningless.
    file_system: str


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The measured code."""

    id: str
    # Whether src/ had uncommitted changes.
    modified: bool


def machine(data_directory: Path) -> Machine:
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        file_system=_file_system(data_directory),
    )


def commit() -> Commit:
    return Commit(id=_git("rev-parse", "HEAD"), modified=bool(_git("status", "--porcelain", "--", "src")))


def client_versions() -> dict[str, str]:
    return {
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka in confluent-kafka": confluent_kafka.libversion()[0],
    }


def load_average() -> float:
    """The load of the last minute, which shows other work on the machine."""
    return round(os.getloadavg()[0], 2)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def _file_system(directory: Path) -> str:
    mounts = sorted(psutil.disk_partitions(all=True), key=lambda mount: len(mount.mountpoint), reverse=True)
    where = directory.resolve()
    return next((mount.fstype for mount in mounts if where.is_relative_to(mount.mountpoint)), "unknown")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
