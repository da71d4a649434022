"""Errors of the domain. Each API maps them to its own codes in one table."""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

# Records of one batch that an error names; a batch can have millions.
MAX_RECORD_ERRORS = 1000


class RecordError(NamedTuple):
    """A record of a produced batch that is the reason for an error; counted from 0."""

    place: int
    reason: str


class AlpacaError(Exception):
    """Base of every expected error; its text is fit for a user."""

    record_errors: Sequence[RecordError] = ()

    def naming(self, records: Iterable[RecordError]) -> Self:
        """Add the records of a batch that are at fault, as many as a response may name."""
        self.record_errors = tuple(islice(records, MAX_RECORD_ERRORS))
        return self


class InvalidRequest(AlpacaError):
    """The request is well-formed but its values are invalid."""


class CorruptBatch(AlpacaError):
    """The bytes are not a valid record batch."""


class DamagedLog(AlpacaError):
    """Stored bytes do not match their checksum; names the file, the position and the lost offsets.

    `offsets` are the first unreadable one and the first readable one behind the damage.
    """

    def __init__(
        self, path: Path, position: int, reason: str, offsets: tuple[int, int] | None = None
    ) -> None:
        text = f"{path} is damaged at byte {position}: {reason}"
        if offsets is not None:
            text += f"; offsets {offsets[0]} to {offsets[1] - 1} cannot be read"
        super().__init__(text)
        self.path = path
        self.position = position
        self.offsets = offsets


class InvalidRecord(AlpacaError):
    """A record violates a rule of its topic."""


class SchemasUnavailable(AlpacaError):
    """Records cannot be checked because the schema registry does not answer; retry later."""


class InvalidTimestamp(AlpacaError):
    """A record's timestamp is outside the range that its topic accepts."""


class BatchTooLarge(AlpacaError):
    """A batch is larger than its topic's max.message.bytes."""


class UnsupportedCompression(AlpacaError):
    """The compression codec of a batch does not exist or is not allowed in this request."""


class UnknownTopic(AlpacaError):
    """No such topic or partition."""


class PartitionNotReady(AlpacaError):
    """The partition is being recovered after the start of its broker; retry later."""


class UnknownTopicId(AlpacaError):
    """No topic has this id."""


class TopicExists(AlpacaError):
    """A topic of this name exists already."""


class InvalidTopicName(AlpacaError):
    """The name is empty, too long or contains an invalid character."""


class InvalidPartitionCount(AlpacaError):
    """The number of partitions is invalid for the topic."""


class InvalidReplication(AlpacaError):
    """The replication factor or the replica assignment cannot be satisfied."""


class InvalidReplicaAssignment(AlpacaError):
    """Partitions cannot be assigned to brokers as requested."""


class InvalidConfig(AlpacaError):
    """A setting is unknown or its value is invalid."""


class InvalidRequiredAcks(AlpacaError):
    """The producer requests an invalid number of acknowledgements."""


class OffsetOutOfRange(AlpacaError):
    """The offset is before the start or after the end of the log."""


class FencedLeaderEpoch(AlpacaError):
    """The client's leader epoch is older than the partition's."""


class UnknownLeaderEpoch(AlpacaError):
    """The client's leader epoch is newer than this broker's."""


class NotLeader(AlpacaError):
    """Another broker leads this partition; `leader` is the best guess, None if there is none.

    `leader_epoch` is the epoch in which it leads, -1 if that is not known.
    """

    def __init__(self, reason: str, leader: int | None = None, leader_epoch: int = -1) -> None:
        super().__init__(reason)
        self.leader = leader
        self.leader_epoch = leader_epoch


class NotController(AlpacaError):
    """Another node is the controller; `controller` is the best guess, None if there is none."""

    def __init__(self, reason: str, controller: int | None = None) -> None:
        super().__init__(reason)
        self.controller = controller


class LeaderNotAvailable(AlpacaError):
    """No replica of the partition can lead it now; retry later."""


class OffsetNotAvailable(AlpacaError):
    """A new leader does not know yet up to where its log is committed; retry later."""


class NotEnoughReplicas(AlpacaError):
    """Fewer replicas are in sync than min.insync.replicas requires; nothing was written."""


class NotEnoughReplicasAfterAppend(AlpacaError):
    """The records were written, but fewer replicas are in sync than min.insync.replicas requires."""


class RequestTimedOut(AlpacaError):
    """The result is unknown: the request may or may not have taken effect."""


class PeerUnavailable(AlpacaError):
    """Another node cannot be reached; the request was not sent to it and may be retried safely."""


class PeerFailed(AlpacaError):
    """Another node failed to handle the request: a bug, or the nodes run different versions."""


class UnknownBroker(AlpacaError):
    """No broker is registered under this id."""


class DuplicateBroker(AlpacaError):
    """Another running process has registered under this broker id."""


class StaleBrokerEpoch(AlpacaError):
    """The broker was registered again since it sent this request."""


class InvalidUpdateVersion(AlpacaError):
    """The change is based on an older state of the partition than the controller's."""


class IneligibleReplica(AlpacaError):
    """A replica cannot join the in-sync set: its broker is fenced, shutting down or was restarted."""


class ElectionNotNeeded(AlpacaError):
    """The requested leader leads the partition already."""


class PreferredLeaderNotAvailable(AlpacaError):
    """The first replica of the partition cannot lead it: it is not running or not in sync."""


class EligibleLeadersNotAvailable(AlpacaError):
    """No replica that can lead the partition is running."""


class NoReassignmentInProgress(AlpacaError):
    """The partition is not being reassigned."""


class InconsistentClusterId(AlpacaError):
    """The node belongs to another cluster."""


class InvalidVoters(AlpacaError):
    """The change of the metadata voters is not possible now."""


class FeatureUpdateFailed(AlpacaError):
    """The feature level cannot be changed: a broker does not support it, or it would go back."""


class FencedProducer(AlpacaError):
    """A newer instance of this producer has taken over."""


class OutOfOrderSequence(AlpacaError):
    """A producer's batch does not follow the previous one: a batch between them is missing."""


class StorageFailed(AlpacaError):
    """A disk operation failed; the partition cannot serve this request."""


class DiskFull(StorageFailed):
    """The disk is full. Writes fail until there is space; reads continue."""


class DataInDoubt(StorageFailed):
    """An fsync failed, so the durable state is unknown. The log takes no writes until it is emptied."""


class DataDirectoryInUse(AlpacaError):
    """Another broker has locked the data directory."""


class PolicyViolation(AlpacaError):
    """The topic is compacted or internal, or the tenant is not empty, which forbids the operation."""


class InvalidGroupId(AlpacaError):
    """The group id is empty, too long for a queue, or not valid Unicode."""


class GroupIdNotFound(AlpacaError):
    """No group has this name, or it has another type."""


class TooManyGroups(AlpacaError):
    """The broker has reached its maximum number of groups or queues."""


class GroupMaxSizeReached(AlpacaError):
    """The group has reached its maximum number of members."""


class NonEmptyGroup(AlpacaError):
    """The operation requires a group without members."""


class MemberIdRequired(AlpacaError):
    """A new member was assigned an id and has to rejoin with it."""

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again as member {member_id!r}")
        self.member_id = member_id


class UnknownMember(AlpacaError):
    """The group has no such member: it left, was removed, or never joined."""


class IllegalGeneration(AlpacaError):
    """The member's generation is not the group's current one."""


class RebalanceInProgress(AlpacaError):
    """The group is rebalancing; its members have to rejoin."""


class InconsistentGroupProtocol(AlpacaError):
    """The member shares no protocol with the rest of the group."""


class FencedInstanceId(AlpacaError):
    """A newer process has taken over this group instance id."""


class InvalidSessionTimeout(AlpacaError):
    """The session timeout is outside the range that the broker allows."""


class StaleMemberEpoch(AlpacaError):
    """The member's epoch is not its current one; it has to heartbeat and retry."""


class GroupSubscribedToTopic(AlpacaError):
    """Offsets of a topic cannot be deleted while members of the group consume it."""


class OffsetMetadataTooLarge(AlpacaError):
    """The text stored with a committed offset is longer than allowed."""


class UnstableOffsetCommit(AlpacaError):
    """A transaction that commits this partition's offset is still open."""


class ProducerFenced(AlpacaError):
    """The transactional id belongs to a newer instance, or its transaction timed out.

    A partition rejects batches with FencedProducer; the coordinator raises this error.
    """


class InvalidProducerIdMapping(AlpacaError):
    """The transactional id is unknown or belongs to another producer id."""


class TransactionCoordinatorFenced(AlpacaError):
    """A later coordinator has written a marker for this producer already."""


class InvalidTransactionState(AlpacaError):
    """The transaction's state does not allow the operation."""


class ConcurrentTransactions(AlpacaError):
    """The transactional id's last transaction is not complete yet; retry later."""


class InvalidTransactionTimeout(AlpacaError):
    """The transaction timeout is not positive or larger than the broker allows."""


class TransactionalIdNotFound(AlpacaError):
    """No such transactional id."""


class TransactionAbortable(AlpacaError):
    """The producer can continue only by aborting its transaction."""


class FencedMemberEpoch(AlpacaError):
    """The group has fenced this member; it has to release its partitions and rejoin."""


class UnreleasedInstanceId(AlpacaError):
    """Another process is an active member under this group instance id."""


class UnsupportedAssignor(AlpacaError):
    """The broker has no assignor of this name."""


class InvalidRegularExpression(AlpacaError):
    """The pattern of a subscription is not a supported regular expression."""


class StreamsInvalidTopology(AlpacaError):
    """The topology of a streams group can never run; the text names the problem."""


class CoordinatorLoading(AlpacaError):
    """The coordinator is loading its state; retry later."""


class CoordinatorUnavailable(AlpacaError):
    """The coordinator could not write its records; the request may or may not have taken effect."""


class NotCoordinator(AlpacaError):
    """Another broker hosts the coordinator; `coordinator` is the best guess, None if there is none.

    `has_begun`: the coordinator moved while it handled the request, which may or may not have taken effect.
    """

    def __init__(self, reason: str, coordinator: int | None = None, *, has_begun: bool = False) -> None:
        super().__init__(reason)
        self.coordinator = coordinator
        self.has_begun = has_begun


class CorruptState(AlpacaError):
    """A stored record of a state machine cannot be read."""


class InvalidLane(AlpacaError):
    """No priority lane has this name."""


class InvalidReceipt(AlpacaError):
    """The receipt handle is invalid."""


class StaleReceipt(AlpacaError):
    """The lease of this delivery has ended: it expired, was settled, or the message was delivered again.

    `is_done`: the message is acknowledged, rejected or moved.
    """

    def __init__(self, reason: str, *, is_done: bool = False) -> None:
        super().__init__(reason)
        self.is_done = is_done


class NotAcquired(AlpacaError):
    """The message is not leased to the consumer that settles it."""


class TooManyInFlight(AlpacaError):
    """The consumer or the queue has reached its limit of unacknowledged messages."""


class TooManyWaiting(AlpacaError):
    """The broker has reached its limit of waiting receives."""


class InvalidDelay(AlpacaError):
    """The delay or delivery time is outside the range that the broker accepts."""


class UnknownDelayed(AlpacaError):
    """No delayed message has this id: it was delivered, cancelled, or never existed."""


class TooManyDelayed(AlpacaError):
    """The broker has reached its limit of delayed messages."""


class RateLimited(AlpacaError):
    """More requests in a short time than the broker accepts; retry later."""


class QuotaExceeded(AlpacaError):
    """The client has used more than its quota allows; retry after `retry_after_ms`."""

    def __init__(self, reason: str, retry_after_ms: int = 1000) -> None:
        super().__init__(reason)
        self.retry_after_ms = retry_after_ms


class UnsupportedQuotaEntity(AlpacaError):
    """A filter of quotas names an unknown type of entity."""


class AuthenticationFailed(AlpacaError):
    """The client did not prove who it is. The text is the same for an unknown user and a wrong password."""


class InvalidCredential(AlpacaError):
    """A password, salt or number of iterations cannot be stored."""


class InvalidPrincipal(AlpacaError):
    """The text does not name a principal, or a user cannot have this name."""


class UnknownUser(AlpacaError):
    """No user has this name, or it has no credential of the mechanism."""


class UnknownApiKey(AlpacaError):
    """No API key has this id."""


class InvalidTenant(AlpacaError):
    """A tenant cannot have this id, or one of its values is invalid."""


class UnknownTenant(AlpacaError):
    """No tenant has this id, or the principal does not belong to it."""


class TenantExists(AlpacaError):
    """A tenant of this id exists already, or the principal belongs to another one."""


class TenantLimitReached(AlpacaError):
    """The request would exceed a limit of the tenant."""


class TenantStorageFull(AlpacaError):
    """The tenant stores as much as it may; it can read, and write again once there is room."""


class InvalidAcl(AlpacaError):
    """An access rule, or a filter of access rules, has an invalid value."""


class SecurityDisabled(AlpacaError):
    """Access rules, or logins, are not in force on this broker."""


class FeatureNotEnabled(AlpacaError):
    """The cluster is at a feature level below the one that the command needs."""


class TopicNotAuthorized(AlpacaError):
    """The principal may see the topic, but not do this to it."""


class GroupNotAuthorized(AlpacaError):
    """The principal may not do this to the group."""


class ClusterNotAuthorized(AlpacaError):
    """The principal may not do this to the cluster."""


class TransactionalIdNotAuthorized(AlpacaError):
    """The principal may not use the transactional id."""


class DelegationTokensDisabled(AlpacaError):
    """The broker has no secret for delegation tokens."""


class DelegationTokenRequestNotAllowed(AlpacaError):
    """The client has not authenticated, or has done so with a delegation token."""


class DelegationTokenNotAuthorized(AlpacaError):
    """The principal may not create delegation tokens for the owner."""


class DelegationTokenNotFound(AlpacaError):
    """No delegation token has this HMAC."""


class DelegationTokenOwnerMismatch(AlpacaError):
    """The principal is neither the owner nor a renewer of the delegation token."""


class DelegationTokenExpired(AlpacaError):
    """The delegation token has expired."""


class InvalidPrincipalType(AlpacaError):
    """Owners and renewers of delegation tokens are users."""
