"""Hosts a share group in memory, with its log."""

from collections.abc import Iterable

from alpacamq.coordinator.records import parts_of
from alpacamq.coordinator.share.config import ShareConfig
from alpacamq.coordinator.share.group import ShareGroup
from alpacamq.coordinator.share.messages import MemberExpired, ShareHeartbeatReply, ShareHeartbeatRequest
from alpacamq.model.errors import AlpacaError
from alpacamq.model.state_machine import Change

from .consumer_clients import Topics

GROUP = "group"
CONFIG = ShareConfig()
MAX_MEMBERS = 10

Answer = ShareHeartbeatReply | AlpacaError


def joining(member_id: str, *topics: str) -> ShareHeartbeatRequest:
    return ShareHeartbeatRequest(group=GROUP, member_id=member_id, member_epoch=0, subscribed_topics=topics)


def beating(member_id: str, epoch: int) -> ShareHeartbeatRequest:
    return ShareHeartbeatRequest(group=GROUP, member_id=member_id, member_epoch=epoch)


class ShareHost:
    """One share group and its log."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.config = CONFIG
        self.now_ms = 1_000_000
        self.log: list[Change] = []
        self.expired: list[MemberExpired] = []
        self.group = self._new_group()

    def ask(self, request: ShareHeartbeatRequest) -> Answer:
        """Store the changes of a request and return its reply."""
        try:
            changes, reply = self.group.heartbeat(request, self.now_ms, self.topics)
        except AlpacaError as error:
            return error
        self.log += changes
        return reply

    def reply_to(self, request: ShareHeartbeatRequest) -> ShareHeartbeatReply:
        """Return the reply to a valid request."""
        answer = self.ask(request)
        assert isinstance(answer, ShareHeartbeatReply), answer
        return answer

    def error_of(self, request: ShareHeartbeatRequest) -> type[AlpacaError]:
        answer = self.ask(request)
        assert isinstance(answer, AlpacaError), answer
        return type(answer)

    def advance(self, ms: int) -> None:
        """Advance the clock, with a tick at every deadline of the group."""
        until_ms = self.now_ms + ms
        while (due_ms := self.group.next_deadline_ms) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.log += self.group.tick(self.now_ms)
            self.expired += self.group.take_expired_members()
        self.now_ms = until_ms

    def restart(self) -> None:
        """Rebuild the group from its log."""
        self._rebuild(self.log)

    def restart_from_snapshot(self) -> None:
        """Rebuild the group from a snapshot."""
        self.log = [*self.group.snapshot()]
        self._rebuild(self.log)

    def restart_from_compacted(self) -> None:
        """Rebuild the group from a compacted log."""
        newest = {change.key: place for place, change in enumerate(self.log)}
        self.log = [change for place, change in enumerate(self.log) if newest[change.key] == place]
        self._rebuild(self.log)

    def members(self) -> list[str]:
        return sorted(member.member_id for member in self.group.describe().members)

    def _new_group(self) -> ShareGroup:
        return ShareGroup(GROUP, lambda: self.config, lambda: MAX_MEMBERS)

    def _rebuild(self, log: Iterable[Change]) -> None:
        self.group = self._new_group()
        for key, value in log:
            self.group.replay(parts_of(key), value)
        self.log += self.group.loaded(self.now_ms)
