"""The progress of a query as the committed offsets of a consumer group, so that operators see its lag.

Only a view: no query ever starts from it. Losing a commit costs nothing, as the next one follows.
"""

from alpacamq.client.cluster import Cluster
from alpacamq.client.committed import commit_offsets
from alpacamq.client.errors import ErrorCode, Refused, Unreachable
from alpacamq.model.ids import TopicPartition

from .errors import InvalidOption
from .ranges import Offsets

_TAKEN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH})


class Progress:
    """Commits what was reached when it has changed."""

    def __init__(self, group_id: str | None) -> None:
        self._group_id = group_id
        self._published: dict[TopicPartition, int] = {}

    def publish(self, cluster: Cluster, reached: Offsets) -> None:
        """Make known that everything before these offsets is processed."""
        if self._group_id is None:
            return
        changed = {each: offset for each, offset in reached.items() if self._published.get(each) != offset}
        if not changed:
            return
        try:
            commit_offsets(cluster, self._group_id, changed)
        except Unreachable:
            return
        except Refused as refused:
            if refused.code in _TAKEN:
                raise InvalidOption(
                    f"groupId={self._group_id!r} belongs to a consumer group with members; "
                    "give the query a group of its own"
                ) from refused
            return
        self._published.update(changed)
