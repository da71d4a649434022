"""Transcripts of streams groups under transcripts/streams."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from alpacamq.coordinator.streams.messages import (
    Endpoint,
    StreamsHeartbeatReply,
    StreamsHeartbeatRequest,
    Tasks,
)
from alpacamq.model.errors import AlpacaError
from tests.transcripts import play

from .consumer_clients import Topics
from .streams_clients import GROUP, REBALANCE_TIMEOUT_MS, WORD_COUNT, Host

STORIES = sorted((Path(__file__).parent / "transcripts" / "streams").glob("*.txt"))


class Narrator:
    """Runs commands, and keeps the last tasks of each member. The application is a word count."""

    def __init__(self) -> None:
        self.host = Host(Topics())
        self.epochs: dict[str, int] = {}
        self.assigned: dict[str, Tasks] = {}

    def act(self, command: str) -> str:
        verb, *words = command.split()
        return "\n".join(getattr(self, verb)(*words))

    def topics(self, *sizes: str) -> list[str]:
        """topics lines=4 words=0: give `lines` four partitions and delete `words`."""
        for size in sizes:
            name, _, partitions = size.partition("=")
            if partitions == "0":
                self.host.topics.delete(name)
            else:
                self.host.topics.put(name, int(partitions))
        return ["done"]

    def create(self) -> list[str]:
        """create: create the internal topics that the group wants."""
        return [" ".join(self.host.create_missing()) or "nothing to create"]

    def standbys(self, number: str) -> list[str]:
        self.host.settings = msgspec.structs.replace(self.host.settings, num_standby_replicas=int(number))
        return ["done"]

    def join(self, member: str, process: str, *words: str) -> list[str]:
        """join m1 p1 [topology=1] [instance=…] [endpoint=host:1]"""
        request = StreamsHeartbeatRequest(
            group=GROUP,
            member_id=member,
            member_epoch=0,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            topology=WORD_COUNT,
            process_id=process,
            owned=Tasks(),
        )
        return self.send(member, request, *words)

    def beat(self, member: str, *words: str) -> list[str]:
        """beat m1 [runs=0:0,1;1:2;1s:3] [epoch=…] [shutdown]: `runs=assigned` reports the last tasks."""
        epoch = self.epochs[member]
        return self.send(
            member, StreamsHeartbeatRequest(group=GROUP, member_id=member, member_epoch=epoch), *words
        )

    def leave(self, member: str, *words: str) -> list[str]:
        """leave m1 [instance=…]: a static member may come back."""
        epoch = -2 if words else -1
        return self.send(
            member, StreamsHeartbeatRequest(group=GROUP, member_id=member, member_epoch=epoch), *words
        )

    def send(self, member: str, request: StreamsHeartbeatRequest, *words: str) -> list[str]:
        is_lost = "lost" in words
        for word in words:
            request = msgspec.structs.replace(request, **self.field(member, word))
        answer = self.host.ask(request)
        return ["the answer is lost"] if is_lost else self.report(member, answer)

    def field(self, member: str, word: str) -> dict[str, object]:
        name, _, value = word.partition("=")
        match name:
            case "lost":
                return {}
            case "runs":
                return {"owned": self.assigned[member] if value == "assigned" else tasks(value)}
            case "epoch":
                return {"member_epoch": int(value)}
            case "instance":
                return {"instance_id": value}
            case "topology":
                return {"topology": msgspec.structs.replace(WORD_COUNT, epoch=int(value))}
            case "endpoint":
                host, _, port = value.partition(":")
                return {"endpoint": Endpoint(host, int(port))}
            case "shutdown":
                return {"shutdown_application": True}
            case _:
                raise AssertionError(f"unknown word {word!r}")

    def report(self, member: str, answer: StreamsHeartbeatReply | AlpacaError) -> list[str]:
        if isinstance(answer, AlpacaError):
            return [f"{member} <- {type(answer).__name__}: {answer}"]
        self.epochs[member] = answer.member_epoch
        line = f"{member} <- epoch {answer.member_epoch}"
        if answer.tasks is not None:
            self.assigned[member] = answer.tasks
            line += f", has {text(answer.tasks)}"
        if answer.heartbeat_interval_ms != self.host.settings.heartbeat_interval_ms:
            line += f", again in {answer.heartbeat_interval_ms} ms"
        lines = [line, *(f"{status.code.name}: {status.detail}" for status in answer.statuses)]
        for each in answer.endpoints or ():
            lines.append(f"{each.endpoint.host}:{each.endpoint.port} reads {dict(each.active)}")
        return lines

    def advance(self, seconds: str) -> list[str]:
        before = self.members()
        self.host.advance(int(seconds.removesuffix("s")) * 1000)
        removed = [f"{member} is removed" for member in before if member not in self.members()]
        return removed or ["no member is removed"]

    def restart(self) -> list[str]:
        self.host.restart()
        return [f"{len(self.members())} members"]

    def commit(self, member: str, epoch: str) -> list[str]:
        try:
            self.host.group.validate_commit(member, int(epoch.removeprefix("epoch=")))
        except AlpacaError as error:
            return [f"{type(error).__name__}: {error}"]
        return ["accepted"]

    def describe(self) -> list[str]:
        group = self.host.group.describe()
        lines = [f"{group.state}, epoch {group.epoch}, target of epoch {group.assignment_epoch}"]
        for member in sorted(group.members, key=lambda each: each.member_id):
            lines.append(
                f"{member.member_id}: epoch {member.member_epoch}, has {text(member.assignment)}, "
                f"target {text(member.target_assignment)}"
            )
        return lines

    def members(self) -> list[str]:
        return [member.member_id for member in self.host.group.describe().members]


def text(held: Tasks) -> str:
    """Return tasks as text: partitions by subtopology, with `s` for standby tasks."""
    parts = [f"{name}:{_indexes(found)}" for name, found in sorted(held.active.items())]
    parts += [f"{name}s:{_indexes(found)}" for name, found in sorted(held.standby.items())]
    return ";".join(parts) or "nothing"


def _indexes(indexes: Iterable[int]) -> str:
    return ",".join(map(str, sorted(indexes)))


def tasks(told: str) -> Tasks:
    """Return the tasks of a text."""
    active: dict[str, frozenset[int]] = {}
    standby: dict[str, frozenset[int]] = {}
    for part in told.split(";") if told != "nothing" else ():
        name, _, indexes = part.partition(":")
        role: dict[str, frozenset[int]] = standby if name.endswith("s") else active
        role[name.removesuffix("s")] = frozenset(map(int, indexes.split(",")))
    return Tasks(active, standby)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_transcript(story: Path, pytestconfig: pytest.Config) -> None:
    play(story, Narrator().act, pytestconfig)
