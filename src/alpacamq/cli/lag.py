"""How far a group has come in each partition, and how much lies before it."""

from dataclasses import dataclass

from alpacamq.client.cluster import Cluster
from alpacamq.client.committed import committed_offsets
from alpacamq.client.groups import Group
from alpacamq.client.offsets import extents
from alpacamq.client.topics import every_topic
from alpacamq.model.ids import TopicPartition

from .yaml import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A group in one partition; no end if the topic is gone, no commit if there was none yet."""

    place: TopicPartition
    committed: int | None
    end: int | None
    member: str | None
    client: str | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)

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


def progress(cluster: Cluster, group: Group) -> list[Progress]:
    """Every partition the group has committed or is assigned."""
    committed = committed_offsets(cluster, group.name)
    owners = {place: member for member in group.members for place in member.partitions}
    existing = {place for topic in every_topic(cluster) for place in topic.all_partitions()}
    places = sorted(committed.keys() | owners.keys())
    spans = extents(cluster, [place for place in places if place in existing])
    found = []
    for place in places:
        owner = owners.get(place)
        span = spans.get(place)
        found.append(
            Progress(
                place=place,
                committed=committed.get(place),
                end=span.end if span else None,
                member=owner.id if owner else None,
                client=owner.client if owner else None,
            )
        )
    return found
