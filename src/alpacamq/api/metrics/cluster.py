"""Metrics of this node in its cluster: leaders, replicas, followers, metadata and links."""

from collections import Counter

from alpacamq.broker.broker import Broker
from alpacamq.broker.peers.link import LinkState
from alpacamq.broker.remote.status import follower_lags
from alpacamq.broker.slices import in_slices
from alpacamq.cluster.summary import BrokerCounts, Summary
from alpacamq.cluster.topics import configured_min_isr
from alpacamq.model.ids import TopicId
from alpacamq.telemetry import metrics_catalogue as m

from .exposition import Exposition


async def collect_cluster(text: Exposition, broker: Broker) -> None:
    _collect_metadata(text, broker)
    counts = await _counts(broker)
    image = broker.metadata.image
    text.one(m.LED_PARTITIONS, counts.leaders)
    text.one(m.REPLICAS, counts.replicas)
    text.one(m.UNDER_REPLICATED, counts.under_replicated)
    text.one(m.UNDER_MIN_ISR, counts.below_min_isr)
    text.one(m.OFFLINE_PARTITIONS, len(image.leaderless))
    text.one(m.REASSIGNING_PARTITIONS, len(image.moving))
    text.one(m.NOT_PREFERRED_PARTITIONS, len(image.not_preferred))
    replication = broker.replication
    text.one(m.ISR_SHRINKS, replication.stats.in_sync_shrinks)
    text.one(m.ISR_EXPANDS, replication.stats.in_sync_expands)
    lags = await follower_lags(list(replication.led_partitions))
    text.one(m.FOLLOWER_LAG, max((each.lag_messages for each in lags), default=0))
    text.one(m.FOLLOWER_LAG_SECONDS, max((each.lag_ms for each in lags), default=0) / 1000)
    text.one(m.REPLICATION_IN, replication.received_bytes)
    text.one(m.REPLICATION_OUT, replication.stats.sent_bytes)
    _collect_links(text, broker)


def _collect_metadata(text: Exposition, broker: Broker) -> None:
    metadata = broker.metadata
    text.one(m.ACTIVE_CONTROLLER, int(metadata.is_controller))
    text.one(m.CONTROLLER_CHANGES, metadata.controller_changes)
    text.one(m.METADATA_TERM, metadata.quorum.term)
    text.one(m.METADATA_COMMITTED, metadata.quorum.commit_index)
    text.one(m.METADATA_APPLIED, metadata.applied_index)
    registered = metadata.image.brokers.get(broker.settings.node_id)
    # A broker that is cut off does not learn that it is fenced.
    is_fenced = registered is None or registered.is_fenced or not broker.registration.has_contact()
    text.one(m.BROKER_FENCED, int(is_fenced))


async def _counts(broker: Broker) -> BrokerCounts:
    """Count the partitions of this broker."""
    image, node_id = broker.metadata.image, broker.settings.node_id
    configured: dict[TopicId, int | None] = {}
    summary = Summary()
    async for some in in_slices(list(image.replicas_on(node_id))):
        for partition in some:
            topic, state = image.topic_by_id(partition.topic_id), image.partition(partition)
            if topic is None or state is None:
                continue  # deleted meanwhile
            if topic.id not in configured:
                configured[topic.id] = configured_min_isr(image, topic)
            summary.add([state], configured[topic.id])
    return summary.by_broker[node_id]


def _collect_links(text: Exposition, broker: Broker) -> None:
    links = [] if broker.member is None else broker.member.peers.statuses()
    states = Counter(link.state for link in links)
    text.add(m.PEER_LINKS, {(state.value,): states[state] for state in LinkState})
    text.one(m.PEER_CALLS, sum(link.calls_in_flight for link in links))
