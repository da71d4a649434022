"""All groups of a coordinator, of any protocol, and their deadlines.

A group with members has one protocol. An empty classic, consumer or streams group can change to another of
these protocols and keeps its offsets. A group without members, offsets and reserved member ids is deleted
after a while.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

from alpacamq.model.deadlines import NamedDeadlines, earlier
from alpacamq.model.errors import (
    GroupIdNotFound,
    InconsistentGroupProtocol,
    InvalidGroupId,
    TooManyGroups,
    UnknownMember,
)
from alpacamq.model.state_machine import Change, Outcome

from .classic.group import ClassicGroup
from .consumer.group import ConsumerGroup
from .consumer.messages import ConsumerGroupSettings
from .consumer.records import CONSUMER
from .messages import GroupSettings
from .offsets import Offsets
from .records import CLASSIC, GENERATION
from .share.config import GroupConfigs
from .share.group import ShareGroup
from .share.records import SHARE
from .streams.group import StreamsGroup
from .streams.records import STREAMS

Group: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup

# Returns how many members a group may have by the limits of its tenant; None without one.
MemberLimit: TypeAlias = Callable[[str], int | None]
# Raises an error if a group may not be created now.
CheckNewGroup: TypeAlias = Callable[[str], None]

EXPIRY_CHECK_MS = 600_000
# Expiry checks every offset of a group; many more in one tick would delay heartbeats.
_OFFSETS_PER_TICK = 10_000


class GroupDirectory:
    """All groups, with their deadlines and pending requests."""

    def __init__(
        self,
        settings: GroupSettings,
        consumer_settings: ConsumerGroupSettings,
        offsets: Offsets,
        configs: GroupConfigs,
        new_id: Callable[[], str],
        member_limit: MemberLimit,
        check_new: CheckNewGroup,
    ) -> None:
        self._settings = settings
        self._consumer_settings = consumer_settings
        self._offsets = offsets
        self._configs = configs
        self._new_id = new_id
        self._member_limit = member_limit
        self._check_new = check_new
        self._groups: dict[str, Group] = {}
        self._with_members: set[str] = set()
        self._waiting: dict[object, str] = {}
        self._wakes = NamedDeadlines()
        self._expiries = NamedDeadlines()

    def __iter__(self) -> Iterator[tuple[str, Group]]:
        return iter(self._groups.items())

    def ids(self) -> Iterable[str]:
        return self._groups.keys()

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def get(self, group_id: str) -> Group:
        """Return a group; raise GroupIdNotFound if it does not exist."""
        if (group := self._groups.get(group_id)) is None:
            raise GroupIdNotFound(f"group {group_id!r} does not exist")
        return group

    def classic(self, group_id: str) -> ClassicGroup:
        """Return the classic group of a member; raise UnknownMember if it does not exist."""
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise UnknownMember(f"classic group {group_id!r} does not exist")
        return group

    def open_classic(self, group_id: str) -> ClassicGroup:
        """Return the classic group, or a new one, which `settle` adds."""
        if not group_id:
            raise InvalidGroupId("invalid group id: must not be empty")
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group
        if isinstance(group, ShareGroup):
            raise InconsistentGroupProtocol(f"group {group_id!r} is a share group")
        if group is not None and not group.is_empty:
            kind = "streams" if isinstance(group, StreamsGroup) else "consumer"
            raise InconsistentGroupProtocol(f"group {group_id!r} has members of the {kind} protocol")
        self._check_room(group_id)
        return self._new_classic(group_id)

    def open_consumer(self, group_id: str) -> ConsumerGroup:
        """Return the consumer group, or a new one, which `settle` adds."""
        if not group_id:
            raise InvalidGroupId("invalid group id: must not be empty")
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if isinstance(group, ShareGroup):
            raise GroupIdNotFound(f"group {group_id!r} is a share group")
        if group is not None and not group.is_empty:
            kind = "streams" if isinstance(group, StreamsGroup) else "classic"
            raise GroupIdNotFound(f"group {group_id!r} has members of the {kind} protocol")
        self._check_room(group_id)
        return self._new_consumer(group_id)

    def open_streams(self, group_id: str) -> StreamsGroup:
        """Return the streams group, or a new one, which `settle` adds."""
        if not group_id:
            raise InvalidGroupId("invalid group id: must not be empty")
        group = self._groups.get(group_id)
        if isinstance(group, StreamsGroup):
            return group
        if isinstance(group, ShareGroup):
            raise GroupIdNotFound(f"group {group_id!r} is a share group")
        if group is not None and not group.is_empty:
            kind = "consumer" if isinstance(group, ConsumerGroup) else "classic"
            raise GroupIdNotFound(f"group {group_id!r} has members of the {kind} protocol")
        self._check_room(group_id)
        return self._new_streams(group_id)

    def open_share(self, group_id: str) -> ShareGroup:
        """Return the share group, or a new one, which `settle` adds."""
        if not group_id:
            raise InvalidGroupId("invalid group id: must not be empty")
        group = self._groups.get(group_id)
        if isinstance(group, ShareGroup):
            return group
        if group is not None:
            raise GroupIdNotFound(f"group {group_id!r} exists and is not a share group")
        self._check_room(group_id)
        return self._new_share(group_id)

    def share(self, group_id: str) -> ShareGroup:
        """Return the share group of a member; raise UnknownMember if it does not exist."""
        group = self._groups.get(group_id)
        if not isinstance(group, ShareGroup):
            raise UnknownMember(f"share group {group_id!r} does not exist")
        return group

    def open_offsets(self, group_id: str) -> ClassicGroup | ConsumerGroup | StreamsGroup:
        """Return the group that commits offsets, or a new one without members, which `settle` adds."""
        group = self._groups.get(group_id)
        if isinstance(group, ShareGroup):
            raise GroupIdNotFound(f"group {group_id!r} is a share group, which does not commit offsets")
        return group or self.open_classic(group_id)

    def settle(self, group_id: str, group: Group, out: Outcome, now_ms: int) -> Outcome:
        """Update the directory after an event: add a new group, and set deadlines."""
        former = self._groups.get(group_id)
        if former is not group:
            if former is not None:
                out.changes[:0] = former.delete()
            self._groups[group_id] = group
            self._expiries.put(group_id, now_ms + EXPIRY_CHECK_MS)
        if not group.is_empty:
            self._with_members.add(group_id)
        elif group_id in self._with_members:
            self._with_members.discard(group_id)
            self._expiries.put(group_id, now_ms + EXPIRY_CHECK_MS)
            out.changes.append(self._offsets.mark_idle(group_id, now_ms))
        self._wakes.put(group_id, group.next_deadline_ms)
        for reply in out.replies:
            self._waiting.pop(reply.to, None)
        return out

    def wait(self, group_id: str, reply_to: object, out: Outcome) -> None:
        """Record the group of a pending request, unless it has its reply."""
        if all(reply.to != reply_to for reply in out.replies):
            self._waiting[reply_to] = group_id

    def cancel(self, reply_to: object) -> None:
        """Remove a pending request."""
        group_id = self._waiting.pop(reply_to, None)
        group = self._groups.get(group_id) if group_id is not None else None
        if group_id is not None and isinstance(group, ClassicGroup):
            group.cancel(reply_to)
            self._wakes.put(group_id, group.next_deadline_ms)

    def remove(self, group_id: str) -> list[Change]:
        """Delete a group and its offsets; raise NonEmptyGroup if it has members."""
        changes = self.get(group_id).delete()
        changes += self._offsets.delete_group(group_id)
        del self._groups[group_id]
        self._wakes.put(group_id, None)
        self._expiries.put(group_id, None)
        return changes

    @property
    def next_deadline_ms(self) -> int | None:
        return earlier(self._wakes.next_ms, self._expiries.next_ms)

    def tick(self, now_ms: int) -> Outcome:
        """Run the deadlines of all groups; delete expired offsets and groups."""
        out = Outcome()
        for group_id in [*self._wakes.take_due(now_ms)]:
            group = self._groups[group_id]
            ticked = group.tick(now_ms)
            done = ticked if isinstance(ticked, Outcome) else Outcome(changes=ticked)
            out += self.settle(group_id, group, done, now_ms)
            if isinstance(group, ShareGroup):
                out.effects += group.take_expired_members()
        examined = 0
        for group_id in self._expiries.take_due(now_ms):
            examined += self._offsets.count(group_id)
            out.changes += self._expire(group_id, now_ms)
            if examined > _OFFSETS_PER_TICK:
                break
        return out

    def replay(self, parts: tuple[Any, ...], value: bytes | None) -> None:
        """Apply a stored record of a group; `parts` is its decoded key."""
        kind, group_id = parts[0], parts[1]
        group = self._groups.get(group_id)
        if kind == CONSUMER:
            if not isinstance(group, ConsumerGroup):
                if value is None:
                    return
                group = self._new_consumer(group_id)
                self._groups[group_id] = group
            group.replay(parts, value)
        elif kind == SHARE:
            if not isinstance(group, ShareGroup):
                if value is None:
                    return
                group = self._groups[group_id] = self._new_share(group_id)
            group.replay(parts, value)
        elif kind == STREAMS:
            if not isinstance(group, StreamsGroup):
                if value is None:
                    return
                group = self._groups[group_id] = self._new_streams(group_id)
            group.replay(parts, value)
        elif kind in (CLASSIC, GENERATION):
            if value is None:
                if kind == CLASSIC and isinstance(group, ClassicGroup):
                    del self._groups[group_id]
                return
            if not isinstance(group, ClassicGroup):
                group = self._groups[group_id] = self._new_classic(group_id)
            group.replay(kind, value)

    def loaded(self, now_ms: int) -> Outcome:
        """Start the deadlines after replay."""
        out = Outcome()
        for group_id, group in [*self._groups.items()]:
            if not isinstance(group, ClassicGroup) and not group.exists:
                del self._groups[group_id]
        for group_id in self._offsets.groups():
            if group_id not in self._groups:
                self._groups[group_id] = self._new_classic(group_id)
        for group_id, group in self:
            out.changes += group.loaded(now_ms)
            self._expiries.put(group_id, now_ms + EXPIRY_CHECK_MS)
            self.settle(group_id, group, Outcome(), now_ms)
        return out

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state; groups may change in the meantime."""
        for group_id in list(self._groups):
            if (group := self._groups.get(group_id)) is not None:
                yield from list(group.snapshot())

    def _new_classic(self, group_id: str) -> ClassicGroup:
        most = partial(self._max_members, group_id, self._settings.max_members)
        return ClassicGroup(group_id, self._settings, most, self._new_id)

    def _new_consumer(self, group_id: str) -> ConsumerGroup:
        most = partial(self._max_members, group_id, self._consumer_settings.max_members)
        return ConsumerGroup(group_id, partial(self._configs.consumer, group_id), most, self._new_id)

    def _new_share(self, group_id: str) -> ShareGroup:
        most = partial(self._max_members, group_id, self._consumer_settings.max_members)
        return ShareGroup(group_id, partial(self._configs.share, group_id), most)

    def _new_streams(self, group_id: str) -> StreamsGroup:
        most = partial(self._max_members, group_id, self._consumer_settings.max_members)
        return StreamsGroup(group_id, partial(self._configs.streams, group_id), most)

    def _max_members(self, group_id: str, most: int) -> int:
        """Return how many members a group may have: `most`, or fewer by the limit of its tenant."""
        limit = self._member_limit(group_id)
        return most if limit is None else min(most, limit)

    def _check_room(self, group_id: str) -> None:
        if group_id in self._groups:
            return
        self._check_new(group_id)
        if len(self._groups) >= self._settings.max_groups:
            raise TooManyGroups(f"too many groups: the limit is {self._settings.max_groups}")

    def _expire(self, group_id: str, now_ms: int) -> list[Change]:
        group = self._groups[group_id]
        if not group.is_empty:
            return []  # checked again when its last member has left
        changes = self._offsets.expire(group_id, now_ms)
        has_reserved_ids = isinstance(group, ClassicGroup) and not group.is_unused
        if not self._offsets.has_any(group_id) and not has_reserved_ids:
            return changes + self.remove(group_id)
        self._expiries.put(
            group_id, max(self._offsets.next_expiry_ms(group_id) or 0, now_ms + EXPIRY_CHECK_MS)
        )
        return changes
