"""Transcripts of transactions under transcripts/transactions.

`pytest --rewrite-transcripts` rewrites them instead of comparing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from alpacamq.coordinator.transactions.transaction import (
    AddPartitions,
    EndProtocol,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    PartitionsVerified,
    ProducerIdentity,
    Transaction,
    VerifyPartitions,
    WriteMarkers,
    decode_value,
    encode_key,
    encode_value,
)
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicPartition
from alpacamq.model.state_machine import Change, Request

from .transaction_host import START_MS, Host, partition

STORIES = sorted((Path(__file__).parent / "transcripts" / "transactions").glob("*.txt"))
ID = "payments"


@dataclass(eq=False)
class Handle:
    """The handle of a request of `who`."""

    who: str


class Stage:
    """Named producers of one transactional id. Every command is durable before the next."""

    def __init__(self) -> None:
        self._host = Host()
        self._identities: dict[str, ProducerIdentity] = {}
        self._handles: dict[str, Handle] = {}
        self._lines: list[str] = []

    def play(self, command: str) -> list[str]:
        self._lines = []
        name, *words = command.split()
        getattr(self, f"_{name.replace('-', '_')}")(*words)
        records = len(self._host.log)
        self._host.settle()
        for change in self._host.log[records:]:
            self._lines.append(f"log: {_shown(change)}")
        for handle, answer in self._host.answered:
            assert isinstance(handle, Handle)
            if isinstance(answer, ProducerIdentity):
                self._identities[handle.who] = answer
            self._lines.append(f"{handle.who} <- {_answer(answer)}")
        self._host.answered.clear()
        return self._lines

    def _stored(self, epoch: str) -> None:
        stored = Transaction(
            transactional_id=ID,
            producer=ProducerIdentity(500, int(epoch)),
            timeout_ms=60_000,
            updated_ms=START_MS,
        )
        self._host.store(stored, Change(encode_key(ID), encode_value(stored)))

    def _init(self, who: str) -> None:
        self._submit(who, InitProducer(transactional_id=ID))

    def _recover(self, who: str) -> None:
        request = InitProducer(transactional_id=ID, recovering=self._identities[who])
        self._submit(who, request)

    def _add(self, who: str, *places: str) -> None:
        self._submit(who, AddPartitions(**self._partitions(who, places)))

    def _verify(self, who: str, *places: str) -> None:
        self._submit(who, VerifyPartitions(**self._partitions(who, places)))

    def _commit(self, who: str) -> None:
        self._end(who, EndProtocol.CLASSIC, committed=True)

    def _abort(self, who: str) -> None:
        self._end(who, EndProtocol.CLASSIC, committed=False)

    def _commit_v2(self, who: str) -> None:
        self._end(who, EndProtocol.NEW_EPOCH, committed=True)

    def _abort_v2(self, who: str) -> None:
        self._end(who, EndProtocol.NEW_EPOCH, committed=False)

    def _mark(self, place: str) -> None:
        """Write the marker of one partition only."""
        (markers,) = self._host.to_write
        assert _place(place) in markers.partitions
        self._lines.append(_marker(markers, _place(place)))

    def _complete(self) -> None:
        for markers in list(self._host.to_write):
            self._lines += [_marker(markers, place) for place in markers.partitions]
            self._host.markers_written(markers)

    def _lose_connection(self, who: str) -> None:
        self._host.machine.cancel(self._handles[who])

    def _advance(self, seconds: str) -> None:
        self._host.advance(int(seconds.removesuffix("s")) * 1_000)

    def _crash(self) -> None:
        self._host.crash()

    def _end(self, who: str, protocol: EndProtocol, *, committed: bool) -> None:
        request = EndTransaction(
            transactional_id=ID, producer=self._identities[who], committed=committed, protocol=protocol
        )
        self._submit(who, request)

    def _submit(self, who: str, request: Request[Any]) -> None:
        self._handles[who] = Handle(who)
        self._host.submit(request, self._handles[who])

    def _partitions(self, who: str, places: tuple[str, ...]) -> dict[str, Any]:
        return {
            "transactional_id": ID,
            "producer": self._identities[who],
            "partitions": tuple(_place(place) for place in places),
        }


def _place(word: str) -> TopicPartition:
    return partition(int(word))


def _shown(change: Change) -> str:
    if change.value is None:
        return "forgotten"
    stored = decode_value(change.value)
    places = " ".join(str(place) for place in stored.partitions)
    return f"{stored.state.value}, {stored.producer}{': ' if places else ''}{places}"


def _marker(markers: WriteMarkers, place: TopicPartition) -> str:
    return f"{place}: {'commit' if markers.committed else 'abort'} marker, {markers.producer}"


def _answer(answer: object) -> str:
    match answer:
        case AlpacaError():
            return f"{type(answer).__name__}: {answer}"
        case ProducerIdentity():
            return str(answer)
        case PartitionsAdded():
            return "added"
        case PartitionsVerified():
            return f"absent: {' '.join(str(place) for place in answer.absent) or 'none'}"
        case _:
            raise AssertionError(answer)


def run(story: str) -> str:
    """Return the transcript with the actual outcomes."""
    stage = Stage()
    blocks = []
    for block in story.strip().split("\n\n"):
        script = block.partition("\n----")[0]
        commands = [line for line in script.splitlines() if not line.startswith("#")]
        lines = [line for command in commands for line in stage.play(command)]
        blocks.append("\n".join([script, "----", *lines]) if commands else script)
    return "\n\n".join(blocks) + "\n"


def test_transcripts_are_found() -> None:
    assert STORIES


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    happened = run(path.read_text())
    if request.config.getoption("--rewrite-transcripts", default=False):
        path.write_text(happened)
    assert path.read_text() == happened
