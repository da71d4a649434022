"""Transcripts of share groups under transcripts/share."""

from pathlib import Path

import msgspec
import pytest

from alpacamq.coordinator.consumer.messages import Partitions
from alpacamq.coordinator.share.messages import ShareHeartbeatRequest
from alpacamq.model.errors import AlpacaError
from tests.transcripts import play

from .consumer_clients import Topics
from .share_clients import ShareHost, beating, joining

STORIES = sorted((Path(__file__).parent / "transcripts" / "share").glob("*.txt"))


class Narrator:
    """Runs commands, and keeps the last epoch of each member."""

    def __init__(self) -> None:
        self.host = ShareHost(Topics())
        self.epochs: dict[str, int] = {}

    def act(self, command: str) -> str:
        verb, *words = command.split()
        return "\n".join(getattr(self, verb)(*words))

    def topics(self, *sizes: str) -> list[str]:
        """topics a=4 b=1: set the partitions of topics."""
        for size in sizes:
            name, _, partitions = size.partition("=")
            self.host.topics.put(name, int(partitions))
        return ["done"]

    def join(self, member: str, topics: str, *words: str) -> list[str]:
        """join m1 a,b [lost]"""
        return self.send(member, joining(member, *topics.split(",")), *words)

    def beat(self, member: str, *words: str) -> list[str]:
        """beat m1 [epoch=…] [lost]"""
        return self.send(member, beating(member, self.epochs[member]), *words)

    def leave(self, member: str) -> list[str]:
        return self.send(member, beating(member, -1))

    def advance(self, seconds: str) -> list[str]:
        self.host.expired.clear()
        self.host.advance(int(seconds.removesuffix("s")) * 1000)
        removed = [
            f"{each.member_id} is removed, topics {','.join(each.topics)}" for each in self.host.expired
        ]
        return removed or ["no member is removed"]

    def restart(self) -> list[str]:
        self.host.restart()
        return [f"{len(self.host.members())} members"]

    def describe(self) -> list[str]:
        group = self.host.group.describe()
        return [f"{group.state}, epoch {group.epoch}, assigned for epoch {group.assignment_epoch}"] + [
            f"{member.member_id}: epoch {member.member_epoch}, has {self.text(member.assignment)}"
            for member in sorted(group.members, key=lambda each: each.member_id)
        ]

    def send(self, member: str, request: ShareHeartbeatRequest, *words: str) -> list[str]:
        for word in words:
            if word.startswith("epoch="):
                request = msgspec.structs.replace(request, member_epoch=int(word.removeprefix("epoch=")))
        answer = self.host.ask(request)
        if "lost" in words:
            return ["the reply is lost"]
        if isinstance(answer, AlpacaError):
            return [f"{member} <- {type(answer).__name__}: {answer}"]
        self.epochs[member] = answer.member_epoch
        said = f"{member} <- epoch {answer.member_epoch}"
        return [said if answer.assignment is None else f"{said}, has {self.text(answer.assignment)}"]

    def text(self, partitions: Partitions) -> str:
        names = {topic.id: name for name in self.host.topics.names() if (topic := self.host.topics.get(name))}
        parts = (
            f"{names[topic]}:{','.join(map(str, sorted(indexes)))}" for topic, indexes in partitions.items()
        )
        return ";".join(sorted(parts)) or "nothing"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_transcript(story: Path, pytestconfig: pytest.Config) -> None:
    play(story, Narrator().act, pytestconfig)
