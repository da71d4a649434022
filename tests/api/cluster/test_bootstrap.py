"""Nodes with empty directories found one cluster, over real connections and real files."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from alpacamq.api.cluster.listener import ClusterListener, Service
from alpacamq.broker.peers.bootstrap import Bootstrap, Candidate
from alpacamq.broker.peers.handshake import LocalNode
from alpacamq.broker.peers.values import Values
from alpacamq.cluster.bootstrap import BOOTSTRAP_VALUES, AskHello, Candidates, Obstacle, Propose
from alpacamq.log.data_directory import DataDirectory, format_directory
from alpacamq.log.disk import SystemDisk
from alpacamq.model.address import Address
from alpacamq.model.ids import BrokerId

from .nodes import SECRET, SOON_S, running, until

VALUES = Values([], bootstrap=BOOTSTRAP_VALUES)


class Starting:
    """A node that starts: its directory, listener and bootstrap."""

    def __init__(self, node_id: int, path: Path, candidates: Candidates, found: list[Candidate]) -> None:
        self.directory = DataDirectory(path, SystemDisk(), node_id)
        self.directory.open(founds_cluster=False)
        self.node_id = BrokerId(node_id)

        async def find() -> Sequence[Candidate]:
            return found

        self.bootstrap = Bootstrap(
            self.directory, candidates, find, self.local, SECRET, VALUES, pause_seconds=0.01
        )
        service = Service(
            VALUES,
            {AskHello: self.bootstrap.hello, Propose: self.bootstrap.propose},
            {},
            lambda transport, _peer: transport.abort(),
        )
        self.listener = ClusterListener("127.0.0.1", 0, self.local, SECRET, service)
        self.address = Address(*self.listener.bind())

    def local(self) -> LocalNode:
        return LocalNode(self.node_id, self.directory.cluster_id, bytes(15) + bytes([self.node_id]))


@asynccontextmanager
async def starting(path: Path, *node_ids: int, by_dns: bool = False) -> AsyncIterator[list[Starting]]:
    """Start these nodes of a cluster of three."""
    candidates = Candidates(size=3) if by_dns else Candidates.listed([1, 2, 3])
    found: list[Candidate] = []
    nodes = [Starting(node_id, path / str(node_id), candidates, found) for node_id in node_ids]
    found += [Candidate(node.address, None if by_dns else node.node_id) for node in nodes]
    async with running(*(node.listener.run for node in nodes)):
        yield nodes
    for node in nodes:
        node.directory.close()


async def test_three_empty_nodes_found_one_cluster(tmp_path: Path) -> None:
    async with starting(tmp_path, 1, 2, 3) as nodes, asyncio.timeout(SOON_S):
        clusters = await asyncio.gather(*(node.bootstrap.run() for node in nodes))
        assert len(set(clusters)) == 1
        assert {len(node.directory.identity.voters) for node in nodes} == {3}
        assert all(node.bootstrap.problems == () for node in nodes)
    # All know it after a restart, without a request.
    async with starting(tmp_path, 2) as (node,):
        assert await node.bootstrap.run() == clusters[0]


async def test_three_nodes_found_by_dns_found_one_cluster(tmp_path: Path) -> None:
    async with starting(tmp_path, 1, 2, 3, by_dns=True) as nodes, asyncio.timeout(SOON_S):
        clusters = await asyncio.gather(*(node.bootstrap.run() for node in nodes))
        assert len(set(clusters)) == 1


async def test_without_the_third_node_there_is_no_cluster_and_it_is_named(tmp_path: Path) -> None:
    async with starting(tmp_path, 1, 2) as nodes, running(*(node.bootstrap.run for node in nodes)):
        await until(lambda: all(node.bootstrap.problems for node in nodes))
        for node in nodes:
            (problem,) = node.bootstrap.problems
            assert problem.obstacle is Obstacle.SILENT
            assert "node 3" in problem.text
            assert node.directory.cluster_id == ""


async def test_an_empty_node_joins_the_cluster_of_a_formatted_one(tmp_path: Path) -> None:
    format_directory(tmp_path / "1", SystemDisk(), 1, "existing")
    async with starting(tmp_path, 1, 2) as (_, empty), asyncio.timeout(SOON_S):
        assert await empty.bootstrap.run() == "existing"
        assert empty.directory.identity.voters == ()
