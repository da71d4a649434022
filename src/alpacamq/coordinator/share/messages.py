"""Requests and replies of share groups (KIP-932). Fields have the meaning of Kafka's protocol."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from alpacamq.coordinator.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    MAX_SUBSCRIPTION_CHARACTERS,
    Partitions,
)
from alpacamq.coordinator.messages import GroupRequest
from alpacamq.model.errors import InvalidRequest

from .config import ShareConfig

SHARE_PROTOCOL = "share"
# Leases are stored with the member id.
MAX_MEMBER_ID_LENGTH = 255


class ShareHeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch and assignment of a member; without an assignment it is unchanged."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None = None


class ShareHeartbeatRequest(GroupRequest[ShareHeartbeatReply], frozen=True, kw_only=True):
    """Join, renew the session, or leave, depending on the epoch."""

    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topics: tuple[str, ...] | None = None  # None: unchanged
    client_id: str = ""
    client_host: str = ""

    @property
    def may_be_repeated(self) -> bool:
        # A join without an id creates a member, and a second leave fails.
        return bool(self.member_id) and self.member_epoch >= JOIN_EPOCH

    def check(self) -> None:
        """Raise InvalidRequest if the request is invalid in any state of the group."""
        if not self.group:
            raise InvalidRequest("invalid group id: must not be empty")
        if not self.member_id:
            raise InvalidRequest("invalid member id: must not be empty")
        if len(self.member_id) > MAX_MEMBER_ID_LENGTH or not self.member_id.isascii():
            raise InvalidRequest(
                f"invalid member id: must be at most {MAX_MEMBER_ID_LENGTH} ASCII characters"
            )
        if self.rack_id == "":
            raise InvalidRequest("invalid rack id: must not be empty")
        if self.member_epoch < LEAVE_EPOCH:
            raise InvalidRequest(f"invalid member epoch {self.member_epoch}")
        if self.member_epoch == JOIN_EPOCH and not self.subscribed_topics:
            raise InvalidRequest("a join requires a subscription")
        if sum(map(len, self.subscribed_topics or ())) > MAX_SUBSCRIPTION_CHARACTERS:
            raise InvalidRequest(
                f"subscription too large: the limit is {MAX_SUBSCRIPTION_CHARACTERS} characters"
            )


class MemberConfigRequest(GroupRequest[ShareConfig], frozen=True, kw_only=True):
    """Return the settings of the group to a member that is about to fetch; UnknownMember for others."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    member_id: str


class ShareGroupState(StrEnum):
    """Whether a group has members, with Kafka's names."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member and its assignment."""

    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    assignment: Partitions


class ShareGroupDescription(msgspec.Struct, frozen=True, kw_only=True, tag="share"):
    """A share group."""

    group: str
    state: ShareGroupState
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ShareMemberDescription, ...]


class MemberExpired(msgspec.Struct, frozen=True, kw_only=True):
    """Effect: the session of a member has ended; release its leases on these topics."""

    group: str
    member_id: str
    topics: tuple[str, ...]
    # Of a topic, if not all.
    partitions: Mapping[str, tuple[int, ...]] = {}
