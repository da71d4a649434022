"""Simulated consumers of a classic group that behave like Kafka's own consumer."""

from dataclasses import dataclass, field
from enum import Enum

from alpacamq.coordinator.messages import (
    Accepted,
    CommitRequest,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    MemberAssignment,
    OffsetToCommit,
    PartitionResults,
    Protocol,
    SyncReply,
    SyncRequest,
)
from alpacamq.model.errors import (
    FencedInstanceId,
    IllegalGeneration,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)

from .group_host import GROUP, GroupHost

PARTITIONS = 8
SESSION_MS = 10_000
REBALANCE_MS = 15_000
METADATA = b"\x00\x00\x00\x00\x00\x01\x00\x06orders"


def ranges(members: list[str]) -> dict[str, list[int]]:
    """Assign ranges of partitions, in the order of the names of members."""
    each, more = divmod(PARTITIONS, len(members))
    assignments = {}
    start = 0
    for index, member in enumerate(sorted(members)):
        end = start + each + (index < more)
        assignments[member] = [*range(start, end)]
        start = end
    return assignments


class Phase(Enum):
    """The next step of a consumer."""

    JOIN = "join"
    SYNC = "sync"
    CONSUME = "consume"
    DEAD = "dead"


@dataclass(eq=False)
class Consumer:
    """One process, with at most one pending request."""

    name: str
    instance_id: str | None = None
    knows_handshake: bool = True
    phase: Phase = Phase.JOIN
    member_id: str = ""
    generation: int = -1
    joined: JoinReply | None = None
    owned: list[int] = field(default_factory=list)
    handle: int | None = None
    committing: tuple[int, int] | None = None
    committed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def identity(self) -> str:
        return self.instance_id or self.member_id

    def act(self, host: GroupHost) -> None:
        """Send the next request, unless one is pending."""
        self.listen(host)
        if self.handle is not None or self.phase is Phase.DEAD:
            return
        if self.phase is Phase.JOIN:
            self.handle = host.send(self._join())
        elif self.phase is Phase.SYNC:
            self.handle = host.send(self._sync())
        else:
            self.handle = host.send(
                HeartbeatRequest(
                    group=GROUP,
                    generation=self.generation,
                    member_id=self.member_id,
                    instance_id=self.instance_id,
                ),
            )
        self.listen(host)

    def commit(self, host: GroupHost, partition: int, offset: int) -> None:
        self.listen(host)
        if self.handle is not None or self.phase is Phase.DEAD:
            return
        self.committing = (partition, offset)
        self.handle = host.send(
            CommitRequest(
                group=GROUP,
                generation=self.generation,
                member_id=self.member_id,
                instance_id=self.instance_id,
                offsets=(OffsetToCommit(topic="orders", partition=partition, offset=offset),),
            ),
        )
        self.listen(host)

    def disconnect(self, host: GroupHost) -> None:
        """Close the connection and cancel the pending request."""
        if self.handle is not None:
            host.machine.cancel(self.handle)
            self.handle = None

    def listen(self, host: GroupHost) -> None:
        """Process the reply, if there is one."""
        if self.handle is None or self.handle not in host.answers:
            return
        answer = host.answers[self.handle]
        self.handle = None
        match answer:
            case JoinReply():
                assert answer.generation > 0
                self.joined = answer
                self.member_id, self.generation = answer.member_id, answer.generation
                self.phase = Phase.SYNC
            case SyncReply():
                self.owned = [int(each) for each in answer.assignment.decode().split(",") if each]
                self.phase = Phase.CONSUME
            case Accepted():
                pass
            case PartitionResults():
                assert self.committing is not None
                assert answer.partitions[0].error is None
                self.committed.append(self.committing)
            case MemberIdRequired():
                self.member_id = answer.member_id
            case RebalanceInProgress() | IllegalGeneration():
                self.phase = Phase.JOIN
            case UnknownMember():
                self.member_id, self.generation = "", -1
                self.phase = Phase.JOIN
            case FencedInstanceId():
                self.phase = Phase.DEAD
            case _:
                raise AssertionError(f"{self.name} did not expect {answer!r}")

    def _join(self) -> JoinRequest:
        return JoinRequest(
            group=GROUP,
            protocol_type="consumer",
            protocols=(Protocol("range", METADATA),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            require_known_member_id=self.knows_handshake,
            knows_skip_assignment=self.knows_handshake,
        )

    def _sync(self) -> SyncRequest:
        assert self.joined is not None
        assignments: tuple[MemberAssignment, ...] = ()
        if self.joined.leader == self.member_id and not self.joined.skip_assignment:
            given = ranges([each.member_id for each in self.joined.members])
            assignments = tuple(
                MemberAssignment(member_id=member, assignment=",".join(map(str, partitions)).encode())
                for member, partitions in given.items()
            )
        return SyncRequest(
            group=GROUP,
            generation=self.generation,
            member_id=self.member_id,
            instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
