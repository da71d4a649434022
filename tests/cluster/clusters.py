"""A controller with registered brokers, and the log of everything it decided."""

from collections.abc import Iterable
from typing import TypeVar
from uuid import UUID

from alpacamq.cluster.brokers import BrokerRegistration, Endpoint, FeatureRange
from alpacamq.cluster.commands import (
    AlterPartitions,
    Command,
    CreateTopic,
    Heartbeat,
    HeartbeatReply,
    IsrMember,
    IsrProposal,
    PartitionResult,
    RegisterBroker,
    decode,
    decode_reply,
    encode,
    encode_reply,
)
from alpacamq.cluster.controller import Controller
from alpacamq.cluster.decisions import ControllerSettings
from alpacamq.cluster.image import FEATURES, VERSION_FEATURE, ClusterImage
from alpacamq.cluster.partition_state import PartitionId, PartitionState, Replicas
from alpacamq.model.ids import BrokerId, TopicId
from alpacamq.model.state_machine import Change
from alpacamq.model.topics import Topic

R = TypeVar("R")

SETTINGS = ControllerSettings(dead_ms=9000, rebalance_ms=1_000_000)


class Cluster:
    """Brokers 1 to `brokers`, each on a rack of its own, all running."""

    def __init__(self, brokers: int = 3, settings: ControllerSettings = SETTINGS) -> None:
        self.now_ms = 0
        self.settings = settings
        self.controller = Controller(ClusterImage(), settings, 0)
        self.log: list[Change] = []
        self.epochs: dict[int, int] = {}
        self.directories: dict[int, UUID] = {}
        self._ids = iter(range(1, 1 << 40))
        for broker in range(1, brokers + 1):
            self.start(broker)

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    def uuid(self) -> UUID:
        return UUID(int=next(self._ids))

    def ask(self, command: Command[R]) -> R:
        """Decide a command as it arrives from another node."""
        received: Command[R] = decode(encode(command))
        decision = self.controller.decide(received, self.now_ms)
        self.log += decision.changes
        return decode_reply(command, encode_reply(decision.reply))

    def advance(self, ms: int, *, heard: Iterable[int] = ()) -> None:
        """Let time pass, in which some brokers send heartbeats."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.now_ms = min(until_ms, self.now_ms + 3000)
            for broker in heard:
                self.beat(broker)
            self.tick()

    def tick(self) -> list[Change]:
        decision = self.controller.tick(self.now_ms)
        self.log += decision.changes
        return decision.changes

    def lose_connection(self, broker: int, *, is_refused: bool) -> None:
        self.log += self.controller.connection_lost(BrokerId(broker), is_refused=is_refused).changes

    def register(
        self,
        broker: int,
        *,
        incarnation: UUID | None = None,
        last_epoch: int | None = None,
        rack: str = "",
        endpoints: tuple[Endpoint, ...] = (),
        damaged: tuple[PartitionId, ...] = (),
        features: FeatureRange | None = None,
        stopped_cleanly: bool = False,
    ) -> BrokerRegistration:
        return self.ask(
            RegisterBroker(
                id=BrokerId(broker),
                incarnation_id=incarnation or self.uuid(),
                directory_id=self.directories.setdefault(broker, self.uuid()),
                last_epoch=self.epochs.get(broker, 0) if last_epoch is None else last_epoch,
                rack=rack,
                endpoints=endpoints,
                features={VERSION_FEATURE: features or FEATURES[VERSION_FEATURE]},
                damaged=damaged,
                stopped_cleanly=stopped_cleanly,
            )
        )

    def beat(
        self,
        broker: int,
        *,
        wants_shutdown: bool = False,
        damaged: tuple[PartitionId, ...] = (),
        applied_index: int = 0,
        clock_ms: int = 0,
        is_disk_failing: bool = False,
    ) -> HeartbeatReply:
        return self.ask(
            Heartbeat(
                broker_id=BrokerId(broker),
                broker_epoch=self.epochs[broker],
                applied_index=applied_index,
                wants_shutdown=wants_shutdown,
                damaged=damaged,
                clock_ms=clock_ms,
                is_disk_failing=is_disk_failing,
            )
        )

    def start(self, broker: int, *, rack: str = "") -> None:
        """Register a broker and send its first heartbeat."""
        self.epochs[broker] = self.register(broker, rack=rack).epoch
        self.beat(broker)

    def kill(self, *brokers: int) -> None:
        for broker in brokers:
            self.lose_connection(broker, is_refused=True)

    def create(self, name: str, *assignments: Replicas, **overrides: str) -> Topic:
        """Create a topic; overrides have underscores for dots."""
        return self.ask(
            CreateTopic(
                name=name,
                topic_id=self.uuid(),
                assignments=assignments,
                overrides={name.replace("_", "."): text for name, text in overrides.items()},
            )
        )

    def state(self, topic: Topic | TopicId, index: int = 0) -> PartitionState:
        state = self.image.partition(PartitionId(topic.id if isinstance(topic, Topic) else topic, index))
        assert state is not None
        return state

    def propose(self, topic: Topic, isr: Replicas, index: int = 0) -> PartitionResult:
        """Propose an in-sync set, as the leader of the partition."""
        state = self.state(topic, index)
        assert state.leader is not None
        return self.propose_as(state.leader, topic, isr, index)

    def propose_as(self, broker: int, topic: Topic, isr: Replicas, index: int = 0) -> PartitionResult:
        state = self.state(topic, index)
        (result,) = self.ask(
            AlterPartitions(
                broker_id=BrokerId(broker),
                broker_epoch=self.epochs[broker],
                proposals=(
                    IsrProposal(
                        topic.id,
                        index,
                        state.leader_epoch,
                        state.partition_epoch,
                        tuple(IsrMember(BrokerId(each), self.epochs.get(each, 0)) for each in isr),
                    ),
                ),
            )
        ).results
        return result

    def fail_over(self) -> None:
        """Let another node become controller, with the committed image."""
        image = ClusterImage()
        image.apply(self.log)
        self.controller = Controller(image, self.settings, self.now_ms)
        self.tick()


def snapshot(image: ClusterImage) -> dict[bytes, bytes | None]:
    """Return all that an image holds."""
    return dict(image.changes())
