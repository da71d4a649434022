"""A cluster of Raft nodes in virtual time, with the invariants that must hold after every event."""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from alpacamq.consensus.messages import (
    AppendAccepted,
    Entry,
    EntryKind,
    HardState,
    Message,
    RaftSettings,
    Ready,
    Role,
    SendSnapshot,
    Snapshot,
    VoteRequest,
    VoteResponse,
    first_entry,
)
from alpacamq.consensus.raft import Raft
from alpacamq.model.errors import InvalidVoters, NotController, RateLimited
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Voter, Voters
from tests.simulation.disk import TORN
from tests.simulation.kit import (
    MS_US,
    SECOND_US,
    Chaos,
    Fault,
    SimNode,
    Simulation,
    Violation,
    crash_all,
    crash_one,
    cut_one_link,
    cut_one_way,
    fail_disk,
    heal_network,
    pause_one,
    randomize_clocks,
    split,
    stall_disk,
)

SETTINGS = RaftSettings(
    election_ms=200,
    heartbeat_ms=50,
    max_append_bytes=300,
    max_uncommitted_bytes=2_000,
    trailing_entries=3,
    max_catch_up_entries=5,
)
SNAPSHOT_TIMEOUT_US = SECOND_US
SNAPSHOT_EVERY = 12
TRAILING_ON_DISK = 6
CHAOS_US = 5 * SECOND_US
RECOVERY_US = 5 * SECOND_US


class StoredSnapshot(NamedTuple):
    """A snapshot's position and the state there."""

    position: Snapshot
    state: int


class SnapshotBytes(NamedTuple):
    """A snapshot under way to another node, in answer to `SendSnapshot` of an index."""

    requested: int
    stored: StoredSnapshot


class SnapshotInstalled(NamedTuple):
    """The receiver has the snapshot, or all that is in it."""

    requested: int


class Received(NamedTuple):
    """A snapshot that waits to be put in place."""

    sender: int
    message: SnapshotBytes


class Invariants:
    """What must hold in the whole cluster, checked as nodes write, send, commit and apply."""

    def __init__(self, cluster: "RaftCluster") -> None:
        self._cluster = cluster
        self.leaders: dict[int, tuple[int, int]] = {}
        self.entries: dict[tuple[int, int], tuple[Entry, int | None]] = {}
        self.committed: dict[int, Entry] = {}
        self.committed_in: dict[int, int] = {}
        self.states: dict[int, int] = {0: 0}
        self.votes: dict[tuple[Voter, int], BrokerId] = {}
        self.acknowledged: set[bytes] = set()

    def check_leader(self, node: "RaftNode") -> None:
        """One leader per term, and it has every entry that was committed in earlier terms."""
        raft = node.raft
        first = self.leaders.setdefault(raft.term, (node.id, node.incarnation))
        if first != (node.id, node.incarnation):
            raise Violation(f"two leaders in term {raft.term}: {first} and {node.id}")
        log = raft._log
        for index, entry in self.committed.items():
            if self.committed_in[index] >= raft.term or index <= log.base_index:
                continue
            if not log.has(index, entry.term):
                raise Violation(f"leader {node.id} of term {raft.term} lacks committed entry {index}")

    def check_written(self, node: "RaftNode", entries: Iterable[Entry]) -> None:
        """Equal index and term mean equal entries, and equal entries before them."""
        log = node.raft._log
        for entry in entries:
            prev_term = log.term_at(entry.index - 1)
            known, known_prev = self.entries.setdefault((entry.index, entry.term), (entry, prev_term))
            if known != entry or known_prev != prev_term:
                raise Violation(f"node {node.id} has another entry {entry.index} of term {entry.term}")

    def check_sent(self, node: "RaftNode", message: Message) -> None:
        """Nothing that counts is sent before it is durable, and no vote is given twice."""
        if isinstance(message, VoteResponse) and message.granted:
            self._check_vote(node, message.term, message.to)
        elif isinstance(message, VoteRequest):
            self._check_vote(node, message.term, message.sender)
        elif isinstance(message, AppendAccepted):
            if node.hard_state.durable.term < message.term:
                raise Violation(f"node {node.id} acknowledged in term {message.term}, which is not durable")
            if node.durable_end() < message.match_index:
                raise Violation(f"node {node.id} acknowledged {message.match_index} before it was durable")

    def _check_vote(self, node: "RaftNode", term: int, candidate: BrokerId) -> None:
        if node.hard_state.durable != HardState(term, candidate):
            raise Violation(f"node {node.id} voted in term {term} before it was durable")
        first = self.votes.setdefault((node.raft.me, term), candidate)
        if first != candidate:
            raise Violation(f"node {node.id} voted for {first} and {candidate} in term {term}")

    def check_committed(self, node: "RaftNode") -> None:
        """A committed entry is durable on a majority, and no other is ever committed in its place."""
        raft = node.raft
        log = raft._log
        for index in range(max(node.checked_commit, log.base_index) + 1, raft.commit_index + 1):
            (entry,) = log.between(index, index)
            known = self.committed.get(index)
            if known is None:
                self._check_majority(entry, log.voters)
                self.committed[index] = entry
                self.committed_in[index] = raft.term
            elif known != entry:
                raise Violation(f"node {node.id} committed {entry}, but {known} was before")
        node.checked_commit = raft.commit_index

    def _check_majority(self, entry: Entry, voters: Voters) -> None:
        nodes = self._cluster.nodes
        holders = [voter.id for voter in voters if nodes[voter.id].holds_durably(entry, voter.directory)]
        if 2 * len(holders) <= len(voters):
            raise Violation(f"entry {entry.index} was committed with {holders} of {voters}")

    def check_applied(self, node: "RaftNode", entry: Entry) -> None:
        """Every node applies the committed entries, each once and in order."""
        if entry.index != node.applied + 1:
            raise Violation(f"node {node.id} applied {entry.index} after {node.applied}")
        if self.committed.get(entry.index) != entry:
            raise Violation(f"node {node.id} applied {entry}, which was not committed")
        state = next_state(node.state, entry)
        if self.states.setdefault(entry.index, state) != state:
            raise Violation(f"node {node.id} has another state at {entry.index}")

    def check_survival(self) -> None:
        """Every acknowledged proposal is among the committed entries, once."""
        stored = [entry.payload for entry in self.committed.values() if entry.kind is EntryKind.DATA]
        if len(set(stored)) != len(stored):
            raise Violation("a proposal was committed twice")
        if lost := self.acknowledged - set(stored):
            raise Violation(f"acknowledged proposals are lost: {sorted(lost)}")


def next_state(state: int, entry: Entry) -> int:
    """Return a number that depends on every entry up to this one."""
    for byte in entry.payload:
        state = (state * 31 + byte + 1) & 0xFFFFFFFFFFFF
    return (state * 31 + entry.index) & 0xFFFFFFFFFFFF


class RaftNode(SimNode):
    """The host of one Raft: performs its Readys on the simulated disk and network."""

    raft: Raft

    def __init__(self, cluster: "RaftCluster", node_id: BrokerId, directory: UUID, voters: Voters) -> None:
        super().__init__(cluster.simulation, node_id)
        self.cluster = cluster
        self.open_files(directory, voters)

    def open_files(self, directory: UUID, voters: Voters) -> None:
        """Create the files of a directory. An empty node knows no voters."""
        self.directory = directory
        self.hard_state = self.disk.cell("hard-state", HardState())
        self.stored = self.disk.cell("snapshot", StoredSnapshot(Snapshot(), 0))
        self.log = self.disk.log("log")
        self.log.restore([first_entry(voters)] if voters else [])

    def on_start(self) -> None:
        self.log.cut_torn_tail()
        position, self.state = self.stored.value
        self.applied = self.checked_commit = position.index
        self.was_leading = self.is_writing = self.is_snapshotting = False
        self.queue: list[Ready] = []
        self.received: dict[int, Received] = {}
        self.proposed: dict[int, tuple[int, bytes]] = {}
        self.raft = Raft(
            BrokerId(self.id),
            self.directory,
            hard_state=self.hard_state.value,
            snapshot=position,
            entries=self.log.records,
            settings=SETTINGS,
            random=self.simulation.random.random,
            now_ms=self.now_ms,
            contacts=map(BrokerId, self.cluster.nodes),
        )
        self.advance()

    def on_message(self, sender: int, message: Any) -> None:
        match message:
            case SnapshotBytes():
                self.receive_snapshot(sender, message)
            case SnapshotInstalled(requested):
                self.raft.snapshot_sent(BrokerId(sender), requested, self.now_ms, installed=True)
            case _:
                self.raft.step(message, self.now_ms)
        self.advance()

    def on_timer(self) -> None:
        self.raft.tick(self.now_ms)
        self.advance()

    def advance(self) -> None:
        """Perform what Raft has ready."""
        invariants = self.cluster.invariants
        raft = self.raft
        ready = raft.take_ready()
        if raft.role is Role.LEADER and not self.was_leading:
            invariants.check_leader(self)
        self.was_leading = raft.role is Role.LEADER
        if ready.install is not None and ready.install.index in self.received:
            self.cluster.seen["installed snapshot"] += 1
            self.applied = ready.install.index
            self.state = self.received[ready.install.index].message.stored.state
        if ready.truncate_from is not None:
            self.cluster.seen["truncated log"] += 1
        invariants.check_written(self, ready.entries)
        invariants.check_committed(self)
        for message in ready.messages:
            invariants.check_sent(self, message)
            self.send(message.to, message)
        for entry in ready.committed:
            self.apply(entry)
        for effect in ready.snapshots:
            self.send_snapshot(effect)
        if ready.write is not None:
            self.queue.append(ready)
            self.write()
        if self.is_up:
            self.set_timer(raft.next_deadline_ms)
            if self.applied - raft.snapshot.index >= SNAPSHOT_EVERY and not self.is_snapshotting:
                self.take_snapshot()

    # Writing.

    def write(self) -> None:
        """Write what is queued, one sync at a time."""
        if self.is_writing or not self.queue:
            return
        self.is_writing = True
        install = self.queue[0].install
        if install is not None and install.index in self.received:
            # The snapshot is in place before the log that it replaces goes.
            self.stored.write(self.received[install.index].message.stored)
            self.disk.sync([self.stored], self.write_log)
        else:
            self.write_log()

    def write_log(self) -> None:
        """Write everything up to the next snapshot to install."""
        ready = self.queue.pop(0)
        installed = ready.install
        if installed is not None:
            self.log.replace([])
        self.write_entries(ready)
        while self.queue and self.queue[0].install is None:
            ready = self.queue.pop(0)
            self.write_entries(ready)
        self.disk.sync([self.hard_state, self.log], self.written, ready.write, installed)

    def write_entries(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.hard_state.write(ready.hard_state)
        if ready.truncate_from is not None:
            self.log.truncate(ready.truncate_from - self.log.records[0].index)
        self.log.append(*ready.entries)

    def written(self, write: int, installed: Snapshot | None) -> None:
        self.is_writing = False
        received = None if installed is None else self.received.pop(installed.index, None)
        if received is not None:
            self.send(received.sender, SnapshotInstalled(received.message.requested))
        self.raft.flushed(write, self.now_ms)
        self.write()
        self.advance()

    def apply(self, entry: Entry) -> None:
        self.cluster.invariants.check_applied(self, entry)
        self.applied = entry.index
        self.state = next_state(self.state, entry)
        if self.proposed.pop(entry.index, None) == (entry.term, entry.payload):
            self.cluster.invariants.acknowledged.add(entry.payload)

    # Snapshots.

    def take_snapshot(self) -> None:
        self.is_snapshotting = True
        stored = StoredSnapshot(self.raft.snapshot_at(self.applied), self.state)
        self.stored.write(stored)
        self.disk.sync([self.stored], self.snapshot_taken, stored.position.index)

    def snapshot_taken(self, index: int) -> None:
        self.is_snapshotting = False
        self.raft.compact(index)
        if self.log.records:
            # A part of what the snapshot covers stays, as whole segments of a real log do.
            keep_from, first = index - TRAILING_ON_DISK, self.log.records[0].index
            if first < keep_from and self.log.records[-1].index > index:
                self.log.drop_first(keep_from - first)
        self.advance()

    def send_snapshot(self, effect: SendSnapshot) -> None:
        self.send(effect.to, SnapshotBytes(effect.index, self.stored.durable))
        self.later(SNAPSHOT_TIMEOUT_US, self.snapshot_timed_out, effect.to, effect.index)

    def snapshot_timed_out(self, to: BrokerId, index: int) -> None:
        self.raft.snapshot_sent(to, index, self.now_ms, installed=False)
        self.advance()

    def receive_snapshot(self, sender: int, message: SnapshotBytes) -> None:
        position = message.stored.position
        if self.raft.install_snapshot(position, self.now_ms):
            self.received[position.index] = Received(sender, message)
        else:
            self.send(sender, SnapshotInstalled(message.requested))

    # What the invariants ask.

    def durable_end(self) -> int:
        records = self.log.durable
        return max(records[-1].index if records else 0, self.stored.durable.position.index)

    def holds_durably(self, entry: Entry, directory: UUID) -> bool:
        if directory != self.directory:
            return True  # the directory is gone; it held what it had acknowledged
        records = [record for record in self.log.durable if record is not TORN]
        position = entry.index - records[0].index if records else -1
        if 0 <= position < len(records):
            return bool(records[position].term == entry.term)
        return self.stored.durable.position.index >= entry.index


class RaftCluster:
    """Nodes, clients and administrators."""

    def __init__(self, seed: int, *, voters: int, observers: int = 0, trace_lines: int = 200) -> None:
        self.simulation = Simulation(seed, trace_lines=trace_lines)
        self.random = self.simulation.random
        self.invariants = Invariants(self)
        # How often the rarer things happened, to know that the simulation tests them.
        self.seen: Counter[str] = Counter()
        self.nodes: dict[int, RaftNode] = {}
        self._directories = 0
        self._payloads = 0
        self._has_wiped = False
        first = tuple(Voter(BrokerId(number), self.new_directory()) for number in range(1, voters + 1))
        for voter in first:
            self.nodes[voter.id] = RaftNode(self, voter.id, voter.directory, first)
        for number in range(voters + 1, voters + observers + 1):
            self.nodes[number] = RaftNode(self, BrokerId(number), self.new_directory(), ())

    def new_directory(self) -> UUID:
        self._directories += 1
        return UUID(int=self._directories)

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    def leaders(self) -> list[RaftNode]:
        """Return the nodes that believe to lead; stale ones too."""
        return [
            node
            for node in self.nodes.values()
            if node.is_up and not node.is_paused and node.raft.role is Role.LEADER
        ]

    # Load.

    def propose_for_ever(self, mean_gap_us: int) -> None:
        """Propose at random leaders, at random times."""
        self.simulation.after(int(self.random.expovariate(1 / mean_gap_us)) + 1, self._propose, mean_gap_us)

    def _propose(self, mean_gap_us: int) -> None:
        if leaders := self.leaders():
            self.propose(self.random.choice(leaders))
        self.propose_for_ever(mean_gap_us)

    def propose(self, node: RaftNode) -> bytes:
        self._payloads += 1
        payload = b"%d:" % self._payloads + b"x" * self.random.randrange(120)
        try:
            index = node.raft.propose(payload, node.now_ms)
        except (NotController, RateLimited):
            self.seen["refused proposal"] += 1
        else:
            node.proposed[index] = (node.raft.term, payload)
            self.simulation.trace("propose", node.id, index)
            node.advance()
        return payload

    def administrate(self, simulation: Simulation) -> None:
        """Transfer leadership, or change the voters by one."""
        leaders = self.leaders()
        if not leaders:
            return
        node = self.random.choice(leaders)
        raft = node.raft
        try:
            if self.random.random() < 0.3:
                raft.transfer_leadership(self._successor(raft), node.now_ms)
                self.seen["transfer"] += 1
            else:
                raft.change_voters(self._changed_voters(raft), node.now_ms)
                self.seen["changed voters"] += 1
        except (InvalidVoters, NotController) as error:
            self.seen[str(error)] += 1
        node.advance()

    def suspect_one(self, simulation: Simulation) -> None:
        """Tell some nodes that the process of another has ended, whether or not that is so."""
        suspect = self.random.choice(list(self.nodes.values()))
        for node in self.nodes.values():
            if node is not suspect and node.is_up and not node.is_paused and self.random.random() < 0.7:
                self.seen["suspected node"] += 1
                node.raft.node_ended(BrokerId(suspect.id), node.now_ms)
                node.advance()

    def _successor(self, raft: Raft) -> BrokerId | None:
        return self.random.choice([None, *(voter.id for voter in raft.voters)])

    def _changed_voters(self, raft: Raft) -> list[Voter]:
        voters = list(raft.voters)
        ids = {voter.id for voter in voters}
        lost = [voter for voter in voters if self.nodes[voter.id].directory != voter.directory]
        others = [
            Voter(BrokerId(node.id), node.directory) for node in self.nodes.values() if node.id not in ids
        ]
        if lost:
            voters.remove(lost[0])
        elif others and (len(voters) == 1 or self.random.random() < 0.6):
            voters.append(self.random.choice(others))
        else:
            voters.remove(self.random.choice(voters))
        return voters

    def wipe_one(self, simulation: Simulation) -> None:
        """Replace the disk of one node, if the others suffice for a majority whatever the voters are."""
        node = self.random.choice(list(self.nodes.values()))
        if self._has_wiped or not node.is_up or not all(other.is_up for other in self.nodes.values()):
            return
        for other in self.nodes.values():
            for voters in (other.raft.voters, other.raft._log.previous_voters):
                if 0 < len(voters) < 3:
                    return
        self._has_wiped = True
        self.seen["wiped disk"] += 1
        node.crash()
        node.disk.wipe()
        node.open_files(self.new_directory(), ())
        node.start()

    def faults(self) -> dict[Fault, float]:
        return {
            self.administrate: 6,
            self.wipe_one: 0.3,
            self.suspect_one: 2,
            crash_one: 4,
            crash_all: 0.5,
            pause_one: 2,
            split: 3,
            cut_one_way: 1.5,
            cut_one_link: 2,
            heal_network: 5,
            stall_disk: 2,
            fail_disk: 0.5,
        }

    # Recovery.

    def check_progress(self) -> None:
        """Require that a new proposal is committed, and applied by every node, soon after healing."""
        self.simulation.run_to(self._commits_something_new(), within_us=RECOVERY_US, what="a new commit")
        self.simulation.run_to(self._is_level, within_us=RECOVERY_US, what="all nodes have the same state")
        self.invariants.check_survival()

    def _commits_something_new(self) -> Callable[[], bool]:
        before = max(self.invariants.committed, default=0)
        term = max(node.raft.term for node in self.nodes.values())

        def has_committed() -> bool:
            last = max(self.invariants.committed, default=0)
            entry = self.invariants.committed.get(last)
            return last > before and entry is not None and entry.term >= term and entry.payload != b""

        return has_committed

    def _is_level(self) -> bool:
        last = max(self.invariants.committed)
        # The load goes on, so that nodes are level when all are close to the end.
        return all(node.applied + 5 >= last for node in self.nodes.values())


class Outcome(NamedTuple):
    """The result of a run."""

    trace_hash: str
    events: int
    committed: int
    seen: Counter[str]


def run(seed: int, *, trace_lines: int = 200) -> Outcome:
    """Run the scenario of a seed. Raises Violation, with the last events, if an invariant does not hold."""
    cluster = make_cluster(seed, trace_lines=trace_lines)
    simulation = cluster.simulation
    try:
        cluster.start()
        cluster.propose_for_ever(30 * MS_US)
        chaos = Chaos(simulation, cluster.faults(), mean_gap_us=150 * MS_US)
        simulation.run_until(CHAOS_US)
        chaos.stop()
        cluster.check_progress()
    except Exception as error:
        error.add_note(f"seed {seed}, {simulation.now_us / SECOND_US:.6f} s")
        error.add_note("\n".join(simulation.lines))
        raise
    invariants = cluster.invariants
    cluster.seen["elections"] = len(invariants.leaders)
    return Outcome(simulation.trace_hash, simulation.events, len(invariants.committed), cluster.seen)


def make_cluster(seed: int, *, trace_lines: int) -> RaftCluster:
    shape = Random(seed)
    cluster = RaftCluster(
        seed,
        voters=shape.choice([1, 2, 3, 3, 3, 4, 5]),
        observers=shape.choice([0, 1, 2]),
        trace_lines=trace_lines,
    )
    network = cluster.simulation.network
    network.loss = shape.choice([0.0, 0.0, 0.02, 0.1])
    network.duplicates = shape.choice([0.0, 0.05])
    network.is_ordered = shape.random() < 0.3
    network.late = shape.choice([0.0, 0.01, 0.05])
    randomize_clocks(cluster.simulation, max_drift=0.1, max_offset_ms=10_000)
    return cluster
