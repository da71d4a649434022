"""A group in figures."""

from collections.abc import Mapping
from typing import NamedTuple

from alpacamq.model.ids import TopicPartition

from .group_messages import ListedGroup
from .group_records import CommittedOffset


class GroupFigures(NamedTuple):
    """A group as it is. `rebalances` is how often its members have changed since it was made."""

    group: ListedGroup
    members: int
    rebalances: int
    committed: Mapping[TopicPartition, CommittedOffset]
