"""Transcripts of consumer groups under transcripts/consumer."""

from pathlib import Path

import msgspec
import pytest

from alpacamq.coordinator.consumer.messages import (
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    Partitions,
)
from alpacamq.model.errors import AlpacaError
from tests.transcripts import play

from .consumer_clients import GROUP, REBALANCE_TIMEOUT_MS, SETTINGS, Host, Topics

STORIES = sorted((Path(__file__).parent / "transcripts" / "consumer").glob("*.txt"))


class Narrator:
    """Runs commands, and keeps the last assignment of each member."""

    def __init__(self) -> None:
        self.host = Host(Topics())
        self.epochs: dict[str, int] = {}
        self.assigned: dict[str, Partitions] = {}

    def act(self, command: str) -> str:
        verb, *words = command.split()
        return "\n".join(getattr(self, verb)(*words))

    def topics(self, *sizes: str) -> list[str]:
        """topics a=4 b=0: give `a` four partitions and delete `b`."""
        for size in sizes:
            name, _, partitions = size.partition("=")
            if partitions == "0":
                self.host.topics.delete(name)
            else:
                self.host.topics.put(name, int(partitions))
        return ["done"]

    def join(self, member: str, *words: str) -> list[str]:
        """join m1 a,b [regex=…] [instance=…] [assignor=…]"""
        return self.send(
            member,
            ConsumerHeartbeatRequest(
                group=GROUP,
                member_id=member,
                member_epoch=0,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                subscribed_topics=(),
                owned={},
            ),
            *words,
        )

    def beat(self, member: str, *words: str) -> list[str]:
        """beat m1 [a,b] [owns=a:0,1;b:2] [epoch=…] […]: `owns=assigned` reports the last assignment."""
        epoch = self.epochs[member]
        return self.send(
            member, ConsumerHeartbeatRequest(group=GROUP, member_id=member, member_epoch=epoch), *words
        )

    def full(self, member: str, topics: str, *words: str) -> list[str]:
        """full m1 a,b owns=…: a heartbeat with all fields, as after a lost reply."""
        request = ConsumerHeartbeatRequest(
            group=GROUP,
            member_id=member,
            member_epoch=self.epochs[member],
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        )
        return self.send(member, request, topics, *words)

    def leave(self, member: str, *words: str) -> list[str]:
        """leave m1 [instance=…]: a static member may come back."""
        epoch = -2 if words else -1
        return self.send(
            member, ConsumerHeartbeatRequest(group=GROUP, member_id=member, member_epoch=epoch), *words
        )

    def send(self, member: str, request: ConsumerHeartbeatRequest, *words: str) -> list[str]:
        is_lost = "lost" in words
        for word in words:
            request = msgspec.structs.replace(request, **self.field(member, word))
        answer = self.host.ask(request)
        if is_lost:
            return ["the answer is lost"]
        return [self.report(member, answer)]

    def field(self, member: str, word: str) -> dict[str, object]:
        name, _, value = word.partition("=")
        match name:
            case "lost":
                return {}
            case "owns":
                return {"owned": self.assigned[member] if value == "assigned" else self.partitions(value)}
            case "epoch":
                return {"member_epoch": int(value)}
            case "regex":
                return {"subscribed_regex": value}
            case "instance":
                return {"instance_id": value}
            case "assignor":
                return {"assignor": value}
            case _:
                return {"subscribed_topics": tuple(word.split(","))}

    def report(self, member: str, answer: ConsumerHeartbeatReply | AlpacaError) -> str:
        if isinstance(answer, AlpacaError):
            return f"{member} <- {type(answer).__name__}: {answer}"
        self.epochs[member] = answer.member_epoch
        text = f"{member} <- epoch {answer.member_epoch}"
        if answer.assignment is not None:
            self.assigned[member] = answer.assignment
            text += f", has {self.text(answer.assignment)}"
        if answer.heartbeat_interval_ms != SETTINGS.heartbeat_interval_ms:
            text += f", again in {answer.heartbeat_interval_ms} ms"
        return text

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
        lines = [
            f"{group.state}, epoch {group.epoch}, target of epoch {group.assignment_epoch}, {group.assignor}"
        ]
        for member in sorted(group.members, key=lambda each: each.member_id):
            lines.append(
                f"{member.member_id}: epoch {member.member_epoch}, has {self.text(member.assignment)}, "
                f"target {self.text(member.target_assignment)}"
            )
        return lines

    def members(self) -> list[str]:
        return [member.member_id for member in self.host.group.describe().members]

    def text(self, partitions: Partitions) -> str:
        names = {topic.id: name for name in self.host.topics.names() if (topic := self.host.topics.get(name))}
        return (
            ";".join(
                sorted(
                    f"{names.get(topic, 'deleted')}:{','.join(map(str, sorted(indexes)))}"
                    for topic, indexes in partitions.items()
                )
            )
            or "nothing"
        )

    def partitions(self, text: str) -> Partitions:
        owned = {}
        for part in text.split(";") if text != "nothing" else ():
            name, _, indexes = part.partition(":")
            topic = self.host.topics.get(name)
            assert topic is not None
            owned[topic.id] = frozenset(map(int, indexes.split(",")))
        return owned


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_transcript(story: Path, pytestconfig: pytest.Config) -> None:
    play(story, Narrator().act, pytestconfig)
