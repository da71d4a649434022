"""The stories under transcripts/consumer: what the members of a consumer group send and are told."""

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
    """Acts out commands, remembering what each member was told last."""

    def __init__(self) -> None:
        self.host = Host(Topics())
        self.epochs: dict[str, int] = {}
        self.told: dict[str, Partitions] = {}

    def act(self, command: str) -> str:
        verb, *words = command.split()
        return "\n".join(getattr(self, verb)(*words))

    def topics(self, *sizes: str) -> list[str]:
        """topics a=4 b=0: let `a` have four partitions and `b` be gone."""
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
        """beat m1 [a,b] [owns=a:0,1;b:2] [epoch=…] […]: `owns=told` reports what it was told it has."""
        epoch = self.epochs[member]
        return self.send(
            member, ConsumerHeartbeatRequest(group=GROUP, member_id=member, member_epoch=epoch), *words
        )

    def full(self, member: str, topics: str, *words: str) -> list[str]:
        """full m1 a,b owns=…: a heartbeat that says everything, as after an answer that did not come."""
        request = ConsumerHeartbeatRequest(
            group=GROUP,
            member_id=member,
            member_epoch=self.epochs[member],
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        )
        return self.send(member, request, topics, *words)

    def leave(self, member: str, *words: str) -> list[str]:
        """leave m1 [instance=…]: with an instance it means to come back."""
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
        return [self.hear(member, answer)]

    def field(self, member: str, word: str) -> dict[str, object]:
        name, _, value = word.partition("=")
        match name:
            case "lost":
                return {}
            case "owns":
                return {"owned": self.told[member] if value == "told" else self.partitions(value)}
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

    def hear(self, member: str, answer: ConsumerHeartbeatReply | AlpacaError) -> str:
        if isinstance(answer, AlpacaError):
            return f"{member} <- {type(answer).__name__}: {answer}"
        self.epochs[member] = answer.member_epoch
        said = f"{member} <- epoch {answer.member_epoch}"
        if answer.assignment is not None:
            self.told[member] = answer.assignment
            said += f", has {self.text(answer.assignment)}"
        if answer.heartbeat_interval_ms != SETTINGS.heartbeat_interval_ms:
            said += f", soon again ({answer.heartbeat_interval_ms} ms)"
        return said

    def advance(self, seconds: str) -> list[str]:
        before = self.members()
        self.host.advance(int(seconds.removesuffix("s")) * 1000)
        gone = [f"{member} is removed" for member in before if member not in self.members()]
        return gone or ["nobody is removed"]

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
                f"is to have {self.text(member.target_assignment)}"
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
def test_story(story: Path, pytestconfig: pytest.Config) -> None:
    play(story, Narrator().act, pytestconfig)
