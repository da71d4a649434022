"""Bootstrap under crashes, loss, delay, stale addresses, wiped and reset directories: never two clusters."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import msgspec
import pytest

from alpacamq.cluster import bootstrap
from alpacamq.cluster.bootstrap import (
    Accept,
    Answer,
    Candidates,
    Found,
    Hello,
    Join,
    NodeState,
    SendProposal,
    check_proposal,
    decide,
)
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Proposal, Voter

STEPS = 150


class Violated(AssertionError):
    """A rule of the bootstrap was broken."""


@dataclass
class Node:
    """A node: a durable state, a configuration, and the answers of a round in progress."""

    state: NodeState
    candidates: Candidates
    is_up: bool = True
    answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def hello(self) -> Hello:
        return Hello(state=self.state, candidates=self.candidates)


@dataclass(frozen=True)
class Message:
    """A proposal on its way."""

    sender: BrokerId
    to: int
    proposal: Proposal


class World:
    """All nodes and the network between them; every choice comes from the seed."""

    def __init__(self, seed: int, *, loses_disks: bool, by_dns: bool, lists_differ: bool) -> None:
        self.random = Random(seed)
        self.loses_disks = loses_disks
        self._number = 0
        size = self.random.choice([1, 2, 2, 3, 3, 3, 4])
        wipes = self.random.choice([1, 3, 6])
        self.weights = [40, 25, self.random.choice([3, 20]), 2, 8, 3, wipes]
        self.ids = list(range(1, size + 1))
        self.by_dns = by_dns
        self.nodes: dict[int, Node] = {}
        for node_id in self.ids:
            candidates = Candidates(size=size) if by_dns else Candidates.listed(self.ids)
            if lists_differ and self.random.random() < 0.5:
                candidates = Candidates.listed(
                    [n for n in self.ids if n == node_id or self.random.random() < 0.6]
                )
            self.nodes[node_id] = Node(self.empty(node_id), candidates)
        # Which node answers at the address of which: DNS may be stale.
        self.routes = {node_id: node_id for node_id in self.ids}
        self.messages: list[Message] = []
        self.accepted: dict[str, set[Voter]] = {}

    def number(self) -> int:
        self._number += 1
        return self._number

    def empty(self, node_id: int) -> NodeState:
        return NodeState(node_id=BrokerId(node_id), directory_id=UUID(int=self.number()))

    def addresses(self, node: Node) -> list[int]:
        if self.by_dns:
            return self.ids
        return [n for n in node.candidates.node_ids if n != node.state.node_id]

    def up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_up]

    def ask(self, node: Node, address: int, *, lost: bool = False) -> None:
        """Ask one candidate; the answer is what it knows now, however late it is used."""
        other = self.nodes[self.routes[address]]
        # The handshake refuses a node that is not the listed one.
        is_expected = self.by_dns or other.state.node_id == address
        answers = other.is_up and is_expected and not lost
        node.answers[address] = Answer(f"node {address}", other.hello if answers else None, "no answer")

    def act(self, node: Node, *, crashes: bool = False) -> None:
        """End a round: decide by answers that may be old, and store."""
        answers, node.answers = list(node.answers.values()), {}
        decision = decide(node.hello, answers, lambda: f"cluster-{self.number()}")
        if crashes:
            self.crash(node)
            return
        match decision:
            case Accept(proposal):
                self.store_proposal(node, proposal)
            case SendProposal(proposal, to):
                for target in to:
                    self.messages.append(Message(node.state.node_id, target, proposal))
            case Found(proposal):
                if not set(proposal.voters) <= self.accepted[proposal.cluster_id]:
                    raise Violated(f"{proposal} was founded before all had accepted it")
                self.store(node, cluster_id=proposal.cluster_id, voters=proposal.voters, proposal=None)
            case Join(cluster_id, _, _):
                if node.state.proposal is not None:
                    raise Violated("a bound directory joined another cluster")
                self.store(node, cluster_id=cluster_id)

    def deliver(self, message: Message, *, crashes_before: bool = False, crashes_after: bool = False) -> None:
        node = self.nodes[message.to]
        if not node.is_up:
            return
        try:
            accept = check_proposal(node.hello, message.proposal, message.sender)
        except AlpacaError:
            return
        if accept is not None and not crashes_before:
            self.store_proposal(node, accept.proposal)
        if crashes_before or crashes_after:
            self.crash(node)

    def store_proposal(self, node: Node, proposal: Proposal) -> None:
        if node.state.proposal is not None or node.state.cluster_id:
            raise Violated("a bound directory accepted a proposal")
        self.accepted.setdefault(proposal.cluster_id, set()).add(node.state.voter)
        self.store(node, proposal=proposal)

    def store(self, node: Node, **changes: object) -> None:
        node.state = msgspec.structs.replace(node.state, **changes)
        self.check()

    def crash(self, node: Node) -> None:
        node.is_up = False
        node.answers = {}

    def wipe(self, node: Node) -> None:
        node.state = self.empty(node.state.node_id)
        node.answers = {}

    def check(self) -> None:
        clusters = {node.state.cluster_id for node in self.nodes.values()} - {""}
        if len(clusters) > 1:
            raise Violated(f"two clusters: {sorted(clusters)}")

    def step(self) -> None:
        """Do one thing at random."""
        chance = self.random.random
        node = self.nodes[self.random.choice(self.ids)]
        match self.random.choices(range(7), self.weights)[0]:
            case 0 if node.is_up:
                for address in self.addresses(node):
                    if chance() < 0.7:
                        self.ask(node, address, lost=chance() < 0.1)
            case 1 if node.is_up and len(node.answers) == len(self.addresses(node)):
                self.act(node, crashes=chance() < 0.1)
            case 2 if self.messages:
                message = self.random.choice(self.messages)
                if chance() < 0.7:
                    self.messages.remove(message)  # otherwise it arrives again, any time later
                self.deliver(message, crashes_before=chance() < 0.1, crashes_after=chance() < 0.1)
            case 3:
                self.crash(node)
            case 4:
                node.is_up = True
            case 5:
                self.routes[node.state.node_id] = (
                    self.random.choice(self.ids) if chance() < 0.3 else node.state.node_id
                )
            case 6 if self.loses_disks:
                if chance() < 0.5 or node.state.cluster_id:
                    self.crash(node)
                self.wipe(node)

    def heal(self) -> None:
        """Start every node, repair the network, and let rounds run."""
        self.routes = {node_id: node_id for node_id in self.ids}
        for node in self.nodes.values():
            node.is_up = True
            node.answers = {}
        for _ in range(5):
            for node in self.nodes.values():
                node.answers = {}
                for address in self.addresses(node):
                    self.ask(node, address)
                self.act(node)
                while self.messages:
                    self.deliver(self.messages.pop(0))


def run(seed: int, *, loses_disks: bool = False, by_dns: bool = False, lists_differ: bool = False) -> World:
    world = World(seed, loses_disks=loses_disks, by_dns=by_dns, lists_differ=lists_differ)
    for _ in range(STEPS):
        world.step()
    return world


SEEDS = 400


@pytest.mark.parametrize("by_dns", [False, True], ids=["list", "dns"])
def test_one_cluster_is_founded_once_all_are_up(by_dns: bool) -> None:
    for seed in range(SEEDS):
        world = run(seed, by_dns=by_dns)
        world.heal()
        states = [node.state for node in world.nodes.values()]
        assert len({state.cluster_id for state in states}) == 1, seed
        assert all(state.cluster_id for state in states), seed
        assert all({voter.id for voter in state.voters} == set(world.ids) for state in states), seed


@pytest.mark.parametrize("by_dns", [False, True], ids=["list", "dns"])
def test_wiped_and_reset_directories_never_lead_to_a_second_cluster(by_dns: bool) -> None:
    founded = 0
    for seed in range(SEEDS):
        world = run(seed, loses_disks=True, by_dns=by_dns)
        founded += any(node.state.cluster_id for node in world.nodes.values())
        world.heal()
    assert founded > SEEDS / 10  # the simulation does reach what it is about


def test_lists_that_differ_never_lead_to_overlapping_clusters() -> None:
    for seed in range(SEEDS):
        world = World(seed, loses_disks=False, by_dns=False, lists_differ=True)
        world.check = lambda: None  # type: ignore[method-assign]  # disjoint lists do found two clusters
        for _ in range(STEPS):
            world.step()
        world.heal()
        founders = {
            state.cluster_id: {voter.id for voter in state.voters}
            for state in (node.state for node in world.nodes.values())
            if state.voters
        }
        for one, its in founders.items():
            for other, others in founders.items():
                assert one == other or not its & others, seed


def check_seed(seed: int) -> None:
    """Run one seed of each kind of world; raise AssertionError if a rule is broken or nothing is founded."""
    run(seed, loses_disks=True, by_dns=seed % 2 == 0).heal()
    world = run(seed)
    world.heal()
    assert all(node.state.cluster_id for node in world.nodes.values())


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        pytest.param("has_accepted", lambda *_: True, id="acceptance is not checked"),
        pytest.param("is_voter_of", lambda *_: True, id="the directory is not checked"),
        pytest.param("founding_problems", lambda *_: [], id="silent nodes are ignored"),
        pytest.param("is_proposer", lambda *_: False, id="no node proposes"),
    ],
)
def test_the_simulation_notices_a_missing_rule(
    monkeypatch: pytest.MonkeyPatch, rule: str, broken: Callable[..., object]
) -> None:
    monkeypatch.setattr(bootstrap, rule, broken)
    with pytest.raises(AssertionError):
        list(map(check_seed, range(SEEDS)))
