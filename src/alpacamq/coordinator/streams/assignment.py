"""Assignments of streams groups: the assignor, stored targets, and moving members to their targets.

No active task has two owners, and no process has a task twice: its state directory can be used by one task
only. A member first revokes tasks that are not in its target, and stays at its epoch until it has confirmed
that. Then it moves to the epoch of the target and gets the tasks that are free.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from alpacamq.coordinator.consumer import assignment as sets
from alpacamq.coordinator.consumer.assignment import MemberState
from alpacamq.coordinator.members import MemberTargets
from alpacamq.model.state_machine import Change

from .messages import TaskIds, Tasks
from .records import Current, records
from .topology import ConfiguredTopology

NO_TASKS = Tasks()


class Task(NamedTuple):
    """One task; tasks of all subtopologies are ordered by partition."""

    partition: int
    subtopology: str


def common(one: Tasks, other: Tasks) -> Tasks:
    """Return the tasks in both, in the same role."""
    return Tasks(sets.common(one.active, other.active), sets.common(one.standby, other.standby))


def minus(one: Tasks, other: Tasks) -> Tasks:
    """Return the tasks in `one` only, or in another role in `other`."""
    return Tasks(sets.minus(one.active, other.active), sets.minus(one.standby, other.standby))


def union(one: Tasks, other: Tasks) -> Tasks:
    """Return the tasks in either."""
    return Tasks(sets.union(one.active, other.active), sets.union(one.standby, other.standby))


def each_task(tasks: TaskIds) -> Iterator[Task]:
    """Yield the tasks of a mapping."""
    return (Task(index, subtopology) for subtopology, indexes in tasks.items() for index in indexes)


def state_of(current: Current, target: Tasks) -> MemberState:
    """Return the state of a member with these assignments."""
    if current.revoking:
        return MemberState.UNREVOKED
    return MemberState.STABLE if current.assigned == target else MemberState.UNRELEASED


def reconcile(
    current: Current,
    target: Tasks,
    target_epoch: int,
    owned: Tasks | None,
    available: Callable[[Tasks], Tasks],
) -> Current:
    """Return the current assignment after a heartbeat that reported `owned` (None: unchanged).

    Only a report without the revoked tasks confirms a revocation: a member that reports no change may be
    about to start tasks of an earlier assignment. `available` selects the tasks that are free.
    """
    if current.epoch == target_epoch and current.assigned == target and not current.revoking:
        return current
    revoking = current.revoking if owned is None else common(current.revoking, owned)
    surplus = minus(current.assigned, target)
    assigned = common(current.assigned, target)
    if surplus or revoking:
        return Current(
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            assigned=assigned,
            revoking=union(revoking, surplus),
        )
    return Current(
        epoch=target_epoch,
        previous_epoch=current.previous_epoch if current.epoch == target_epoch else current.epoch,
        assigned=union(assigned, available(minus(target, assigned))),
    )


class TaskOwners:
    """The members of each task: those that were assigned it and have not confirmed its revocation."""

    __slots__ = ("_active", "_holders")

    def __init__(self) -> None:
        self._active: dict[Task, str] = {}
        self._holders: dict[Task, set[str]] = {}

    def replace(self, member_id: str, before: Current | None, after: Current | None) -> None:
        """Replace the tasks of a member."""
        previous = union(before.assigned, before.revoking) if before is not None else NO_TASKS
        current = union(after.assigned, after.revoking) if after is not None else NO_TASKS
        for task in each_task(sets.minus(previous.active, current.active)):
            del self._active[task]
        for task in each_task(sets.minus(current.active, previous.active)):
            assert task not in self._active, f"{task} is owned by {self._active[task]} too"
            self._active[task] = member_id
        held = sets.union(current.active, current.standby)
        was_held = sets.union(previous.active, previous.standby)
        for task in each_task(sets.minus(was_held, held)):
            self._holders[task].discard(member_id)
            if not self._holders[task]:
                del self._holders[task]
        for task in each_task(sets.minus(held, was_held)):
            self._holders.setdefault(task, set()).add(member_id)

    def available_to(self, member_id: str, wanted: Tasks, process_of: Callable[[str], str]) -> Tasks:
        """Return the wanted tasks that are free for a member."""
        process = process_of(member_id)

        def is_in_process(task: Task) -> bool:
            return any(
                other != member_id and process_of(other) == process for other in self._holders.get(task, ())
            )

        def is_active_elsewhere(task: Task) -> bool:
            return self._active.get(task, member_id) != member_id

        return Tasks(
            _collected(
                task
                for task in each_task(wanted.active)
                if not is_active_elsewhere(task) and not is_in_process(task)
            ),
            _collected(task for task in each_task(wanted.standby) if not is_in_process(task)),
        )


class TaskMember(NamedTuple):
    """A member in the input of the assignor."""

    process_id: str
    previous: Tasks  # its previous target


def assign(
    members: Mapping[str, TaskMember], counts: Mapping[str, int], stateful: Iterable[str], standbys: int
) -> dict[str, Tasks]:
    """Balance tasks over members, with as little state to restore as possible.

    The numbers of active tasks of two members differ by at most one, and so do those of their stateful tasks,
    which are assigned first. A task stays with its member, or moves
    to one whose process has its state, if balance allows. Standby tasks are on other processes than the
    active task; there are fewer if there are too few processes.
    """
    if not members:
        return {}
    assignment = _StickyAssignment(members)
    tasks = sorted(Task(index, name) for name, count in counts.items() for index in range(count))
    with_state = set(stateful)
    stateful_tasks = [task for task in tasks if task.subtopology in with_state]
    assignment.assign_active(stateful_tasks)
    assignment.assign_active([task for task in tasks if task.subtopology not in with_state])
    assignment.assign_standbys(stateful_tasks, standbys)
    return assignment.result()


class _StickyAssignment:
    """The state of one assignment."""

    def __init__(self, members: Mapping[str, TaskMember]) -> None:
        self._members = {member_id: members[member_id] for member_id in sorted(members)}
        self._processes: dict[str, list[str]] = {}
        for member_id, member in self._members.items():
            self._processes.setdefault(member.process_id, []).append(member_id)
        # The number of active tasks that every member has at least, and how many members have one more.
        self._share = self._larger = 0
        self._active: dict[Task, str] = {}
        self._loads = dict.fromkeys(self._members, 0)
        self._given: dict[str, tuple[list[Task], list[Task]]] = {each: ([], []) for each in self._members}
        # Processes that had each task, in the order in which they are preferred.
        self._had_active: dict[Task, list[str]] = {}
        self._had_standby: dict[Task, list[str]] = {}
        for member in self._members.values():
            for task in each_task(member.previous.active):
                self._had_active.setdefault(task, []).append(member.process_id)
            for task in each_task(member.previous.standby):
                self._had_standby.setdefault(task, []).append(member.process_id)

    def assign_active(self, tasks: list[Task]) -> None:
        """Assign these tasks in addition to those that are assigned."""
        self._share, larger = divmod(len(self._active) + len(tasks), len(self._members))
        self._larger = larger - sum(load > self._share for load in self._loads.values())
        self._keep_active(set(tasks))
        self._assign_lightest(self._assign_with_state(tasks))

    def _keep_active(self, tasks: set[Task]) -> None:
        """Leave active tasks where they are, up to the share of each member."""
        for member_id, member in self._members.items():
            for task in sorted(each_task(member.previous.active)):
                if task in tasks and task not in self._active and self._has_room(member_id):
                    self._give_active(task, member_id)

    def _assign_with_state(self, tasks: list[Task]) -> list[Task]:
        """Assign tasks to processes with room that have their state; return the other tasks."""
        free: list[Task] = []
        for task in tasks:
            if task in self._active:
                continue
            processes = (*self._had_active.get(task, ()), *self._had_standby.get(task, ()))
            for process in processes:
                if roomy := [each for each in self._processes[process] if self._has_room(each)]:
                    self._give_active(task, min(roomy, key=self._loads.__getitem__))
                    break
            else:
                free.append(task)
        return free

    def _assign_lightest(self, tasks: list[Task]) -> None:
        """Assign tasks to the members with the lowest load."""
        lightest = [(load, member_id) for member_id, load in self._loads.items()]
        heapify(lightest)
        for task in tasks:
            _, member_id = heappop(lightest)
            self._give_active(task, member_id)
            heappush(lightest, (self._loads[member_id], member_id))

    def assign_standbys(self, tasks: list[Task], standbys: int) -> None:
        """Assign standby tasks to processes that do not have the task."""
        copies = min(standbys, len(self._processes) - 1)
        limit = -(-(len(self._active) + len(tasks) * copies) // len(self._members))
        lightest = [(self._load_of(process), process) for process in self._processes]
        heapify(lightest)
        for task in tasks:
            holders = {self._members[self._active[task]].process_id}
            for _ in range(copies):
                process = self._sticky_standby(task, holders, limit) or self._lightest(lightest, holders)
                holders.add(process)
                self._give_standby(task, process)
                heappush(lightest, (self._load_of(process), process))

    def _sticky_standby(self, task: Task, holders: set[str], limit: int) -> str | None:
        """Return a process that has the state of the task and is not overloaded."""
        processes: list[str] = [*self._had_standby.get(task, ()), *self._had_active.get(task, ())]
        for process in processes:
            if process not in holders and self._load_of(process) < limit:
                return process
        return None

    def _lightest(self, lightest: list[tuple[float, str]], holders: set[str]) -> str:
        """Return the process with the lowest load that does not have the task."""
        skipped = []
        while True:
            load, process = heappop(lightest)
            if load != self._load_of(process):
                continue  # it got a task since; a later entry has its load
            if process not in holders:
                break
            skipped.append((load, process))
        for entry in skipped:
            heappush(lightest, entry)
        return process

    def _load_of(self, process: str) -> float:
        members = self._processes[process]
        return sum(self._loads[each] for each in members) / len(members)

    def _has_room(self, member_id: str) -> bool:
        load = self._loads[member_id]
        return load < self._share or (load == self._share and self._larger > 0)

    def _give_active(self, task: Task, member_id: str) -> None:
        if self._loads[member_id] == self._share:
            self._larger -= 1
        self._active[task] = member_id
        self._given[member_id][0].append(task)
        self._loads[member_id] += 1

    def _give_standby(self, task: Task, process: str) -> None:
        members = self._processes[process]
        had = [
            each
            for each in members
            if task.partition in self._members[each].previous.standby.get(task.subtopology, ())
        ]
        member_id = had[0] if had else min(members, key=self._loads.__getitem__)
        self._given[member_id][1].append(task)
        self._loads[member_id] += 1

    def result(self) -> dict[str, Tasks]:
        return {
            member_id: Tasks(_collected(active), _collected(standby))
            for member_id, (active, standby) in self._given.items()
        }


def _collected(tasks: Iterable[Task]) -> TaskIds:
    by_subtopology: dict[str, set[int]] = {}
    for index, subtopology in tasks:
        by_subtopology.setdefault(subtopology, set()).add(index)
    return {subtopology: frozenset(indexes) for subtopology, indexes in by_subtopology.items()}


class TargetTasks(MemberTargets[Tasks]):
    """The target assignment of each member; none is stored for a member without tasks."""

    def __init__(self, group: str) -> None:
        super().__init__(group, records, NO_TASKS)
        self.digest = b""
        self.is_ready = False

    def put(self, member_id: str, target: Tasks) -> list[Change]:
        """Set the target of a member."""
        return super().put(member_id, target) if target else self.drop(member_id)

    def compute(
        self,
        epoch: int,
        processes: Mapping[str, str],
        others: Iterable[str],
        topology: ConfiguredTopology,
        standbys: int,
    ) -> list[Change]:
        """Compute the target for `epoch`: tasks for the members of `processes`, none for `others`."""
        self.epoch = epoch
        self.digest = topology.digest(standbys)
        self.is_ready = topology.is_ready
        members = {
            member_id: TaskMember(process_id, self[member_id]) for member_id, process_id in processes.items()
        }
        assigned = assign(members, topology.tasks, topology.stateful, standbys)
        changes: list[Change] = []
        for member_id in (*processes, *others):
            changes += self.put(member_id, assigned.get(member_id, NO_TASKS))
        return changes
