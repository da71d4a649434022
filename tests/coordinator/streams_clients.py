"""Hosts a streams group in memory, with topics and a log, and simulated clients.

A client runs a task from when it starts it until it has stopped it, and reports that truthfully. No active
task may run at two clients at a time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from alpacamq.coordinator.consumer.messages import LEAVE_EPOCH
from alpacamq.coordinator.records import parts_of
from alpacamq.coordinator.streams.assignment import NO_TASKS, common, union
from alpacamq.coordinator.streams.group import StreamsGroup
from alpacamq.coordinator.streams.messages import (
    InternalTopic,
    StreamsGroupSettings,
    StreamsHeartbeatReply,
    StreamsHeartbeatRequest,
    Subtopology,
    Tasks,
    Topology,
)
from alpacamq.model.errors import AlpacaError
from alpacamq.model.state_machine import Change

from .consumer_clients import Topics

GROUP = "group"
REBALANCE_TIMEOUT_MS = 60_000
# Words are written to a repartition topic, and counted in a store with a changelog topic.
SPLIT = Subtopology(id="0", source_topics=("lines",), repartition_sink_topics=("words",))
COUNT = Subtopology(
    id="1",
    repartition_source_topics=(InternalTopic(name="words"),),
    changelog_topics=(InternalTopic(name="counts"),),
)
WORD_COUNT = Topology(epoch=0, subtopologies=(SPLIT, COUNT))

Answer = StreamsHeartbeatReply | AlpacaError


class Host:
    """One group and its log."""

    def __init__(self, topics: Topics, settings: StreamsGroupSettings | None = None) -> None:
        self.topics = topics
        self.now_ms = 1_000_000
        self.log: list[Change] = []
        self.settings = settings or StreamsGroupSettings()
        self.group = self._new_group()

    def _new_group(self) -> StreamsGroup:
        return StreamsGroup(GROUP, lambda: self.settings, max_members=lambda: 10)

    def ask(self, request: StreamsHeartbeatRequest) -> Answer:
        """Store the changes of a request and return its reply."""
        try:
            changes, reply = self.group.heartbeat(request, self.now_ms, self.topics)
        except AlpacaError as error:
            return error
        self.log += changes
        return reply

    def create_missing(self) -> list[str]:
        """Create the internal topics that the group wants."""
        missing = self.group.missing_topics
        for topic in missing:
            self.topics.put(topic.name, topic.partitions)
        return [f"{topic.name}={topic.partitions}" for topic in missing]

    def advance(self, ms: int) -> None:
        """Advance the clock, with a tick at every deadline of the group."""
        until_ms = self.now_ms + ms
        while (due_ms := self.group.next_deadline_ms) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.log += self.group.tick(self.now_ms)
        self.now_ms = until_ms

    def restart(self) -> None:
        """Rebuild the group from its log."""
        self._rebuild(self.log)

    def restart_from_snapshot(self) -> None:
        """Rebuild the group from a snapshot."""
        self.log = list(self.group.snapshot())
        self._rebuild(self.log)

    def restart_from_compacted(self) -> None:
        """Rebuild the group from a compacted log."""
        newest = {change.key: place for place, change in enumerate(self.log)}
        self.log = [change for place, change in enumerate(self.log) if newest[change.key] == place]
        self._rebuild(self.log)

    def _rebuild(self, log: Iterable[Change]) -> None:
        self.group = self._new_group()
        for key, value in log:
            self.group.replay(parts_of(key), value)
        self.log += self.group.loaded(self.now_ms)


@dataclass(slots=True, kw_only=True)
class Client:
    """One stream thread, which reports its tasks when they have changed."""

    member_id: str
    process_id: str
    topology: Topology = WORD_COUNT
    epoch: int = 0
    assigned: Tasks = NO_TASKS
    runs: Tasks = NO_TASKS
    reported: Tasks | None = None
    session_ends_ms: int = 0
    statuses: list[int] = field(default_factory=list)

    def beat(self, host: Host, *, is_lost: bool = False) -> None:
        """Exchange a heartbeat; with `is_lost`, lose its reply."""
        is_join = self.epoch == 0
        request = StreamsHeartbeatRequest(
            group=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if is_join else -1,
            topology=self.topology if is_join else None,
            process_id=self.process_id if is_join else None,
            owned=self.runs if is_join or self.reported != self.runs else None,
        )
        answer = host.ask(request)
        if is_lost:
            self.reported = None
        elif isinstance(answer, AlpacaError):
            self.lose_all()
        else:
            self.epoch = answer.member_epoch
            self.reported = self.runs
            self.session_ends_ms = host.now_ms + host.settings.session_timeout_ms
            self.statuses = [status.code for status in answer.statuses]
            if answer.tasks is not None:
                self.assigned = answer.tasks

    def stop_revoked(self) -> None:
        """Stop tasks that are not assigned any more."""
        self.runs = common(self.runs, self.assigned)

    def start_assigned(self) -> None:
        """Start assigned tasks, after revoked ones were stopped."""
        self.stop_revoked()
        self.runs = union(self.runs, self.assigned)

    def leave(self, host: Host) -> None:
        """Give up all tasks and leave the group."""
        host.ask(StreamsHeartbeatRequest(group=GROUP, member_id=self.member_id, member_epoch=LEAVE_EPOCH))
        self.lose_all()

    def notice(self, now_ms: int) -> None:
        """Give up all tasks if the session has ended."""
        if self.epoch and now_ms >= self.session_ends_ms:
            self.lose_all()

    def lose_all(self) -> None:
        """Stop being a member, and stop all tasks."""
        self.assigned = self.runs = NO_TASKS
        self.reported = None
        self.epoch = 0
