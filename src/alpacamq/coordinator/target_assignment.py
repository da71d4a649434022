"""What each member of a consumer group is to have, and the topics that was worked out from."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

from alpacamq.model.ids import TopicId
from alpacamq.model.outcome import Change

from . import consumer_records as records
from .assignors import ASSIGNORS, Subscriber
from .consumer_messages import Partitions, TopicSummary, TopicsView
from .consumer_records import Profile
from .topic_pattern import TopicPattern

_DIGEST_BYTES = 8


class Subscriptions:
    """The topics that the members' subscriptions mean, as of one version of the topics."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._patterns: dict[str, TopicPattern] = {}
        self._matches: dict[str, frozenset[str]] = {}
        self._topics: dict[tuple[tuple[str, ...], str], frozenset[TopicId]] = {}
        self.partition_counts: Mapping[TopicId, int] = {}

    def is_current(self, topics: TopicsView) -> bool:
        return self._version == topics.version

    def resolve(self, profiles: Iterable[Profile], topics: TopicsView) -> bytes:
        """Look up everything subscribed to; the digest differs if any of it does."""
        if not self.is_current(topics):
            self._version = topics.version
            self._matches = {}
        subscriptions = {(profile.topics, profile.regex) for profile in profiles}
        found: dict[str, TopicSummary] = {}
        self._topics = {}
        for names, regex in subscriptions:
            ids = set()
            for name in self._matching(regex, topics).union(names):
                if (topic := topics.get(name)) is not None:
                    found[name] = topic
                    ids.add(topic.id)
            self._topics[names, regex] = frozenset(ids)
        in_use = {regex for _, regex in subscriptions}
        self._patterns = {regex: each for regex, each in self._patterns.items() if regex in in_use}
        self._matches = {regex: each for regex, each in self._matches.items() if regex in in_use}
        self.partition_counts = {topic.id: topic.partitions for topic in found.values()}
        return _digest(found)

    def topics_of(self, profile: Profile) -> frozenset[TopicId]:
        """The topics of a member that was there when last resolved."""
        return self._topics[profile.topics, profile.regex]

    def _matching(self, regex: str, topics: TopicsView) -> frozenset[str]:
        if not regex:
            return frozenset()
        if regex not in self._matches:
            if regex not in self._patterns:
                self._patterns[regex] = TopicPattern(regex)
            matches = self._patterns[regex].matches
            self._matches[regex] = frozenset(name for name in topics.names() if matches(name))
        return self._matches[regex]


class TargetAssignment:
    """The target of every member, made for one epoch of the group."""

    def __init__(self, group: str, default_assignor: str) -> None:
        self._group = group
        self._default_assignor = default_assignor
        self._subscriptions = Subscriptions()
        self._by_member: dict[str, Partitions] = {}
        self.epoch = 0
        self.topics_digest = b""

    def __getitem__(self, member_id: str) -> Partitions:
        return self._by_member.get(member_id, {})

    def replay(self, member_id: str, value: bytes | None) -> None:
        """Take in a stored record."""
        if value is None:
            self._by_member.pop(member_id, None)
        else:
            self._by_member[member_id] = records.decode_target(value)

    def snapshot(self) -> Iterator[Change]:
        """The changes from which all this can be rebuilt."""
        for member_id, partitions in self._by_member.items():
            yield records.target_change(self._group, member_id, partitions)

    def drop(self, member_id: str) -> list[Change]:
        """Forget the target of a member that is gone."""
        if self._by_member.pop(member_id, None) is None:
            return []
        return [records.removal(self._group, records.TARGET, member_id)]

    def move(self, member_id: str, successor_id: str) -> list[Change]:
        """Let `successor_id` have what was for `member_id`."""
        partitions = self[member_id]
        changes = self.drop(member_id)
        self._by_member[successor_id] = partitions
        changes.append(records.target_change(self._group, successor_id, partitions))
        return changes

    def topics_differ(self, profiles: Mapping[str, Profile], topics: TopicsView) -> bool:
        """Whether the subscribed topics are no longer those the target was made from."""
        if self._subscriptions.is_current(topics):
            return False
        return self._subscriptions.resolve(profiles.values(), topics) != self.topics_digest

    def assignor(self, profiles: Iterable[Profile]) -> str:
        """The assignor that most of those who ask for one ask for."""
        votes = Counter(profile.assignor for profile in profiles if profile.assignor is not None)
        return min(votes, key=lambda name: (-votes[name], name), default=self._default_assignor)

    def make(self, epoch: int, profiles: Mapping[str, Profile], topics: TopicsView) -> list[Change]:
        """Work everyone's target out anew, for `epoch`."""
        self.topics_digest = self._subscriptions.resolve(profiles.values(), topics)
        self.epoch = epoch
        before = self._by_member
        subscribers = {
            member_id: Subscriber(
                self._subscriptions.topics_of(profile), before.get(member_id, {}), profile.instance_id
            )
            for member_id, profile in profiles.items()
        }
        assign = ASSIGNORS[self.assignor(profiles.values())]
        self._by_member = assign(subscribers, self._subscriptions.partition_counts)
        return [
            records.target_change(self._group, member_id, partitions)
            for member_id, partitions in self._by_member.items()
            if before.get(member_id) != partitions
        ]


def _digest(topics: Mapping[str, TopicSummary]) -> bytes:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for name, topic in sorted(topics.items()):
        digest.update(b"%s/%s%d/" % (name.encode(), topic.id.bytes, topic.partitions))
    return digest.digest()
