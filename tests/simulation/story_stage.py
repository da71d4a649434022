"""Stories of a small cluster: commands for its nodes, network and producers, and what was decided.

One partition on nodes 1, 2 and 3, in this order of preference; two replicas must be in sync. A value is one
letter, and its own producer. Network and disks have no faults but those of the story.

    produce 1 a        send a to node 1
    wait 500ms         let time pass
    cut 1 | 2 3        lose all messages between the sides; "cut 1 > 2" one way
    heal               end all cuts
    crash 1            end the process; what was not synced is lost
    start 1            start it again
    wipe 1             replace its disk by an empty one; the node must be down
    stop 1             hand over leadership, then stop
    stall 1 500ms      let its disk take that long
    show               the logs (record and epoch) up to the high watermark, and behind it
"""

import re
from collections.abc import Callable
from uuid import UUID

from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import AlpacaError
from tests.simulation.cluster import TOPIC_ID, Cluster
from tests.simulation.kit import MS_US, SECOND_US

PARTITION = PartitionId(TOPIC_ID, 0)
SETTLE_US = 40 * MS_US


class Stage:
    """A cluster and what has been said about it since the last command."""

    def __init__(self) -> None:
        self.cluster = Cluster(seed=1, nodes=3, assignments=((1, 2, 3),))
        simulation = self.cluster.simulation
        simulation.network.min_delay_us, simulation.network.max_delay_us = 1000, 1001
        simulation.network.late = 0
        for node in self.cluster.nodes.values():
            node.disk.min_sync_us, node.disk.max_sync_us = 1000, 1001
        self.cluster.producers.clear()
        self.cluster.start()
        simulation.run_for(SECOND_US)
        self._said: list[str] = []
        self.cluster.tell = self._said.append

    def act(self, command: str) -> str:
        """Perform a command, let the cluster settle, and return what was decided."""
        self._said.clear()
        verb, *words = command.split()
        commands: dict[str, Callable[[list[str]], None]] = {
            "produce": self._produce,
            "wait": self._wait,
            "cut": self._cut,
            "heal": lambda _: self.cluster.simulation.heal_network(),
            "crash": lambda words: self.cluster.nodes[int(words[0])].crash(),
            "start": lambda words: self.cluster.nodes[int(words[0])].start(),
            "wipe": self._wipe,
            "stop": self._stop,
            "stall": self._stall,
            "show": self._show,
        }
        commands[verb](words)
        if verb not in ("wait", "show", "crash"):
            self.cluster.simulation.run_for(SETTLE_US)
        return "\n".join(self._said) or "nothing"

    def _produce(self, words: list[str]) -> None:
        node, value = self.cluster.nodes[int(words[0])], words[1]

        def reply(result: object) -> None:
            if isinstance(result, AlpacaError):
                self._said.append(f"{value}: {type(result).__name__}")
            else:
                self._said.append(f"{value}: acknowledged at offset {result}")

        node.produce(PARTITION, ord(value), 0, reply)
        node.advance()

    def _wait(self, words: list[str]) -> None:
        self.cluster.simulation.run_for(_microseconds(words[0]))

    def _cut(self, words: list[str]) -> None:
        one_way = ">" in words
        place = words.index(">" if one_way else "|")
        sides = [int(word) for word in words[:place]], [int(word) for word in words[place + 1 :]]
        (self.cluster.simulation.cut if one_way else self.cluster.simulation.partition)(*sides)

    def _wipe(self, words: list[str]) -> None:
        node = self.cluster.nodes[int(words[0])]
        node.disk.wipe()
        node.directory = UUID(int=self.cluster.draw_id())

    def _stop(self, words: list[str]) -> None:
        self.cluster.nodes[int(words[0])].wants_shutdown = True

    def _stall(self, words: list[str]) -> None:
        simulation = self.cluster.simulation
        node = self.cluster.nodes[int(words[0])]
        node.disk.stalled_until_us = simulation.now_us + _microseconds(words[1])

    def _show(self, _words: list[str]) -> None:
        for node in self.cluster.nodes.values():
            replica = node.replicas.get(PARTITION) if node.is_up else None
            if replica is None:
                self._said.append(f"{node.id}: down")
                continue
            records = [f"{chr(record.producer)}{record.epoch}" for record in replica.log.records]
            shown = [*records[: replica.high_watermark], "|", *records[replica.high_watermark :]]
            leads = " (leads)" if replica.leader is not None else ""
            self._said.append(f"{node.id}: {' '.join(shown)}{leads}")


def _microseconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)(ms|s)", text)
    assert found is not None, f"{text} is not a duration"
    return int(found[1]) * (MS_US if found[2] == "ms" else SECOND_US)
