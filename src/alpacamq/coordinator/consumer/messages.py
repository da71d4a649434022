"""What the members of a consumer group (KIP-848) send and are answered, and what the group asks of its host.

Field meanings are Kafka's.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from alpacamq.coordinator.messages import GroupRequest
from alpacamq.model.errors import InvalidRequest
from alpacamq.model.ids import TopicId

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
UNCHANGED_TIMEOUT = -1
_INTERVAL_MS_PER_MEMBER = 10
# What a member says of itself is one record, which must be small enough to be stored.
MAX_SUBSCRIPTION_CHARACTERS = 256 * 1024

Partitions = Mapping[TopicId, frozenset[int]]


class TopicSummary(NamedTuple):
    """What a group needs to know of a topic."""

    id: TopicId
    partitions: int


class TopicsView(Protocol):
    """The topics there are, as the host knows them now."""

    @property
    def version(self) -> int:
        """A number that differs whenever any topic was created, grown or deleted."""
        ...

    def names(self) -> Iterable[str]:
        """The topics a pattern may match."""
        ...

    def get(self, name: str) -> TopicSummary | None: ...


class ConsumerGroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and delays of consumer groups."""

    session_timeout_ms: int = 30_000
    heartbeat_interval_ms: int = 3_000
    # In small groups heartbeats cost nothing, and whoever reports sooner takes over sooner.
    min_heartbeat_interval_ms: int = 500
    # For members in the middle of a move: what they wait for comes with a heartbeat.
    reconciling_interval_ms: int = 500
    max_members: int = 1_000
    default_assignor: str = "uniform"

    def interval_ms(self, members: int) -> int:
        """How often the members of a group of this size report while nothing moves."""
        wanted = max(self.min_heartbeat_interval_ms, members * _INTERVAL_MS_PER_MEMBER)
        return min(wanted, self.heartbeat_interval_ms)


class ConsumerHeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member stands; without assignment, that is as it was told before."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None = None


class ConsumerHeartbeatRequest(GroupRequest[ConsumerHeartbeatReply], frozen=True, kw_only=True):
    """A member joins, is alive, confirms what it holds, or leaves; the epoch says which."""

    member_epoch: int
    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_TIMEOUT
    subscribed_topics: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether the member says all there is to say, as it does when it may have missed an answer."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms != UNCHANGED_TIMEOUT
            and (self.subscribed_topics is not None or self.subscribed_regex is not None)
            and self.owned is not None
        )

    def check(self) -> None:
        """InvalidRequest if no member may send this, whatever the state of its group."""
        if not self.group:
            raise InvalidRequest("a group id cannot be empty")
        if self.instance_id == "":
            raise InvalidRequest("a group instance id cannot be empty")
        if self.rack_id == "":
            raise InvalidRequest("a rack id cannot be empty")
        if self.rebalance_timeout_ms != UNCHANGED_TIMEOUT and self.rebalance_timeout_ms <= 0:
            raise InvalidRequest(f"a rebalance timeout of {self.rebalance_timeout_ms} ms is not positive")
        if sum(map(len, self.subscribed_topics or ())) > MAX_SUBSCRIPTION_CHARACTERS:
            raise InvalidRequest(
                f"the names of the subscribed topics have more than {MAX_SUBSCRIPTION_CHARACTERS} characters"
            )
        if self.member_epoch == JOIN_EPOCH:
            self._check_join()
        elif not self.member_id:
            raise InvalidRequest("only a member that joins may leave its id to the broker")
        elif self.member_epoch < STATIC_LEAVE_EPOCH:
            raise InvalidRequest(f"member epoch {self.member_epoch} has no meaning")
        elif self.member_epoch == STATIC_LEAVE_EPOCH and self.instance_id is None:
            raise InvalidRequest(f"epoch {STATIC_LEAVE_EPOCH} is for members with a group instance id")

    def _check_join(self) -> None:
        if self.rebalance_timeout_ms == UNCHANGED_TIMEOUT:
            raise InvalidRequest("a member that joins must say its rebalance timeout")
        if self.owned is None or any(self.owned.values()):
            raise InvalidRequest("a member that joins must say that it owns no partitions")
        if self.subscribed_topics is None and self.subscribed_regex is None:
            raise InvalidRequest("a member that joins must say what it subscribes to")


class ConsumerGroupState(StrEnum):
    """How far a group is, under Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member, what it has and what it is to have."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str
    assignment: Partitions
    target_assignment: Partitions


class ConsumerGroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group."""

    group: str
    state: ConsumerGroupState
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
