"""kcat, the command line client with an older librdkafka; it has no admin API."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from .client import DEADLINE_S, Record, Refused

# Sizes precede the bytes they count, so that keys and values may contain any byte.
FORMAT = "%o %T %K %S %k%s%h\x1e"
_NUMBERS = re.compile(rb"(-?\d+) (-?\d+) (-?\d+) (-?\d+) ")
_CODES = {
    "Unknown topic or partition": 3,
    "Message size too large": 10,
    "Offset out of range": 1,
}


def installed() -> bool:
    return shutil.which("kcat") is not None


class Kcat:
    """One kcat process per call."""

    name: ClassVar[str] = "kcat"
    sets_timestamps: ClassVar[bool] = False

    def __init__(self, address: str) -> None:
        self._address = address

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int] | None:
        # Partition and headers are command line options, so consecutive records that share them are one run.
        for (partition, headers), group in groupby(
            records, key=lambda record: (record.partition, record.headers)
        ):
            command = ["-P", "-t", topic, "-p", str(partition), "-z", compression, "-Z"]
            command += ["-D", "\x1e", "-K", "\x1f", "-X", f"acks={acks}"]
            command += ["-X", f"enable.idempotence={str(idempotent).lower()}", "-X", "linger.ms=20"]
            command += ["-X", "message.max.bytes=100000000", "-X", "topic.metadata.propagation.max.ms=500"]
            for name, value in headers:
                command += ["-H", f"{name}={value.decode()}"]
            lines = [(record.key or b"") + b"\x1f" + (record.value or b"") for record in group]
            self._run(command, b"\x1e".join(lines))
        return None

    def read(
        self,
        topic: str,
        *,
        count: int,
        partition: int = 0,
        start: int = 0,
        reset: str | None = None,
    ) -> list[Record]:
        command = ["-C", "-t", topic, "-p", str(partition), "-o", str(start), "-c", str(count), "-e"]
        command += [
            "-f",
            FORMAT,
            "-X",
            "check.crcs=true",
            "-X",
            f"topic.auto.offset.reset={reset or 'error'}",
        ]
        return _parse(self._run(command), partition)

    def read_as_member(self, topic: str, group: str, *, count: int) -> list[str]:
        """Read `count` values from the group's position on."""
        command = [
            "-G",
            group,
            "-c",
            str(count),
            "-f",
            "%s\\n",
            "-q",
            "-X",
            "auto.offset.reset=earliest",
            topic,
        ]
        return self._run(command).decode().splitlines()

    def read_since(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> list[Record]:
        """Read everything from a timestamp to the end."""
        command = ["-C", "-t", topic, "-p", str(partition), "-o", f"s@{timestamp_ms}", "-e", "-f", FORMAT]
        return _parse(self._run(command), partition)

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        out = self._run(["-Q", "-t", f"{topic}:{partition}:{timestamp_ms}"]).decode()
        match = re.search(r"offset (-?\d+)", out)
        assert match is not None, out
        offset = int(match[1])
        return offset if offset >= 0 else None

    def partition_count(self, topic: str) -> int:
        out = json.loads(self._run(["-L", "-J", "-t", topic, "-X", "allow.auto.create.topics=false"]))
        (described,) = out["topics"]
        if words := described.get("error"):
            raise Refused(_code(words), words)
        return len(described["partitions"])

    def _run(self, command: list[str], given: bytes = b"") -> bytes:
        done = subprocess.run(
            ["kcat", "-b", self._address, *command],
            input=given,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        said = done.stderr.decode(errors="replace")
        if done.returncode or "ERROR" in said:
            raise Refused(_code(said), said)
        return done.stdout


def _code(words: str) -> int:
    return next((code for phrase, code in _CODES.items() if phrase in words), -1)


def _parse(out: bytes, partition: int) -> list[Record]:
    records = []
    at = 0
    while match := _NUMBERS.match(out, at):
        offset, timestamp_ms, key_size, value_size = map(int, match.groups())
        at = match.end()
        key, at = (out[at : at + key_size], at + key_size) if key_size >= 0 else (None, at)
        value, at = (out[at : at + value_size], at + value_size) if value_size >= 0 else (None, at)
        end = out.index(b"\x1e", at)
        headers = tuple(
            (name.decode(), text)
            for name, _, text in (pair.partition(b"=") for pair in out[at:end].split(b",") if pair)
        )
        at = end + 1
        records.append(
            Record(
                value=value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
                offset=offset,
            )
        )
    assert at == len(out), f"kcat printed unexpected output: {out[at:]!r}"
    return records
