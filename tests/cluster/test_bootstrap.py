"""Founding a cluster or joining one: the decision by the answers of the candidates."""

from uuid import UUID

import pytest

from alpacamq.cluster.bootstrap import (
    Accept,
    Answer,
    Candidates,
    Decision,
    Found,
    Hello,
    Join,
    Member,
    NodeState,
    Obstacle,
    SendProposal,
    Wait,
    check_proposal,
    decide,
)
from alpacamq.model.errors import AlpacaError, InconsistentClusterId, InvalidVoters
from alpacamq.model.ids import BrokerId
from alpacamq.model.voters import Proposal, Voter

LIST = Candidates.listed([1, 2, 3])
DNS = Candidates(size=3)


def directory(node_id: int, number: int = 0) -> UUID:
    return UUID(int=node_id * 100 + number)


def voters(*node_ids: int) -> tuple[Voter, ...]:
    return tuple(Voter(BrokerId(node_id), directory(node_id)) for node_id in node_ids)


NEW = Proposal(cluster_id="new", voters=voters(1, 2, 3))
OTHER = Proposal(cluster_id="other", voters=voters(1, 2, 3))


def hello(
    node_id: int,
    *,
    cluster_id: str = "",
    proposal: Proposal | None = None,
    number: int = 0,
    candidates: Candidates = LIST,
    may_vote: bool = True,
    founders: tuple[Voter, ...] = (),
) -> Hello:
    state = NodeState(
        node_id=BrokerId(node_id),
        directory_id=directory(node_id, number),
        cluster_id=cluster_id,
        voters=founders,
        proposal=proposal,
    )
    return Hello(state=state, candidates=candidates, may_vote=may_vote)


def answer(found: Hello) -> Answer:
    return Answer(f"host{found.state.node_id}:9093", found)


SILENT = Answer("host3:9093", None, "connection refused")


def decision(own: Hello, *answers: Answer) -> Decision:
    return decide(own, answers, lambda: "new")


@pytest.mark.parametrize(
    ("own", "answers", "expected"),
    [
        pytest.param(
            hello(1),
            [answer(hello(2)), answer(hello(3))],
            Accept(NEW),
            id="all are empty: the lowest id proposes",
        ),
        pytest.param(
            hello(1, proposal=NEW),
            [answer(hello(2)), answer(hello(3))],
            SendProposal(NEW, (BrokerId(2), BrokerId(3))),
            id="its proposal goes to those who have not accepted",
        ),
        pytest.param(
            hello(1, proposal=NEW),
            [answer(hello(2, proposal=NEW)), answer(hello(3))],
            SendProposal(NEW, (BrokerId(3),)),
            id="and to no others",
        ),
        pytest.param(
            hello(1, proposal=NEW),
            [answer(hello(2, proposal=NEW)), answer(hello(3, proposal=NEW))],
            Found(NEW),
            id="all have accepted: the cluster exists",
        ),
        pytest.param(
            hello(3, proposal=NEW),
            [answer(hello(1, proposal=NEW)), answer(hello(2, proposal=NEW))],
            Found(NEW),
            id="every voter sees that by itself",
        ),
        pytest.param(
            hello(2, proposal=NEW),
            [answer(hello(1, cluster_id="new", founders=NEW.voters)), SILENT],
            Found(NEW),
            id="a founded cluster is known from one member",
        ),
        pytest.param(
            hello(2),
            [answer(hello(1, cluster_id="old")), SILENT],
            Join("old", BrokerId(1), ()),
            id="a cluster exists: join it",
        ),
        pytest.param(
            hello(4, candidates=LIST),
            [answer(hello(1, cluster_id="old", founders=NEW.voters))],
            Join("old", BrokerId(1), NEW.voters),
            id="a node that is not listed can join",
        ),
        pytest.param(hello(1, cluster_id="old"), [SILENT], Member("old"), id="a member sends no requests"),
        pytest.param(
            hello(1, candidates=DNS),
            [answer(hello(n, candidates=DNS)) for n in (1, 2, 3)],
            Accept(NEW),
            id="DNS: the expected number of nodes, itself among them",
        ),
        pytest.param(
            hello(1, candidates=Candidates.listed([1])),
            [],
            Accept(Proposal(cluster_id="new", voters=voters(1))),
            id="one node",
        ),
        pytest.param(
            hello(
                1, candidates=Candidates.listed([1]), proposal=Proposal(cluster_id="new", voters=voters(1))
            ),
            [],
            Found(Proposal(cluster_id="new", voters=voters(1))),
            id="one node, after its own acceptance",
        ),
    ],
)
def test_decision(own: Hello, answers: list[Answer], expected: Decision) -> None:
    assert decision(own, *answers) == expected


@pytest.mark.parametrize(
    ("own", "answers", "obstacle", "text"),
    [
        pytest.param(
            hello(1),
            [answer(hello(2)), SILENT],
            Obstacle.SILENT,
            "host3:9093 does not answer",
            id="one is silent",
        ),
        pytest.param(
            hello(1), [answer(hello(2))], Obstacle.SILENT, "node 3 was not asked", id="one has no address"
        ),
        pytest.param(
            hello(2),
            [answer(hello(1)), answer(hello(3))],
            Obstacle.PENDING,
            "waiting for node 1",
            id="not the lowest",
        ),
        pytest.param(
            hello(1),
            [answer(hello(2, candidates=Candidates.listed([1, 2]))), answer(hello(3))],
            Obstacle.OTHER_LIST,
            "node 2 is configured with the nodes 1, 2, this node with the nodes 1, 2, 3",
            id="lists differ",
        ),
        pytest.param(
            hello(1),
            [answer(hello(2)), answer(hello(3)), answer(hello(4))],
            Obstacle.OTHER_LIST,
            "node 4 answers but is not in the list",
            id="one answers that is not in the list",
        ),
        pytest.param(
            hello(1),
            [answer(hello(2)), answer(hello(3, may_vote=False))],
            Obstacle.NO_VOTER,
            "node 3",
            id="no vote",
        ),
        pytest.param(
            hello(4),
            [answer(hello(n)) for n in (1, 2, 3)],
            Obstacle.NOT_LISTED,
            "node 4 cannot found",
            id="not listed",
        ),
        pytest.param(
            hello(1, candidates=Candidates()),
            [],
            Obstacle.NOT_LISTED,
            "the number of voters",
            id="DNS without a number",
        ),
        pytest.param(
            hello(1, candidates=DNS),
            [answer(hello(2, candidates=DNS))],
            Obstacle.WRONG_COUNT,
            "found 2 nodes (1, 2); a new cluster needs 3",
            id="DNS names too few",
        ),
        pytest.param(
            hello(1, candidates=Candidates(size=1)),
            [answer(hello(2, candidates=Candidates(size=1)))],
            Obstacle.WRONG_COUNT,
            "found 2 nodes",
            id="DNS names too many",
        ),
        pytest.param(
            hello(1),
            [answer(hello(2)), Answer("stray:9093", hello(1, number=7))],
            Obstacle.SAME_ID,
            "two nodes have the id 1: this node and stray:9093",
            id="another has this node's id",
        ),
        pytest.param(
            hello(1),
            [answer(hello(2)), Answer("stray:9093", hello(2, number=7))],
            Obstacle.SAME_ID,
            "two nodes have the id 2: host2:9093 and stray:9093",
            id="two others have the same id",
        ),
        pytest.param(
            hello(3),
            [answer(hello(1, cluster_id="a")), answer(hello(2, cluster_id="b"))],
            Obstacle.TWO_CLUSTERS,
            "different clusters: a (node 1), b (node 2)",
            id="two clusters",
        ),
        pytest.param(
            hello(3, proposal=NEW),
            [answer(hello(1, cluster_id="a")), SILENT],
            Obstacle.OTHER_PROPOSAL,
            "node 1 is in a, but node 3 has accepted cluster new",
            id="bound to another cluster than the one that exists",
        ),
        pytest.param(
            hello(3),
            [answer(hello(1, cluster_id="new", founders=NEW.voters))],
            Obstacle.RESTORED,
            "an old backup was restored",
            id="a voter that forgot its vote does not vote",
        ),
        pytest.param(
            hello(2, proposal=NEW),
            [answer(hello(1, proposal=NEW)), answer(hello(3))],
            Obstacle.PENDING,
            "waiting for nodes 3 to accept cluster new, proposed by node 1",
            id="one has not accepted",
        ),
        pytest.param(
            hello(1, proposal=NEW),
            [answer(hello(2, proposal=NEW)), answer(hello(3, number=7))],
            Obstacle.REPLACED,
            "the data directory of node 3 was replaced",
            id="a voter was wiped",
        ),
        pytest.param(
            hello(1, proposal=NEW),
            [answer(hello(2, proposal=NEW)), answer(hello(3, proposal=OTHER))],
            Obstacle.OTHER_PROPOSAL,
            "node 3 has accepted cluster other",
            id="a voter is bound otherwise",
        ),
        pytest.param(
            hello(1, proposal=NEW),
            [answer(hello(2, proposal=NEW)), SILENT],
            Obstacle.SILENT,
            "node 3 does not answer (host3:9093: connection refused)",
            id="a voter is silent",
        ),
        pytest.param(
            hello(1),
            [answer(hello(2, proposal=OTHER)), answer(hello(3))],
            Obstacle.PENDING,
            "node 2 has accepted cluster other",
            id="another node has accepted what was not sent here yet",
        ),
    ],
)
def test_no_cluster_is_founded(own: Hello, answers: list[Answer], obstacle: Obstacle, text: str) -> None:
    decided = decision(own, *answers)
    assert isinstance(decided, Wait)
    assert any(problem.obstacle is obstacle and text in problem.text for problem in decided.problems), decided


def test_a_silent_node_is_named_once() -> None:
    decided = decision(hello(1), answer(hello(2)), SILENT)
    assert isinstance(decided, Wait)
    assert [problem.obstacle for problem in decided.problems] == [Obstacle.SILENT]


@pytest.mark.parametrize(
    ("own", "proposal", "sender", "error", "text"),
    [
        pytest.param(
            hello(2, cluster_id="a"), NEW, 1, InconsistentClusterId, "belongs to cluster a", id="a member"
        ),
        pytest.param(
            hello(2, proposal=OTHER), NEW, 1, InvalidVoters, "has accepted cluster other", id="bound"
        ),
        pytest.param(hello(2, may_vote=False), NEW, 1, InvalidVoters, "without a vote", id="no vote"),
        pytest.param(hello(2), NEW, 3, InvalidVoters, "only node 1", id="not from the proposer"),
        pytest.param(
            hello(2, number=7), NEW, 1, InvalidVoters, "does not name node 2", id="an earlier directory"
        ),
        pytest.param(
            hello(2, candidates=Candidates.listed([1, 2])),
            NEW,
            1,
            InvalidVoters,
            "configured with the nodes 1, 2",
            id="another list",
        ),
        pytest.param(
            hello(2, candidates=Candidates(size=2)),
            NEW,
            1,
            InvalidVoters,
            "DNS and 2 voters",
            id="another number",
        ),
        pytest.param(
            hello(2, candidates=Candidates()), NEW, 1, InvalidVoters, "DNS and 0 voters", id="never founds"
        ),
        pytest.param(
            hello(2), Proposal(cluster_id="x", voters=()), 1, InvalidVoters, "no voters", id="no voters"
        ),
        pytest.param(
            hello(2),
            Proposal(cluster_id="", voters=NEW.voters),
            1,
            InvalidVoters,
            "invalid cluster id",
            id="no id",
        ),
        pytest.param(
            hello(2),
            Proposal(cluster_id="x", voters=(*NEW.voters, Voter(BrokerId(3), UUID(int=9)))),
            1,
            InvalidVoters,
            "one of them twice",
            id="a voter twice",
        ),
    ],
)
def test_a_proposal_is_refused(
    own: Hello, proposal: Proposal, sender: int, error: type[AlpacaError], text: str
) -> None:
    with pytest.raises(error, match=text):
        check_proposal(own, proposal, BrokerId(sender))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param(hello(2), Accept(NEW), id="an empty directory"),
        pytest.param(hello(2, candidates=DNS), Accept(NEW), id="by DNS"),
        pytest.param(hello(2, proposal=NEW), None, id="stored already"),
        pytest.param(hello(2, cluster_id="new"), None, id="founded already"),
    ],
)
def test_a_proposal_is_accepted(own: Hello, expected: Accept | None) -> None:
    assert check_proposal(own, NEW, BrokerId(1)) == expected
