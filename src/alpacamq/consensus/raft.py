"""Raft for the metadata log: elections, replication, membership. No I/O, no clock.

The host calls inputs (`step`, `tick`, `propose`, `flushed`, …) and then performs what `take_ready` returns.
Nothing that counts leaves before the write that it depends on is durable: a vote, the acknowledgement of
entries, a request for votes. The leader counts itself by its durable log, but sends entries before.

Voters are an entry of the log and in force once appended; they change by one voter at a time, so that any
two majorities share a node. What a leader does is in `leader.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from alpacamq.model.errors import InvalidVoters, NotController
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Voter, Voters

from .leader import Leader
from .log import RaftLog
from .messages import (
    NO_INDEX,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CampaignNow,
    Entry,
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
    VoteRequest,
    VoteResponse,
    is_majority,
)


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
        assert snapshot.index > NO_INDEX or not snapshot.voters, "the first voters are an entry"
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

        self._leading: Leader | None = None

        if not self._is_sole_voter():  # which need not wait for others
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
        return self._leading is not None and self.commit_index >= self._leading.first_index

    @property
    def next_deadline_ms(self) -> int:
        """The time at which `tick` has something to do."""
        leading = self._leading
        return self._election_deadline_ms if leading is None else leading.heartbeat_deadline_ms

    def peers(self) -> list[PeerStatus]:
        """Return what the leader knows of the other nodes; nothing on other nodes."""
        return [] if self._leading is None else self._leading.peers()

    # Inputs.

    def tick(self, now_ms: int) -> None:
        """Do what is due by `now_ms`."""
        self._advance_clock(now_ms)
        if self._leading is not None:
            if self._now_ms >= self._leading.heartbeat_deadline_ms:
                self._lead_on(self._leading)
        elif self._now_ms >= self._election_deadline_ms:
            self._seek_leader()

    def node_ended(self, node: BrokerId, now_ms: int) -> None:
        """Note that the process of a node has ended. If it led, an election begins without waiting for it.

        The voters that are left campaign one after the other: together they would split the votes.
        """
        self._advance_clock(now_ms)
        if self.leader != node:
            return
        self._leader_heard_ms = None
        left = sorted(voter.id for voter in self._log.voters if voter.id != node)
        if self.node_id in left:
            timeout_ms = self._settings.election_ms
            # The first waits a little, too: the others may not have noticed yet.
            delay_ms = timeout_ms // 10 + left.index(self.node_id) * timeout_ms // 2
            self._election_deadline_ms = min(self._election_deadline_ms, self._now_ms + delay_ms)

    def step(self, message: Message, now_ms: int) -> None:
        """Take a message of another node."""
        self._advance_clock(now_ms)
        if message.to != self.node_id or message.sender == self.node_id:
            return
        # Neither moves the term: the one asks before a term begins, the other may be no voter.
        if isinstance(message, PreVoteRequest):
            self._on_pre_vote_request(message)
            return
        if isinstance(message, Hello):
            self.add_observer(message.sender, message.directory, now_ms)
            return
        if message.term > self.term:
            if isinstance(message, VoteRequest) and self._must_keep_leader(message):
                return
            self._become_follower(message.term, None)
        elif message.term < self.term and not isinstance(message, PreVoteResponse):
            # A pre-vote is granted in an earlier term, for one that neither node is in.
            self._refuse_old_term(message)
            return
        match message:
            case AppendRequest():
                self._on_append_request(message)
            case AppendAccepted():
                if self._leading is not None:
                    self._leading.accepted(message, self._now_ms)
                    self._advance_commit(self._leading)
            case AppendRejected():
                if self._leading is not None:
                    self._leading.rejected(message, self._now_ms)
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
        return self._accepting_leader().propose(payload)

    def change_voters(self, voters: Iterable[Voter], now_ms: int) -> int:
        """Append a change of voters by one, and return its index. In force at once, committed later."""
        self._advance_clock(now_ms)
        leading = self._accepting_leader()
        if not self.is_established:
            raise InvalidVoters("the controller has not committed an entry of its term yet")
        if not self._is_voter_change_committed():
            raise InvalidVoters("another change of voters is in progress")
        return leading.change_voters(tuple(sorted(voters)), self._now_ms)

    def add_observer(self, node_id: BrokerId, directory: UUID, now_ms: int) -> None:
        """Replicate to a node, if this node leads. Also when it comes back with another directory."""
        self._advance_clock(now_ms)
        if self._leading is not None and node_id != self.node_id:
            self._leading.add_observer(Voter(node_id, directory), self._now_ms)

    def transfer_leadership(self, to: BrokerId | None, now_ms: int) -> None:
        """Hand leadership over to a voter, the most advanced one if None. Proposals are refused meanwhile.

        The transfer is abandoned if the voter does not take over within an election timeout.
        """
        self._advance_clock(now_ms)
        self._accepting_leader().begin_transfer(to, self._now_ms)

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
        if self._leading is not None:
            self._advance_commit(self._leading)
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
            assert self._leading is None, "a leader has all committed entries"
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
        if self._leading is not None:
            self._leading.snapshot_sent(to, index, self._now_ms, installed=installed)

    def take_ready(self) -> Ready:
        """Return what is to be done, once."""
        if self._leading is not None:
            self._leading.replicate(self.commit_index, self._now_ms)
            self._collect(self._leading)
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
        """Return whether a log with this last entry is at least as complete as ours."""
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
        """Return whether a candidate counts this node as a voter. Its own log may not say so yet."""
        return directory == self.me.directory

    def _knows_voters(self) -> bool:
        """Return whether this node is part of a cluster. An empty node never votes."""
        return bool(self._log.voters)

    def _has_current_leader(self) -> bool:
        """Return whether a leader was heard within an election timeout; one without a majority resigns."""
        if self._leading is not None:
            return True
        heard_ms = self._leader_heard_ms
        return heard_ms is not None and self._now_ms - heard_ms < self._settings.election_ms

    def _must_keep_leader(self, request: VoteRequest) -> bool:
        """Return whether to ignore a campaign, even of a higher term, because the leader works."""
        return not request.is_transfer and self._has_current_leader()

    def _may_campaign(self) -> bool:
        """Return whether this node votes, or will do so again if its removal is not committed.

        The removed node can be the only one that has the entry which removes it.
        """
        return self.is_voter or (
            not self._is_voter_change_committed() and self.me in self._log.previous_voters
        )

    def _is_vote_durable(self) -> bool:
        return self._durable_state == self.hard_state

    def _is_term_durable(self) -> bool:
        """Return whether this node, after a crash, would still refuse leaders of earlier terms."""
        return self._durable_state.term == self.term

    def _is_voter_change_committed(self) -> bool:
        return self._log.voters_index <= self.commit_index

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
        self._leading = None

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
        for voter in self._log.voters:
            if voter.id == self.node_id:
                continue
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
        for voter in self._log.voters:
            if voter.id == self.node_id:
                continue
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
        return is_majority(sum(voter.id in self._granted for voter in self._log.voters), self._log.voters)

    def _on_pre_vote_request(self, request: PreVoteRequest) -> None:
        if self._leading is not None and not self._leading.knows(request.sender):
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
        assert self._leading is None, "one leader per term"
        if self.leader != request.sender:
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
        self._leading = Leader(self.me, self.term, self._log, self._settings, self._now_ms)

    def _accepting_leader(self) -> Leader:
        """Return what this node leads with; raise if it does not lead, or is about to cease."""
        if self._leading is None:
            raise NotController("this node is not the controller", self.leader)
        if self._leading.transfer is not None:
            raise NotController("the controller is handing over to another node", self._leading.transfer.to)
        return self._leading

    def _lead_on(self, leading: Leader) -> None:
        """Send heartbeats, unless a majority has been silent for too long."""
        if leading.has_active_quorum(self._log.voters, self._now_ms):
            leading.heartbeat(self._now_ms)
        else:
            self._become_follower(self.term, None)

    def _advance_commit(self, leading: Leader) -> None:
        index = leading.quorum_index()
        if not leading.may_commit(index, self.commit_index):
            return
        leading.note_committed(self._log.between(self.commit_index + 1, index))
        self.commit_index = index
        if self._is_voter_change_committed() and not self.is_voter:
            self._resign(leading)

    def _resign(self, leading: Leader) -> None:
        """Give up leadership after the removal of this node was committed."""
        leading.replicate(self.commit_index, self._now_ms)
        successor = leading.best_successor(self._now_ms)
        if successor is not None:
            leading.ask_to_campaign(successor)
        self._collect(leading)
        self._become_follower(self.term, None)

    def _collect(self, leading: Leader) -> None:
        self._messages += leading.messages
        self._snapshots += leading.snapshots
        leading.messages, leading.snapshots = [], []


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
