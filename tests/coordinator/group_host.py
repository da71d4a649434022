"""Hosts a group coordinator in memory: stores its changes and delivers its replies."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from alpacamq.coordinator.consumer.messages import ConsumerGroupSettings, TopicSummary, TopicsView
from alpacamq.coordinator.directory import MemberLimit
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import GroupSettings
from alpacamq.coordinator.offsets import OffsetLimit, with_topic_ids
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import NO_TOPIC_ID, TopicId, TopicPartition
from alpacamq.model.state_machine import Change, Outcome, Pending, Request
from tests.slow_snapshot import SlowSnapshot

START_MS = 1_000_000
GROUP = "billing"


class AnyTopic:
    """A cluster in which every topic exists, without partitions to assign."""

    version = 1

    def __init__(self) -> None:
        self._deletions: Counter[str] = Counter()

    def names(self) -> Iterable[str]:
        return ()

    def get(self, name: str) -> TopicSummary | None:
        return TopicSummary(uuid5(NAMESPACE_OID, f"{name}/{self._deletions[name]}"), 0)

    def recreate(self, name: str) -> None:
        """Delete a topic and create it again."""
        self._deletions[name] += 1


def contents(changes: Iterable[Change]) -> dict[bytes, bytes]:
    """Return the contents of a compacted log of `changes`."""
    latest = {change.key: change.value for change in changes}
    return {key: value for key, value in latest.items() if value is not None}


class GroupHost:
    """A coordinator with its log and clock, and the replies so far."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        topics: TopicsView | None = None,
        member_limit: int | None = None,
    ) -> None:
        self.member_limit = member_limit
        self.any_topic = AnyTopic()
        self.topics = topics or self.any_topic
        self.now_ms = START_MS
        self.log: list[Change] = []
        self.answers: dict[object, object] = {}
        self._settings = settings or GroupSettings()
        self._ids = count(1)
        self._handles = count(1)
        self._slow_snapshot = SlowSnapshot()
        self.machine = self._new_machine()

    def send(self, request: Request[Any]) -> int:
        """Pass a request to the coordinator; return the handle of its reply."""
        handle = next(self._handles)
        resolved = with_topic_ids(request, self.topic_id)
        self.take(self.machine.handle([Pending(resolved, handle)], self.now_ms))
        return handle

    def topic_id(self, name: str) -> TopicId:
        """Return the id of the topic that exists now."""
        topic = self.topics.get(name)
        return NO_TOPIC_ID if topic is None else topic.id

    def ask(self, request: Request[Any]) -> object:
        """Return the reply to a request, None if it is pending."""
        return self.answers.get(self.send(request))

    def error_of(self, request: Request[Any]) -> type[AlpacaError]:
        """Return the type of the error that a request gets."""
        answer = self.ask(request)
        assert isinstance(answer, AlpacaError), answer
        return type(answer)

    def advance(self, duration_ms: int) -> None:
        """Advance the clock, with a tick at every deadline of the coordinator."""
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.machine.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.machine.tick(self.now_ms))
        self.now_ms = end_ms

    def restart(self) -> None:
        """Rebuild the coordinator from its log, as after a crash."""
        self._slow_snapshot.give_up()
        self.machine = self._rebuilt(self.log)
        self.take(self.machine.loaded(self.now_ms))

    def trim_offsets(self, last_offset: int = 2**63 - 1) -> None:
        """Remove the offsets of deleted topics, as after a load."""

        def limit_of(partition: TopicPartition, topic_id: TopicId) -> OffsetLimit | None:
            current_id = self.topic_id(partition.topic)
            is_current = topic_id in (NO_TOPIC_ID, current_id) and current_id != NO_TOPIC_ID
            return OffsetLimit(current_id, last_offset) if is_current else None

        self.take(self.machine.trim_offsets(limit_of))

    def compact(self) -> None:
        """Replace the log by a snapshot."""
        self.check_log()
        self.log = [*self.machine.snapshot()]

    def check_log(self) -> None:
        """Check that the log leads to the state of the coordinator, in every form."""
        durable = contents(self.machine.snapshot())
        assert contents(self._rebuilt(self.log).snapshot()) == durable
        compacted = [Change(key, value) for key, value in contents(self.log).items()]
        assert contents(self._rebuilt(compacted).snapshot()) == durable
        snapshot = [*self.machine.snapshot()]
        assert contents(self._rebuilt(snapshot).snapshot()) == durable

    def take(self, outcome: Outcome) -> None:
        self.log += outcome.changes
        whole = self._slow_snapshot.after_event(self.machine, outcome.changes)
        if whole is not None:
            assert contents(self._rebuilt(whole).snapshot()) == contents(self.machine.snapshot())
        for reply in outcome.replies:
            assert reply.to not in self.answers, "a request gets one reply"
            self.answers[reply.to] = reply.answer

    def _rebuilt(self, log: Iterable[Change]) -> GroupCoordinator:
        machine = self._new_machine()
        for key, value in log:
            machine.replay(key, value)
        return machine

    def _new_machine(self) -> GroupCoordinator:
        new_id: Callable[[], str] = lambda: str(next(self._ids))  # noqa: E731
        limit: MemberLimit = lambda _: self.member_limit  # noqa: E731
        return GroupCoordinator(self._settings, ConsumerGroupSettings(), self.topics, new_id, limit)
