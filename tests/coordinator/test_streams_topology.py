"""Numbers of partitions and tasks of topologies, and the internal topics that are missing."""

import msgspec
import pytest

from alpacamq.coordinator.streams.messages import InternalTopic, StatusCode, Subtopology, Topology
from alpacamq.coordinator.streams.topology import MAX_TASKS, ConfiguredTopology, configure
from alpacamq.model.errors import StreamsInvalidTopology

from .consumer_clients import Topics
from .streams_clients import COUNT, SPLIT, WORD_COUNT


def configured(topics: Topics, *subtopologies: Subtopology) -> ConfiguredTopology:
    topology = Topology(epoch=0, subtopologies=subtopologies)
    topology.check()
    return configure(topology, topics)


def missing(found: ConfiguredTopology) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in found.missing}


def problem(found: ConfiguredTopology) -> StatusCode | None:
    return None if found.problem is None else found.problem.code


def test_tasks_follow_the_largest_source_topic() -> None:
    found = configured(Topics(a=2, b=5), Subtopology(id="0", source_topics=("a", "b")))
    assert found.is_ready
    assert found.tasks == {"0": 5}
    assert found.stateful == set()


def test_internal_topics_get_the_partitions_of_the_tasks_that_write_to_them() -> None:
    found = configure(WORD_COUNT, Topics(lines=3))
    assert problem(found) is StatusCode.MISSING_INTERNAL_TOPICS
    assert missing(found) == {"words": 3, "counts": 3}
    assert found.tasks == {}


def test_with_all_topics_the_topology_is_ready() -> None:
    found = configure(WORD_COUNT, Topics(lines=3, words=3, counts=3))
    assert found.is_ready
    assert found.tasks == {"0": 3, "1": 3}
    assert found.stateful == {"1"}


def test_changelog_topics_are_compacted_unless_the_application_says_otherwise() -> None:
    windowed = InternalTopic(name="w", configs=(("cleanup.policy", "compact,delete"),))
    store = Subtopology(
        id="0", source_topics=("a",), changelog_topics=(InternalTopic(name="plain"), windowed)
    )
    found = configured(Topics(a=1), store)
    assert {topic.name: dict(topic.configs) for topic in found.missing} == {
        "plain": {"cleanup.policy": "compact"},
        "w": {"cleanup.policy": "compact,delete"},
    }


def test_a_repartition_topic_may_have_a_number_of_its_own() -> None:
    fixed = msgspec.structs.replace(
        COUNT, repartition_source_topics=(InternalTopic(name="words", partitions=7),)
    )
    assert missing(configured(Topics(lines=3), SPLIT, fixed)) == {"words": 7, "counts": 7}


def test_numbers_pass_through_chains_of_repartition_topics() -> None:
    middle = Subtopology(
        id="1",
        repartition_source_topics=(InternalTopic(name="r1"),),
        repartition_sink_topics=("r2",),
    )
    last = Subtopology(id="2", repartition_source_topics=(InternalTopic(name="r2"),))
    first = Subtopology(id="0", source_topics=("a",), repartition_sink_topics=("r1",))
    assert missing(configured(Topics(a=4), last, middle, first)) == {"r1": 4, "r2": 4}


def test_a_repartition_topic_that_feeds_itself_gets_the_number_of_its_other_source() -> None:
    loop = Subtopology(
        id="0",
        source_topics=("a",),
        repartition_source_topics=(InternalTopic(name="r"),),
        repartition_sink_topics=("r",),
    )
    assert missing(configured(Topics(a=4), loop)) == {"r": 4}


def test_copartitioned_repartition_topics_take_the_number_of_the_source_topic() -> None:
    join = Subtopology(
        id="1",
        source_topics=("b",),
        repartition_source_topics=(InternalTopic(name="r"),),
        copartition_groups=(("b", "r"),),
    )
    first = Subtopology(id="0", source_topics=("a",), repartition_sink_topics=("r",))
    assert missing(configured(Topics(a=4, b=6), first, join)) == {"r": 6}


def test_copartitioned_repartition_topics_take_the_larger_number() -> None:
    first = Subtopology(id="0", source_topics=("a",), repartition_sink_topics=("r",))
    second = Subtopology(id="1", source_topics=("b",), repartition_sink_topics=("s",))
    join = Subtopology(
        id="2",
        repartition_source_topics=(InternalTopic(name="r"), InternalTopic(name="s")),
        copartition_groups=(("r", "s"),),
    )
    assert missing(configured(Topics(a=4, b=6), first, second, join)) == {"r": 6, "s": 6}


def test_source_topics_that_must_be_copartitioned_and_are_not() -> None:
    join = Subtopology(id="0", source_topics=("a", "b"), copartition_groups=(("a", "b"),))
    found = configured(Topics(a=4, b=6), join)
    assert problem(found) is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert found.problem is not None
    assert "a has 4, b has 6" in found.problem.detail


def test_an_internal_topic_with_another_number_of_partitions() -> None:
    found = configure(WORD_COUNT, Topics(lines=3, words=3, counts=2))
    assert problem(found) is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert found.problem is not None
    assert found.problem.detail == "topic 'counts' must have 3 partitions, but has 2"


def test_missing_source_topics_are_named() -> None:
    found = configured(Topics(a=1), Subtopology(id="0", source_topics=("a", "b", "c")))
    assert problem(found) is StatusCode.MISSING_SOURCE_TOPICS
    assert found.problem is not None
    assert found.problem.detail == "missing source topics: b, c"


def test_a_source_topic_can_be_its_own_changelog() -> None:
    table = Subtopology(id="0", source_topics=("a",), changelog_topics=(InternalTopic(name="a"),))
    found = configured(Topics(a=2), table)
    assert found.is_ready
    assert found.stateful == {"0"}


def test_the_number_of_tasks_is_limited() -> None:
    many = [Subtopology(id=str(number), source_topics=("a",)) for number in range(100)]
    found = configured(Topics(a=MAX_TASKS // 100 + 1), *many)
    assert problem(found) is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert found.problem is not None
    assert "too many tasks" in found.problem.detail


@pytest.mark.parametrize(
    ("subtopologies", "text"),
    [
        pytest.param((), "must have a subtopology", id="nothing"),
        pytest.param((SPLIT, SPLIT), "the same id", id="an id twice"),
        pytest.param((Subtopology(id="", source_topics=("a",)),), "must not be empty", id="no id"),
        pytest.param((Subtopology(id="0"),), "no source topics", id="no sources"),
        pytest.param(
            (Subtopology(id="0", source_topics=("a",), source_topic_regex=("a.*",)),),
            "patterns, which are not supported",
            id="pattern",
        ),
        pytest.param(
            (
                Subtopology(
                    id="0",
                    source_topics=("a",),
                    changelog_topics=(InternalTopic(name="c", partitions=3),),
                ),
            ),
            "changelog topic 'c' must not have a number of partitions",
            id="changelog with partitions",
        ),
        pytest.param(
            (Subtopology(id="0", repartition_source_topics=(InternalTopic(name="r", partitions=-1),)),),
            "invalid number of partitions",
            id="negative partitions",
        ),
        pytest.param(
            (
                Subtopology(
                    id="0",
                    repartition_source_topics=(InternalTopic(name="r"),),
                    repartition_sink_topics=("r",),
                ),
            ),
            "no subtopology determines",
            id="a repartition topic that only feeds itself",
        ),
        pytest.param((COUNT,), "no subtopology determines", id="a repartition topic without a writer"),
        pytest.param(
            tuple(Subtopology(id=str(number), source_topics=("t" * 249,) * 1) for number in range(2000)),
            "too large",
            id="large",
        ),
    ],
)
def test_invalid_topologies(subtopologies: tuple[Subtopology, ...], text: str) -> None:
    with pytest.raises(StreamsInvalidTopology, match=text):
        Topology(epoch=0, subtopologies=subtopologies).check()
