"""Runs the bootstrap of this node: asks the candidates, stores decisions, answers other nodes.

`alpacamq.cluster.bootstrap` decides. A decision and its storing are one step that no proposal of another node
can come between. The handlers stay in service after the node has its cluster, for nodes that look for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar, cast

from alpacamq.cluster.bootstrap import (
    Accept,
    Answer,
    AskHello,
    Candidates,
    Decision,
    Found,
    Hello,
    Join,
    Member,
    NodeState,
    Obstacle,
    Problem,
    Propose,
    SendProposal,
    Wait,
    check_proposal,
    decide,
)
from alpacamq.log.data_directory import DataDirectory, new_cluster_id
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError, InvalidConfig
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request
from alpacamq.model.voters import Proposal
from alpacamq.telemetry.logs import get_logger

from .connection import PeerTls, ask
from .handshake import HandshakeFailed, LocalNodeProvider, Peer, Refusal
from .values import Values

log = get_logger(__name__)

R = TypeVar("R")

PAUSE_SECONDS: Final = 0.5
ASK_TIMEOUT_MS: Final = 3000


class Candidate(NamedTuple):
    """Where to ask; the node that should answer is None if only DNS is known."""

    address: Address
    node_id: BrokerId | None

    def __str__(self) -> str:
        return str(self.address) if self.node_id is None else f"node {self.node_id} at {self.address}"


class Bootstrap:
    """The bootstrap of this node. Register `hello` and `propose` as handlers, then `run`."""

    def __init__(
        self,
        directory: DataDirectory,
        candidates: Candidates,
        find_candidates: Callable[[], Awaitable[Sequence[Candidate]]],
        local: LocalNodeProvider,
        secret: bytes,
        values: Values,
        *,
        may_vote: bool = True,
        pause_seconds: float = PAUSE_SECONDS,
        tls: PeerTls | None = None,
    ) -> None:
        self._directory = directory
        self._tls = tls
        self._candidates = candidates
        self._find_candidates = find_candidates
        self._local = local
        self._secret = secret
        self._values = values
        self._may_vote = may_vote
        self._pause_seconds = pause_seconds
        self._storing = asyncio.Lock()
        self._wake = asyncio.Event()
        # What the node waits for, for readiness checks; empty once it has a cluster.
        self.problems: tuple[Problem, ...] = ()

    @property
    def own(self) -> Hello:
        """What this node answers now."""
        identity = self._directory.identity
        state = NodeState(
            node_id=BrokerId(identity.node_id),
            directory_id=self._directory.directory_id,
            cluster_id=identity.cluster_id,
            voters=identity.voters,
            proposal=identity.proposal,
        )
        return Hello(state=state, candidates=self._candidates, may_vote=self._may_vote)

    async def hello(self, _value: AskHello, _peer: Peer) -> Hello:
        """Handle AskHello."""
        return self.own

    async def propose(self, value: Propose, peer: Peer) -> Hello:
        """Handle Propose: store the proposal, then answer."""
        async with self._storing:
            if check_proposal(self.own, value.proposal, peer.node_id) is not None:
                await _finished(asyncio.to_thread(self._directory.accept, value.proposal))
                log.info("cluster_proposal_accepted", cluster=value.proposal.cluster_id, by=peer.node_id)
                self._wake.set()
        return self.own

    async def run(self) -> str:
        """Return the cluster id once the node has founded, joined or always had a cluster.

        Raises InvalidConfig if the directory belongs to another cluster than the listed nodes.
        """
        await self._check_neighbours()
        while True:
            self._wake.clear()
            if (problem := await self._find_double()) is not None:
                await self._wait((problem,))
                continue
            match await self._decide_and_store(await self._ask_all()):
                case Member(cluster_id):
                    self.problems = ()
                    return cluster_id
                case SendProposal(proposal, to):
                    await self._send(proposal, to)
                case Wait(problems):
                    await self._wait(problems)

    async def _wait(self, problems: tuple[Problem, ...]) -> None:
        self._report(problems)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause_seconds):
                await self._wake.wait()

    async def _find_double(self) -> Problem | None:
        """Look for another node with this node's id, at the address that the list has for it."""
        own = self._local().node_id
        for candidate in await self._find_candidates():
            if candidate.node_id != own:
                continue
            try:
                await self._call(candidate, AskHello())
            except HandshakeFailed as error:
                if error.refusal is Refusal.SAME_NODE:
                    return Problem(
                        Obstacle.SAME_ID,
                        f"another node with the id {own} answers at {candidate.address}: "
                        "each node needs an id of its own",
                    )
            except (OSError, AlpacaError):
                continue  # an address that this node cannot reach itself
        return None

    async def _check_neighbours(self) -> None:
        """Reject a directory that is a cluster of its own while the listed nodes belong to another.

        It would start as that cluster, beside the one that its configuration names.
        """
        identity = self._directory.identity
        others = [each for each in await self._find_candidates() if each.node_id != identity.node_id]
        is_alone = identity.is_member and [voter.id for voter in identity.voters] == [identity.node_id]
        if not is_alone or not others:
            return

        async def refusal(candidate: Candidate) -> str | None:
            try:
                await self._call(candidate, AskHello())
            except HandshakeFailed as error:
                return str(error) if error.refusal is Refusal.WRONG_CLUSTER else ""
            except (OSError, AlpacaError):
                return ""
            return None

        found = await asyncio.gather(*map(refusal, others))
        if None not in found and (reason := next(filter(None, found), None)) is not None:
            raise InvalidConfig(
                f"{self._directory.path} belongs to another cluster than the nodes of cluster.nodes: "
                f"{reason}. "
                "To join theirs, start with an empty data directory"
            )

    async def _decide_and_store(self, answers: Sequence[Answer]) -> Decision:
        async with self._storing:
            decision = decide(self.own, answers, new_cluster_id)
            match decision:
                case Accept(proposal):
                    await _finished(asyncio.to_thread(self._directory.accept, proposal))
                    log.info("cluster_proposed", cluster=proposal.cluster_id, voters=list(proposal.node_ids))
                case Found(proposal):
                    await _finished(asyncio.to_thread(self._directory.found))
                    log.info("cluster_founded", cluster=proposal.cluster_id, voters=list(proposal.node_ids))
                case Join(cluster_id, member, _):
                    await _finished(asyncio.to_thread(self._directory.join, cluster_id))
                    log.info("cluster_joined", cluster=cluster_id, by=member)
            return decision

    async def _ask_all(self) -> list[Answer]:
        if self._directory.identity.is_member:
            return []
        own = self._local().node_id
        asked = [found for found in await self._find_candidates() if found.node_id != own]
        return await asyncio.gather(*(self._ask(candidate) for candidate in asked))

    async def _ask(self, candidate: Candidate) -> Answer:
        try:
            hello = await self._call(candidate, AskHello())
        except HandshakeFailed as error:
            return Answer(str(candidate), None, f"{error} ({error.refusal})")
        except (OSError, AlpacaError) as error:
            return Answer(str(candidate), None, str(error) or "no answer in time")
        return Answer(str(candidate), hello)

    async def _send(self, proposal: Proposal, to: Sequence[BrokerId]) -> None:
        """Send a proposal; what comes of it is seen in the next round."""
        targets = [found for found in await self._find_candidates() if found.node_id in (None, *to)]

        async def send(candidate: Candidate) -> None:
            try:
                await self._call(candidate, Propose(proposal=proposal))
            except (OSError, AlpacaError, HandshakeFailed) as error:
                log.warning("cluster_proposal_refused", candidate=str(candidate), reason=str(error))
                # Not at once again: the reason may last.
                await asyncio.sleep(self._pause_seconds)

        await asyncio.gather(*(send(candidate) for candidate in targets))

    async def _call(self, candidate: Candidate, value: Request[R]) -> R:
        _, reply = await ask(
            candidate.address,
            self._local(),
            self._secret,
            self._values,
            value,
            expected=candidate.node_id,
            timeout_ms=ASK_TIMEOUT_MS,
            tls=self._tls,
        )
        return cast("R", reply)

    def _report(self, problems: tuple[Problem, ...]) -> None:
        if problems != self.problems:
            self.problems = problems
            for problem in problems:
                log.warning("waiting_for_cluster", obstacle=str(problem.obstacle), reason=problem.text)


async def _finished(write: Awaitable[None]) -> None:
    """Wait for a write even if the caller is cancelled: the lock must not be released while it goes on."""
    task = asyncio.ensure_future(write)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
