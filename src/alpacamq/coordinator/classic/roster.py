"""Who is in one classic group: its members in the order they came, who leads, what they can agree on.

Owns the members' sessions and the ids promised to those about to join. Generations are the rebalance's.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from alpacamq.coordinator.messages import JoinRequest, Protocol
from alpacamq.model.errors import FencedInstanceId, UnknownMember

CONSUMER_PROTOCOL = "consumer"

_VERSION_AND_COUNT = Struct(">hi")
_LENGTH = Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics a member subscribes to, or None if the bytes are something else."""
    if len(metadata) < _VERSION_AND_COUNT.size:
        return None
    version, count = _VERSION_AND_COUNT.unpack_from(metadata)
    at = _VERSION_AND_COUNT.size
    if version < 0 or not 0 <= count <= (len(metadata) - at) // _LENGTH.size:
        return None
    topics = set()
    for _ in range(count):
        if at + _LENGTH.size > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, at)
        at += _LENGTH.size
        if not 0 <= length <= len(metadata) - at:
            return None
        try:
            topics.add(metadata[at : at + length].decode())
        except UnicodeDecodeError:
            return None
        at += length
    return frozenset(topics)


@dataclass(slots=True, kw_only=True)
class Member:
    """One member, and the requests of it that wait for the others."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    session_ends_ms: int = 0
    has_joined: bool = False  # the rebalance under way
    owes_sync: bool = False  # was told of a generation and has not asked for its assignment
    join_reply_to: object | None = None
    sync_reply_to: object | None = None

    @classmethod
    def of(cls, member_id: str, request: JoinRequest) -> "Member":
        """A new member as it describes itself."""
        return cls(
            id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
        )

    @property
    def is_waiting(self) -> bool:
        """Whether we owe it a reply: it cannot send a heartbeat meanwhile."""
        return self.join_reply_to is not None or self.sync_reply_to is not None

    def metadata(self, protocol_name: str) -> bytes:
        """What it says under a protocol, nothing if it does not know that one."""
        return next((each.metadata for each in self.protocols if each.name == protocol_name), b"")


class Roster:
    """The members of one classic group."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._by_instance: dict[str, Member] = {}
        # How many members know each protocol, so that a join need not ask all of them.
        self._known_by: Counter[str] = Counter()
        self._leader_id: str | None = None
        self._promised: dict[str, int] = {}
        # May be early but never late: sessions only ever grow, so this is found anew only when it is reached.
        self._next_end_ms: int | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """The members, safe against removal meanwhile."""
        return iter(tuple(self._members.values()))

    @property
    def leader_id(self) -> str:
        """The leader's id, empty in an empty group."""
        return self._leader_id or ""

    @property
    def rebalance_timeout_ms(self) -> int:
        """The time a rebalance is given: what the most patient member allows."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        """Whether nobody is left to wait for; an empty group does not wait for those never seen to join."""
        if not self._members:
            return True
        return not self._promised and all(member.has_joined for member in self._members.values())

    @property
    def promised_count(self) -> int:
        """How many have been given an id and have not joined with it yet."""
        return len(self._promised)

    @property
    def next_end_ms(self) -> int | None:
        """When the next session or promise ends; may be early, never late."""
        return self._next_end_ms

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def of_instance(self, instance_id: str) -> Member | None:
        return self._by_instance.get(instance_id)

    def known(self, member_id: str, instance_id: str | None) -> Member:
        """The member that calls itself so; UnknownMember, or FencedInstanceId if it has been replaced."""
        if instance_id is not None:
            if (member := self._by_instance.get(instance_id)) is None:
                raise UnknownMember(f"no member has the group instance id {instance_id!r}")
            if member.id != member_id:
                raise FencedInstanceId(f"{instance_id!r} is member {member.id!r} now, not {member_id!r}")
            return member
        if (found := self._members.get(member_id)) is None:
            raise UnknownMember(f"{member_id!r} is not a member of the group")
        return found

    def add(self, member: Member) -> None:
        """Take in a member; the first becomes the leader."""
        assert member.id not in self._members
        self._promised.pop(member.id, None)
        self._members[member.id] = member
        self._count(member.protocols, 1)
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member
        if self._leader_id is None:
            self._leader_id = member.id

    def remove(self, member: Member) -> None:
        """Let a member go; if it led, the one longest in the group does now."""
        del self._members[member.id]
        self._count(member.protocols, -1)
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        if self._leader_id == member.id:
            self._leader_id = next(iter(self._members), None)

    def rename(self, member: Member, new_id: str) -> None:
        """Give a static member's new process its own id, and the place of the old one."""
        if self._leader_id == member.id:
            self._leader_id = new_id
        members = [*self._members.values()]
        member.id = new_id
        self._members = {each.id: each for each in members}

    def set_protocols(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        self._count(member.protocols, -1)
        self._count(protocols, 1)
        member.protocols = protocols

    def promise(self, member_id: str, until_ms: int) -> None:
        """Expect a new member under this id."""
        self._promised[member_id] = until_ms
        self._ends(until_ms)

    def is_promised(self, member_id: str) -> bool:
        return member_id in self._promised

    def break_promise(self, member_id: str) -> None:
        del self._promised[member_id]

    def extend(self, member: Member, now_ms: int) -> None:
        """Start a member's session anew."""
        member.session_ends_ms = now_ms + member.session_timeout_ms
        self._ends(member.session_ends_ms)

    def forget_request(self, reply_to: object) -> None:
        """Nobody waits for this reply any more; the session of whoever did runs on from where it was."""
        for member in self._members.values():
            if member.join_reply_to == reply_to:
                member.join_reply_to = None
                self._ends(member.session_ends_ms)
            if member.sync_reply_to == reply_to:
                member.sync_reply_to = None
                self._ends(member.session_ends_ms)

    def end_sessions(self, now_ms: int) -> list[Member]:
        """The members whose time is over, still in the group; promises whose time is over are broken."""
        self._promised = {name: until for name, until in self._promised.items() if until > now_ms}
        listening = [member for member in self._members.values() if not member.is_waiting]
        over = [member for member in listening if member.session_ends_ms <= now_ms]
        lasting = [member.session_ends_ms for member in listening if member.session_ends_ms > now_ms]
        self._next_end_ms = min([*lasting, *self._promised.values()], default=None)
        return over

    def lead(self, member_id: str) -> None:
        """Make this member the leader."""
        assert member_id in self._members
        self._leader_id = member_id

    def elect(self) -> bool:
        """See that one who has joined leads; False if nobody has."""
        if (leader := self.get(self.leader_id)) is not None and leader.has_joined:
            return True
        for member in self._members.values():
            if member.has_joined:
                self._leader_id = member.id
                return True
        return False

    def shares_protocol(self, protocols: tuple[Protocol, ...], besides: Member | None) -> bool:
        """Whether every member (apart from `besides`) knows one of these."""
        own = {each.name for each in besides.protocols} if besides is not None else set()
        others = len(self._members) - (besides is not None)
        return any(self._known_by[each.name] - (each.name in own) == others for each in protocols)

    def elect_protocol(self) -> str:
        """Among the protocols all know, the one most members put first; in doubt, the eldest's."""
        votes: Counter[str] = Counter()
        for member in self._members.values():
            votes[next(each.name for each in member.protocols if self._known_by[each.name] == len(self))] += 1
        return votes.most_common(1)[0][0]

    def _ends(self, end_ms: int) -> None:
        if self._next_end_ms is None or end_ms < self._next_end_ms:
            self._next_end_ms = end_ms

    def _count(self, protocols: tuple[Protocol, ...], step: int) -> None:
        for name in {each.name for each in protocols}:
            self._known_by[name] += step
            if not self._known_by[name]:
                del self._known_by[name]
