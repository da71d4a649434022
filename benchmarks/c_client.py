"""The client written in C: built when it is needed, run as a child.

It is there because a Python client's cost per message is the limit long before the server is.
"""

import shutil
import subprocess
from array import array
from pathlib import Path

from .clients import CONSUMER, PACED_PRODUCER, PRODUCER, Latencies, Load, Pace, Settings

SOURCE = Path(__file__).with_name("c_client.c")
HEADER = "librdkafka/rdkafka.h"
WAIT_S = 300.0


class CannotBuild(Exception):
    """The program cannot be built on this machine; the text says why."""


class CClient:
    """librdkafka without an interpreter in front of it."""

    name = "C client"

    def __init__(self, program: Path) -> None:
        self._program = program

    @classmethod
    def build(cls, directory: Path) -> "CClient":
        """Compile the program into `directory`, or CannotBuild."""
        if (compiler := shutil.which("cc")) is None:
            raise CannotBuild("there is no C compiler")
        program = directory / "c_client"
        command = [compiler, "-std=c11", "-D_GNU_SOURCE", "-O2", "-o", str(program), str(SOURCE)]
        built = subprocess.run(
            [*command, "-lrdkafka", "-lpthread"], capture_output=True, text=True, check=False
        )
        if built.returncode:
            if HEADER in built.stderr:
                raise CannotBuild("librdkafka's headers are missing (Debian: apt-get install librdkafka-dev)")
            raise CannotBuild(built.stderr.strip())
        return cls(program)

    @property
    def library_version(self) -> str:
        return self._run("version").strip()

    def produce(self, address: str, load: Load, acks: str) -> float:
        arguments = ("produce", address, load.topic, str(load.size), str(load.count))
        return float(self._run(*arguments, **PRODUCER, acks=acks))

    def fetch(self, address: str, load: Load) -> float:
        arguments = ("fetch", address, load.topic, str(load.partitions), str(load.count))
        return float(self._run(*arguments, **CONSUMER))

    def pace(self, address: str, pace: Pace, *, watched: bool) -> Latencies:
        acked, seen = self._program.with_suffix(".acked"), self._program.with_suffix(".seen")
        arguments = (str(pace.size), str(pace.per_second), str(pace.seconds))
        files = (str(acked), str(seen) if watched else "-")
        self._run("latency", address, pace.topic, *arguments, *files, **PACED_PRODUCER, acks=pace.acks)
        return Latencies(
            acked_ns=array("q", acked.read_bytes()),
            seen_ns=array("q", seen.read_bytes() if watched else b""),
        )

    def _run(self, *arguments: str, **settings: str | int) -> str:
        command = [str(self._program), *arguments, *_pairs(settings)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
        if ran.returncode:
            raise RuntimeError(f"the C client failed: {ran.stderr.strip()}")
        return ran.stdout


def _pairs(settings: Settings) -> list[str]:
    return [f"{name}={str(value).lower()}" for name, value in settings.items()]
