"""Hosts a group coordinator in memory: stores its changes and delivers its replies."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from alpacamq.coordinator.consumer.messages import ConsumerGroupSettings, TopicSummary
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import GroupSettings
from alpacamq.model.errors import AlpacaError
from alpacamq.model.state_machine import Change, Outcome, Pending, Request
from tests.slow_snapshot import SlowSnapshot

START_MS = 1_000_000
GROUP = "billing"


class NoTopics:
    """A cluster without topics."""

    version = 1

    def names(self) -> Iterable[str]:
        return ()

    def get(self, name: str) -> TopicSummary | None:
        return None


def contents(changes: Iterable[Change]) -> dict[bytes, bytes]:
    """Return the contents of a compacted log of `changes`."""
    latest = {change.key: change.value for change in changes}
    return {key: value for key, value in latest.items() if value is not None}


class GroupHost:
    """A coordinator with its log and clock, and the replies so far."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
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
        self.take(self.machine.handle([Pending(request, handle)], self.now_ms))
        return handle

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
        return GroupCoordinator(self._settings, ConsumerGroupSettings(), NoTopics(), new_id)
