"""Stories of the controller as transcripts: commands, and what they change."""

from pathlib import Path

import pytest

from alpacamq.cluster.commands import (
    ConfigureTopic,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    NamedPartition,
    PartitionResult,
    Reassign,
    Reassignment,
)
from alpacamq.cluster.image import ClusterImage
from alpacamq.cluster.partition_state import PartitionId, PartitionState, Replicas
from alpacamq.cluster.topics import EditOperation, SettingEdit
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import BrokerId
from alpacamq.model.topics import Topic
from tests.transcripts import play

from .clusters import Cluster

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


class Stage:
    """A cluster that commands in words act on. There is one topic, t."""

    def __init__(self) -> None:
        self.cluster = Cluster(0)
        self._before = ClusterImage()

    def act(self, command: str) -> str:
        verb, *words = command.split()
        try:
            said = getattr(self, f"do_{verb}")(*words)
        except AlpacaError as error:
            said = f"{type(error).__name__}: {error}"
        lines = [said] if said else []
        lines += self._changes()
        return "\n".join(lines) or "nothing changes"

    def _changes(self) -> list[str]:
        image = self.cluster.image
        lines = []
        for number, broker in sorted(image.brokers.items()):
            if (former := self._before.brokers.get(number)) != broker:
                state = "fenced" if broker.is_fenced else "running"
                state += ", draining" * broker.is_draining + ", shutting down" * broker.is_shutting_down
                epoch = f", epoch {broker.epoch}" if former is None or former.epoch != broker.epoch else ""
                lines.append(f"broker {number}: {state}{epoch}")
        for topic in image.topics.values():
            for index, partition in enumerate(image.partitions_of(topic.id)):
                if self._before.partition(PartitionId(topic.id, index)) != partition:
                    lines.append(f"{topic.name}-{index}: {described(partition)}")
        self._before = image.copy()
        return lines

    def do_start(self, *brokers: str) -> None:
        for broker in brokers:
            self.cluster.start(int(broker))

    def do_register(self, broker: str) -> None:
        self.cluster.epochs[int(broker)] = self.cluster.register(int(broker)).epoch

    def do_wipe(self, broker: str) -> None:
        """Replace the disk of a broker that does not run, and start it."""
        del self.cluster.directories[int(broker)]
        self.cluster.start(int(broker))

    def do_kill(self, *brokers: str) -> None:
        self.cluster.kill(*map(int, brokers))

    def do_beat(self, broker: str, *damaged: str) -> None:
        partitions = tuple(
            PartitionId(self._topic.id, int(each.removeprefix("damaged="))) for each in damaged
        )
        self.cluster.beat(int(broker), damaged=partitions)

    def do_stop(self, broker: str) -> str:
        may = self.cluster.beat(int(broker), wants_shutdown=True).may_shut_down
        return f"broker {broker} {'may' if may else 'must not'} stop"

    def do_pass(self, seconds: str, *heard: str) -> None:
        """Let time pass, in which some brokers send heartbeats."""
        self.cluster.advance(int(seconds.removesuffix("s")) * 1000, heard=[int(each) for each in heard])

    def do_create(self, *partitions: str) -> None:
        self.cluster.create("t", *map(replicas, partitions))

    def do_set(self, setting: str) -> None:
        name, _, value = setting.partition("=")
        edit = SettingEdit(EditOperation.SET, name, value)
        self.cluster.ask(ConfigureTopic(name="t", edits=(edit,)))

    def do_isr(self, index: str, isr: str) -> str:
        """Let the leader propose an in-sync set."""
        return failed(self.cluster.propose(self._topic, replicas(isr), int(index)))

    def do_elect(self, kind: str, index: str) -> str:
        partitions = (NamedPartition("t", int(index)),)
        (result,) = self.cluster.ask(ElectLeaders(kind=ElectionKind(kind), partitions=partitions)).results
        return failed(result)

    def do_reassign(self, index: str, target: str) -> str:
        wanted = None if target == "cancel" else replicas(target)
        (result,) = self.cluster.ask(Reassign(reassignments=(Reassignment("t", int(index), wanted),))).results
        return failed(result)

    def do_drain(self, broker: str) -> None:
        self.cluster.ask(DrainBroker(broker_id=BrokerId(int(broker))))

    def do_failover(self) -> None:
        self.cluster.fail_over()

    @property
    def _topic(self) -> Topic:
        return self.cluster.image.topic("t")


def replicas(text: str) -> Replicas:
    return tuple(map(int, text.split(",")))


def failed(result: PartitionResult) -> str:
    return "" if result.failure is None else f"{result.failure.error}: {result.failure.reason}"


def described(state: PartitionState) -> str:
    def listed(name: str, brokers: Replicas) -> str:
        return f", {name} {','.join(map(str, brokers))}" if brokers else ""

    leader = f"leader {state.leader}" if state.leader is not None else "no leader"
    return (
        f"{leader} in epoch {state.leader_epoch}, replicas {','.join(map(str, state.replicas))}"
        + (listed("in sync", state.isr) or ", none in sync")
        + listed("eligible", state.elr)
        + listed("adding", state.adding)
        + listed("removing", state.removing)
    )


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_story(story: Path, pytestconfig: pytest.Config) -> None:
    play(story, Stage().act, pytestconfig)
