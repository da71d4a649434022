"""Requests and replies of consumer groups (KIP-848), and the view of topics that their host provides.

Fields have the meaning of Kafka's protocol.
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
# The profile of a member is one record, whose size is limited.
MAX_SUBSCRIPTION_CHARACTERS = 256 * 1024

Partitions = Mapping[TopicId, frozenset[int]]


class TopicSummary(NamedTuple):
    """The id and size of a topic."""

    id: TopicId
    partitions: int


class TopicsView(Protocol):
    """The current topics."""

    @property
    def version(self) -> int:
        """Return a number that changes whenever a topic is created, grown or deleted."""
        ...

    def names(self) -> Iterable[str]:
        """Return the topics that a pattern may match."""
        ...

    def get(self, name: str) -> TopicSummary | None: ...


class ConsumerGroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and timeouts of consumer groups."""

    session_timeout_ms: int = 30_000
    heartbeat_interval_ms: int = 3_000
    # Small groups report more often, so that partitions are reassigned sooner.
    min_heartbeat_interval_ms: int = 500
    # For members that are reconciling: they get partitions with heartbeats.
    reconciling_interval_ms: int = 500
    max_members: int = 1_000
    default_assignor: str = "uniform"

    def interval_ms(self, members: int) -> int:
        """Return the heartbeat interval of stable members in a group of this size."""
        wanted = max(self.min_heartbeat_interval_ms, members * _INTERVAL_MS_PER_MEMBER)
        return min(wanted, self.heartbeat_interval_ms)


class ConsumerHeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch and assignment of a member; without an assignment it is unchanged."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None = None


class ConsumerHeartbeatRequest(GroupRequest[ConsumerHeartbeatReply], frozen=True, kw_only=True):
    """Join, renew the session, confirm partitions, or leave, depending on the epoch."""

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
    def may_be_repeated(self) -> bool:
        # A join without an id creates a member, and a second leave fails.
        return bool(self.member_id) and self.member_epoch >= JOIN_EPOCH

    @property
    def is_full(self) -> bool:
        """Return whether all fields are set, as after a heartbeat whose reply may have been lost."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms != UNCHANGED_TIMEOUT
            and (self.subscribed_topics is not None or self.subscribed_regex is not None)
            and self.owned is not None
        )

    def check(self) -> None:
        """Raise InvalidRequest if the request is invalid in any state of the group."""
        if not self.group:
            raise InvalidRequest("invalid group id: must not be empty")
        if self.instance_id == "":
            raise InvalidRequest("invalid group instance id: must not be empty")
        if self.rack_id == "":
            raise InvalidRequest("invalid rack id: must not be empty")
        if self.rebalance_timeout_ms != UNCHANGED_TIMEOUT and self.rebalance_timeout_ms <= 0:
            raise InvalidRequest(f"rebalance timeout must be positive, not {self.rebalance_timeout_ms} ms")
        if sum(map(len, self.subscribed_topics or ())) > MAX_SUBSCRIPTION_CHARACTERS:
            raise InvalidRequest(
                f"subscription too large: the limit is {MAX_SUBSCRIPTION_CHARACTERS} characters"
            )
        if self.member_epoch == JOIN_EPOCH:
            self._check_join()
        elif not self.member_id:
            raise InvalidRequest("the member id may be empty only in a join")
        elif self.member_epoch < STATIC_LEAVE_EPOCH:
            raise InvalidRequest(f"invalid member epoch {self.member_epoch}")
        elif self.member_epoch == STATIC_LEAVE_EPOCH and self.instance_id is None:
            raise InvalidRequest(f"member epoch {STATIC_LEAVE_EPOCH} requires a group instance id")

    def _check_join(self) -> None:
        if self.rebalance_timeout_ms == UNCHANGED_TIMEOUT:
            raise InvalidRequest("a join requires a rebalance timeout")
        if self.owned is None or any(self.owned.values()):
            raise InvalidRequest("a join requires an empty list of owned partitions")
        if self.subscribed_topics is None and self.subscribed_regex is None:
            raise InvalidRequest("a join requires a subscription")


class ConsumerGroupState(StrEnum):
    """The state of a group, with Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member with its current and target assignment."""

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


class ConsumerGroupDescription(msgspec.Struct, frozen=True, kw_only=True, tag="consumer"):
    """A consumer group."""

    group: str
    state: ConsumerGroupState
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
