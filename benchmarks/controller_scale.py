"""What does a large cluster cost its controller, and the image of every node?

100 brokers on 10 racks and 100,000 partitions with three replicas, in this process, without a log or a
network: memory of the image, and the CPU time of decisions and of applying them.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from uuid import UUID

from alpacamq.cluster.commands import (
    MAX_NAMED_PARTITIONS,
    AlterPartitions,
    CreateTopic,
    Heartbeat,
    IsrMember,
    IsrProposal,
    Reassign,
    Reassignment,
    RegisterBroker,
)
from alpacamq.cluster.controller import Controller
from alpacamq.cluster.decisions import ControllerSettings
from alpacamq.cluster.image import FEATURES, ClusterImage
from alpacamq.cluster.topics import TopicLimits
from alpacamq.model.ids import BrokerId

from .report import OURS, Report
from .session import Session

BROKERS = 100
RACKS = 10
PARTITIONS_PER_TOPIC = 100
TICKS = 1000
# Leaders do not move back by themselves while they are counted.
SETTINGS = ControllerSettings(limits=TopicLimits(max_partitions=100_000), rebalance_ms=1 << 60)
VICTIM = BrokerId(7)


def run(session: Session, report: Report) -> None:
    topics = session.scaled(1000, 50)
    report.settings["load"] = {"brokers": BROKERS, "partitions": topics * PARTITIONS_PER_TOPIC, "replicas": 3}
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in range(session.repeats):
        session.settle()
        for key, value in _sample(topics).items():
            samples.setdefault(key, []).append(value)
    for (case, unit), values in samples.items():
        report(case=case, server=OURS, unit=unit, samples=values)


def _sample(topics: int) -> dict[tuple[str, str], float]:
    measured: dict[tuple[str, str], float] = {}

    def timed(case: str, act: Callable[[], object], times: int = 1) -> None:
        begun = time.process_time()
        for _ in range(times):
            act()
        spent_s = (time.process_time() - begun) / times
        unit, scale = ("ms of CPU", 1e3) if times == 1 else ("µs of CPU", 1e6)
        measured[case, unit] = spent_s * scale

    first, epochs = _cluster()
    timed("create all topics", lambda: _create(first, topics))
    changes = list(first.image.changes())
    measured["snapshot", "MB"] = sum(len(key) + len(value or b"") for key, value in changes) / 1e6
    gc.collect()
    tracemalloc.start()
    image = ClusterImage()
    image.apply(changes)
    measured["image of a node", "MB"] = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    timed("load the snapshot", lambda: ClusterImage().apply(changes))

    controller = Controller(image, SETTINGS, 0)
    timed("become controller", lambda: (Controller(image, SETTINGS, 0), controller.tick(0)))
    timed("a tick with nothing to do", lambda: controller.tick(1), TICKS)
    beat = Heartbeat(broker_id=VICTIM, broker_epoch=epochs[VICTIM], applied_index=0)
    timed("a heartbeat", lambda: controller.decide(beat, 1), TICKS)

    measured["leaders moved when a broker is lost", "leaders"] = controller.image.led_by(VICTIM)
    lost = list[object]()
    timed("lose a broker", lambda: lost.append(controller.connection_lost(VICTIM, is_refused=True)))
    controller.decide(beat, 1)
    proposals = _rejoin(controller, epochs)
    timed("its replicas rejoin", lambda: [controller.decide(each, 1) for each in proposals])
    moved = _moves(topics // 10)
    timed("reassign 10 % of the partitions", lambda: [controller.decide(each, 1) for each in moved])
    return measured


def _cluster() -> tuple[Controller, dict[BrokerId, int]]:
    controller = Controller(ClusterImage(), SETTINGS, 0)
    epochs = {}
    for broker in map(BrokerId, range(BROKERS)):
        command = RegisterBroker(
            features=FEATURES,
            id=broker,
            incarnation_id=UUID(int=broker),
            directory_id=UUID(int=broker),
            rack=f"r{broker % RACKS}",
        )
        epochs[broker] = controller.decide(command, 0).reply.epoch
        controller.decide(Heartbeat(broker_id=broker, broker_epoch=epochs[broker], applied_index=0), 0)
    return controller, epochs


def _create(controller: Controller, topics: int) -> None:
    for number in range(topics):
        topic_id = UUID(bytes=sha256(str(number).encode()).digest()[:16])
        command = CreateTopic(
            name=f"topic-{number}", topic_id=topic_id, partitions=PARTITIONS_PER_TOPIC, replication_factor=3
        )
        controller.decide(command, 0)


def _rejoin(controller: Controller, epochs: dict[BrokerId, int]) -> list[AlterPartitions]:
    """Return the proposals of all leaders to take the lost broker back."""
    proposals: dict[BrokerId, list[IsrProposal]] = {}
    for topic_id, index in controller.image.replicas_on(VICTIM):
        state = controller.image.partitions_of(topic_id)[index]
        assert state.leader is not None
        isr = tuple(IsrMember(BrokerId(each), epochs[BrokerId(each)]) for each in state.replicas)
        proposal = IsrProposal(topic_id, index, state.leader_epoch, state.partition_epoch, isr)
        proposals.setdefault(BrokerId(state.leader), []).append(proposal)
    return [
        AlterPartitions(broker_id=leader, broker_epoch=epochs[leader], proposals=tuple(each))
        for leader, each in proposals.items()
    ]


def _moves(topics: int) -> list[Reassign]:
    wanted = [
        Reassignment(f"topic-{topic}", index, tuple((topic + index + step) % BROKERS for step in (0, 11, 22)))
        for topic in range(topics)
        for index in range(PARTITIONS_PER_TOPIC)
    ]
    return [
        Reassign(reassignments=tuple(wanted[first : first + MAX_NAMED_PARTITIONS]))
        for first in range(0, len(wanted), MAX_NAMED_PARTITIONS)
    ]
