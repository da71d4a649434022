"""Builds single Raft nodes in a given state, and talks to them."""

from collections.abc import Sequence

from alpacamq.consensus.messages import (
    NO_INDEX,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Message,
    PreVoteRequest,
    RaftSettings,
    Ready,
    Role,
    Snapshot,
    VoteRequest,
    VoteResponse,
    first_entry,
)
from alpacamq.consensus.raft import Raft
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Voters
from tests.consensus.raft_stage import SETTINGS, voter, voters_of

ONE, TWO, THREE, FOUR = map(BrokerId, (1, 2, 3, 4))
# The election timeout of nodes made here: random() is 0.5.
TIMEOUT_MS = 1500


def data(index: int, term: int, payload: bytes = b"x") -> Entry:
    return Entry(index, term, EntryKind.DATA, payload)


THREE_VOTERS = voters_of(1, 2, 3)


def log_of(*terms: int, voters: Voters = THREE_VOTERS) -> list[Entry]:
    """Return a log with entries of these terms after the first."""
    return [first_entry(voters), *(data(index, term) for index, term in enumerate(terms, start=2))]


def node(
    number: int = 1,
    entries: Sequence[Entry] | None = None,
    *,
    hard_state: HardState | None = None,
    snapshot: Snapshot | None = None,
    settings: RaftSettings = SETTINGS,
    contacts: Sequence[BrokerId] = (),
) -> Raft:
    """Return a node that starts at time 0 with what it wrote before, all of it durable."""
    stored = log_of() if entries is None else entries
    raft = Raft(
        BrokerId(number),
        voter(number).directory,
        hard_state=hard_state or HardState(stored[-1].term if stored else 0),
        snapshot=snapshot or Snapshot(),
        entries=stored,
        settings=settings,
        random=lambda: 0.5,
        now_ms=0,
        contacts=contacts,
    )
    flush(raft)
    return raft


def role(raft: Raft) -> Role:
    return raft.role


def flush(raft: Raft, now_ms: int = 0) -> list[Message]:
    """Make everything durable, and return what is sent by then."""
    sent: list[Message] = []
    while True:
        ready = raft.take_ready()
        sent += ready.messages
        if ready.write is None:
            return sent
        raft.flushed(ready.write, now_ms)


def committed(ready: Ready) -> list[int]:
    return [entry.index for entry in ready.committed]


def elected(raft: Raft, voters: Sequence[int] = (2,), now_ms: int = 0) -> Raft:
    """Let a node win an election at `now_ms`, as if the leader before had asked it to campaign."""
    raft._campaign(is_transfer=True)
    flush(raft, now_ms)
    for number in voters:
        raft.step(
            VoteResponse(term=raft.term, sender=BrokerId(number), to=raft.node_id, granted=True), now_ms
        )
    flush(raft, now_ms)
    return raft


def vote_request(
    term: int,
    last: tuple[int, int] = (1, 1),
    *,
    sender: BrokerId = TWO,
    to: int = 1,
    directory: int | None = None,
    is_transfer: bool = False,
) -> VoteRequest:
    """Return a request whose sender's log ends with (index, term)."""
    return VoteRequest(
        term=term,
        sender=sender,
        to=BrokerId(to),
        to_directory=voter(to, directory).directory,
        last_index=last[0],
        last_term=last[1],
        is_transfer=is_transfer,
    )


def pre_vote_request(
    term: int,
    last: tuple[int, int] = (1, 1),
    *,
    sender: BrokerId = TWO,
    to: int = 1,
    directory: int | None = None,
) -> PreVoteRequest:
    return PreVoteRequest(
        term=term,
        sender=sender,
        to=BrokerId(to),
        directory=voter(sender).directory,
        to_directory=voter(to, directory).directory,
        last_index=last[0],
        last_term=last[1],
    )


def append(
    term: int,
    prev: tuple[int, int],
    *entries: Entry,
    commit: int = NO_INDEX,
    sender: BrokerId = TWO,
    to: BrokerId = ONE,
) -> AppendRequest:
    return AppendRequest(
        term=term, sender=sender, to=to, prev_index=prev[0], prev_term=prev[1], commit=commit, entries=entries
    )


def accepted(raft: Raft, sender: BrokerId, match_index: int, directory: int | None = None) -> AppendAccepted:
    return AppendAccepted(
        term=raft.term,
        sender=sender,
        to=raft.node_id,
        directory=voter(sender, directory).directory,
        match_index=match_index,
    )


def rejected(raft: Raft, sender: BrokerId, prev_index: int, hint: tuple[int, int]) -> AppendRejected:
    return AppendRejected(
        term=raft.term,
        sender=sender,
        to=raft.node_id,
        directory=voter(sender).directory,
        prev_index=prev_index,
        hint_index=hint[0],
        hint_term=hint[1],
    )
