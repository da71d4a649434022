"""Voters of the metadata log, and the proposal of a cluster by those that found it."""

from typing import NamedTuple
from uuid import UUID

import msgspec

from .ids import BrokerId


class Voter(NamedTuple):
    """A node that votes, with the data directory in which its votes and entries are stored.

    A node that comes back with an empty directory has forgotten what it promised, so it is another voter.
    """

    id: BrokerId
    directory: UUID

    def __str__(self) -> str:
        return f"{self.id}@{self.directory}"


Voters = tuple[Voter, ...]


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that may be founded: once every voter has stored the same proposal, it is."""

    cluster_id: str
    voters: Voters

    @property
    def node_ids(self) -> tuple[BrokerId, ...]:
        return tuple(sorted(voter.id for voter in self.voters))

    @property
    def proposer(self) -> BrokerId:
        """The node that proposes it, and asks the others to accept."""
        return self.node_ids[0]
