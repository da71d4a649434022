"""How far a group has come in each partition, and how much lies before it."""

from dataclasses import dataclass

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.groups import SHARE, Group, Member
from alpacamq.client.kafka.offsets import committed_offsets, extents, shared_places
from alpacamq.client.kafka.topics import every_topic
from alpacamq.model.ids import TopicPartition

from .yaml import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A group in one partition; no end if the topic is gone, no commit if there was none yet.

    What a share group has done before anything else is what it has committed, so to say.
    """

    place: TopicPartition
    committed: int | None
    end: int | None
    lag: int | None
    member: str | None
    client: str | None

    def plain(self) -> Plain:
        return {
            "topic": self.place.topic,
            "partition": self.place.partition,
            "committed": self.committed,
            "end": self.end,
            "lag": self.lag,
            "member": self.member,
            "client": self.client,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """How far a group is behind in a topic: in all, and in the partition where it is furthest behind."""

    group: Group
    topic: str
    lag: int | None
    largest: int | None

    def plain(self) -> Plain:
        return {
            "group": self.group.name,
            "topic": self.topic,
            "state": self.group.state,
            "members": len(self.group.members),
            "lag": self.lag,
            "largest": self.largest,
        }


def lag_by_topic(cluster: Cluster, group: Group) -> list[TopicLag]:
    by_topic: dict[str, list[int]] = {}
    for each in progress(cluster, group):
        lags = by_topic.setdefault(each.place.topic, [])
        lags += [] if each.lag is None else [each.lag]
    return [
        TopicLag(group=group, topic=topic, lag=sum(lags) if lags else None, largest=max(lags, default=None))
        for topic, lags in by_topic.items()
    ]


def progress(cluster: Cluster, group: Group) -> list[Progress]:
    """Every partition the group has committed or is assigned."""
    shared = shared_places(cluster, group.name) if group.kind == SHARE else {}
    committed = (
        {place: found.start for place, found in shared.items()}
        if group.kind == SHARE
        else committed_offsets(cluster, group.name)
    )
    owners: dict[TopicPartition, list[Member]] = {}
    for member in group.members:
        for place in member.partitions:
            owners.setdefault(place, []).append(member)
    existing = {place for topic in every_topic(cluster) for place in topic.all_partitions()}
    places = sorted(committed.keys() | owners.keys())
    spans = extents(cluster, [place for place in places if place in existing])
    found = []
    for place in places:
        span = spans.get(place)
        end = span.end if span else None
        reached = committed.get(place)
        lag = None if reached is None or end is None else max(0, end - reached)
        found.append(
            Progress(
                place=place,
                committed=reached,
                end=end,
                lag=shared[place].lag if place in shared else lag,
                member=",".join(member.id for member in owners.get(place, ())) or None,
                client=",".join(sorted({member.client for member in owners.get(place, ())})) or None,
            )
        )
    return found
