"""The assignor of streams groups: balance, stickiness, standby tasks."""

from hypothesis import given
from hypothesis import strategies as st

from alpacamq.coordinator.streams.assignment import NO_TASKS, Task, TaskMember, assign, each_task
from alpacamq.coordinator.streams.messages import Tasks

COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 7), max_size=4)
PROCESSES = st.lists(st.sampled_from(["p1", "p2", "p3", "p4"]), min_size=1, max_size=6)


def members(*processes: str, previous: dict[str, Tasks] | None = None) -> dict[str, TaskMember]:
    """Members m1, m2 … of these processes."""
    held = previous or {}
    return {
        f"m{number}": TaskMember(process, held.get(f"m{number}", NO_TASKS))
        for number, process in enumerate(processes, 1)
    }


def active(tasks: Tasks) -> set[Task]:
    return set(each_task(tasks.active))


def standby(tasks: Tasks) -> set[Task]:
    return set(each_task(tasks.standby))


@given(COUNTS, PROCESSES, st.sets(st.sampled_from("abcd")), st.integers(0, 2), PROCESSES)
def test_every_assignment_is_complete_balanced_and_spread(
    counts: dict[str, int], processes: list[str], stateful: set[str], standbys: int, before: list[str]
) -> None:
    previous = assign(members(*before), counts, stateful, standbys)
    group = members(*processes, previous=previous)
    found = assign(group, counts, stateful, standbys)
    assert found.keys() == group.keys()
    assigned = [task for tasks in found.values() for task in active(tasks)]
    assert sorted(assigned) == sorted(Task(index, name) for name in counts for index in range(counts[name]))
    loads = [len(active(tasks)) for tasks in found.values()]
    assert max(loads) - min(loads) <= 1
    with_state = [sum(t.subtopology in stateful for t in active(tasks)) for tasks in found.values()]
    assert max(with_state) - min(with_state) <= 1
    for task in assigned:
        holders = [
            group[member].process_id
            for member, tasks in found.items()
            if task in active(tasks) or task in standby(tasks)
        ]
        copies = min(standbys, len(set(processes)) - 1) if task.subtopology in stateful else 0
        assert len(holders) == len(set(holders)) == 1 + copies


@given(COUNTS, PROCESSES, st.sets(st.sampled_from("abcd")), st.integers(0, 2))
def test_without_changes_nothing_moves(
    counts: dict[str, int], processes: list[str], stateful: set[str], standbys: int
) -> None:
    first = assign(members(*processes), counts, stateful, standbys)
    second = assign(members(*processes, previous=first), counts, stateful, standbys)
    assert {member: active(tasks) for member, tasks in second.items()} == {
        member: active(tasks) for member, tasks in first.items()
    }


def test_a_standby_task_takes_over_when_the_active_one_is_gone() -> None:
    counts = {"a": 6}
    first = assign(members("p1", "p2", "p3"), counts, {"a"}, 1)
    lost = active(first["m3"])
    second = assign(members("p1", "p2", previous=first), counts, {"a"}, 1)
    for task in lost:
        (heir,) = (member for member in ("m1", "m2") if task in active(second[member]))
        assert task in standby(first[heir])


def test_stateful_tasks_stay_and_stateless_ones_move() -> None:
    counts = {"a": 1, "b": 1}
    first = assign(members("p1"), counts, {"b"}, 0)
    second = assign(members("p1", "p2", previous=first), counts, {"b"}, 0)
    assert active(second["m1"]) == {Task(0, "b")}


def test_a_task_stays_in_its_process_when_a_thread_is_added() -> None:
    counts = {"a": 4}
    first = assign(members("p1", "p2"), counts, {"a"}, 0)
    second = assign(members("p1", "p2", "p1", "p2", previous=first), counts, {"a"}, 0)
    for process, threads in (("m1", ("m1", "m3")), ("m2", ("m2", "m4"))):
        assert active(first[process]) == active(second[threads[0]]) | active(second[threads[1]])


def test_there_are_no_members() -> None:
    assert assign({}, {"a": 3}, {"a"}, 1) == {}
