"""Commands to the controller, and their replies.

Any node forwards a command as msgpack to the controller: `encode` and `decode`; and returns its reply as
`encode_reply` and `decode_reply`. A command that fails as a whole raises an AlpacaError; one for many
partitions has a result, with a possible `Failure`, for each.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Generic, TypeVar, get_args
from uuid import UUID

import msgspec

from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import BrokerId, TopicId
from alpacamq.model.state_machine import Request
from alpacamq.model.topics import Topic
from alpacamq.security.acls import Acl, AclFilter
from alpacamq.security.api_keys import ApiKey
from alpacamq.security.delegation_tokens import DelegationToken
from alpacamq.security.quotas import QuotaEdit
from alpacamq.security.scram import Credential, Mechanism
from alpacamq.security.tenants import Member, Tenant, TenantStatus

from .brokers import NO_EPOCH, BrokerRegistration, Endpoint, FeatureRange
from .partition_state import PartitionId, PartitionState, Replicas
from .topics import BY_DEFAULT, SettingEdit

R = TypeVar("R")


# Partitions that one command names at most: the controller decides on all of them in one turn.
MAX_NAMED_PARTITIONS = 1000
# Replicas that a command creates at most: they are one entry of the metadata log.
MAX_NEW_REPLICAS = 100_000
# Users, access rules or quotas that one command changes at most.
MAX_SECURITY_CHANGES = 10_000


class Command(Request[R], Generic[R], frozen=True, kw_only=True):
    """A request to the controller, of which there is one."""

    @property
    def routing_key(self) -> str:
        return ""


class Done(msgspec.Struct, frozen=True):
    """The reply to a command that returns nothing."""


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An AlpacaError as a value."""

    error: str
    reason: str

    @staticmethod
    def of(error: AlpacaError) -> "Failure":
        return Failure(type(error).__name__, str(error))

    def to_error(self) -> AlpacaError:
        """Return the error; its base class if this version does not know it."""
        return _error_types().get(self.error, AlpacaError)(self.reason)


@cache
def _error_types() -> Mapping[str, Callable[[str], AlpacaError]]:
    def subclasses(base: type[AlpacaError]) -> Iterator[type[AlpacaError]]:
        for each in base.__subclasses__():
            yield each
            yield from subclasses(each)

    return {each.__name__: each for each in subclasses(AlpacaError)}


class PartitionResult(msgspec.Struct, frozen=True, array_like=True):
    """The result for one partition: its state, or why it did not change."""

    topic_id: TopicId | None
    index: int
    state: PartitionState | None = None
    failure: Failure | None = None


class PartitionResults(msgspec.Struct, frozen=True, array_like=True):
    """The results of a command for many partitions, in the order of the command."""

    results: tuple[PartitionResult, ...]


class NamedPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition as users name it."""

    topic: str
    index: int


class CreateTopic(Command[Topic], frozen=True, kw_only=True, tag="create-topic"):
    """Create a topic. The sender draws the id, so that a repeated command finds the topic it created.

    `assignments` gives the replicas of each partition. `may_collide` is for names that are not the user's
    choice. With `if_absent` the reply is the existing topic of that name, if there is one. Clients may
    not create internal topics.
    """

    name: str
    topic_id: TopicId
    partitions: int = BY_DEFAULT
    replication_factor: int = BY_DEFAULT
    assignments: tuple[Replicas, ...] = ()
    overrides: Mapping[str, str] = {}
    may_collide: bool = False
    if_absent: bool = False
    is_internal: bool = False
    dry_run: bool = False


class DeleteTopic(Command[Topic], frozen=True, kw_only=True, tag="delete-topic"):
    """Delete a topic, by its id as well if that is given: another one may have its name by now."""

    name: str
    topic_id: TopicId | None = None


class AddPartitions(Command[Topic], frozen=True, kw_only=True, tag="add-partitions"):
    """Add partitions so that there are `partitions`; `assignments` gives the replicas of the new ones."""

    name: str
    partitions: int
    assignments: tuple[Replicas, ...] = ()
    dry_run: bool = False


class ConfigureTopic(Command[Topic], frozen=True, kw_only=True, tag="configure-topic"):
    """Replace the overrides of a topic, or edit them one by one.

    Exactly one of `overrides` and `edits` is given. With `expected`, fails with InvalidUpdateVersion unless
    the overrides are those: for changes that the sender computes from them.
    """

    name: str
    overrides: Mapping[str, str] | None = None
    edits: tuple[SettingEdit, ...] | None = None
    expected: Mapping[str, str] | None = None
    dry_run: bool = False


class ConfigureBroker(Command[Done], frozen=True, kw_only=True, tag="configure-broker"):
    """Replace or edit the settings of a broker, by its id, or of all brokers, by an empty name."""

    name: str
    overrides: Mapping[str, str] | None = None
    edits: tuple[SettingEdit, ...] | None = None
    expected: Mapping[str, str] | None = None
    dry_run: bool = False


class ProducerIdBlock(msgspec.Struct, frozen=True, array_like=True):
    """A range of producer ids, reserved for one broker."""

    first: int
    count: int


class AllocateProducerIds(Command[ProducerIdBlock], frozen=True, kw_only=True, tag="allocate-producer-ids"):
    """Reserve a block of producer ids."""

    count: int


class RegisterBroker(Command[BrokerRegistration], frozen=True, kw_only=True, tag="register-broker"):
    """Register a broker that has started. Repeating it for the same incarnation changes nothing.

    `last_epoch` is the epoch of the last registration that is stored in the data directory: one that is older
    than the controller knows means a restored backup. A broker stores its epoch before it sends a heartbeat.
    `damaged` are the replicas whose recovery found records missing or damaged. `stopped_cleanly`: the
    process before this one stopped on request, so that nothing it had written was lost.
    """

    id: BrokerId
    incarnation_id: UUID
    directory_id: UUID
    last_epoch: int = NO_EPOCH
    rack: str = ""
    roles: tuple[str, ...] = ("broker",)
    endpoints: tuple[Endpoint, ...] = ()
    features: Mapping[str, FeatureRange] = {}
    software_version: str = ""
    damaged: tuple[PartitionId, ...] = ()
    stopped_cleanly: bool = False


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a broker as the controller sees it."""

    is_fenced: bool
    may_shut_down: bool
    # Whether it has applied the metadata from before its registration; it stays fenced until then.
    is_caught_up: bool
    cluster_time_ms: int


class Heartbeat(Command[HeartbeatReply], frozen=True, kw_only=True, tag="heartbeat"):
    """Extend a broker's session. `damaged` is the complete list; `clock_ms` the broker's wall clock.

    `is_disk_failing`: its disk has no room for more records, or cannot be read or written.
    """

    broker_id: BrokerId
    broker_epoch: int
    applied_index: int
    wants_shutdown: bool = False
    damaged: tuple[PartitionId, ...] = ()
    clock_ms: int = 0
    is_disk_failing: bool = False


class UnregisterBroker(Command[Done], frozen=True, kw_only=True, tag="unregister-broker"):
    """Forget a broker that does not run and has no replica that is needed."""

    broker_id: BrokerId


class IsrMember(msgspec.Struct, frozen=True, array_like=True):
    """A member of a proposed in-sync set, with the broker epoch in which it caught up."""

    broker_id: BrokerId
    broker_epoch: int


class IsrProposal(msgspec.Struct, frozen=True, array_like=True):
    """The in-sync set that the leader of a partition proposes, and the state it is based on."""

    topic_id: TopicId
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]


class AlterPartitions(Command[PartitionResults], frozen=True, kw_only=True, tag="alter-partitions"):
    """Change the in-sync sets of partitions that a broker leads."""

    broker_id: BrokerId
    broker_epoch: int
    proposals: tuple[IsrProposal, ...]


class ElectionKind(StrEnum):
    """Whether to elect the preferred replica, or any replica for a partition without a leader."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class ElectLeaders(Command[PartitionResults], frozen=True, kw_only=True, tag="elect-leaders"):
    """Elect leaders of these partitions; of those that need an election if there are none.

    At most MAX_NAMED_PARTITIONS at once.
    """

    kind: ElectionKind
    partitions: tuple[NamedPartition, ...] | None = None


class Reassignment(msgspec.Struct, frozen=True, array_like=True):
    """The new replicas of a partition; None cancels the reassignment in progress."""

    topic: str
    index: int
    replicas: Replicas | None


class Reassign(Command[PartitionResults], frozen=True, kw_only=True, tag="reassign"):
    """Begin or cancel reassignments, at most MAX_NAMED_PARTITIONS at once."""

    reassignments: tuple[Reassignment, ...]


class DrainReply(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas that a broker still has, and the partitions that it leads."""

    replicas: int
    leaders: int = 0


class DrainBroker(Command[DrainReply], frozen=True, kw_only=True, tag="drain-broker"):
    """Move all leaders and replicas off a broker, or stop doing so and cancel what is in progress.

    With `keeps_replicas` only the leaders move. Leaders and replicas do not come back until draining is
    cancelled.
    """

    broker_id: BrokerId
    is_draining: bool = True
    keeps_replicas: bool = False


class UpdateFeatures(Command[Done], frozen=True, kw_only=True, tag="update-features"):
    """Raise the levels of features that every broker supports."""

    levels: Mapping[str, int]
    dry_run: bool = False


class UserEdit(msgspec.Struct, frozen=True, array_like=True):
    """A credential of a user to set; None deletes it, and the user with the last one.

    A deletion without a mechanism deletes the user.
    """

    name: str
    mechanism: Mechanism | None
    credential: Credential | None = None


class EditResults(msgspec.Struct, frozen=True, array_like=True):
    """The failure of each part of a command, in its order; None for those that took effect."""

    failures: tuple[Failure | None, ...]


class AlterUsers(Command[EditResults], frozen=True, kw_only=True, tag="alter-users"):
    """Set or delete credentials of users, each on its own.

    `salt_secret` is drawn by the sender, and stored with the first user of the cluster.
    """

    edits: tuple[UserEdit, ...]
    salt_secret: bytes


class CreateAcls(Command[EditResults], frozen=True, kw_only=True, tag="create-acls"):
    """Add access rules, each on its own. One that exists changes nothing."""

    acls: tuple[Acl, ...]


class DeletedAcls(msgspec.Struct, frozen=True, array_like=True):
    """The access rules that each filter of a command removed."""

    matches: tuple[tuple[Acl, ...], ...]


class DeleteAcls(Command[DeletedAcls], frozen=True, kw_only=True, tag="delete-acls"):
    """Remove the access rules that match filters."""

    filters: tuple[AclFilter, ...]


class CreateApiKey(Command[ApiKey], frozen=True, kw_only=True, tag="create-api-key"):
    """Add an API key. The sender draws its id and secret, so that a repeated command finds it."""

    key: ApiKey


class RotateApiKey(Command[ApiKey], frozen=True, kw_only=True, tag="rotate-api-key"):
    """Add an API key, drawn by the sender, that replaces another; that one ends at `expires_ms`."""

    key_id: str
    key: ApiKey
    expires_ms: int


class DeleteApiKey(Command[ApiKey], frozen=True, kw_only=True, tag="delete-api-key"):
    """Delete an API key."""

    key_id: str


class CreateTenant(Command[Tenant], frozen=True, kw_only=True, tag="create-tenant"):
    """Add a tenant. Repeating it changes nothing."""

    tenant: Tenant


class AlterTenant(Command[Tenant], frozen=True, kw_only=True, tag="alter-tenant"):
    """Change what is given of a tenant. Limits that are not named stay; None removes one."""

    id: str
    status: TenantStatus | None = None
    reason: str | None = None
    description: str | None = None
    limits: Mapping[str, int | None] = {}


class DeleteTenant(Command[Tenant], frozen=True, kw_only=True, tag="delete-tenant"):
    """Delete a tenant that has no topics, with its members and rules."""

    id: str
    # Whether it must be disabled.
    is_disabled: bool = False


class AddMember(Command[Member], frozen=True, kw_only=True, tag="add-member"):
    """Make a principal a member of a tenant, or change whether it is an administrator."""

    member: Member


class RemoveMember(Command[Member], frozen=True, kw_only=True, tag="remove-member"):
    """Remove a principal from its tenant."""

    tenant: str
    principal: str


class AlterQuotas(Command[EditResults], frozen=True, kw_only=True, tag="alter-quotas"):
    """Set or remove quotas, those of each entity on their own."""

    edits: tuple[QuotaEdit, ...]
    dry_run: bool = False


class CreateDelegationToken(
    Command[DelegationToken], frozen=True, kw_only=True, tag="create-delegation-token"
):
    """Add a delegation token. The sender draws its id, so that a repeated command finds it."""

    id: str
    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    hmac_hash: str
    credentials: Mapping[Mechanism, Credential]
    max_lifetime_ms: int
    renew_ms: int


class RenewDelegationToken(Command[DelegationToken], frozen=True, kw_only=True, tag="renew-delegation-token"):
    """Extend the time of a token by `renew_ms` from now, for its owner or a renewer."""

    hmac_hash: str
    principal: str
    renew_ms: int


class ExpireDelegationToken(
    Command[DelegationToken], frozen=True, kw_only=True, tag="expire-delegation-token"
):
    """End a token in `expire_ms`, or at once if that is negative, for its owner or a renewer."""

    hmac_hash: str
    principal: str
    expire_ms: int


class EnableSessions(Command[Done], frozen=True, kw_only=True, tag="enable-sessions"):
    """Store the secret that signs the sessions of browsers, drawn by the sender, unless there is one."""

    secret: bytes


class EndSession(Command[Done], frozen=True, kw_only=True, tag="end-session"):
    """End a session of a browser that would end by itself in `remaining_ms`."""

    id: str
    user: str
    began_ms: int
    remaining_ms: int


class ReplicaProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a node has the metadata log; times by the controller's wall clock, -1 if not known."""

    node_id: BrokerId
    directory_id: UUID
    end_index: int
    last_contact_ms: int = -1


class QuorumStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata log as the controller sees it."""

    leader: BrokerId
    term: int
    commit_index: int
    voters: tuple[ReplicaProgress, ...]
    observers: tuple[ReplicaProgress, ...] = ()


class DescribeQuorum(Command[QuorumStatus], frozen=True, kw_only=True, tag="describe-quorum"):
    """Describe the nodes of the metadata log."""


class AddVoter(Command[Done], frozen=True, kw_only=True, tag="add-voter"):
    """Make a node that has caught up with the metadata log a voter."""

    node_id: BrokerId
    directory_id: UUID


class RemoveVoter(Command[Done], frozen=True, kw_only=True, tag="remove-voter"):
    """Remove a voter."""

    node_id: BrokerId
    directory_id: UUID


# Commands about the metadata log itself: answered by its leader, and not from the image.
QuorumCommand = DescribeQuorum | AddVoter | RemoveVoter

AnyCommand = (
    CreateTopic
    | DeleteTopic
    | AddPartitions
    | ConfigureTopic
    | ConfigureBroker
    | AllocateProducerIds
    | RegisterBroker
    | Heartbeat
    | UnregisterBroker
    | AlterPartitions
    | ElectLeaders
    | Reassign
    | DrainBroker
    | UpdateFeatures
    | AlterUsers
    | CreateAcls
    | DeleteAcls
    | CreateApiKey
    | RotateApiKey
    | DeleteApiKey
    | CreateTenant
    | AlterTenant
    | DeleteTenant
    | AddMember
    | RemoveMember
    | AlterQuotas
    | CreateDelegationToken
    | RenewDelegationToken
    | ExpireDelegationToken
    | EnableSessions
    | EndSession
    | DescribeQuorum
    | AddVoter
    | RemoveVoter
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command[Any]] = msgspec.msgpack.Decoder(AnyCommand)
_reply_types: Mapping[type, Any] = {
    command: get_args(command.__orig_bases__[0])[0] for command in get_args(AnyCommand)
}


def encode(command: Command[Any]) -> bytes:
    return _encoder.encode(command)


def decode(data: bytes | bytearray | memoryview) -> Command[Any]:
    """Decode a command. Raises msgspec.DecodeError."""
    return _decoder.decode(data)


def encode_reply(reply: object) -> bytes:
    return _encoder.encode(reply)


def decode_reply(command: Command[R], data: bytes | bytearray | memoryview) -> R:
    """Decode the reply to `command`. Raises msgspec.DecodeError."""
    reply: R = msgspec.msgpack.decode(data, type=_reply_types[type(command)])
    return reply
