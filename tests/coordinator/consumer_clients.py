"""Hosts a consumer group in memory, with topics, a log and simulated clients.

A client owns a partition from when it starts reading it until it has stopped, and reports that truthfully. No
partition may have two owners at a time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

import msgspec

from alpacamq.coordinator.consumer.assignment import common, minus, union
from alpacamq.coordinator.consumer.group import ConsumerGroup
from alpacamq.coordinator.consumer.messages import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupSettings,
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    Partitions,
    TopicSummary,
)
from alpacamq.coordinator.records import parts_of
from alpacamq.model.errors import AlpacaError, FencedInstanceId, FencedMemberEpoch, UnknownMember
from alpacamq.model.state_machine import Change

GROUP = "group"
SETTINGS = ConsumerGroupSettings(min_heartbeat_interval_ms=3_000)
# Longer than a session: a client without a reply for that long has stopped.
REBALANCE_TIMEOUT_MS = 40_000

Answer = ConsumerHeartbeatReply | AlpacaError


class Topics:
    """Topics that tests create, grow and delete."""

    def __init__(self, **partitions: int) -> None:
        self._ids = count(1)
        self._topics: dict[str, TopicSummary] = {}
        self.version = 0
        for name, number in partitions.items():
            self.put(name, number)

    def names(self) -> Iterable[str]:
        return self._topics

    def get(self, name: str) -> TopicSummary | None:
        return self._topics.get(name)

    def put(self, name: str, partitions: int) -> None:
        """Create a topic, or set its number of partitions."""
        former = self._topics.get(name)
        topic_id = former.id if former is not None else UUID(int=next(self._ids))
        self._topics[name] = TopicSummary(topic_id, partitions)
        self.version += 1

    def delete(self, name: str) -> None:
        del self._topics[name]
        self.version += 1


class Host:
    """One group and its log."""

    def __init__(self, topics: Topics, settings: ConsumerGroupSettings = SETTINGS) -> None:
        self.topics = topics
        self.now_ms = 1_000_000
        self.log: list[Change] = []
        self._settings = settings
        self._ids = count(1)
        self.group = self._new_group()

    def _new_group(self) -> ConsumerGroup:
        return ConsumerGroup(
            GROUP,
            lambda: self._settings,
            lambda: self._settings.max_members,
            lambda: f"generated-{next(self._ids)}",
        )

    def ask(self, request: ConsumerHeartbeatRequest) -> Answer:
        """Store the changes of a request and return its reply."""
        try:
            changes, reply = self.group.heartbeat(request, self.now_ms, self.topics)
        except AlpacaError as error:
            return error
        self.log += changes
        return reply

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


class Subscription(msgspec.Struct, frozen=True):
    """The subscription of a client."""

    topics: tuple[str, ...] = ()
    regex: str = ""


@dataclass(slots=True, kw_only=True)
class Client:
    """One consumer process, with at most one heartbeat in flight."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = 0
    assigned: Partitions = field(default_factory=dict)
    owns: Partitions = field(default_factory=dict)
    reported: Partitions | None = None
    # A reply may have been lost: send all fields, and take no new partitions.
    is_unsure: bool = True
    has_missed_answers: bool = False
    owes_report: bool = False
    has_new_subscription: bool = False
    in_flight: ConsumerHeartbeatRequest | None = None
    sent_ms: int = 0
    answer: Answer | None = None
    session_ends_ms: int = 0
    must_revoke_by_ms: int | None = None

    def heartbeat(self, now_ms: int) -> ConsumerHeartbeatRequest:
        """Create the next heartbeat, which is in flight then."""
        is_full = self.is_unsure or self.epoch == 0
        has_arrived = self.owes_report and self.owns == self.assigned
        says_owned = is_full or has_arrived or self.owns != self.reported
        says_subscription = is_full or self.has_new_subscription
        self.in_flight = ConsumerHeartbeatRequest(
            group=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id if is_full else None,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if is_full else -1,
            subscribed_topics=self.subscription.topics if says_subscription else None,
            subscribed_regex=self.subscription.regex if says_subscription else None,
            assignor=self.assignor if is_full else None,
            owned=self.owns if says_owned else None,
        )
        self.sent_ms = now_ms
        return self.in_flight

    def leave_request(self) -> ConsumerHeartbeatRequest:
        """Give up all partitions and create the request to leave."""
        self.lose_all()
        self.in_flight = self.answer = None
        return ConsumerHeartbeatRequest(
            group=GROUP,
            member_id=self.member_id,
            member_epoch=LEAVE_EPOCH if self.instance_id is None else STATIC_LEAVE_EPOCH,
            instance_id=self.instance_id,
        )

    def lose_heartbeat(self) -> None:
        """Lose the heartbeat in flight or its reply."""
        self.has_missed_answers = self.has_missed_answers or self.in_flight is not None
        self.in_flight = self.answer = None
        self.is_unsure = True

    def take_answer(self) -> None:
        """Process the reply to the heartbeat in flight."""
        sent, answer = self.in_flight, self.answer
        assert sent is not None
        assert answer is not None
        self.in_flight = self.answer = None
        if isinstance(answer, AlpacaError):
            self.is_unsure = True
            if isinstance(answer, UnknownMember | FencedMemberEpoch | FencedInstanceId):
                self.lose_all()
            return
        self.epoch = answer.member_epoch
        self.is_unsure = False
        self.session_ends_ms = self.sent_ms + SETTINGS.session_timeout_ms
        if sent.owned is not None:
            self.reported = sent.owned
            self.owes_report = self.owes_report and sent.owned != self.assigned
        if sent.subscribed_topics is not None:
            asked = Subscription(sent.subscribed_topics, sent.subscribed_regex or "")
            self.has_new_subscription = asked != self.subscription
        if answer.assignment is not None:
            # A client that gets the assignment it has just reported may have nothing to report.
            is_news = answer.assignment != self.assigned and answer.assignment != sent.owned
            self.owes_report = is_news or (self.owes_report and answer.assignment == self.assigned)
            self.assigned = answer.assignment
            if minus(self.owns, self.assigned) and self.must_revoke_by_ms is None:
                self.must_revoke_by_ms = self.sent_ms + REBALANCE_TIMEOUT_MS

    def subscribe(self, subscription: Subscription) -> None:
        self.has_new_subscription = self.has_new_subscription or subscription != self.subscription
        self.subscription = subscription

    def revoke(self) -> None:
        """Stop reading revoked partitions."""
        self.owns = common(self.owns, self.assigned)

    def adopt(self) -> None:
        """Start reading assigned partitions."""
        if not self.is_unsure:
            self.owns = union(self.owns, self.assigned)

    def notice(self, now_ms: int) -> None:
        """Apply the timeouts that the group applies: to replies, sessions and revocations."""
        if self.in_flight is not None and now_ms >= self.sent_ms + SETTINGS.session_timeout_ms:
            self.lose_heartbeat()
        if self.reported is not None and not minus(self.reported, self.assigned):
            self.must_revoke_by_ms = None
        is_late = self.must_revoke_by_ms is not None and now_ms >= self.must_revoke_by_ms
        if self.epoch and (is_late or now_ms >= self.session_ends_ms):
            self.lose_heartbeat()
            self.lose_all()

    def lose_all(self) -> None:
        """Stop being a member, and give up all partitions."""
        self.assigned = self.owns = {}
        self.reported = None
        self.owes_report = False
        self.epoch = 0
        self.is_unsure = True
        self.must_revoke_by_ms = None
