"""The cluster image and the decisions about topics."""

from uuid import UUID, uuid4

import pytest

from alpacamq.cluster.image import ClusterImage, producer_ids_change, topic_change, topic_removal
from alpacamq.cluster.topics import BY_DEFAULT, TopicLimits, configured, created, edit_list, grown
from alpacamq.model.errors import (
    AlpacaError,
    InvalidConfig,
    InvalidPartitionCount,
    InvalidReplication,
    InvalidTopicName,
    TopicExists,
    UnknownTopic,
)
from alpacamq.model.ids import TopicName
from alpacamq.model.topics import Topic

LIMITS = TopicLimits(default_partitions=3, max_partitions=10)


def image_of(*names: str) -> ClusterImage:
    image = ClusterImage()
    for name in names:
        image.apply([topic_change(new_topic(image, name))])
    return image


def new_topic(
    image: ClusterImage,
    name: str = "orders",
    partitions: int = BY_DEFAULT,
    replication_factor: int = BY_DEFAULT,
    overrides: dict[str, str] | None = None,
    may_collide: bool = False,
) -> Topic:
    return created(
        image,
        name,
        topic_id=uuid4(),
        partitions=partitions,
        replication_factor=replication_factor,
        overrides=overrides or {},
        limits=LIMITS,
        may_collide=may_collide,
    )


def test_a_replayed_log_gives_the_same_image() -> None:
    image = image_of("a", "b")
    grown_a = grown(image, "a", 5, LIMITS)
    changes = [topic_change(grown_a), topic_removal(image.topic("b").name), producer_ids_change(1000)]
    image.apply(changes)
    assert dict(image.topics) == {"a": grown_a}
    assert image.topic_by_id(grown_a.id) == grown_a
    assert image.partition_count == 5
    assert image.next_producer_id == 1000


def test_a_removed_topic_is_found_neither_by_name_nor_by_id() -> None:
    image = image_of("a")
    topic = image.topic("a")
    image.apply([topic_removal(topic.name)])
    assert image.topic_by_id(topic.id) is None
    with pytest.raises(UnknownTopic, match="'a'"):
        image.topic("a")


def test_a_topic_that_does_not_say_gets_the_default_number_of_partitions() -> None:
    assert new_topic(ClusterImage()).partitions == 3


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        pytest.param({"name": "taken"}, TopicExists, "taken", id="the name is taken"),
        pytest.param({"name": "no/slash"}, InvalidTopicName, "no/slash", id="an illegal name"),
        pytest.param({"name": "__cluster_metadata"}, InvalidTopicName, "reserved", id="our own name"),
        pytest.param({"name": "taken_name.x"}, InvalidTopicName, "'taken.name_x'", id="dots for underscores"),
        pytest.param({"partitions": 0}, InvalidPartitionCount, "at least one", id="no partitions"),
        pytest.param({"partitions": 8}, InvalidPartitionCount, "max_partitions", id="more than fit"),
        pytest.param(
            {"replication_factor": 2}, InvalidReplication, "1 broker", id="replicas without brokers"
        ),
        pytest.param(
            {"overrides": {"retention.mss": "1"}}, InvalidConfig, "retention.ms", id="a misspelt setting"
        ),
    ],
)
def test_a_topic_that_cannot_be_created_is_refused(
    asked: dict[str, object], error: type[AlpacaError], words: str
) -> None:
    with pytest.raises(error, match=words):
        new_topic(image_of("taken", "taken.name_x"), **asked)  # type: ignore[arg-type]


def test_a_colliding_name_is_free_once_the_other_topic_is_deleted() -> None:
    image = image_of("a.b")
    image.apply([topic_change(new_topic(image, "a_b", may_collide=True))])
    assert (image.collision("a.b"), image.collision("a_b")) == ("a_b", "a.b")

    image.apply([topic_removal(TopicName("a.b"))])

    assert image.collision("a_b") is None
    assert image.collision("a.b") == "a_b"
    image.apply([topic_removal(TopicName("a_b"))])
    assert new_topic(image, "a.b").name == "a.b"


def test_partitions_can_be_added_but_not_taken_away() -> None:
    image = image_of("a")
    assert grown(image, "a", 4, LIMITS).partitions == 4
    for count in (3, 2):
        with pytest.raises(InvalidPartitionCount):
            grown(image, "a", count, LIMITS)


def test_settings_are_replaced_as_a_whole() -> None:
    image = image_of("a")
    image.apply([topic_change(configured(image, "a", {"retention.ms": "5"}))])
    assert configured(image, "a", {"flush.ms": "7"}).overrides == {"flush.ms": "7"}


def test_list_settings_take_and_lose_words() -> None:
    assert edit_list("cleanup.policy", "delete", added="compact") == "compact,delete"
    assert edit_list("cleanup.policy", "compact,delete", removed="delete") == "compact"
    with pytest.raises(InvalidConfig, match=r"cleanup\.policy"):
        edit_list("cleanup.policy", "delete", removed="delete")


def test_a_topic_id_is_kept_through_changes() -> None:
    image = image_of("a")
    assert isinstance(grown(image, "a", 4, LIMITS).id, UUID)
    assert grown(image, "a", 4, LIMITS).id == image.topic("a").id
