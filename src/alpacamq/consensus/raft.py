"""Raft for the metadata log: elections, replication, membership. No I/O, no clock.

The host calls inputs (`step`, `tick`, `propose`, `flushed`, …) and then performs what `take_ready` returns.
Nothing that counts leaves before the write that it depends on is durable: a vote, the acknowledgement of
entries, a request for votes. The leader counts itself by its durable log, but sends entries before.

Replication is stop-and-wait: one message with entries is under way to each node, and everything proposed
meanwhile goes into the next. Voters are an entry of the log and in force once appended; they change by one
voter at a time, so that any two majorities share a node. Other nodes are observers, and never counted.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from alpacamq.model.errors import InvalidVoters, NotController, RateLimited
from alpacamq.model.ids import BrokerId

from .log import RaftLog
from .messages import (
    NO_INDEX,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CampaignNow,
    Entry,
    EntryKind,
    HardState,
    Hello,
    Message,
    PeerStatus,
    PreVoteRequest,
    PreVoteResponse,
    RaftSettings,
    Ready,
    Role,
    RoleChange,
    SendSnapshot,
    Snapshot,
    Voter,
    VoteRequest,
    VoteResponse,
    Voters,
    encode_voters,
)

# An append without an answer is sent again, an observer without a sign of life is forgotten.
RESEND_HEARTBEATS = 2
OBSERVER_ELECTIONS = 10


@dataclass(slots=True)
class Peer:
    """The leader's knowledge of another node. Its durable log equals the leader's up to `match_index`."""

    id: BrokerId
    directory: UUID
    next_index: int
    heard_ms: int
    match_index: int = NO_INDEX
    # The last entry under way, and the time until which nothing but heartbeats is sent.
    pending_index: int | None = None
    wait_until_ms: int = 0
    commit_sent: int = NO_INDEX
    snapshot_index: int | None = None
    is_heartbeat_due: bool = False


@dataclass(slots=True)
class Transfer:
    """A transfer of leadership in progress."""

    to: BrokerId
    deadline_ms: int
    is_sent: bool = False


class Raft:
    """One node's part in the metadata log."""

    def __init__(
        self,
        node_id: BrokerId,
        directory: UUID,
        *,
        hard_state: HardState,
        snapshot: Snapshot,
        entries: Sequence[Entry],
        settings: RaftSettings,
        random: Callable[[], float],
        now_ms: int,
        contacts: Iterable[BrokerId] = (),
    ) -> None:
        """Start from what was recovered.

        `entries` are all entries in the stored log, also those that the snapshot covers. `random` returns
        numbers from 0 up to 1. `contacts` are nodes to ask for a leader, besides the voters.
        """
        self.node_id = node_id
        self.me = Voter(node_id, directory)
        self.role = Role.FOLLOWER
        self.leader: BrokerId | None = None
        self.commit_index = snapshot.index
        self._settings = settings
        self._random = random
        self._now_ms = now_ms
        self._contacts = frozenset(contacts) - {node_id}
        self._log = _recovered_log(snapshot, entries)
        # Entries of a term can become durable before the term itself does.
        if self._log.last_term > hard_state.term:
            self.hard_state = HardState(self._log.last_term)
        else:
            self.hard_state = hard_state
        self._written_state = self._durable_state = hard_state
        self._write = 0
        self._applied = snapshot.index
        self._messages: list[Message] = []
        self._snapshots: list[SendSnapshot] = []
        self._reported = RoleChange(self.role, self.hard_state.term, None)

        # Follower: the prefix that equals the leader's log in this term, and what it waits to hear.
        self._matched_index = NO_INDEX
        self._is_ack_due = False
        self._vote_due: VoteResponse | None = None
        self._leader_heard_ms: int | None = None
        self._election_deadline_ms = now_ms

        # Candidate.
        self._granted: set[BrokerId] = set()
        self._is_transfer = False
        self._are_votes_requested = False

        # Leader.
        self._peers: dict[BrokerId, Peer] = {}
        self._heartbeat_deadline_ms = now_ms
        self._first_index_of_term = NO_INDEX
        self._transfer: Transfer | None = None
        self._uncommitted_bytes = 0

        if not self._is_sole_voter():  # which has nobody to wait for
            self._restart_election_timer()

    # What the host may ask.

    @property
    def term(self) -> int:
        return self.hard_state.term

    @property
    def voters(self) -> Voters:
        """The voters in force, committed or not."""
        return self._log.voters

    @property
    def snapshot(self) -> Snapshot:
        return self._log.snapshot

    @property
    def last_index(self) -> int:
        return self._log.last_index

    @property
    def flushed_index(self) -> int:
        return self._log.flushed_index

    @property
    def log_bytes(self) -> int:
        """Bytes of the entries in memory; the host compacts when there are too many."""
        return self._log.byte_count

    @property
    def is_voter(self) -> bool:
        return self.me in self._log.voters

    @property
    def is_established(self) -> bool:
        """Whether this node leads and has committed an entry of its term, and so knows all committed ones."""
        return self.role is Role.LEADER and self.commit_index >= self._first_index_of_term

    @property
    def next_deadline_ms(self) -> int:
        """The time at which `tick` has something to do."""
        return self._heartbeat_deadline_ms if self.role is Role.LEADER else self._election_deadline_ms

    def peers(self) -> list[PeerStatus]:
        """Return what the leader knows of the other nodes; nothing on other nodes."""
        voters = self._log.voters
        return [
            PeerStatus(
                peer.id,
                peer.directory,
                Voter(peer.id, peer.directory) in voters,
                peer.match_index,
                peer.heard_ms,
                peer.snapshot_index is not None,
            )
            for peer in self._peers.values()
        ]

    # Inputs.

    def tick(self, now_ms: int) -> None:
        """Do what is due by `now_ms`."""
        self._advance_clock(now_ms)
        if self.role is Role.LEADER:
            if self._now_ms >= self._heartbeat_deadline_ms:
                self._lead_on()
        elif self._now_ms >= self._election_deadline_ms:
            self._seek_leader()

    def step(self, message: Message, now_ms: int) -> None:
        """Take a message of another node."""
        self._advance_clock(now_ms)
        if message.to != self.node_id or message.sender == self.node_id:
            return
        # Neither moves the term: the one asks before a term begins, the other is from outside the voters.
        if isinstance(message, PreVoteRequest):
            self._on_pre_vote_request(message)
            return
        if isinstance(message, Hello):
            if self.role is Role.LEADER:
                self.add_observer(message.sender, message.directory, now_ms)
            return
        if message.term > self.term:
            if isinstance(message, VoteRequest) and self._must_keep_leader(message):
                return
            self._become_follower(message.term, None)
        elif message.term < self.term:
            self._refuse_old_term(message)
            return
        match message:
            case AppendRequest():
                self._on_append_request(message)
            case AppendAccepted():
                self._on_append_accepted(message)
            case AppendRejected():
                self._on_append_rejected(message)
            case VoteRequest():
                self._on_vote_request(message)
            case VoteResponse():
                self._on_vote_response(message)
            case PreVoteResponse():
                self._on_pre_vote_response(message)
            case CampaignNow():
                if self._may_campaign():
                    self._campaign(is_transfer=True)

    def propose(self, payload: bytes, now_ms: int) -> int:
        """Append an entry and return its index.

        It is committed once an entry of this index and this term is handed out. If another entry is, or the
        node ceases to lead before, the fate of the proposal is unknown.
        """
        self._advance_clock(now_ms)
        self._check_leading()
        if self._uncommitted_bytes + len(payload) > self._settings.max_uncommitted_bytes:
            raise RateLimited("too many metadata changes wait to be committed")
        self._uncommitted_bytes += len(payload)
        return self._append(EntryKind.DATA, payload)

    def change_voters(self, voters: Iterable[Voter], now_ms: int) -> int:
        """Append a change of voters by one, and return its index. In force at once, committed later."""
        self._advance_clock(now_ms)
        self._check_leading()
        voters = tuple(sorted(voters))
        if not self.is_established:
            raise InvalidVoters("the controller has not committed an entry of its term yet")
        if not self._is_voter_change_committed():
            raise InvalidVoters("another change of voters is in progress")
        if not _differ_by_one(self._log.voters, voters):
            raise InvalidVoters("voters change by one at a time")
        for voter in voters:
            if voter not in self._log.voters and not self._is_caught_up(voter):
                raise InvalidVoters(f"node {voter.id} has not caught up with the metadata log")
        if not self._has_active_quorum(voters):
            raise InvalidVoters("a majority of the new voters would not be reachable")
        return self._append(EntryKind.VOTERS, encode_voters(voters))

    def add_observer(self, node_id: BrokerId, directory: UUID, now_ms: int) -> None:
        """Replicate to a node, if this node leads. Also when it comes back with another directory."""
        self._advance_clock(now_ms)
        if self.role is not Role.LEADER or node_id == self.node_id:
            return
        peer = self._peers.get(node_id)
        if peer is None and len(self._peers) >= self._settings.max_observers + len(self._log.voters):
            return
        if peer is None or peer.directory != directory:
            peer = self._peers[node_id] = self._new_peer(Voter(node_id, directory))
        # Not a sign that it hears us: only answers to appends count for the majority.
        peer.is_heartbeat_due = True

    def transfer_leadership(self, to: BrokerId | None, now_ms: int) -> None:
        """Hand leadership over to a voter, the most advanced one if None. Proposals are refused meanwhile.

        The transfer is abandoned if the voter does not take over within an election timeout.
        """
        self._advance_clock(now_ms)
        self._check_leading()
        target = self._best_successor() if to is None else to
        if target is None or target == self.node_id or target not in {voter.id for voter in self.voters}:
            raise InvalidVoters("leadership can be transferred to another voter only")
        self._transfer = Transfer(target, self._now_ms + self._settings.election_ms)
        self._continue_transfer()

    def set_contacts(self, contacts: Iterable[BrokerId]) -> None:
        """Replace the nodes to ask for a leader, besides the voters."""
        self._contacts = frozenset(contacts) - {self.node_id}

    def flushed(self, write: int, now_ms: int) -> None:
        """Note that the writes of all Readys up to number `write` are durable."""
        self._advance_clock(now_ms)
        hard_state = self._log.finish_writes(write)
        if hard_state is None:
            return
        self._durable_state = hard_state
        if self._vote_due is not None and self._is_vote_durable():
            self._messages.append(self._vote_due)
            self._vote_due = None
        if self.role is Role.CANDIDATE and not self._are_votes_requested and self._is_vote_durable():
            self._request_votes()
        if self.role is Role.LEADER:
            self._advance_commit()
        elif self._is_ack_due:
            self._acknowledge()

    def snapshot_at(self, index: int) -> Snapshot:
        """Return the position of a snapshot that contains all entries handed out up to `index`."""
        assert self._log.snapshot.index <= index <= self._applied
        return self._log.snapshot_at(index)

    def compact(self, index: int) -> None:
        """Drop old entries: the host has a durable snapshot at `index`."""
        if index > self._log.snapshot.index:
            self._log.compact(self.snapshot_at(index), self._settings.trailing_entries)

    def install_snapshot(self, snapshot: Snapshot, now_ms: int) -> bool:
        """Take a snapshot that was received completely; its bytes are durable, but not yet in use.

        Returns whether the next Ready installs it. Otherwise this node already has what it contains.
        """
        self._advance_clock(now_ms)
        if snapshot.index <= self.commit_index:
            return False
        is_new = not self._log.has(snapshot.index, snapshot.term)
        if snapshot.term > self.term:
            self._become_follower(snapshot.term, None)
        if is_new:
            assert self.role is not Role.LEADER, "a leader has all committed entries"
            self._log.restart_after(snapshot)
            self._applied = snapshot.index
        self.commit_index = snapshot.index
        # What is committed is in the log of every later leader.
        self._matched_index = max(self._matched_index, snapshot.index)
        self._is_ack_due = True
        return is_new

    def snapshot_sent(self, to: BrokerId, index: int, now_ms: int, *, installed: bool) -> None:
        """Note the end of a SendSnapshot: the node has installed it, or the attempt failed."""
        self._advance_clock(now_ms)
        peer = self._peers.get(to)
        if self.role is not Role.LEADER or peer is None or peer.snapshot_index != index:
            return
        peer.snapshot_index = None
        if installed:
            peer.next_index = max(peer.next_index, index + 1)
        else:
            peer.wait_until_ms = self._resend_ms()

    def take_ready(self) -> Ready:
        """Return what is to be done, once."""
        if self.role is Role.LEADER:
            self._replicate()
        log = self._log
        hard_state = self.hard_state if self.hard_state != self._written_state else None
        install, truncate_from, entries = log.install, log.truncate_from, log.unwritten()
        write = None
        if hard_state is not None or install is not None or truncate_from is not None or entries:
            self._write = write = self._write + 1
            self._written_state = self.hard_state
            log.begin_write(write, self.hard_state)
        committed: Sequence[Entry] = ()
        end = min(self.commit_index, log.flushed_index)
        if end > self._applied:
            committed = log.between(self._applied + 1, end)
            self._applied = end
        role = RoleChange(self.role, self.term, self.leader)
        changed, self._reported = role != self._reported, role
        messages, self._messages = self._messages, []
        snapshots, self._snapshots = self._snapshots, []
        return Ready(
            write,
            install,
            hard_state,
            truncate_from,
            entries,
            messages,
            committed,
            snapshots,
            role if changed else None,
        )

    # Rules.

    def _is_log_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log with this last entry is at least as complete as ours."""
        return (last_term, last_index) >= (self._log.last_term, self._log.last_index)

    def _may_vote_for(self, request: VoteRequest) -> bool:
        return (
            self._is_addressed(request.to_directory)
            and self._knows_voters()
            and self.hard_state.voted_for in (None, request.sender)
            and self._is_log_up_to_date(request.last_index, request.last_term)
        )

    def _may_pre_vote_for(self, request: PreVoteRequest) -> bool:
        return (
            self._is_addressed(request.to_directory)
            and self._knows_voters()
            and request.term >= self.term
            and not self._has_current_leader()
            and self._is_log_up_to_date(request.last_index, request.last_term)
        )

    def _is_addressed(self, directory: UUID) -> bool:
        """Whether the voter that a candidate counts is this one. Its log may not tell yet that it votes."""
        return directory == self.me.directory

    def _knows_voters(self) -> bool:
        """Whether this node is part of a cluster. An empty node never votes."""
        return bool(self._log.voters)

    def _has_current_leader(self) -> bool:
        """Whether a leader was heard within an election timeout. A leader that lost its majority resigns."""
        if self.role is Role.LEADER:
            return True
        heard_ms = self._leader_heard_ms
        return heard_ms is not None and self._now_ms - heard_ms < self._settings.election_ms

    def _must_keep_leader(self, request: VoteRequest) -> bool:
        """Whether to ignore a campaign, even of a higher term, because the leader works."""
        return not request.is_transfer and self._has_current_leader()

    def _may_campaign(self) -> bool:
        """Whether this node votes, or will do so again if its removal is not committed.

        The removed node can be the only one that has the entry which removes it.
        """
        return self.is_voter or (
            not self._is_voter_change_committed() and self.me in self._log.previous_voters
        )

    def _is_vote_durable(self) -> bool:
        return self._durable_state == self.hard_state

    def _is_term_durable(self) -> bool:
        """Whether this node, after a crash, would still refuse leaders of earlier terms."""
        return self._durable_state.term == self.term

    def _may_commit(self, index: int) -> bool:
        """Whether an entry that a majority has is committed: in the leader's own term only.

        An entry of an earlier term can be replaced even if a majority has it.
        """
        return index > self.commit_index and self._log.term_at(index) == self.term

    def _is_voter_change_committed(self) -> bool:
        return self._log.voters_index <= self.commit_index

    def _is_caught_up(self, voter: Voter) -> bool:
        peer = self._peers.get(voter.id)
        return (
            peer is not None
            and peer.directory == voter.directory
            and peer.match_index + self._settings.max_catch_up_entries >= self._log.last_index
        )

    def _has_active_quorum(self, voters: Voters) -> bool:
        """Whether the leader heard from a majority within an election timeout."""
        return _is_majority(sum(map(self._is_active, voters)), voters)

    def _is_active(self, voter: Voter) -> bool:
        if voter == self.me:
            return True
        peer = self._peers.get(voter.id)
        return (
            peer is not None
            and peer.directory == voter.directory
            and self._now_ms - peer.heard_ms < self._settings.election_ms
        )

    def _durable_index_of(self, voter: Voter) -> int:
        """Return how far the durable log of a voter is known to equal the leader's."""
        if voter == self.me:
            return self._log.flushed_index
        peer = self._peers.get(voter.id)
        return peer.match_index if peer is not None and peer.directory == voter.directory else NO_INDEX

    def _is_sole_voter(self) -> bool:
        return self._log.voters == (self.me,)

    # Elections.

    def _advance_clock(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)

    def _restart_election_timer(self) -> None:
        timeout_ms = self._settings.election_ms
        self._election_deadline_ms = self._now_ms + timeout_ms + int(self._random() * timeout_ms)

    def _become_follower(self, term: int, leader: BrokerId | None) -> None:
        if term > self.term:
            self.hard_state = HardState(term)
            self._matched_index = NO_INDEX
            self._is_ack_due = False
            self._vote_due = None
            self._leader_heard_ms = None
        if self.role is not Role.FOLLOWER:
            self._restart_election_timer()
        self.role = Role.FOLLOWER
        self.leader = leader
        self._peers = {}
        self._transfer = None

    def _seek_leader(self) -> None:
        """Run for leader, or ask for one as an observer."""
        self._restart_election_timer()
        self.leader = None
        asked = set(self._contacts)
        if self._may_campaign():
            asked -= {voter.id for voter in self._log.voters}
            self._pre_campaign()
        else:
            asked |= {voter.id for voter in self._log.voters} - {self.node_id}
        for node in sorted(asked):
            self._messages.append(
                Hello(term=self.term, sender=self.node_id, to=node, directory=self.me.directory)
            )

    def _pre_campaign(self) -> None:
        self.role = Role.PRE_CANDIDATE
        self._granted = {self.node_id} if self.is_voter else set()
        if self._is_elected():
            self._campaign(is_transfer=False)
            return
        for voter in self._other_voters():
            self._messages.append(
                PreVoteRequest(
                    term=self.term,
                    sender=self.node_id,
                    to=voter.id,
                    directory=self.me.directory,
                    to_directory=voter.directory,
                    last_index=self._log.last_index,
                    last_term=self._log.last_term,
                )
            )

    def _campaign(self, *, is_transfer: bool) -> None:
        """Begin a term. Votes are requested, and our own counts, once that is durable."""
        self._become_follower(self.term + 1, None)
        self.role = Role.CANDIDATE
        self.hard_state = HardState(self.term, self.node_id)
        self._granted = set()
        self._is_transfer = is_transfer
        self._are_votes_requested = False
        self._restart_election_timer()

    def _request_votes(self) -> None:
        self._are_votes_requested = True
        if self.is_voter:
            self._granted.add(self.node_id)
        for voter in self._other_voters():
            self._messages.append(
                VoteRequest(
                    term=self.term,
                    sender=self.node_id,
                    to=voter.id,
                    to_directory=voter.directory,
                    last_index=self._log.last_index,
                    last_term=self._log.last_term,
                    is_transfer=self._is_transfer,
                )
            )
        if self._is_elected():
            self._become_leader()

    def _is_elected(self) -> bool:
        return _is_majority(sum(voter.id in self._granted for voter in self._log.voters), self._log.voters)

    def _on_pre_vote_request(self, request: PreVoteRequest) -> None:
        if self.role is Role.LEADER and request.sender not in self._peers:
            # A node that was removed while it was away: it learns so from the log.
            self.add_observer(request.sender, request.directory, self._now_ms)
        self._messages.append(
            PreVoteResponse(
                term=self.term,
                sender=self.node_id,
                to=request.sender,
                campaign_term=request.term + 1,
                granted=self._may_pre_vote_for(request),
            )
        )

    def _on_pre_vote_response(self, response: PreVoteResponse) -> None:
        if self.role is Role.PRE_CANDIDATE and response.granted and response.campaign_term == self.term + 1:
            self._granted.add(response.sender)
            if self._is_elected():
                self._campaign(is_transfer=False)

    def _on_vote_request(self, request: VoteRequest) -> None:
        granted = self._may_vote_for(request)
        response = VoteResponse(term=self.term, sender=self.node_id, to=request.sender, granted=granted)
        if granted:
            self.hard_state = HardState(self.term, request.sender)
            self._restart_election_timer()
        if granted and not self._is_vote_durable():
            self._vote_due = response
        else:
            self._messages.append(response)

    def _on_vote_response(self, response: VoteResponse) -> None:
        if self.role is Role.CANDIDATE and response.granted:
            self._granted.add(response.sender)
            if self._is_elected():
                self._become_leader()

    def _refuse_old_term(self, message: Message) -> None:
        """Tell a sender that leads or campaigns in an earlier term about ours."""
        if isinstance(message, AppendRequest):
            self._reject_append(message)
        elif isinstance(message, VoteRequest):
            self._messages.append(
                VoteResponse(term=self.term, sender=self.node_id, to=message.sender, granted=False)
            )

    # Following.

    def _on_append_request(self, request: AppendRequest) -> None:
        assert self.role is not Role.LEADER, "one leader per term"
        if self.role is not Role.FOLLOWER or self.leader != request.sender:
            self._become_follower(self.term, request.sender)
        self._leader_heard_ms = self._now_ms
        self._restart_election_timer()
        log = self._log
        # What lies before the base is committed, and so equal.
        if request.prev_index >= log.base_index and not log.has(request.prev_index, request.prev_term):
            self._reject_append(request)
            return
        for entry in request.entries:
            if entry.index <= log.base_index or log.has(entry.index, entry.term):
                continue
            if entry.index <= log.last_index:
                assert entry.index > self.commit_index, "committed entries never change"
                log.truncate(entry.index)
            log.append(entry)
        end = request.prev_index + len(request.entries)
        self._matched_index = max(self._matched_index, end, self.commit_index)
        self.commit_index = max(self.commit_index, min(request.commit, end))
        self._is_ack_due = True
        if end <= log.flushed_index:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Tell the leader how much is durable here. Until all of it is, more will follow."""
        if self.leader is None or not self._is_term_durable():
            return
        match_index = min(self._matched_index, self._log.flushed_index)
        self._is_ack_due = match_index < self._matched_index
        self._messages.append(
            AppendAccepted(
                term=self.term,
                sender=self.node_id,
                to=self.leader,
                directory=self.me.directory,
                match_index=match_index,
            )
        )

    def _reject_append(self, request: AppendRequest) -> None:
        hint_index, hint_term = self._log.last_possible_match(request.prev_index, request.prev_term)
        self._messages.append(
            AppendRejected(
                term=self.term,
                sender=self.node_id,
                to=request.sender,
                directory=self.me.directory,
                prev_index=request.prev_index,
                hint_index=hint_index,
                hint_term=hint_term,
            )
        )

    # Leading.

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.node_id
        self._peers = {voter.id: self._new_peer(voter) for voter in self._other_voters()}
        self._heartbeat_deadline_ms = self._now_ms + self._settings.heartbeat_ms
        self._transfer = None
        self._uncommitted_bytes = 0
        self._first_index_of_term = self._append(EntryKind.EMPTY, b"")

    def _new_peer(self, voter: Voter) -> Peer:
        return Peer(voter.id, voter.directory, self._log.last_index + 1, self._now_ms)

    def _other_voters(self) -> list[Voter]:
        return [voter for voter in self._log.voters if voter.id != self.node_id]

    def _check_leading(self) -> None:
        if self.role is not Role.LEADER:
            raise NotController("this node is not the controller", self.leader)
        if self._transfer is not None:
            raise NotController("the controller is handing over to another node", self._transfer.to)

    def _append(self, kind: EntryKind, payload: bytes) -> int:
        index = self._log.last_index + 1
        self._log.append(Entry(index, self.term, kind, payload))
        return index

    def _lead_on(self) -> None:
        """Send heartbeats, unless a majority has been silent for too long."""
        if not self._has_active_quorum(self._log.voters):
            self._become_follower(self.term, None)
            return
        self._heartbeat_deadline_ms = self._now_ms + self._settings.heartbeat_ms
        if self._transfer is not None and self._now_ms >= self._transfer.deadline_ms:
            self._transfer = None
        forget_ms = self._now_ms - OBSERVER_ELECTIONS * self._settings.election_ms
        voter_ids = {voter.id for voter in self._log.voters}
        for peer in list(self._peers.values()):
            if peer.heard_ms < forget_ms and peer.id not in voter_ids:
                del self._peers[peer.id]
            peer.is_heartbeat_due = True

    def _replicate(self) -> None:
        """Send to each node what it lacks, if nothing is under way to it."""
        for peer in self._peers.values():
            if peer.snapshot_index is None and self._now_ms >= peer.wait_until_ms:
                if peer.next_index <= self._log.last_index:
                    self._send_entries(peer)
                elif peer.is_heartbeat_due or peer.commit_sent < min(self.commit_index, peer.match_index):
                    self._send_append(peer, peer.next_index - 1, ())
            if peer.is_heartbeat_due:
                prev = peer.match_index if self._log.term_at(peer.match_index) is not None else NO_INDEX
                self._send_append(peer, prev, ())

    def _send_entries(self, peer: Peer) -> None:
        if peer.next_index <= self._log.base_index:
            snapshot = self._log.snapshot
            peer.snapshot_index = snapshot.index
            self._snapshots.append(SendSnapshot(peer.id, snapshot.index, snapshot.term))
            return
        entries = self._log.batch_from(peer.next_index, self._settings.max_append_bytes)
        peer.pending_index = entries[-1].index
        peer.wait_until_ms = self._resend_ms()
        self._send_append(peer, peer.next_index - 1, entries)

    def _send_append(self, peer: Peer, prev_index: int, entries: tuple[Entry, ...]) -> None:
        prev_term = self._log.term_at(prev_index)
        assert prev_term is not None
        peer.is_heartbeat_due = False
        peer.commit_sent = min(self.commit_index, prev_index + len(entries))
        self._messages.append(
            AppendRequest(
                term=self.term,
                sender=self.node_id,
                to=peer.id,
                prev_index=prev_index,
                prev_term=prev_term,
                commit=self.commit_index,
                entries=entries,
            )
        )

    def _resend_ms(self) -> int:
        return self._now_ms + RESEND_HEARTBEATS * self._settings.heartbeat_ms

    def _heard_peer(self, message: AppendAccepted | AppendRejected) -> Peer | None:
        peer = self._peers.get(message.sender)
        if self.role is not Role.LEADER or peer is None:
            return None
        if peer.directory != message.directory:
            # It came back empty: what was known of it is void.
            self.add_observer(message.sender, message.directory, self._now_ms)
            return self._peers[message.sender]
        peer.heard_ms = self._now_ms
        return peer

    def _on_append_accepted(self, response: AppendAccepted) -> None:
        peer = self._heard_peer(response)
        if peer is None:
            return
        peer.match_index = max(peer.match_index, response.match_index)
        peer.next_index = max(peer.next_index, peer.match_index + 1)
        if peer.pending_index is not None and peer.match_index >= peer.pending_index:
            peer.pending_index = None
            peer.wait_until_ms = 0
        if peer.snapshot_index is not None and peer.match_index >= peer.snapshot_index:
            peer.snapshot_index = None
        self._advance_commit()
        self._continue_transfer()

    def _on_append_rejected(self, response: AppendRejected) -> None:
        peer = self._heard_peer(response)
        # Answers that arrive late say nothing about the append under way.
        if peer is None or response.prev_index != peer.next_index - 1:
            return
        if response.prev_index <= peer.match_index:
            return  # it lost what it had acknowledged; there is nothing to agree on
        possible, _ = self._log.last_possible_match(response.hint_index, response.hint_term)
        lower = min(possible, response.hint_index, response.prev_index - 1) + 1
        peer.next_index = max(peer.match_index + 1, lower)
        peer.pending_index = None
        peer.wait_until_ms = 0

    def _advance_commit(self) -> None:
        voters = self._log.voters
        durable = sorted(map(self._durable_index_of, voters), reverse=True)
        index = durable[len(voters) // 2]
        if not self._may_commit(index):
            return
        for entry in self._log.between(self.commit_index + 1, index):
            self._uncommitted_bytes = max(0, self._uncommitted_bytes - len(entry.payload))
        self.commit_index = index
        if self._is_voter_change_committed() and not self.is_voter:
            self._resign()

    def _resign(self) -> None:
        """Give up leadership after the removal of this node was committed."""
        self._replicate()
        successor = self._best_successor()
        if successor is not None:
            self._messages.append(CampaignNow(term=self.term, sender=self.node_id, to=successor))
        self._become_follower(self.term, None)

    def _best_successor(self) -> BrokerId | None:
        others = [voter for voter in self._other_voters() if self._is_active(voter)]
        best = max(others, key=self._durable_index_of, default=None)
        return None if best is None else best.id

    def _continue_transfer(self) -> None:
        transfer = self._transfer
        if transfer is None or transfer.is_sent:
            return
        peer = self._peers.get(transfer.to)
        if peer is not None and peer.match_index == self._log.last_index:
            transfer.is_sent = True
            self._messages.append(CampaignNow(term=self.term, sender=self.node_id, to=transfer.to))


def _is_majority(count: int, voters: Voters) -> bool:
    return count > len(voters) // 2


def _differ_by_one(old: Voters, new: Voters) -> bool:
    """Whether one voter is added or removed. Any two majorities then have a voter in common."""
    has_unique_ids = len({voter.id for voter in new}) == len(new)
    return bool(new) and has_unique_ids and len(set(old) ^ set(new)) == 1


def _recovered_log(snapshot: Snapshot, entries: Sequence[Entry]) -> RaftLog:
    """Return the stored log, or an empty one after the snapshot if the log does not lead up to it.

    A crash can come after a received snapshot was put in place, and before the old log was removed.
    """
    after = [entry for entry in entries if entry.index > snapshot.index]
    if _leads_up_to(snapshot, entries):
        return RaftLog(snapshot, after)
    log = RaftLog(snapshot, ())
    log.restart_after(snapshot)
    return log


def _leads_up_to(snapshot: Snapshot, entries: Sequence[Entry]) -> bool:
    if not entries or entries[0].index == snapshot.index + 1:
        return True
    position = snapshot.index - entries[0].index
    return 0 <= position < len(entries) and entries[position].term == snapshot.term
