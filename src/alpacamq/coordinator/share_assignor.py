"""Which partitions each member of a share group fetches from.

Members share partitions, so nothing has to be taken from one before another may have it. Each partition
has at least two members where the group has as many: then a member that is slow keeps nobody from the
rest of its partition. Each member has at least one partition, and all have about as many.
"""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from alpacamq.model.ids import TopicId

from .consumer_messages import Partitions

SHARERS = 2


def assign_shared(
    subscribers: Mapping[str, frozenset[TopicId]],
    partition_counts: Mapping[TopicId, int],
    before: Mapping[str, Partitions],
) -> dict[str, Partitions]:
    """Everyone's partitions, as close to `before` as balance allows."""
    assigned: dict[str, dict[TopicId, frozenset[int]]] = {member: {} for member in subscribers}
    for topic, count in partition_counts.items():
        members = sorted(member for member, topics in subscribers.items() if topic in topics)
        if not members or not count:
            continue
        held = {member: before.get(member, {}).get(topic, ()) for member in members}
        for member, indexes in _topic(held, count).items():
            assigned[member][topic] = frozenset(indexes)
    return dict(assigned)


def _topic(held: Mapping[str, Iterable[int]], partitions: int) -> dict[str, set[int]]:
    """The partitions of one topic among its subscribers."""
    members = len(held)
    sharers = min(members, max(SHARERS, -(-members // partitions)))
    share, larger_shares = divmod(partitions * sharers, members)
    room = [sharers] * partitions
    given_up = [0] * partitions
    kept: dict[str, set[int]] = {}
    for member, indexes in held.items():
        keeps = {index for index in indexes if index < partitions and room[index]}
        surplus = len(keeps) - share - (larger_shares > 0)
        if surplus > 0:
            # Of different partitions where possible: a newcomer can take each of them only once.
            for index in sorted(keeps, key=lambda index: (given_up[index], index))[:surplus]:
                keeps.remove(index)
                given_up[index] += 1
        for index in keeps:
            room[index] -= 1
        larger_shares -= len(keeps) > share
        kept[member] = keeps
    by_load = [(len(keeps), member) for member, keeps in kept.items()]
    heapify(by_load)
    for index in range(partitions):
        for _ in range(room[index]):
            _give(index, kept, by_load)
    return kept


def _give(index: int, kept: Mapping[str, set[int]], by_load: list[tuple[int, str]]) -> None:
    """Give a partition to the member with the fewest among those that do not have it."""
    passed_over = []
    load, taker = heappop(by_load)
    while index in kept[taker]:
        passed_over.append((load, taker))
        load, taker = heappop(by_load)
    kept[taker].add(index)
    heappush(by_load, (load + 1, taker))
    for entry in passed_over:
        heappush(by_load, entry)
