"""The simulator itself: time, network, disk, crashes and pauses."""

from typing import Any

import pytest

from tests.simulation.disk import TORN, DiskFull
from tests.simulation.kit import MS_US, SECOND_US, SimNode, Simulation, Violation


class Recorder(SimNode):
    """Writes down what happens to it."""

    def __init__(self, simulation: Simulation, node_id: int) -> None:
        super().__init__(simulation, node_id)
        self.happened: list[Any] = []

    def on_start(self) -> None:
        self.happened.append("start")

    def on_message(self, sender: int, message: Any) -> None:
        self.happened.append((sender, message))

    def on_timer(self) -> None:
        self.happened.append(("timer", self.now_ms))


def two_nodes(seed: int = 1) -> tuple[Simulation, Recorder, Recorder]:
    simulation = Simulation(seed)
    simulation.network.late = 0.0
    one, two = Recorder(simulation, 1), Recorder(simulation, 2)
    one.start()
    two.start()
    return simulation, one, two


def test_a_timer_fires_when_the_nodes_own_clock_shows_the_time() -> None:
    for rate in (0.7, 0.9, 1.0, 1.1, 1.3):
        simulation, one, _ = two_nodes()
        one.clock_rate, one.clock_offset_ms = rate, 500
        for at_ms in (507, 1000, 1301):
            one.set_timer(at_ms)
            simulation.run_for(3 * SECOND_US)
            assert one.happened[-1][1] >= at_ms
        assert one.happened[1] == ("timer", 507)


def test_a_later_timer_replaces_the_earlier_one() -> None:
    simulation, one, _ = two_nodes()
    one.set_timer(100)
    one.set_timer(50)
    simulation.run_for(SECOND_US)
    assert one.happened == ["start", ("timer", 50)]


def test_messages_take_time_and_arrive_once() -> None:
    simulation, one, two = two_nodes()
    one.send(2, "a")
    assert two.happened == ["start"]
    simulation.run_for(SECOND_US)
    assert two.happened == ["start", (1, "a")]


def test_a_cut_is_one_way_and_loses_what_is_under_way() -> None:
    simulation, one, two = two_nodes()
    one.send(2, "under way")
    simulation.cut([1], [2])
    one.send(2, "cut")
    two.send(1, "other way")
    simulation.run_for(SECOND_US)
    simulation.heal_network()
    one.send(2, "healed")
    simulation.run_for(SECOND_US)
    assert two.happened == ["start", (1, "healed")]
    assert one.happened == ["start", (2, "other way")]


@pytest.mark.parametrize(("loss", "duplicates", "arrive"), [(1.0, 0.0, 0), (0.0, 1.0, 20)])
def test_loss_and_duplicates(loss: float, duplicates: float, arrive: int) -> None:
    simulation, one, two = two_nodes()
    simulation.network.loss, simulation.network.duplicates = loss, duplicates
    for number in range(10):
        one.send(2, number)
    simulation.run_for(SECOND_US)
    assert len(two.happened) - 1 == arrive


def test_messages_overtake_each_other_unless_the_network_is_ordered() -> None:
    for is_ordered in (False, True):
        simulation, one, two = two_nodes()
        simulation.network.is_ordered = is_ordered
        for number in range(20):
            one.send(2, number)
        simulation.run_for(SECOND_US)
        arrived = [message for _, message in two.happened[1:]]
        assert sorted(arrived) == list(range(20))
        assert (arrived == sorted(arrived)) is is_ordered


def test_a_paused_node_sees_everything_when_it_resumes() -> None:
    simulation, one, two = two_nodes()
    two.pause()
    two.set_timer(20)
    one.send(2, "a")
    simulation.run_for(SECOND_US)
    assert two.happened == ["start"]
    two.resume()
    assert two.happened == ["start", (1, "a"), ("timer", 1000)]


def test_a_crash_loses_memory_timers_and_messages() -> None:
    simulation, one, two = two_nodes()
    two.set_timer(20)
    one.send(2, "a")
    two.later(10 * MS_US, two.happened.append, "later")
    two.crash()
    simulation.run_for(SECOND_US)
    two.start()
    simulation.run_for(SECOND_US)
    assert two.happened == ["start", "start"]


def test_only_synced_records_are_sure_to_survive_a_crash() -> None:
    survived = set()
    for seed in range(50):
        simulation, one, _ = two_nodes(seed)
        log = one.disk.log("log")
        log.append("a", "b")
        one.disk.sync([log], one.happened.append, "synced")
        log.append("c", "d")
        simulation.run_for(SECOND_US)
        assert one.happened[-1] == "synced"
        one.crash()
        assert log.records[:2] == ["a", "b"]
        survived.add(tuple(log.records[2:]))
    assert survived == {(), (TORN,), ("c",), ("c", TORN), ("c", "d")}


def test_a_torn_record_is_cut() -> None:
    _, one, _ = two_nodes()
    log = one.disk.log("log")
    log.restore(["a", TORN])
    log.cut_torn_tail()
    assert log.records == log.durable == ["a"]


def test_truncation_is_lost_too_if_it_was_not_synced() -> None:
    ends = set()
    for seed in range(30):
        _, one, _ = two_nodes(seed)
        log = one.disk.log("log")
        log.restore(["a", "b"])
        log.truncate(1)
        log.append("c")
        assert log.records == ["a", "c"]
        one.crash()
        log.cut_torn_tail()
        ends.add(tuple(log.records))
    assert ends == {("a", "b"), ("a",), ("a", "c")}


def test_a_cell_has_the_old_or_the_new_value_after_a_crash() -> None:
    values = set()
    for seed in range(30):
        simulation, one, _ = two_nodes(seed)
        cell = one.disk.cell("cell", "old")
        cell.write("new")
        if seed % 2:
            one.disk.sync([cell], one.happened.append, "synced")
            simulation.run_for(SECOND_US)
            assert cell.durable == "new"
        one.crash()
        values.add((seed % 2, cell.value))
    assert values == {(0, "old"), (0, "new"), (1, "new")}


def test_a_failed_sync_crashes_the_node() -> None:
    simulation, one, _ = two_nodes()
    log = one.disk.log("log")
    log.append("a")
    one.disk.fail_next_sync = True
    one.disk.sync([log], one.happened.append, "synced")
    simulation.run_for(3 * SECOND_US)
    assert one.happened == ["start", "start"]


def test_a_full_disk_refuses_writes() -> None:
    _, one, _ = two_nodes()
    one.disk.is_full = True
    with pytest.raises(DiskFull):
        one.disk.log("log").append("a")
    one.disk.heal()
    one.disk.log("log").append("a")


def test_a_backup_is_what_was_durable_and_a_wiped_disk_is_empty() -> None:
    simulation, one, _ = two_nodes()
    log, cell = one.disk.log("log"), one.disk.cell("cell", 0)
    log.append("a")
    cell.write(1)
    one.disk.sync([log, cell], one.happened.append, "synced")
    simulation.run_for(SECOND_US)
    log.append("b")
    backup = one.disk.backup()
    one.crash()
    one.disk.restore(backup)
    assert (log.records, cell.value) == (["a"], 1)
    one.disk.wipe()
    assert one.disk.log("log").records == []


def test_what_does_not_happen_in_time_is_a_violation() -> None:
    simulation, one, _ = two_nodes()
    one.set_timer(2000)
    with pytest.raises(Violation, match="the timer"):
        simulation.run_to(lambda: len(one.happened) > 1, within_us=SECOND_US, what="the timer")
    simulation.run_to(lambda: len(one.happened) > 1, within_us=3 * SECOND_US, what="the timer")
