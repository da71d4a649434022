"""Founding a cluster, or finding the one that exists. Pure: rounds of answers in, one decision out.

A list or DNS names candidates, never members. Each node asks every candidate what it knows (`AskHello`), and
decides by the answers:

- If a candidate belongs to a cluster, join that one, as an observer.
- Otherwise wait until all candidates answer that they belong to none and have the same list. Then the node
  with the lowest id stores a proposal (cluster id and voters) and asks the others to store it (`Propose`).
- Once every voter has stored the same proposal, the cluster is founded. No node votes before that.

Safety. A directory stores at most one proposal; only `alpacamq format --reset` removes it, and gives the
directory another id. A cluster needs the stored proposals of all its voters, so two clusters have no
directory in common, whatever messages are lost, late or sent to a stale address. All facts but "belongs to
none" are permanent, and that one is checked again by the node itself when it is asked to store a proposal.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from alpacamq.model.errors import InconsistentClusterId, InvalidVoters
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request
from alpacamq.model.voters import Proposal, Voter

MAX_CLUSTER_ID = 64


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that may found the cluster.

    `node_ids` are those of the configured list, in order; empty if DNS names addresses only. `size` is the
    number of voters that a new cluster needs; 0 if this node must never found one.
    """

    node_ids: tuple[BrokerId, ...] = ()
    size: int = 0

    @classmethod
    def listed(cls, node_ids: Sequence[int]) -> "Candidates":
        """Return the candidates of a configured list."""
        ids = tuple(BrokerId(node_id) for node_id in sorted(set(node_ids)))
        return cls(node_ids=ids, size=len(ids))


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """What the data directory of a node says; `proposal` is one that was stored and is not founded yet."""

    node_id: BrokerId
    directory_id: UUID
    cluster_id: str = ""
    voters: tuple[Voter, ...] = ()
    proposal: Proposal | None = None

    @property
    def voter(self) -> Voter:
        return Voter(self.node_id, self.directory_id)


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answer to `AskHello`: its stored state, and its configuration."""

    state: NodeState
    candidates: Candidates
    may_vote: bool = True


class AskHello(Request[Hello], frozen=True, kw_only=True, tag="ask-hello"):
    """Asks a node what it knows."""


class Propose(Request[Hello], frozen=True, kw_only=True, tag="propose-cluster"):
    """Asks a node to store a proposal; it answers after that is durable."""

    proposal: Proposal


# What nodes may send each other before they know their cluster.
BOOTSTRAP_VALUES: tuple[type[msgspec.Struct], ...] = (AskHello, Propose)


class Answer(NamedTuple):
    """The answer of one candidate, or None and the problem. `place` is for the log."""

    place: str
    hello: Hello | None
    problem: str = ""


class Obstacle(StrEnum):
    """Why a node cannot go on."""

    SILENT = "silent"  # a candidate does not answer, or cannot be authenticated
    OTHER_LIST = "other_list"  # its list of candidates differs
    NOT_LISTED = "not_listed"  # the node is no candidate and can only join
    NO_VOTER = "no_voter"  # a candidate has the role of a broker only
    WRONG_COUNT = "wrong_count"  # DNS names another number of nodes than a new cluster needs
    SAME_ID = "same_id"  # two nodes with the same id
    TWO_CLUSTERS = "two_clusters"  # candidates belong to different clusters
    OTHER_PROPOSAL = "other_proposal"  # a node has stored another proposal
    REPLACED = "replaced"  # the directory of a voter was replaced after the proposal
    RESTORED = "restored"  # this directory is a voter of a cluster that it does not know: an old backup
    PENDING = "pending"  # nothing is wrong; another node has to act


class Problem(NamedTuple):
    """One reason to wait, for the log and for readiness checks."""

    obstacle: Obstacle
    text: str


class Wait(NamedTuple):
    """Ask again later."""

    problems: tuple[Problem, ...]


class Accept(NamedTuple):
    """Store the proposal durably, then go on."""

    proposal: Proposal


class SendProposal(NamedTuple):
    """Ask these nodes to store the proposal."""

    proposal: Proposal
    to: tuple[BrokerId, ...]


class Found(NamedTuple):
    """Every voter has stored the proposal: store durably that the cluster exists. This node is a voter."""

    proposal: Proposal


class Join(NamedTuple):
    """Store the cluster id durably, and follow the cluster as an observer."""

    cluster_id: str
    member: BrokerId
    voters: tuple[Voter, ...]


class Member(NamedTuple):
    """The directory belongs to a cluster already."""

    cluster_id: str


Decision = Wait | Accept | SendProposal | Found | Join | Member


def decide(own: Hello, answers: Sequence[Answer], new_cluster_id: Callable[[], str]) -> Decision:
    """Return what to do after one round of requests to all candidates except this node."""
    if own.state.cluster_id:
        return Member(own.state.cluster_id)
    hellos = [answer.hello for answer in answers if answer.hello is not None]
    if problems := same_id_problems(own, answers):
        return Wait(tuple(problems))
    members = [hello.state for hello in hellos if hello.state.cluster_id]
    if members:
        return _enter(own.state, members)
    if own.state.proposal is not None:
        return _pursue(own.state, own.state.proposal, answers)
    if problems := founding_problems(own, answers):
        return Wait(tuple(problems))
    states = {hello.state.node_id: hello.state for hello in (own, *hellos)}
    voters = tuple(states[node_id].voter for node_id in sorted(states))
    if own.state.voter != voters[0]:
        return Wait((Problem(Obstacle.PENDING, f"waiting for node {voters[0].id} to propose a cluster"),))
    return Accept(Proposal(cluster_id=new_cluster_id(), voters=voters))


def check_proposal(own: Hello, proposal: Proposal, sender: BrokerId) -> Accept | None:
    """Return what to store before answering `Propose`, None if it is stored already.

    Raises InconsistentClusterId or InvalidVoters with the reason.
    """
    state = own.state
    if state.cluster_id:
        if state.cluster_id != proposal.cluster_id:
            raise InconsistentClusterId(f"node {state.node_id} belongs to cluster {state.cluster_id}")
        return None
    if state.proposal is not None:
        if not has_accepted(state, proposal):
            raise InvalidVoters(_other_proposal(state.node_id, state.proposal))
        return None
    if not own.may_vote:
        raise InvalidVoters(f"node {state.node_id} is configured as a broker without a vote")
    if not is_well_formed(proposal):
        raise InvalidVoters("the proposal has no voters, one of them twice, or an invalid cluster id")
    if not is_from_proposer(proposal, sender):
        raise InvalidVoters(f"node {sender} may not propose this cluster, only node {proposal.proposer}")
    if not is_voter_of(state, proposal):
        raise InvalidVoters(
            f"the proposal does not name node {state.node_id} with directory {state.directory_id}"
        )
    if not are_voters_as_configured(own.candidates, proposal):
        raise InvalidVoters(
            f"the proposal has the voters {_ids(proposal.node_ids)}, but node {state.node_id} is configured "
            f"with {_candidates(own.candidates)}"
        )
    return Accept(proposal)


def is_well_formed(proposal: Proposal) -> bool:
    ids = proposal.node_ids
    return bool(ids) and len(set(ids)) == len(ids) and 0 < len(proposal.cluster_id) <= MAX_CLUSTER_ID


def is_from_proposer(proposal: Proposal, sender: BrokerId) -> bool:
    """Return whether a proposal comes from the one node that may make it."""
    return sender == proposal.proposer


def is_proposer(state: NodeState, proposal: Proposal) -> bool:
    return state.node_id == proposal.proposer


def is_voter_of(state: NodeState, proposal: Proposal) -> bool:
    """Return whether a proposal names this very directory, not an earlier one of the same node."""
    return state.voter in proposal.voters


def are_voters_as_configured(candidates: Candidates, proposal: Proposal) -> bool:
    """Return whether a proposal names exactly the nodes that this node was configured with."""
    if candidates.node_ids:
        return proposal.node_ids == candidates.node_ids
    return 0 < candidates.size == len(proposal.voters)


def has_accepted(state: NodeState, proposal: Proposal) -> bool:
    """Return whether a directory has stored a proposal durably."""
    return state.proposal == proposal


def same_id_problems(own: Hello, answers: Sequence[Answer]) -> list[Problem]:
    """Return nodes that answer under an id that another directory has. One node may have two addresses."""
    problems: list[Problem] = []
    directories = {own.state.node_id: (own.state.directory_id, "this node")}
    for answer in answers:
        if answer.hello is None:
            continue
        state = answer.hello.state
        directory_id, place = directories.setdefault(state.node_id, (state.directory_id, answer.place))
        if directory_id != state.directory_id:
            problems.append(
                Problem(
                    Obstacle.SAME_ID, f"two nodes have the id {state.node_id}: {place} and {answer.place}"
                )
            )
    return problems


def founding_problems(own: Hello, answers: Sequence[Answer]) -> list[Problem]:
    """Return everything that keeps a node from founding a new cluster with the candidates it asked."""
    candidates = own.candidates
    if not own.may_vote or not candidates.size or not _is_listed(own.state.node_id, candidates):
        return [
            Problem(
                Obstacle.NOT_LISTED,
                f"node {own.state.node_id} cannot found a cluster (it is not in the list of nodes, has no "
                "vote, or the number of voters is not configured) and waits for one to join",
            )
        ]
    problems: list[Problem] = []
    answered = {own.state.node_id}
    for answer in answers:
        if answer.hello is None:
            problems.append(Problem(Obstacle.SILENT, f"{answer.place} does not answer: {answer.problem}"))
            continue
        other = answer.hello
        node_id = other.state.node_id
        answered.add(node_id)
        if other.candidates != candidates:
            problems.append(
                Problem(
                    Obstacle.OTHER_LIST,
                    f"node {node_id} is configured with {_candidates(other.candidates)}, "
                    f"this node with {_candidates(candidates)}",
                )
            )
        if not other.may_vote:
            problems.append(Problem(Obstacle.NO_VOTER, f"node {node_id} is a candidate but has no vote"))
        # A proposal that names this node will be sent to it; until then, or if it does not, both wait.
        if other.state.proposal is not None:
            obstacle = (
                Obstacle.PENDING if is_voter_of(own.state, other.state.proposal) else Obstacle.OTHER_PROPOSAL
            )
            problems.append(Problem(obstacle, _other_proposal(node_id, other.state.proposal)))
    expected = set(candidates.node_ids)
    if expected:
        missing = sorted(expected - answered)
        if len(missing) > sum(answer.hello is None for answer in answers):
            problems += [
                Problem(
                    Obstacle.SILENT, f"node {node_id} was not asked, or another node answered at its address"
                )
                for node_id in missing
            ]
        problems += [
            Problem(Obstacle.OTHER_LIST, f"node {node_id} answers but is not in the list of nodes")
            for node_id in sorted(answered - expected)
        ]
    elif len(answered) != candidates.size:
        problems.append(
            Problem(
                Obstacle.WRONG_COUNT,
                f"found {len(answered)} nodes ({_ids(sorted(answered))}); "
                f"a new cluster needs {candidates.size}",
            )
        )
    return problems


def _enter(own: NodeState, members: Sequence[NodeState]) -> Decision:
    """Decide when candidates belong to a cluster."""
    by_cluster = {member.cluster_id: member for member in members}
    if len(by_cluster) > 1:
        named = ", ".join(f"{cluster} (node {by_cluster[cluster].node_id})" for cluster in sorted(by_cluster))
        return Wait((Problem(Obstacle.TWO_CLUSTERS, f"the nodes belong to different clusters: {named}"),))
    member = members[0]
    if own.proposal is not None:
        if own.proposal.cluster_id == member.cluster_id:
            return Found(own.proposal)
        text = _other_proposal(own.node_id, own.proposal)
        return Wait(
            (
                Problem(
                    Obstacle.OTHER_PROPOSAL, f"node {member.node_id} is in {member.cluster_id}, but {text}"
                ),
            )
        )
    voters = max((each.voters for each in members), key=len)
    if own.voter in voters:
        return Wait(
            (
                Problem(
                    Obstacle.RESTORED,
                    f"this data directory is a voter of cluster {member.cluster_id} but does not know it: an "
                    "old backup was restored. Run `alpacamq format --reset` to join as a new node",
                ),
            )
        )
    return Join(member.cluster_id, member.node_id, voters)


def _pursue(own: NodeState, proposal: Proposal, answers: Sequence[Answer]) -> Decision:
    """Decide while this node has stored a proposal and no candidate knows a cluster."""
    states = {
        answer.hello.state.node_id: answer.hello.state for answer in answers if answer.hello is not None
    }
    problems: list[Problem] = []
    missing: list[BrokerId] = []
    for voter in proposal.voters:
        if voter.id == own.node_id:
            continue
        state = states.get(voter.id)
        if state is None:
            reasons = "; ".join(f"{a.place}: {a.problem}" for a in answers if a.hello is None)
            problems.append(
                Problem(Obstacle.SILENT, f"node {voter.id} does not answer ({reasons or 'not asked'})")
            )
        elif state.directory_id != voter.directory:
            problems.append(
                Problem(
                    Obstacle.REPLACED,
                    f"the data directory of node {voter.id} was replaced after it was named as a voter "
                    f"of the proposed cluster {proposal.cluster_id}. If no node belongs to that cluster, run "
                    "`alpacamq format --reset` on every node that has stored the proposal",
                )
            )
        elif state.proposal is None:
            missing.append(voter.id)
        elif not has_accepted(state, proposal):
            problems.append(Problem(Obstacle.OTHER_PROPOSAL, _other_proposal(voter.id, state.proposal)))
    if not problems and not missing:
        return Found(proposal)
    if missing and is_proposer(own, proposal):
        return SendProposal(proposal, tuple(missing))
    if missing:
        problems.append(
            Problem(
                Obstacle.PENDING,
                f"waiting for nodes {_ids(missing)} to accept cluster {proposal.cluster_id}, "
                f"proposed by node {proposal.proposer}",
            )
        )
    return Wait(tuple(problems))


def _is_listed(node_id: BrokerId, candidates: Candidates) -> bool:
    return not candidates.node_ids or node_id in candidates.node_ids


def _other_proposal(node_id: BrokerId, proposal: Proposal) -> str:
    return (
        f"node {node_id} has accepted cluster {proposal.cluster_id}, proposed by node {proposal.proposer} "
        f"with the voters {_ids(proposal.node_ids)}"
    )


def _ids(node_ids: Sequence[int]) -> str:
    return ", ".join(map(str, node_ids))


def _candidates(candidates: Candidates) -> str:
    if candidates.node_ids:
        return f"the nodes {_ids(candidates.node_ids)}"
    return f"DNS and {candidates.size} voters"
