"""A node of version 0.1 becomes a cluster of three under load, and is removed from it."""

import json
import shutil
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.brokers import KEPT
from tests.cli.command import Command
from tests.integration.test_older_data import ARCHIVE, Addresses, check_all
from tests.waiting import eventually

from .history import FaultBegun, FaultEnded, History
from .loads import RecordsLoad
from .nodes import CURRENT, ChaosNodes
from .queue_loads import QueueLoad, SqsLoad
from .run import Outcome, Report, longest_pause_s, under_load

COMMAND_S = 180
SETTLE_S = 4.0


# The data of version 0.1 has topics and groups of the same names.
class Records(RecordsLoad):
    group = "new-readers"


class Queue(QueueLoad):
    topic = "new-jobs"


LOADS = {"groups": Records, "queues": Queue, "sqs": SqsLoad}


class Growth:
    """The steps, each measured by the longest pause of the producers."""

    def __init__(self, nodes: ChaosNodes, root: Path) -> None:
        self._nodes = nodes
        self._plan = root / "plan.json"
        self._ctl = Command(nodes.kafka, ",".join(node.http for node in nodes), patience_s=COMMAND_S)

    def run(self, history: History, report: Report) -> None:
        nodes = self._nodes
        steps = {
            "joined by two": self._grow,
            "three replicas": lambda: self._reassign([1, 2, 3]),
            "moved": lambda: self._reassign([2, 3]),
            "removed": self._remove_first,
        }
        for name, step in steps.items():
            begun_s = time.monotonic()
            history.write(FaultBegun(name, tuple(nodes.by_id)))
            step()
            done_s = time.monotonic()
            nodes.wait_until_in_sync(RecordsLoad.topic)
            in_sync_s = time.monotonic() - done_s
            time.sleep(SETTLE_S)
            history.write(FaultEnded(name, tuple(nodes.by_id)))
            pause_s = longest_pause_s(history, None, begun_s)
            report.outcomes.append(Outcome(name, tuple(nodes.by_id), pause_s, in_sync_s))
            print(f"{name}: {done_s - begun_s:.1f} s, pause {pause_s:.2f} s", flush=True)

    def voters(self) -> list[int]:
        return [voter["node_id"] for voter in self._ctl.json("cluster", "status")["voters"]]

    def _grow(self) -> None:
        """Start the others, which wait, and then the first node again with the list of nodes."""
        nodes = self._nodes
        others = [nodes.by_id[2], nodes.by_id[3]]
        for node in others:
            node.start()
        for node in others:
            eventually(partial(node.events, "waiting_for_cluster"), within_s=60)
        nodes.by_id[1].stop()
        nodes.install(1, CURRENT)
        nodes.restart(1)
        for node in others:
            node.wait_until_ready()
        eventually(lambda: self.voters() == [1, 2, 3], within_s=60, what="three voters")

    def _reassign(self, to: Sequence[int]) -> None:
        """Move all partitions, of internal topics as well, to these nodes, with a replica on each."""
        found = self._ctl.json("cluster", "partitions", "--state", "all")
        plan = [
            {
                "topic": each["topic"],
                "partition": each["partition"],
                "replicas": [to[(number + place) % len(to)] for place in range(len(to))],
            }
            for number, each in enumerate(found)
        ]
        self._plan.write_text(json.dumps({"version": 1, "partitions": plan}))
        self._ctl.ok("cluster", "reassign", "--file", str(self._plan), "--timeout", "120s")

    def _remove_first(self) -> None:
        nodes, first = self._nodes, self._nodes.by_id[1]
        others = ",".join(nodes.by_id[number].http for number in (2, 3))
        ctl = Command(nodes.kafka, others, patience_s=COMMAND_S)
        ctl.ok("cluster", "drain", "1", "--timeout", "120s")

        def stop_when_its_vote_is_gone() -> None:
            eventually(lambda: 1 not in self.voters(), within_s=60, what="its vote is gone")
            first.stop()

        stopping = threading.Thread(target=stop_when_its_vote_is_gone)
        stopping.start()
        ran = ctl("cluster", "remove", "1", "--yes", "--timeout", "90s")
        stopping.join()
        assert ran.code == 0, ran.errors
        shutil.rmtree(first.data)
        status = ctl.json("cluster", "status")
        assert [voter["node_id"] for voter in status["voters"]] == [2, 3]
        assert [node["node_id"] for node in status["nodes"]] == [2, 3]


def is_retriable(failure: str) -> bool:
    """Whether a client of the HTTP or SQS API knows from an error that it may try again."""
    return any(
        text in failure
        for text in (
            *("Connection refused", "ConnectionReset", "BrokenPipe", "RemoteDisconnected", "timed out"),
            *("Could not connect", "Connection was closed", "Read timeout", "503", "ServiceUnavailable"),
            # The lease ended before its acknowledgement came through.
            *("Stale receipt", "ReceiptHandleIsInvalid"),
        )
    )


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_node_of_version_0_1_grows_to_three_nodes_and_is_removed(tmp_path: Path) -> None:
    nodes = ChaosNodes(tmp_path, None, {}, settings=KEPT)
    nodes.replication_factor = 1
    nodes.install(1, CURRENT, is_alone=True)
    first, second, _ = nodes
    shutil.unpack_archive(ARCHIVE, tmp_path)
    (tmp_path / "data").rename(first.data)
    try:
        first.start()
        first.wait_until_ready()
        report = under_load(nodes, LOADS, tmp_path, Growth(nodes, tmp_path).run)
        print(report)
        check_all(Addresses(second.kafka, second.http, second.sqs))
    finally:
        for node in nodes:
            node.end()
    assert not report.anomalies, report
    assert not report.refused, report
    assert [each for each in report.failed if not is_retriable(each)] == []
