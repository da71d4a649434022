"""Voters of the metadata log, as they are when a cluster is founded.

Later changes of the voters are entries of the metadata log itself.
"""

from uuid import UUID

import msgspec

from .ids import BrokerId


class Voter(msgspec.Struct, frozen=True, array_like=True):
    """A node that votes. The same node with another data directory is another voter: its votes are lost."""

    node_id: BrokerId
    directory_id: UUID

    def __str__(self) -> str:
        return f"{self.node_id}@{self.directory_id}"


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that may be founded: once every voter has stored the same proposal, it is."""

    cluster_id: str
    voters: tuple[Voter, ...]

    @property
    def node_ids(self) -> tuple[BrokerId, ...]:
        return tuple(sorted(voter.node_id for voter in self.voters))

    @property
    def proposer(self) -> BrokerId:
        """The node that proposes it, and asks the others to accept."""
        return self.node_ids[0]
