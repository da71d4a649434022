"""A process that checks batches for a broker: `python -m alpacamq.broker.schemas.worker`.

Reads requests from its standard input and writes replies to its standard output, one at a time, each after
its length. It ends with its input: no worker outlives its broker.
"""

import signal
import sys
from collections import OrderedDict
from collections.abc import Collection
from struct import Struct
from typing import BinaryIO, Final

import msgspec

from alpacamq.model.compression import TooMuchData
from alpacamq.model.errors import CorruptBatch, RecordError
from alpacamq.model.records import read_contents
from alpacamq.registry.messages import Source
from alpacamq.registry.schema import ParsedSchema
from alpacamq.registry.validation import Known, Refused, Rule, Wanted, check_records

LENGTH: Final = Struct(">I")
READY: Final = b"ready\n"
MAX_KEPT: Final = 500
MAX_KEPT_CHARACTERS: Final = 4 << 20


class KnownSchema(msgspec.Struct, frozen=True, array_like=True):
    """What the broker knows of a schema: that it is refused, its GUID, or only that it may be named."""

    wanted: Wanted
    refusal: str | None = None
    guid: str | None = None


class CheckBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch to check, and the schemas that the worker said it lacks, by GUID."""

    batch: bytes
    limit_bytes: int
    max_refused: int
    rules: tuple[Rule, ...]
    known: tuple[KnownSchema, ...]
    sources: dict[str, Source] = {}


class CheckedBatch(msgspec.Struct, frozen=True, array_like=True):
    """The result of a check, or why there is none."""

    refused: tuple[RecordError, ...] = ()
    missing: tuple[Wanted, ...] = ()
    used: tuple[Wanted, ...] = ()
    records: int = 0
    # Schemas whose texts have to be sent.
    lacking: tuple[str, ...] = ()
    corrupt: str = ""
    is_too_large: bool = False


class Worker:
    """Checks batches with the schemas that it keeps."""

    def __init__(self) -> None:
        # By GUID, with the characters of their texts.
        self._schemas: OrderedDict[str, tuple[ParsedSchema, int]] = OrderedDict()
        self._characters = 0

    def check(self, request: CheckBatch) -> CheckedBatch:
        """Check a batch, if all its schemas are here."""
        for guid, source in request.sources.items():
            self._add(guid, source)
        self._drop_others({each.guid for each in request.known if each.guid is not None})
        known: dict[Wanted, Known] = {}
        lacking = []
        for each in request.known:
            if each.refusal is not None:
                known[each.wanted] = Refused(each.refusal)
            elif each.guid is None:
                known[each.wanted] = None
            elif (found := self._schemas.get(each.guid)) is not None:
                self._schemas.move_to_end(each.guid)
                known[each.wanted] = found[0]
            else:
                lacking.append(each.guid)
        if lacking:
            return CheckedBatch(lacking=tuple(lacking))
        try:
            contents = read_contents(request.batch, request.limit_bytes)
            checked = check_records(contents, request.rules, known, request.max_refused)
        except TooMuchData as error:
            return CheckedBatch(corrupt=str(error), is_too_large=True)
        except CorruptBatch as error:
            return CheckedBatch(corrupt=str(error))
        return CheckedBatch(
            tuple(checked.refused), tuple(checked.missing), tuple(checked.used), checked.records
        )

    def _add(self, guid: str, source: Source) -> None:
        # The broker imports this module for its messages, and has no use for the languages before a schema.
        from alpacamq.registry.languages import parse

        if guid not in self._schemas:
            characters = len(source.text) + sum(len(each.text) for each in source.dependencies)
            self._schemas[guid] = parse(source), characters
            self._characters += characters

    def _drop_others(self, used: Collection[str]) -> None:
        """Drop schemas above the limits, those first that were not used for the longest time."""
        for guid in list(self._schemas):
            if len(self._schemas) <= MAX_KEPT and self._characters <= MAX_KEPT_CHARACTERS:
                return
            if guid not in used:
                self._characters -= self._schemas.pop(guid)[1]


def main() -> None:
    """Check batches until the input ends."""
    # Ctrl-C is for the broker, which closes the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    decode = msgspec.msgpack.Decoder(CheckBatch).decode
    encode = msgspec.msgpack.Encoder().encode
    worker = Worker()
    replies.write(READY)
    replies.flush()
    while (request := _read(requests)) is not None:
        reply = encode(worker.check(decode(request)))
        replies.write(LENGTH.pack(len(reply)))
        replies.write(reply)
        replies.flush()


def _read(requests: BinaryIO) -> bytes | None:
    prefix = requests.read(LENGTH.size)
    if len(prefix) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(prefix)
    request = requests.read(length)
    return request if len(request) == length else None


if __name__ == "__main__":
    main()
