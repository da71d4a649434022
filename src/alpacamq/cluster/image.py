"""The cluster image: topics, partitions, brokers, settings and security, built from the metadata log.

The log has keyed records, of which the newest counts. Replaying it through `apply` always gives the same
image; nothing else changes an image. Partitions may come before their topic, as they do in a log that was
compacted by key.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self, TypeVar

import msgspec

from alpacamq.model.errors import CorruptState, UnknownBroker, UnknownTopic
from alpacamq.model.ids import BrokerId, TopicId, TopicName
from alpacamq.model.state_machine import Change
from alpacamq.model.topics import Topic
from alpacamq.security.acls import Acl
from alpacamq.security.api_keys import ApiKey
from alpacamq.security.delegation_tokens import DelegationToken
from alpacamq.security.quotas import ClientQuota, Entity, entity_id
from alpacamq.security.sessions import EndedSessions
from alpacamq.security.tenants import Member, Tenant
from alpacamq.security.users import User

from .brokers import BrokerRegistration, FeatureRange
from .partition_state import PartitionId, PartitionState, Replicas

K = TypeVar("K")
V = TypeVar("V")

_TOPIC_PREFIX = b"topic/"
_PARTITION_PREFIX = b"partition/"
_BROKER_PREFIX = b"broker/"
_BROKER_CONFIG_PREFIX = b"broker-config/"
_FEATURE_PREFIX = b"feature/"
_USER_PREFIX = b"user/"
_ACL_PREFIX = b"acl/"
_API_KEY_PREFIX = b"api-key/"
_TENANT_PREFIX = b"tenant/"
_MEMBER_PREFIX = b"member/"
_QUOTA_PREFIX = b"quota/"
_DELEGATION_TOKEN_PREFIX = b"delegation-token/"
_ENDED_SESSIONS_PREFIX = b"ended-sessions/"
_SALT_SECRET_KEY = b"salt-secret"
_SESSION_SECRET_KEY = b"session-secret"
_PRODUCER_IDS_KEY = b"producer-ids"
_BROKER_EPOCHS_KEY = b"broker-epochs"
_STARTS_KEY = b"starts"
_TIME_KEY = b"time"

# The feature whose level says which record kinds, fields of records and requests a cluster uses. A controller
# that rewrites a record drops fields that it does not know, so a new field is written from its level on.
VERSION_FEATURE = "alpacamq.version"
CURRENT_LEVEL = 3
# The level from which on there are users, access rules and API keys.
SECURITY_LEVEL = 2
# The level from which on there are tenants, quotas, delegation tokens and what is stored about sessions.
TENANT_LEVEL = QUOTA_LEVEL = TOKEN_LEVEL = SESSION_LEVEL = 3
# The features that this version supports.
FEATURES: Mapping[str, FeatureRange] = {VERSION_FEATURE: FeatureRange(1, CURRENT_LEVEL)}

_HEX_LENGTH = 32
# In place of a partition whose record has not been applied yet, while one behind it has.
_ABSENT = PartitionState(replicas=(), isr=())
# Distinct lists of replicas that an image shares between partitions.
_MAX_SHARED = 1 << 16

_state_decoder = msgspec.msgpack.Decoder(PartitionState)
_state_encoder = msgspec.msgpack.Encoder()
_SECURITY_PREFIXES = frozenset({_USER_PREFIX, _ACL_PREFIX, _API_KEY_PREFIX, _TENANT_PREFIX, _MEMBER_PREFIX})
_topic_decoder = msgspec.json.Decoder(Topic)
_broker_decoder = msgspec.json.Decoder(BrokerRegistration)
_user_decoder = msgspec.json.Decoder(User)
_acl_decoder = msgspec.json.Decoder(Acl)
_api_key_decoder = msgspec.json.Decoder(ApiKey)
_quota_decoder = msgspec.json.Decoder(ClientQuota)
_tenant_decoder = msgspec.json.Decoder(Tenant)
_member_decoder = msgspec.json.Decoder(Member)
_delegation_token_decoder = msgspec.json.Decoder(DelegationToken)
_ended_sessions_decoder = msgspec.json.Decoder(EndedSessions)


@dataclass(slots=True)
class Delta:
    """What differs between two images. A name that changed more than once is here once.

    A topic that was deleted is in `deleted` as it was, and is not in `topics`, unless another one of the same
    name was created since. Partitions of deleted topics are not in `partitions`.
    """

    topics: set[TopicName] = field(default_factory=set)
    deleted: dict[TopicId, Topic] = field(default_factory=dict)
    partitions: set[PartitionId] = field(default_factory=set)
    brokers: set[BrokerId] = field(default_factory=set)
    # Of all brokers by an empty name.
    broker_configs: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)
    # Users, access rules, API keys or tenants.
    security: bool = False
    quotas: bool = False

    def __bool__(self) -> bool:
        return bool(
            self.topics
            or self.deleted
            or self.partitions
            or self.brokers
            or self.broker_configs
            or self.features
            or self.security
            or self.quotas
        )

    def __ior__(self, later: "Delta") -> Self:
        """Add a delta that follows this one."""
        for topic_id, topic in later.deleted.items():
            self.topics.discard(topic.name)
            self.deleted[topic_id] = topic
        if later.deleted:
            self.partitions = {each for each in self.partitions if each.topic_id not in later.deleted}
        self.topics |= later.topics
        self.partitions |= later.partitions
        self.brokers |= later.brokers
        self.broker_configs |= later.broker_configs
        self.features |= later.features
        self.security |= later.security
        self.quotas |= later.quotas
        return self


class ClusterImage:
    """All metadata, with the indexes that decisions need.

    Values are frozen, so that a copy shares them.
    """

    def __init__(self) -> None:
        self._topics: dict[TopicName, Topic] = {}
        self._topics_view = MappingProxyType(self._topics)
        self.partition_count = 0
        """Partitions of all topics."""
        self._by_id: dict[TopicId, Topic] = {}
        # Names by their form in metrics, where dots are underscores.
        self._by_metric_name: dict[str, set[TopicName]] = {}
        self._partitions: dict[TopicId, list[PartitionState]] = {}
        self._brokers: dict[BrokerId, BrokerRegistration] = {}
        self._broker_overrides: dict[str, Mapping[str, str]] = {}
        self._features: dict[str, int] = {}
        self._users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}
        self._api_keys: dict[str, ApiKey] = {}
        self._tenants: dict[str, Tenant] = {}
        self._members: dict[str, Member] = {}
        self._quotas: dict[str, ClientQuota] = {}
        self._delegation_tokens: dict[str, DelegationToken] = {}
        # Their ids by the hashes of their HMACs.
        self._token_ids: dict[str, str] = {}
        self._ended_sessions: dict[str, EndedSessions] = {}
        # Draws the salts of users that do not exist; empty until the first user is created.
        self.salt_secret = b""
        # Signs the sessions of browsers; empty until the first one begins.
        self.session_secret = b""
        # Partitions by the brokers that have replicas of them, and the number that each leads.
        self._replicas_on: dict[int, set[PartitionId]] = {}
        self._led_by: dict[int, int] = {}
        self._leaderless: set[PartitionId] = set()
        self._moving: set[PartitionId] = set()
        self._not_preferred: set[PartitionId] = set()
        self._shared: dict[Replicas, Replicas] = {}
        self.next_producer_id = 0
        self.next_broker_epoch = 1
        # The number of the broker's last start; 0 if starts have not been numbered yet.
        self.start_number = 0
        # The last cluster time that was recorded; 0 if none was.
        self.time_ms = 0
        # Incremented with every change of topics, so that dependents can detect one.
        self.version = 0

    def copy(self) -> "ClusterImage":
        """Return an image that changes independently."""
        image = ClusterImage()
        image._topics = self._topics.copy()
        image._topics_view = MappingProxyType(image._topics)
        image.partition_count = self.partition_count
        image._by_id = self._by_id.copy()
        image._by_metric_name = {name: set(names) for name, names in self._by_metric_name.items()}
        image._partitions = {topic_id: states.copy() for topic_id, states in self._partitions.items()}
        image._brokers = self._brokers.copy()
        image._broker_overrides = self._broker_overrides.copy()
        image._features = self._features.copy()
        image._users = self._users.copy()
        image._acls = self._acls.copy()
        image._api_keys = self._api_keys.copy()
        image._tenants = self._tenants.copy()
        image._members = self._members.copy()
        image._quotas = self._quotas.copy()
        image._delegation_tokens = self._delegation_tokens.copy()
        image._token_ids = self._token_ids.copy()
        image._ended_sessions = self._ended_sessions.copy()
        image.salt_secret = self.salt_secret
        image.session_secret = self.session_secret
        image._replicas_on = {broker: ids.copy() for broker, ids in self._replicas_on.items()}
        image._led_by = self._led_by.copy()
        image._leaderless = self._leaderless.copy()
        image._moving = self._moving.copy()
        image._not_preferred = self._not_preferred.copy()
        image._shared = self._shared.copy()
        image.next_producer_id = self.next_producer_id
        image.next_broker_epoch = self.next_broker_epoch
        image.start_number = self.start_number
        image.time_ms = self.time_ms
        image.version = self.version
        return image

    @property
    def topics(self) -> Mapping[TopicName, Topic]:
        return self._topics_view

    def topic(self, name: str) -> Topic:
        """Return the topic of this name. Raises UnknownTopic."""
        if (topic := self._topics.get(TopicName(name))) is None:
            raise UnknownTopic(f"no topic is named {name!r}")
        return topic

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        return self._by_id.get(topic_id)

    def collision(self, name: str) -> TopicName | None:
        """Return another topic whose name differs from `name` in dots and underscores only."""
        return min(self._by_metric_name.get(_metric_name(name), set()) - {name}, default=None)

    def partitions_of(self, topic_id: TopicId) -> Sequence[PartitionState]:
        """Return the partitions of a topic in order; empty for a topic of version 0.1 (see `adopt`)."""
        return self._partitions.get(topic_id, ())

    def partition(self, partition: PartitionId) -> PartitionState | None:
        topic_id, index = partition
        states = self._partitions.get(topic_id, ())
        state = states[index] if 0 <= index < len(states) else _ABSENT
        return None if state is _ABSENT else state

    def replicas_on(self, broker_id: int) -> Collection[PartitionId]:
        """Return the partitions of which a broker has a replica, or is to get one."""
        return self._replicas_on.get(broker_id, ())

    def led_by(self, broker_id: int) -> int:
        """Return how many partitions a broker leads."""
        return self._led_by.get(broker_id, 0)

    @property
    def leaderless(self) -> Collection[PartitionId]:
        return self._leaderless

    @property
    def moving(self) -> Collection[PartitionId]:
        """Partitions that are being reassigned."""
        return self._moving

    @property
    def not_preferred(self) -> Collection[PartitionId]:
        """Partitions that are led by another than their preferred leader."""
        return self._not_preferred

    @property
    def brokers(self) -> Mapping[BrokerId, BrokerRegistration]:
        return MappingProxyType(self._brokers)

    def broker(self, broker_id: int) -> BrokerRegistration:
        """Return a registered broker. Raises UnknownBroker."""
        if (broker := self._brokers.get(BrokerId(broker_id))) is None:
            raise UnknownBroker(f"no broker is registered with id {broker_id}")
        return broker

    def broker_overrides(self, name: str) -> Mapping[str, str]:
        """Return the settings changed at run time of a broker, by its id, or of all, by an empty name."""
        return self._broker_overrides.get(name, {})

    @property
    def features(self) -> Mapping[str, int]:
        """The finalized level of each feature."""
        return MappingProxyType(self._features)

    @property
    def users(self) -> Mapping[str, User]:
        return MappingProxyType(self._users)

    @property
    def acls(self) -> Mapping[str, Acl]:
        """The access rules, by their ids."""
        return MappingProxyType(self._acls)

    @property
    def api_keys(self) -> Mapping[str, ApiKey]:
        return MappingProxyType(self._api_keys)

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        return MappingProxyType(self._tenants)

    @property
    def members(self) -> Mapping[str, Member]:
        """The principals of tenants, as rules name them."""
        return MappingProxyType(self._members)

    @property
    def quotas(self) -> Mapping[str, ClientQuota]:
        """The quotas, by the ids of their entities."""
        return MappingProxyType(self._quotas)

    @property
    def delegation_tokens(self) -> Mapping[str, DelegationToken]:
        return MappingProxyType(self._delegation_tokens)

    def delegation_token_by_hash(self, hmac_hash: str) -> DelegationToken | None:
        """Return the token whose HMAC has this hash."""
        return self._delegation_tokens.get(self._token_ids.get(hmac_hash, ""))

    @property
    def ended_sessions(self) -> Mapping[str, EndedSessions]:
        """The sessions of browsers that were ended by a logout, by their users."""
        return MappingProxyType(self._ended_sessions)

    def apply(self, changes: Iterable[Change]) -> Delta:
        """Apply records of the metadata log. Raises CorruptState for one that this version does not know.

        Skipping it would let this node decide against a state that others do not have.
        """
        delta = Delta()
        topic_ids: dict[bytes, TopicId] = {}
        for key, value in changes:
            try:
                if key.startswith(_PARTITION_PREFIX):
                    self._apply_partition(key, value, topic_ids, delta)
                else:
                    self._apply_other(key, value, delta)
            except (ValueError, msgspec.DecodeError) as error:
                raise CorruptState(f"metadata record {key!r} cannot be read: {error}") from error
        return delta

    def _apply_other(self, key: bytes, value: bytes | None, delta: Delta) -> None:
        kind, separator, name = key.partition(b"/")
        kind += separator
        if kind == _TOPIC_PREFIX:
            self._apply_topic(TopicName(name.decode()), value, delta)
        elif kind == _BROKER_PREFIX:
            broker_id = BrokerId(int(name))
            delta.brokers.add(broker_id)
            self._brokers.pop(broker_id, None)
            if value is not None:
                self._brokers[broker_id] = _broker_decoder.decode(value)
        elif kind == _BROKER_CONFIG_PREFIX:
            resource = name.decode()
            delta.broker_configs.add(resource)
            self._broker_overrides.pop(resource, None)
            if value is not None:
                self._broker_overrides[resource] = msgspec.json.decode(value, type=dict[str, str])
        elif kind == _FEATURE_PREFIX:
            feature = name.decode()
            delta.features.add(feature)
            self._features.pop(feature, None)
            if value is not None:
                self._features[feature] = int(value)
        elif kind in _SECURITY_PREFIXES:
            delta.security = True
            self._apply_security(kind, name.decode(), value)
        elif kind == _QUOTA_PREFIX:
            delta.quotas = True
            entity = name.decode()
            self._quotas.pop(entity, None)
            if value is not None:
                self._quotas[entity] = _quota_decoder.decode(value)
        elif kind == _DELEGATION_TOKEN_PREFIX:
            # Not in the delta: nothing that is derived from the image depends on tokens.
            self._apply_delegation_token(name.decode(), value)
        elif kind == _ENDED_SESSIONS_PREFIX:
            # Not in the delta, as tokens.
            user = name.decode()
            self._ended_sessions.pop(user, None)
            if value is not None:
                self._ended_sessions[user] = _ended_sessions_decoder.decode(value)
        elif key == _SALT_SECRET_KEY:
            self.salt_secret = value or b""
        elif key == _SESSION_SECRET_KEY:
            self.session_secret = value or b""
        elif key == _PRODUCER_IDS_KEY:
            self.next_producer_id = int(value or 0)
        elif key == _BROKER_EPOCHS_KEY:
            self.next_broker_epoch = int(value or 1)
        elif key == _STARTS_KEY:
            self.start_number = int(value or 0)
        elif key == _TIME_KEY:
            self.time_ms = int(value or 0)
        else:
            raise CorruptState(f"the metadata was written by a later version: unknown record {key!r}")

    def _apply_security(self, kind: bytes, name: str, value: bytes | None) -> None:
        if kind == _USER_PREFIX:
            self._users.pop(name, None)
            if value is not None:
                self._users[name] = _user_decoder.decode(value)
        elif kind == _ACL_PREFIX:
            self._acls.pop(name, None)
            if value is not None:
                self._acls[name] = _acl_decoder.decode(value)
        elif kind == _API_KEY_PREFIX:
            self._api_keys.pop(name, None)
            if value is not None:
                self._api_keys[name] = _api_key_decoder.decode(value)
        elif kind == _TENANT_PREFIX:
            self._tenants.pop(name, None)
            if value is not None:
                self._tenants[name] = _tenant_decoder.decode(value)
        else:
            self._members.pop(name, None)
            if value is not None:
                self._members[name] = _member_decoder.decode(value)

    def _apply_delegation_token(self, token_id: str, value: bytes | None) -> None:
        former = self._delegation_tokens.pop(token_id, None)
        if former is not None:
            del self._token_ids[former.hmac_hash]
        if value is not None:
            token = self._delegation_tokens[token_id] = _delegation_token_decoder.decode(value)
            self._token_ids[token.hmac_hash] = token_id

    def _apply_topic(self, name: TopicName, value: bytes | None, delta: Delta) -> None:
        topic = None if value is None else _topic_decoder.decode(value)
        self.version += 1
        former = self._topics.pop(name, None)
        if former is not None:
            self.partition_count -= former.partitions
            del self._by_id[former.id]
            self._remove_metric_name(name)
            if topic is None or topic.id != former.id:
                delta |= Delta(deleted={former.id: former})
                for index, state in enumerate(self._partitions.pop(former.id, ())):
                    self._unindex(PartitionId(former.id, index), state)
        if topic is not None:
            self.partition_count += topic.partitions
            self._topics[name] = self._by_id[topic.id] = topic
            self._by_metric_name.setdefault(_metric_name(name), set()).add(name)
            delta.topics.add(name)

    def _remove_metric_name(self, name: TopicName) -> None:
        metric_name = _metric_name(name)
        names = self._by_metric_name[metric_name]
        names.discard(name)
        if not names:
            del self._by_metric_name[metric_name]

    def _apply_partition(
        self, key: bytes, value: bytes | None, topic_ids: dict[bytes, TopicId], delta: Delta
    ) -> None:
        text = key[len(_PARTITION_PREFIX) : len(_PARTITION_PREFIX) + _HEX_LENGTH]
        if (topic_id := topic_ids.get(text)) is None:
            topic_id = topic_ids[text] = TopicId(hex=text.decode())
        partition = PartitionId(topic_id, int(key[len(_PARTITION_PREFIX) + _HEX_LENGTH + 1 :]))
        index = partition.partition
        states = self._partitions.setdefault(topic_id, [])
        while len(states) <= index:
            states.append(_ABSENT)
        former, state = states[index], _ABSENT
        if value is not None:
            state = self._with_shared_replicas(_state_decoder.decode(value))
        states[index] = state
        self._reindex(partition, former, state)
        delta.partitions.add(partition)
        if value is None:
            while states and states[-1] is _ABSENT:
                states.pop()
            if not states:
                del self._partitions[topic_id]

    def _with_shared_replicas(self, state: PartitionState) -> PartitionState:
        """Share equal lists of replicas between partitions: most have one of few."""
        shared = self._shared
        if len(shared) > _MAX_SHARED:
            shared.clear()
        replicas = shared.setdefault(state.replicas, state.replicas)
        isr = shared.setdefault(state.isr, state.isr)
        if replicas is state.replicas and isr is state.isr:
            return state
        return PartitionState(
            replicas,
            isr,
            state.elr,
            state.leader,
            state.leader_epoch,
            state.partition_epoch,
            state.adding,
            state.removing,
            state.last_leader,
        )

    def _unindex(self, partition: PartitionId, state: PartitionState) -> None:
        self._reindex(partition, state, _ABSENT)

    def _reindex(self, partition: PartitionId, former: PartitionState, state: PartitionState) -> None:
        if former.replicas is not state.replicas:
            for broker in former.replicas:
                if broker not in state.replicas:
                    self._replicas_on[broker].discard(partition)
                    if not self._replicas_on[broker]:
                        del self._replicas_on[broker]
            for broker in state.replicas:
                self._replicas_on.setdefault(broker, set()).add(partition)
        if former.leader != state.leader:
            if former.leader is not None:
                self._led_by[former.leader] -= 1
            if state.leader is not None:
                self._led_by[state.leader] = self._led_by.get(state.leader, 0) + 1
        exists = state is not _ABSENT
        is_led = state.leader is not None
        for index, belongs in (
            (self._leaderless, exists and not is_led),
            (self._moving, state.is_moving),
            (self._not_preferred, is_led and not state.is_led_by_preferred),
        ):
            if belongs:
                index.add(partition)
            else:
                index.discard(partition)

    def changes(self) -> Iterator[Change]:
        """Yield the changes that build this image: its snapshot."""
        for name, level in self._features.items():
            yield feature_change(name, level)
        yield producer_ids_change(self.next_producer_id)
        yield broker_epochs_change(self.next_broker_epoch)
        yield start_change(self.start_number)
        yield time_change(self.time_ms)
        for resource, overrides in self._broker_overrides.items():
            yield broker_config_change(resource, overrides)
        if self.salt_secret:
            yield salt_secret_change(self.salt_secret)
        if self.session_secret:
            yield session_secret_change(self.session_secret)
        for user in self._users.values():
            yield user_change(user)
        for acl in self._acls.values():
            yield acl_change(acl)
        for key in self._api_keys.values():
            yield api_key_change(key)
        for tenant in self._tenants.values():
            yield tenant_change(tenant)
        for member in self._members.values():
            yield member_change(member)
        for quota in self._quotas.values():
            yield quota_change(quota)
        for token in self._delegation_tokens.values():
            yield delegation_token_change(token)
        for ended in self._ended_sessions.values():
            yield ended_sessions_change(ended)
        for broker in self._brokers.values():
            yield broker_change(broker)
        for topic in self._topics.values():
            yield topic_change(topic)
        for topic_id, states in self._partitions.items():
            for index, state in enumerate(states):
                if state is not _ABSENT:
                    yield partition_change(PartitionId(topic_id, index), state)


def unsupported_feature(finalized: Mapping[str, int], supported: Mapping[str, FeatureRange]) -> str | None:
    """Return which feature of a cluster a broker does not support at its level; None if there is none."""
    for name, level in finalized.items():
        levels = supported.get(name)
        if levels is None:
            return f"the cluster uses {name} level {level}; this broker does not know that feature"
        if level not in levels:
            return (
                f"the cluster uses {name} level {level}; this broker supports {levels.min_level} to "
                f"{levels.max_level}"
            )
    return None


def difference(before: ClusterImage, after: ClusterImage) -> Delta:
    """Return what differs between two images, as after loading a snapshot."""
    delta = Delta()
    delta.deleted = {
        topic.id: topic for topic in before.topics.values() if after.topic_by_id(topic.id) is None
    }
    delta.topics = {name for name, topic in after.topics.items() if before.topics.get(name) != topic}
    for topic in after.topics.values():
        states, former = after.partitions_of(topic.id), before.partitions_of(topic.id)
        for index, state in enumerate(states):
            if index >= len(former) or former[index] != state:
                delta.partitions.add(PartitionId(topic.id, index))
    delta.brokers = _differing(before.brokers, after.brokers)
    delta.broker_configs = _differing(before._broker_overrides, after._broker_overrides)
    delta.features = _differing(before.features, after.features)
    delta.security = (
        before.users != after.users
        or before.acls != after.acls
        or before.api_keys != after.api_keys
        or before.tenants != after.tenants
        or before.members != after.members
    )
    delta.quotas = before.quotas != after.quotas
    return delta


def adopt(
    image: ClusterImage, node_id: BrokerId, leader_epoch_of: Callable[[PartitionId], int]
) -> list[Change]:
    """Return the changes that give the topics of version 0.1 their partitions, all on `node_id`.

    `leader_epoch_of` returns the highest leader epoch that is stored for a partition. A data directory of
    that version belongs to one node, which has every record of every topic.
    """
    changes = []
    if VERSION_FEATURE not in image.features:
        changes.append(feature_change(VERSION_FEATURE, CURRENT_LEVEL))
    for topic in image.topics.values():
        for index in range(topic.partitions):
            partition = PartitionId(topic.id, index)
            if image.partition(partition) is None:
                state = PartitionState(
                    replicas=(node_id,),
                    isr=(node_id,),
                    leader=node_id,
                    leader_epoch=leader_epoch_of(partition) + 1,
                )
                changes.append(partition_change(partition, state))
    return changes


def _differing(before: Mapping[K, V], after: Mapping[K, V]) -> set[K]:
    return {key for key in {*before, *after} if before.get(key) != after.get(key)}


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def topic_change(topic: Topic) -> Change:
    """Return the record that creates or updates `topic`."""
    return Change(_TOPIC_PREFIX + topic.name.encode(), msgspec.json.encode(topic))


def topic_removal(name: TopicName) -> Change:
    """Return the record that deletes a topic and its partitions."""
    return Change(_TOPIC_PREFIX + name.encode(), None)


def partition_change(partition: PartitionId, state: PartitionState) -> Change:
    """Return the record of the replicas of a partition."""
    key = b"%s%s/%d" % (_PARTITION_PREFIX, partition.topic_id.hex.encode(), partition.partition)
    return Change(key, _state_encoder.encode(state))


def broker_change(broker: BrokerRegistration) -> Change:
    """Return the record that registers or updates a broker."""
    return Change(_BROKER_PREFIX + str(broker.id).encode(), msgspec.json.encode(broker))


def broker_removal(broker_id: BrokerId) -> Change:
    """Return the record that unregisters a broker."""
    return Change(_BROKER_PREFIX + str(broker_id).encode(), None)


def feature_change(name: str, level: int) -> Change:
    """Return the record that finalizes a feature at `level`."""
    return Change(_FEATURE_PREFIX + name.encode(), str(level).encode())


def user_change(user: User) -> Change:
    """Return the record that creates or updates a user."""
    return Change(_USER_PREFIX + user.name.encode(), msgspec.json.encode(user))


def user_removal(name: str) -> Change:
    """Return the record that deletes a user."""
    return Change(_USER_PREFIX + name.encode(), None)


def acl_change(acl: Acl) -> Change:
    """Return the record that adds an access rule."""
    return Change(_ACL_PREFIX + acl.id.encode(), msgspec.json.encode(acl))


def acl_removal(acl: Acl) -> Change:
    """Return the record that removes an access rule."""
    return Change(_ACL_PREFIX + acl.id.encode(), None)


def api_key_change(key: ApiKey) -> Change:
    """Return the record that adds an API key."""
    return Change(_API_KEY_PREFIX + key.id.encode(), msgspec.json.encode(key))


def api_key_removal(key_id: str) -> Change:
    """Return the record that deletes an API key."""
    return Change(_API_KEY_PREFIX + key_id.encode(), None)


def tenant_change(tenant: Tenant) -> Change:
    """Return the record that creates or updates a tenant."""
    return Change(_TENANT_PREFIX + tenant.id.encode(), msgspec.json.encode(tenant))


def tenant_removal(tenant: str) -> Change:
    """Return the record that deletes a tenant."""
    return Change(_TENANT_PREFIX + tenant.encode(), None)


def member_change(member: Member) -> Change:
    """Return the record that adds a principal to a tenant."""
    return Change(_MEMBER_PREFIX + member.principal.encode(), msgspec.json.encode(member))


def member_removal(principal: str) -> Change:
    """Return the record that removes a principal from its tenant."""
    return Change(_MEMBER_PREFIX + principal.encode(), None)


def quota_change(quota: ClientQuota) -> Change:
    """Return the record of the quotas of an entity."""
    return Change(_QUOTA_PREFIX + quota.id.encode(), msgspec.json.encode(quota))


def quota_removal(entity: Entity) -> Change:
    """Return the record that removes all quotas of an entity."""
    return Change(_QUOTA_PREFIX + entity_id(entity).encode(), None)


def delegation_token_change(token: DelegationToken) -> Change:
    """Return the record that creates or updates a delegation token."""
    return Change(_DELEGATION_TOKEN_PREFIX + token.id.encode(), msgspec.json.encode(token))


def delegation_token_removal(token_id: str) -> Change:
    """Return the record that removes a delegation token."""
    return Change(_DELEGATION_TOKEN_PREFIX + token_id.encode(), None)


def ended_sessions_change(ended: EndedSessions) -> Change:
    """Return the record of the sessions of a user that were ended by a logout."""
    return Change(_ENDED_SESSIONS_PREFIX + ended.user.encode(), msgspec.json.encode(ended))


def ended_sessions_removal(user: str) -> Change:
    """Return the record that forgets the ended sessions of a user."""
    return Change(_ENDED_SESSIONS_PREFIX + user.encode(), None)


def session_secret_change(secret: bytes) -> Change:
    """Return the record of the secret that signs the sessions of browsers."""
    return Change(_SESSION_SECRET_KEY, secret)


def salt_secret_change(secret: bytes) -> Change:
    """Return the record of the secret that draws the salts of users that do not exist."""
    return Change(_SALT_SECRET_KEY, secret)


def broker_config_change(name: str, overrides: Mapping[str, str]) -> Change:
    """Return the record of the settings of a broker, or of all brokers if `name` is empty."""
    return Change(
        _BROKER_CONFIG_PREFIX + name.encode(), msgspec.json.encode(dict(overrides)) if overrides else None
    )


def producer_ids_change(next_producer_id: int) -> Change:
    """Return the record that reserves every id below `next_producer_id`."""
    return Change(_PRODUCER_IDS_KEY, str(next_producer_id).encode())


def broker_epochs_change(next_broker_epoch: int) -> Change:
    """Return the record that uses up every broker epoch below `next_broker_epoch`."""
    return Change(_BROKER_EPOCHS_KEY, str(next_broker_epoch).encode())


def start_change(number: int) -> Change:
    """Return the record of a broker start."""
    return Change(_STARTS_KEY, str(number).encode())


def time_change(now_ms: int) -> Change:
    """Return the record of a time that has been reached."""
    return Change(_TIME_KEY, str(now_ms).encode())
