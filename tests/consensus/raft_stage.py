"""Runs Raft nodes by hand: commands as text in, what was sent and decided as text out.

Messages are delivered at once and in order, until there are none. Disks sync at once, unless they are held.
"""

from uuid import UUID

from alpacamq.consensus.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CampaignNow,
    Entry,
    EntryKind,
    HardState,
    Hello,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    RaftSettings,
    Ready,
    Role,
    RoleChange,
    Snapshot,
    VoteRequest,
    VoteResponse,
    decode_voters,
    first_entry,
)
from alpacamq.consensus.raft import Raft
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Voter, Voters

SETTINGS = RaftSettings(
    election_ms=1000,
    heartbeat_ms=200,
    max_append_bytes=200,
    max_uncommitted_bytes=1000,
    trailing_entries=0,
    max_catch_up_entries=2,
    max_observers=2,
)


def voter(number: int, directory: int | None = None) -> Voter:
    return Voter(BrokerId(number), UUID(int=number if directory is None else directory))


def voters_of(*numbers: int) -> Voters:
    return tuple(voter(number) for number in numbers)


class Node:
    """A Raft with its disk."""

    def __init__(self, name: Voter, voters: Voters) -> None:
        self.name = name
        self.hard_state = HardState()
        self.snapshot = Snapshot()
        self.log: list[Entry] = [first_entry(voters)] if voters else []
        self.held: list[Ready] | None = None
        self.raft: Raft | None = None

    def store(self, ready: Ready) -> None:
        if ready.install is not None:
            self.snapshot = ready.install
            self.log = []
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.truncate_from is not None:
            self.log = [entry for entry in self.log if entry.index < ready.truncate_from]
        self.log += ready.entries


class Stage:
    """Nodes, their network, and the text of what happens."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.nodes: dict[int, Node] = {}
        self.cuts: set[tuple[int, int]] = set()
        self.lines: list[str] = []
        self.inbox: list[Message] = []

    def act(self, command: str) -> str:
        """Perform a command and return what happened."""
        self.lines = []
        verb, *words = command.split()
        try:
            getattr(self, f"do_{verb}")(*words)
        except AlpacaError as error:
            self.lines.append(f"{type(error).__name__}: {error}")
        self.settle()
        return "\n".join(self.lines) or "nothing"

    # Commands.

    def do_voters(self, *numbers: str) -> None:
        """Start a new cluster."""
        for number in map(int, numbers):
            self.nodes[number] = Node(voter(number), voters_of(*map(int, numbers)))
            self.do_start(str(number))

    def do_observer(self, number: str) -> None:
        """Start an empty node."""
        self.nodes[int(number)] = Node(voter(int(number)), ())
        self.do_start(number)

    def do_start(self, number: str) -> None:
        node = self.nodes[int(number)]
        node.raft = Raft(
            node.name.id,
            node.name.directory,
            hard_state=node.hard_state,
            snapshot=node.snapshot,
            entries=node.log,
            settings=SETTINGS,
            random=lambda: 0.5,
            now_ms=self.now_ms,
            contacts=map(BrokerId, self.nodes),
        )

    def do_crash(self, number: str) -> None:
        node = self.nodes[int(number)]
        node.raft = node.held = None

    def do_timeout(self, number: str) -> None:
        """Let the election timeout of a node end, or a leader's heartbeat be due."""
        raft = self.raft(number)
        self.now_ms = max(self.now_ms, raft.next_deadline_ms)
        raft.tick(self.now_ms)

    def do_wait(self, milliseconds: str) -> None:
        """Let time pass, with heartbeats but without timeouts of the others."""
        self.now_ms += int(milliseconds)
        for node in self.nodes.values():
            if node.raft is not None and node.raft.role is Role.LEADER:
                node.raft.tick(self.now_ms)

    def do_propose(self, number: str, payload: str) -> None:
        index = self.raft(number).propose(payload.encode(), self.now_ms)
        self.lines.append(f"{number}: proposed as {index}")

    def do_add(self, number: str, added: str) -> None:
        raft = self.raft(number)
        raft.change_voters([*raft.voters, self.nodes[int(added)].name], self.now_ms)

    def do_remove(self, number: str, removed: str) -> None:
        raft = self.raft(number)
        raft.change_voters([one for one in raft.voters if one.id != int(removed)], self.now_ms)

    def do_transfer(self, number: str, to: str) -> None:
        self.raft(number).transfer_leadership(BrokerId(int(to)), self.now_ms)

    def do_cut(self, *words: str) -> None:
        groups: list[list[int]] = [[]]
        for word in words:
            if word == "|":
                groups.append([])
            else:
                groups[-1].append(int(word))
        self.cuts = {
            (one, other)
            for side in groups
            for far in groups
            if side is not far
            for one in side
            for other in far
        }

    def do_heal(self) -> None:
        self.cuts = set()

    def do_hold(self, number: str) -> None:
        """Let the disk of a node not sync."""
        self.nodes[int(number)].held = []

    def do_sync(self, number: str) -> None:
        node = self.nodes[int(number)]
        held, node.held = node.held or [], None
        for ready in held:
            node.store(ready)
            assert ready.write is not None
            self.raft(number).flushed(ready.write, self.now_ms)

    def do_compact(self, number: str) -> None:
        """Take a snapshot of everything committed."""
        node = self.nodes[int(number)]
        raft = self.raft(number)
        raft.compact(raft.commit_index)
        node.snapshot = raft.snapshot
        node.log = [entry for entry in node.log if entry.index > raft.snapshot.index]

    def do_status(self) -> None:
        for number, node in self.nodes.items():
            if node.raft is None:
                self.lines.append(f"{number}: down")
                continue
            raft = node.raft
            log = " ".join(map(show_entry, node.log)) or "empty"
            role = raft.role.value if raft.is_voter else "observer"
            self.lines.append(f"{number}: {role}, term {raft.term}, committed {raft.commit_index}, log {log}")

    # The host.

    def raft(self, number: str | int) -> Raft:
        raft = self.nodes[int(number)].raft
        assert raft is not None
        return raft

    def settle(self) -> None:
        """Write and deliver until nothing is left to do."""
        is_busy = True
        while is_busy:
            is_busy = False
            for number, node in self.nodes.items():
                if node.raft is not None and self.perform(number, node, node.raft, node.raft.take_ready()):
                    is_busy = True
            inbox, self.inbox = self.inbox, []
            for message in inbox:
                self.deliver(message)
                is_busy = True

    def perform(self, number: int, node: Node, raft: Raft, ready: Ready) -> bool:
        if ready.role is not None:
            self.lines.append(f"{number}: {show_role(ready.role)}")
        if ready.truncate_from is not None:
            self.lines.append(f"{number}: truncates from {ready.truncate_from}")
        if ready.install is not None:
            self.lines.append(f"{number}: installs snapshot {ready.install.index}@{ready.install.term}")
        for entry in ready.committed:
            self.lines.append(f"{number}: committed {show_entry(entry)}")
        self.inbox += ready.messages
        for effect in ready.snapshots:
            self.lines.append(f"{number} -> {effect.to} snapshot {effect.index}@{effect.term}")
            is_reached = (number, effect.to) not in self.cuts
            if is_reached:
                self.raft(effect.to).install_snapshot(raft.snapshot, self.now_ms)
                self.settle_one(effect.to)
            raft.snapshot_sent(effect.to, effect.index, self.now_ms, installed=is_reached)
        if ready.write is None:
            return bool(ready.messages or ready.snapshots)
        if node.held is not None:
            node.held.append(ready)
            return False
        node.store(ready)
        raft.flushed(ready.write, self.now_ms)
        return True

    def settle_one(self, number: int) -> None:
        node = self.nodes[number]
        assert node.raft is not None
        self.perform(number, node, node.raft, node.raft.take_ready())

    def deliver(self, message: Message) -> None:
        node = self.nodes.get(message.to)
        is_lost = node is None or node.raft is None or (message.sender, message.to) in self.cuts
        lost = " (lost)" if is_lost else ""
        self.lines.append(f"{message.sender} -> {message.to} {show_message(message)}{lost}")
        if not is_lost and node is not None and node.raft is not None:
            node.raft.step(message, self.now_ms)


def show_role(change: RoleChange) -> str:
    follows = f" of {change.leader}" if change.leader and change.role is Role.FOLLOWER else ""
    return f"{change.role.value}{follows} in term {change.term}"


def show_entry(entry: Entry) -> str:
    place = f"{entry.index}@{entry.term}"
    match entry.kind:
        case EntryKind.DATA:
            return f"{place}:{entry.payload.decode()}"
        case EntryKind.EMPTY:
            return f"{place}:-"
        case EntryKind.VOTERS:
            return f"{place}:voters={','.join(str(voter.id) for voter in decode_voters(entry.payload))}"


def show_message(message: Message) -> str:
    match message:
        case PreVoteRequest(term=term, last_index=index, last_term=last_term):
            return f"pre-vote for term {term + 1}, log ends {index}@{last_term}"
        case PreVoteResponse(granted=granted):
            return "pre-vote granted" if granted else f"pre-vote refused, term {message.term}"
        case VoteRequest(term=term, last_index=index, last_term=last_term):
            return f"vote for term {term}, log ends {index}@{last_term}"
        case VoteResponse(granted=granted):
            return "vote granted" if granted else f"vote refused, term {message.term}"
        case AppendRequest(prev_index=index, prev_term=prev_term, commit=commit, entries=entries):
            return " ".join(
                ["append after", f"{index}@{prev_term},", f"commit {commit}", *map(show_entry, entries)]
            )
        case AppendAccepted(match_index=index):
            return f"accepted up to {index}"
        case AppendRejected(hint_index=index, hint_term=hint_term):
            return f"rejected, at most {index}@{hint_term}, term {message.term}"
        case Hello():
            return "hello"
        case CampaignNow():
            return "campaign now"
