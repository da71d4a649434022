"""What the members of a share group (KIP-932) send and are answered.

Field meanings are Kafka's.
"""

from enum import StrEnum

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
# What a member holds is kept under its id.
MAX_MEMBER_ID_LENGTH = 255


class ShareHeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member stands; without assignment, that is as it was told before."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None = None


class ShareHeartbeatRequest(GroupRequest[ShareHeartbeatReply], frozen=True, kw_only=True):
    """A member joins, is alive, or leaves; the epoch says which."""

    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topics: tuple[str, ...] | None = None  # None: as before
    client_id: str = ""
    client_host: str = ""

    def check(self) -> None:
        """InvalidRequest if no member may send this, whatever the state of its group."""
        if not self.group:
            raise InvalidRequest("a group id cannot be empty")
        if not self.member_id:
            raise InvalidRequest("a member of a share group must have an id")
        if len(self.member_id) > MAX_MEMBER_ID_LENGTH or not self.member_id.isascii():
            raise InvalidRequest(f"a member id has {MAX_MEMBER_ID_LENGTH} ASCII characters at most")
        if self.rack_id == "":
            raise InvalidRequest("a rack id cannot be empty")
        if self.member_epoch < LEAVE_EPOCH:
            raise InvalidRequest(f"member epoch {self.member_epoch} has no meaning")
        if self.member_epoch == JOIN_EPOCH and not self.subscribed_topics:
            raise InvalidRequest("a member that joins must say what it subscribes to")
        if sum(map(len, self.subscribed_topics or ())) > MAX_SUBSCRIPTION_CHARACTERS:
            raise InvalidRequest(
                f"the names of the subscribed topics have more than {MAX_SUBSCRIPTION_CHARACTERS} characters"
            )


class ShareTermsRequest(GroupRequest[ShareConfig], frozen=True, kw_only=True):
    """A member is about to fetch. Answered by ShareConfig; UnknownMember if it is none."""

    member_id: str


class ShareGroupState(StrEnum):
    """Whether a group has members, under Kafka's names."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member and what it may fetch from."""

    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    assignment: Partitions


class ShareGroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A share group."""

    group: str
    state: ShareGroupState
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ShareMemberDescription, ...]


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A member is gone, and what it holds of these topics is to be given back."""

    group: str
    member_id: str
    topics: tuple[str, ...]
