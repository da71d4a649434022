"""What a node knows and does while it leads, in one term.

Replication is stop-and-wait: one message with entries is under way to each node, and everything proposed
meanwhile goes into the next. Observers get the same entries as voters and are never counted.
"""

from dataclasses import dataclass
from uuid import UUID

from alpacamq.model.errors import InvalidVoters, RateLimited
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Voter, Voters

from .log import RaftLog
from .messages import (
    NO_INDEX,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CampaignNow,
    Entry,
    EntryKind,
    Message,
    PeerStatus,
    RaftSettings,
    SendSnapshot,
    encode_voters,
    is_majority,
)

# An append without an answer is sent again, an observer without a sign of life is forgotten.
RESEND_HEARTBEATS = 2
OBSERVER_ELECTIONS = 10


@dataclass(slots=True)
class Peer:
    """Another node. Its durable log equals the leader's up to `match_index`."""

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

    def resume(self) -> None:
        """Send on: what was under way has been answered."""
        self.pending_index = None
        self.wait_until_ms = 0


@dataclass(slots=True)
class Transfer:
    """A transfer of leadership in progress."""

    to: BrokerId
    deadline_ms: int
    is_sent: bool = False


class Leader:
    """Replicates the log to the other nodes, and finds out what a majority has."""

    def __init__(self, me: Voter, term: int, log: RaftLog, settings: RaftSettings, now_ms: int) -> None:
        self.messages: list[Message] = []
        self.snapshots: list[SendSnapshot] = []
        self.transfer: Transfer | None = None
        self._me = me
        self._term = term
        self._log = log
        self._settings = settings
        self._uncommitted_bytes = 0
        self.heartbeat_deadline_ms = now_ms + settings.heartbeat_ms
        self._peers = {voter.id: self._new_peer(voter, now_ms) for voter in self._other_voters()}
        # Entries of earlier terms are committed with the first of our own.
        self.first_index = self._append(EntryKind.EMPTY, b"")

    def peers(self) -> list[PeerStatus]:
        return [
            PeerStatus(
                peer.id,
                peer.directory,
                Voter(peer.id, peer.directory) in self._log.voters,
                peer.match_index,
                peer.heard_ms,
                peer.snapshot_index is not None,
            )
            for peer in self._peers.values()
        ]

    # Rules.

    def quorum_index(self) -> int:
        """Return the last entry that a majority of the voters has in its durable log."""
        durable = sorted(map(self._durable_index_of, self._log.voters), reverse=True)
        return durable[len(durable) // 2]

    def may_commit(self, index: int, commit_index: int) -> bool:
        """Return whether an entry that a majority has is committed: in the leader's own term only.

        An entry of an earlier term can be replaced even if a majority has it.
        """
        return index > commit_index and self._log.term_at(index) == self._term

    def has_active_quorum(self, voters: Voters, now_ms: int) -> bool:
        """Return whether the leader heard from a majority within an election timeout."""
        return is_majority(sum(self._is_active(voter, now_ms) for voter in voters), voters)

    def is_caught_up(self, voter: Voter) -> bool:
        """Return whether a node can become a voter: close to the end, and with an entry of this term.

        An empty node would never vote, and a majority that needs it would never elect a leader.
        """
        peer = self._peer_of(voter)
        return (
            peer is not None
            and peer.match_index >= self.first_index
            and peer.match_index + self._settings.max_catch_up_entries >= self._log.last_index
        )

    def _is_active(self, voter: Voter, now_ms: int) -> bool:
        if voter == self._me:
            return True
        peer = self._peer_of(voter)
        return peer is not None and now_ms - peer.heard_ms < self._settings.election_ms

    def _durable_index_of(self, voter: Voter) -> int:
        """Return how far the durable log of a voter is known to equal the leader's."""
        if voter == self._me:
            return self._log.flushed_index
        peer = self._peer_of(voter)
        return NO_INDEX if peer is None else peer.match_index

    def _peer_of(self, voter: Voter) -> Peer | None:
        """Return the node of a voter, unless it came back with another directory: that is no voter."""
        peer = self._peers.get(voter.id)
        return peer if peer is not None and peer.directory == voter.directory else None

    # Proposals.

    def propose(self, payload: bytes) -> int:
        if self._uncommitted_bytes + len(payload) > self._settings.max_uncommitted_bytes:
            raise RateLimited("too many metadata changes wait to be committed")
        self._uncommitted_bytes += len(payload)
        return self._append(EntryKind.DATA, payload)

    def change_voters(self, voters: Voters, now_ms: int) -> int:
        """Append a change by one voter, if the new voters would be able to commit it."""
        if not _differ_by_one(self._log.voters, voters):
            raise InvalidVoters("voters change by one at a time")
        for voter in voters:
            if voter not in self._log.voters and not self.is_caught_up(voter):
                raise InvalidVoters(f"node {voter.id} has not caught up with the metadata log")
        if not self.has_active_quorum(voters, now_ms):
            raise InvalidVoters("a majority of the new voters would not be reachable")
        return self._append(EntryKind.VOTERS, encode_voters(voters))

    def note_committed(self, entries: list[Entry]) -> None:
        committed = sum(len(entry.payload) for entry in entries if entry.index > self.first_index)
        self._uncommitted_bytes -= committed

    def _append(self, kind: EntryKind, payload: bytes) -> int:
        index = self._log.last_index + 1
        self._log.append(Entry(index, self._term, kind, payload))
        return index

    # Handing over.

    def begin_transfer(self, to: BrokerId | None, now_ms: int) -> None:
        target = self.best_successor(now_ms) if to is None else to
        if target not in {voter.id for voter in self._other_voters()}:
            raise InvalidVoters("leadership can be transferred to another voter only")
        assert target is not None
        self.transfer = Transfer(target, now_ms + self._settings.election_ms)
        self._continue_transfer()

    def best_successor(self, now_ms: int) -> BrokerId | None:
        others = [voter for voter in self._other_voters() if self._is_active(voter, now_ms)]
        best = max(others, key=self._durable_index_of, default=None)
        return None if best is None else best.id

    def ask_to_campaign(self, successor: BrokerId) -> None:
        self.messages.append(CampaignNow(term=self._term, sender=self._me.id, to=successor))

    def _continue_transfer(self) -> None:
        """Ask the successor to campaign once it has everything: otherwise it would not be elected."""
        transfer = self.transfer
        if transfer is None or transfer.is_sent:
            return
        if self._peers[transfer.to].match_index == self._log.last_index:
            transfer.is_sent = True
            self.ask_to_campaign(transfer.to)

    # Replication.

    def add_observer(self, voter: Voter, now_ms: int) -> None:
        """Replicate to a node. Also when it comes back with another directory."""
        peer = self._peers.get(voter.id)
        if peer is None and len(self._peers) >= self._settings.max_observers + len(self._log.voters):
            return
        if peer is None or peer.directory != voter.directory:
            peer = self._peers[voter.id] = self._new_peer(voter, now_ms)
        # Not a sign that it hears us: only answers to appends count for the majority.
        peer.is_heartbeat_due = True

    def knows(self, node_id: BrokerId) -> bool:
        return node_id in self._peers

    def heartbeat(self, now_ms: int) -> None:
        """Let every node hear of us, and forget observers that have gone."""
        self.heartbeat_deadline_ms = now_ms + self._settings.heartbeat_ms
        if self.transfer is not None and now_ms >= self.transfer.deadline_ms:
            self.transfer = None
        forget_ms = now_ms - OBSERVER_ELECTIONS * self._settings.election_ms
        voter_ids = {voter.id for voter in self._log.voters}
        for peer in list(self._peers.values()):
            if peer.heard_ms < forget_ms and peer.id not in voter_ids:
                del self._peers[peer.id]
            peer.is_heartbeat_due = True

    def replicate(self, commit_index: int, now_ms: int) -> None:
        """Send to each node what it lacks, if nothing is under way to it."""
        for peer in self._peers.values():
            if peer.snapshot_index is None and now_ms >= peer.wait_until_ms:
                if peer.next_index <= self._log.last_index:
                    self._send_entries(peer, commit_index, now_ms)
                elif peer.is_heartbeat_due or peer.commit_sent < commit_index:
                    self._send_append(peer, peer.next_index - 1, (), commit_index)
            if peer.is_heartbeat_due:
                prev_index = peer.match_index if peer.match_index >= self._log.base_index else NO_INDEX
                self._send_append(peer, prev_index, (), commit_index)

    def accepted(self, response: AppendAccepted, now_ms: int) -> None:
        peer = self._hear(response, now_ms)
        if peer is None:
            return
        peer.match_index = max(peer.match_index, response.match_index)
        peer.next_index = max(peer.next_index, peer.match_index + 1)
        if peer.pending_index is not None and peer.match_index >= peer.pending_index:
            peer.resume()
        if peer.snapshot_index is not None and peer.match_index >= peer.snapshot_index:
            peer.snapshot_index = None
        self._continue_transfer()

    def rejected(self, response: AppendRejected, now_ms: int) -> None:
        peer = self._hear(response, now_ms)
        # Answers that arrive late say nothing about the append under way.
        if peer is None or response.prev_index != peer.next_index - 1:
            return
        if response.prev_index <= peer.match_index:
            return  # it lost what it had acknowledged; there is nothing to agree on
        possible = self._log.last_possible_match(response.hint_index, response.hint_term)[0]
        lower = min(possible, response.hint_index, response.prev_index - 1) + 1
        peer.next_index = max(peer.match_index + 1, lower)
        peer.resume()

    def snapshot_sent(self, to: BrokerId, index: int, now_ms: int, *, installed: bool) -> None:
        peer = self._peers.get(to)
        if peer is None or peer.snapshot_index != index:
            return
        peer.snapshot_index = None
        if installed:
            peer.next_index = index + 1
        else:
            peer.wait_until_ms = self._resend_ms(now_ms)

    def _other_voters(self) -> list[Voter]:
        return [voter for voter in self._log.voters if voter.id != self._me.id]

    def _new_peer(self, voter: Voter, now_ms: int) -> Peer:
        return Peer(voter.id, voter.directory, self._log.last_index + 1, now_ms)

    def _hear(self, response: AppendAccepted | AppendRejected, now_ms: int) -> Peer | None:
        peer = self._peers.get(response.sender)
        if peer is None:
            return None
        if peer.directory != response.directory:
            # It came back empty: what was known of it is void.
            self.add_observer(Voter(response.sender, response.directory), now_ms)
            return self._peers[response.sender]
        peer.heard_ms = now_ms
        return peer

    def _send_entries(self, peer: Peer, commit_index: int, now_ms: int) -> None:
        if peer.next_index <= self._log.base_index:
            snapshot = self._log.snapshot
            peer.snapshot_index = snapshot.index
            self.snapshots.append(SendSnapshot(peer.id, snapshot.index, snapshot.term))
            return
        entries = self._log.batch_from(peer.next_index, self._settings.max_append_bytes)
        peer.pending_index = entries[-1].index
        peer.wait_until_ms = self._resend_ms(now_ms)
        self._send_append(peer, peer.next_index - 1, entries, commit_index)

    def _send_append(
        self, peer: Peer, prev_index: int, entries: tuple[Entry, ...], commit_index: int
    ) -> None:
        prev_term = self._log.term_at(prev_index)
        assert prev_term is not None, "the log still has the entry before"
        peer.is_heartbeat_due = False
        peer.commit_sent = min(commit_index, prev_index + len(entries))
        self.messages.append(
            AppendRequest(
                term=self._term,
                sender=self._me.id,
                to=peer.id,
                prev_index=prev_index,
                prev_term=prev_term,
                commit=commit_index,
                entries=entries,
            )
        )

    def _resend_ms(self, now_ms: int) -> int:
        return now_ms + RESEND_HEARTBEATS * self._settings.heartbeat_ms


def _differ_by_one(old: Voters, new: Voters) -> bool:
    """Return whether one voter is added or removed. Any two majorities then have a voter in common."""
    has_unique_ids = len({voter.id for voter in new}) == len(new)
    return bool(new) and has_unique_ids and len(set(old) ^ set(new)) == 1
