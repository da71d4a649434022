"""What can go wrong, in domain words. Each API translates these once, in a table of its own."""

from pathlib import Path


class AlpacaError(Exception):
    """Base of every error we raise on purpose; its text is fit for a user."""


class InvalidRequest(AlpacaError):
    """The request is well-formed but asks for something that makes no sense."""


class CorruptBatch(AlpacaError):
    """Bytes that should be a record batch are not one."""


class DamagedLog(AlpacaError):
    """Stored bytes no longer match their checksum; names the file, the position and the offsets lost with it.

    `offsets` are the first that cannot be read and the first behind the damage that can.
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
    """A record breaks a rule of its topic."""


class InvalidTimestamp(AlpacaError):
    """A record's timestamp lies outside what its topic accepts."""


class BatchTooLarge(AlpacaError):
    """A batch is larger than its topic's max.message.bytes."""


class UnsupportedCompression(AlpacaError):
    """A batch names a compression codec that does not exist or that this request may not use."""


class UnknownTopic(AlpacaError):
    """No such topic or partition."""


class PartitionNotReady(AlpacaError):
    """The partition is being recovered after the start of its broker; ask again soon."""


class UnknownTopicId(AlpacaError):
    """No topic has this id."""


class TopicExists(AlpacaError):
    """A topic of this name exists already."""


class InvalidTopicName(AlpacaError):
    """The name is empty, too long or holds a character that topics cannot have."""


class InvalidPartitionCount(AlpacaError):
    """The number of partitions is not one the topic can have."""


class InvalidReplication(AlpacaError):
    """The replication factor or the replica assignment cannot be satisfied."""


class InvalidConfig(AlpacaError):
    """A setting is unknown or its value is not acceptable."""


class InvalidRequiredAcks(AlpacaError):
    """A producer asks for a number of acknowledgements that has no meaning."""


class NotEnoughReplicas(AlpacaError):
    """Fewer replicas are in sync than min.insync.replicas asks for."""


class OffsetOutOfRange(AlpacaError):
    """The offset lies before the start or after the end of the log."""


class FencedLeaderEpoch(AlpacaError):
    """The client knows an older leader than the partition has."""


class UnknownLeaderEpoch(AlpacaError):
    """The client knows a newer leader than this broker does."""


class FencedProducer(AlpacaError):
    """A newer instance of this producer has taken over."""


class OutOfOrderSequence(AlpacaError):
    """A producer's batch does not follow the one before it: something between is missing."""


class StorageFailed(AlpacaError):
    """The disk refused; the partition cannot serve this request."""


class DiskFull(StorageFailed):
    """No room. Writes are refused until there is some; reads go on."""


class DataInDoubt(StorageFailed):
    """An fsync failed, so what reached the disk is unknown. The partition takes no writes until restart."""


class DataDirectoryInUse(AlpacaError):
    """Another broker holds the data directory."""


class PolicyViolation(AlpacaError):
    """What is asked for is possible, but not with this topic's cleanup policy."""


class InvalidGroupId(AlpacaError):
    """A group needs a name, and this is none."""


class GroupIdNotFound(AlpacaError):
    """No group of this name, or none of the kind asked for."""


class TooManyGroups(AlpacaError):
    """The broker holds as many groups as it may."""


class GroupMaxSizeReached(AlpacaError):
    """The group has as many members as it may."""


class NonEmptyGroup(AlpacaError):
    """The group has members, and this can only be done to one without."""


class MemberIdRequired(AlpacaError):
    """A new member was given an id and is to join again with it."""

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again as member {member_id!r}")
        self.member_id = member_id


class UnknownMember(AlpacaError):
    """The group has no such member: it left, was removed, or never joined."""


class IllegalGeneration(AlpacaError):
    """The member speaks of a generation that is not the group's current one."""


class RebalanceInProgress(AlpacaError):
    """The group is rebalancing; its members are to join again."""


class InconsistentGroupProtocol(AlpacaError):
    """The member shares no protocol with the rest of the group."""


class FencedInstanceId(AlpacaError):
    """A newer process has taken over this group instance id."""


class InvalidSessionTimeout(AlpacaError):
    """The session timeout lies outside what the broker allows."""


class StaleMemberEpoch(AlpacaError):
    """The member's epoch is not its current one; it is to heartbeat and try again."""


class GroupSubscribedToTopic(AlpacaError):
    """Offsets of a topic cannot be deleted while members of the group consume it."""


class OffsetMetadataTooLarge(AlpacaError):
    """The text stored with a committed offset is longer than allowed."""


class UnstableOffsetCommit(AlpacaError):
    """A transaction that commits this partition's offset is still open."""


class ProducerFenced(AlpacaError):
    """The transactional id belongs to a newer instance, or its transaction timed out.

    FencedProducer is what a partition says to a batch; this is what the coordinator says.
    """


class InvalidProducerIdMapping(AlpacaError):
    """The transactional id is unknown or belongs to another producer id."""


class InvalidTransactionState(AlpacaError):
    """The transaction is not in a state that allows what is asked for."""


class ConcurrentTransactions(AlpacaError):
    """The transactional id's last transaction is not complete yet; to be tried again."""


class InvalidTransactionTimeout(AlpacaError):
    """The transaction timeout is not positive or larger than the broker allows."""


class TransactionalIdNotFound(AlpacaError):
    """No such transactional id."""


class TransactionAbortable(AlpacaError):
    """The producer can go on only by aborting its transaction."""


class FencedMemberEpoch(AlpacaError):
    """The group has moved this member on or away; it is to give up what it holds and join again."""


class UnreleasedInstanceId(AlpacaError):
    """Another process is an active member under this group instance id."""


class UnsupportedAssignor(AlpacaError):
    """The broker has no assignor of this name."""


class InvalidRegularExpression(AlpacaError):
    """The pattern of a subscription is not a regular expression we take."""


class CoordinatorLoading(AlpacaError):
    """The coordinator is rebuilding its state; ask again soon."""


class CoordinatorUnavailable(AlpacaError):
    """The coordinator could not keep its records; what was asked may or may not have happened."""


class CorruptState(AlpacaError):
    """A stored record of a state machine cannot be read."""


class InvalidLane(AlpacaError):
    """No priority lane has this name."""


class InvalidReceipt(AlpacaError):
    """What should be a receipt handle is none of ours."""


class StaleReceipt(AlpacaError):
    """The lease of this delivery has ended: it expired, was settled, or the message was delivered again."""


class NotAcquired(AlpacaError):
    """The message is not leased to the consumer that wants to settle it."""


class TooManyInFlight(AlpacaError):
    """The consumer or the queue holds as many unacknowledged messages as it may."""


class TooManyWaiting(AlpacaError):
    """As many receives wait for messages as the broker allows."""


class InvalidDelay(AlpacaError):
    """The delay or the time of delivery is not one the broker accepts."""


class UnknownDelayed(AlpacaError):
    """No message with this id is waiting for its time: it was delivered, cancelled, or never there."""


class TooManyDelayed(AlpacaError):
    """As many messages wait for their time as the broker allows."""
