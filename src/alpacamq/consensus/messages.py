"""What Raft stores, sends, and hands to its host."""

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Voters

NO_INDEX = 0


class EntryKind(IntEnum):
    """The meaning of an entry's payload."""

    DATA = 0
    # Written by every new leader: entries of earlier terms are committed only below one of its own.
    EMPTY = 1
    VOTERS = 2


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log. Equal index and term mean equal payload, and equal entries before it."""

    index: int
    term: int
    kind: EntryKind
    payload: bytes


class HardState(NamedTuple):
    """What a node must not forget: its term, and the node that it voted for in it."""

    term: int = 0
    voted_for: BrokerId | None = None


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The position of a snapshot in the log, and the voters there. The host holds its bytes.

    Without arguments, the start of every log. No voters are known there: see `first_entry`.
    """

    index: int = NO_INDEX
    term: int = 0
    voters: Voters = ()


class Role(Enum):
    """What a node does in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


def encode_voters(voters: Voters) -> bytes:
    """Encode voters as the payload of an entry."""
    return msgspec.msgpack.encode(voters)


def decode_voters(payload: bytes) -> Voters:
    """Decode the payload of an entry of kind VOTERS."""
    return msgspec.msgpack.decode(payload, type=Voters)


def first_entry(voters: Voters) -> Entry:
    """Return the entry with which a new cluster begins, the same on each of its first voters.

    It is stored before any of them starts. Nodes that join later get it like all others, so that a node
    without voters is one without a log.
    """
    return Entry(NO_INDEX + 1, 1, EntryKind.VOTERS, encode_voters(voters))


def is_majority(count: int, voters: Voters) -> bool:
    return count > len(voters) // 2


class RaftMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message between two nodes, in the sender's term."""

    term: int
    sender: BrokerId
    to: BrokerId


class PreVoteRequest(RaftMessage, frozen=True, kw_only=True, tag="pre-vote"):
    """Asks whether a vote would be given in the next term, without starting it.

    A node that was cut off would otherwise return with a higher term and depose a leader that works.
    """

    directory: UUID
    to_directory: UUID
    last_index: int
    last_term: int


class PreVoteResponse(RaftMessage, frozen=True, kw_only=True, tag="pre-vote-response"):
    """Answers a pre-vote for the term `campaign_term`."""

    campaign_term: int
    granted: bool


class VoteRequest(RaftMessage, frozen=True, kw_only=True, tag="vote"):
    """Asks for a vote in the sender's term. `is_transfer`: the leader itself asked the sender to run."""

    to_directory: UUID
    last_index: int
    last_term: int
    is_transfer: bool = False


class VoteResponse(RaftMessage, frozen=True, kw_only=True, tag="vote-response"):
    """Answers a vote. A granted vote is sent once it is durable."""

    granted: bool


class AppendRequest(RaftMessage, frozen=True, kw_only=True, tag="append"):
    """Carries entries that follow (`prev_index`, `prev_term`), and the commit index. Also the heartbeat."""

    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...] = ()


class AppendAccepted(RaftMessage, frozen=True, kw_only=True, tag="append-accepted"):
    """Says that the sender's durable log equals the leader's up to `match_index`."""

    directory: UUID
    match_index: int


class AppendRejected(RaftMessage, frozen=True, kw_only=True, tag="append-rejected"):
    """Says that the sender's log has no entry (`prev_index`, `prev_term`) as the append required.

    The logs can be equal at most up to `hint_index`, where the sender has an entry of `hint_term`.
    """

    directory: UUID
    prev_index: int
    hint_index: int
    hint_term: int


class Hello(RaftMessage, frozen=True, kw_only=True, tag="hello"):
    """Asks the leader to replicate to the sender; other nodes ignore it."""

    directory: UUID


class CampaignNow(RaftMessage, frozen=True, kw_only=True, tag="campaign-now"):
    """Asks a caught-up voter to take over leadership at once."""


Message = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendAccepted
    | AppendRejected
    | Hello
    | CampaignNow
)


class SendSnapshot(msgspec.Struct, frozen=True):
    """Effect: stream the snapshot to a node whose next entry is no longer in the log.

    Always answered with `Raft.snapshot_sent`.
    """

    to: BrokerId
    index: int
    term: int


class RoleChange(NamedTuple):
    """The node's role, term and known leader, after at least one of them changed."""

    role: Role
    term: int
    leader: BrokerId | None


class Ready(NamedTuple):
    """What the host has to do. Order matters only among the writes.

    Writes: `install`, `hard_state`, `truncate_from`, `entries`, in this order. Once all of them are durable,
    the host calls `Raft.flushed(write)`. Writes of several Readys are made in order, and may share an fsync.

    Messages may be sent at once: Raft holds back those that depend on a write. They may be lost, duplicated
    and reordered. Committed entries are durable here, and handed out once, in order.
    """

    # Number of the writes; None if there is nothing to write.
    write: int | None
    # The received snapshot becomes the start of the log. All stored entries go, and the state is its state.
    install: Snapshot | None
    hard_state: HardState | None
    # Remove the stored entries from this index on.
    truncate_from: int | None
    entries: Sequence[Entry]
    messages: Sequence[Message]
    committed: Sequence[Entry]
    snapshots: Sequence[SendSnapshot]
    role: RoleChange | None


class PeerStatus(NamedTuple):
    """The leader's view of another node."""

    id: BrokerId
    directory: UUID
    is_voter: bool
    match_index: int
    heard_ms: int
    is_receiving_snapshot: bool


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Timing and limits. Elections begin after a random time between one and two `election_ms`."""

    election_ms: int = 1000
    heartbeat_ms: int = 200
    max_append_bytes: int = 1 << 20
    # Proposals above this are refused, so that a leader without a majority does not fill its memory.
    max_uncommitted_bytes: int = 64 << 20
    # Entries kept before a snapshot, for followers that are a little behind.
    trailing_entries: int = 1000
    # A node becomes a voter when at most so many entries behind.
    max_catch_up_entries: int = 100
    max_observers: int = 1000
