"""The driver commits each batch exactly once, whatever tasks and drivers did before.

Staging areas stand for the attempts of tasks; the broker is real.
"""

from collections.abc import Iterable, Sequence
from itertools import count
from uuid import uuid4
from zlib import crc32

import pyarrow as pa
import pytest

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.client.kafka.reader import Reader
from alpacamq.client.kafka.topics import add_topic_partitions, create_topic, find_topic
from alpacamq.client.kafka.transactional import claim
from alpacamq.client.kafka.transactions import list_transactions
from alpacamq_spark.commit import committer
from alpacamq_spark.commit import committer as committing
from alpacamq_spark.commit.committer import (
    CommittedAttempt,
    Decision,
    DecisionLog,
    abort,
    commit,
    commit_transactions,
    ended_transactions,
)
from alpacamq_spark.errors import InDoubt, SinkFenced, StagedWriteLost
from alpacamq_spark.options import write_options
from alpacamq_spark.write.staging import JOBS, Batch, StagedWrite, StagingArea, unnamed_sink

from .topics import settled_extents

names = count()


class Sink:
    """A topic, and tasks that write to it."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.name = f"sink-of-{topic}-{next(names)}"
        create_topic(cluster, topic, partitions=2, replicas=-1, settings={})

    def batch(self, number: int, run: str = "first", query: str = "query") -> Batch:
        return Batch(sink=self.name, query=query, run=run, number=number)

    def stage(
        self,
        batch: Batch,
        values: Iterable[str],
        partition: int = 0,
        attempt: int = 0,
        timeout_ms: int = 60_000,
    ) -> StagedWrite:
        return self.begin(batch, values, partition, attempt, timeout_ms).finish()

    def begin(
        self,
        batch: Batch,
        values: Iterable[str],
        partition: int = 0,
        attempt: int = 0,
        timeout_ms: int = 60_000,
    ) -> StagingArea:
        """A task that has taken rows and not ended."""
        options = write_options(
            {
                "kafka.bootstrap.servers": "unused",
                "topic": self.topic,
                "kafka.transaction.timeout.ms": str(timeout_ms),
            }
        )
        area = StagingArea(self.cluster, options, batch, partition, attempt)
        area.begin()
        area.write(pa.RecordBatch.from_pydict({"value": pa.array(list(values), pa.string())}))
        return area

    def give_up(self, late: StagingArea) -> None:
        """Let a task end that is late, as it ends in Spark."""
        with pytest.raises(StagedWriteLost, match="its batch was committed without it"):
            late.finish()
        late.give_up()

    def commit(self, *staged: StagedWrite) -> None:
        commit(self.cluster, staged)

    def abort(self, batch: Batch, *staged: StagedWrite) -> None:
        abort(self.cluster, batch, staged)

    def values(self) -> list[str]:
        """Everything a reader sees, sorted; fails if an open transaction holds anything back."""
        partitions = find_topic(self.cluster, self.topic).all_partitions()
        committed = settled_extents(self.cluster, partitions)
        reader = Reader(
            self.cluster, {each: committed[each].start for each in partitions}, Isolation.COMMITTED
        )
        found = []
        while any(reader.positions[each] < committed[each].end for each in partitions):
            found += [(delivery.record.value or b"").decode() for delivery in reader.read()]
        return sorted(found)

    def left_open(self) -> list[str]:
        return [each.id for each in list_transactions(self.cluster, "Ongoing") if self.name in each.id]


@pytest.fixture
def sink(cluster: Cluster, topic: str) -> Sink:
    return Sink(cluster, topic)


class Died(Exception):
    """A driver that was killed."""


def die(*_: object, **__: object) -> None:
    raise Died


def die_before_showing(monkeypatch: pytest.MonkeyPatch, sink: Sink, *staged: StagedWrite) -> None:
    """Commit with a driver that dies as soon as it has decided."""
    with monkeypatch.context() as patch:
        patch.setattr(committing, "commit_transactions", die)
        with pytest.raises(Died):
            sink.commit(*staged)


def die_after_committing(
    monkeypatch: pytest.MonkeyPatch, sink: Sink, committed: int, *staged: StagedWrite
) -> None:
    """Commit with a driver that dies after committing `committed` of its attempts."""

    def commit_some(cluster: Cluster, producers: Sequence[object]) -> None:
        commit_transactions(cluster, list(producers)[:committed])  # type: ignore[arg-type]
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(committing, "commit_transactions", commit_some)
        with pytest.raises(Died):
            sink.commit(*staged)


def test_nothing_is_visible_before_the_commit_and_all_of_it_after(sink: Sink) -> None:
    first, second = sink.stage(sink.batch(0), ["a", "b"], 0), sink.stage(sink.batch(0), ["c"], 1)
    partitions = find_topic(sink.cluster, sink.topic).all_partitions()
    visible = extents(sink.cluster, partitions, Isolation.COMMITTED)
    assert all(extent.end == 0 for extent in visible.values())
    sink.commit(first, second)
    assert sink.values() == ["a", "b", "c"]


def test_the_option_topic_goes_before_the_column(sink: Sink) -> None:
    area = sink.begin(sink.batch(0), [])
    area.write(pa.RecordBatch.from_pydict({"value": ["a"], "topic": ["another"]}))
    sink.commit(area.finish())
    assert sink.values() == ["a"]


def test_a_row_as_large_as_a_batch_is_written(sink: Sink) -> None:
    small, large = "x" * 1100, "y" * 960_000  # together with a hundred small ones above max.message.bytes
    sink.commit(sink.stage(sink.batch(0), [*[small] * 500, large, *[small] * 499]))
    assert sink.values() == [*[small] * 999, large]


def test_a_task_without_rows_opens_no_transaction(sink: Sink) -> None:
    empty = sink.stage(sink.batch(0), [])
    assert empty.producer is None
    sink.commit(empty)
    sink.commit(sink.stage(sink.batch(0), ["a"], 1), empty)
    assert sink.values() == ["a"]


def test_a_speculative_attempt_that_ends_late_stays_invisible(sink: Sink) -> None:
    """It was cancelled with its rows cut short, and ends without an error after the batch was committed."""
    batch = sink.batch(0)
    late = sink.begin(batch, ["a"], partition=0, attempt=1)
    sink.commit(sink.stage(batch, ["a", "b"], 0), sink.stage(batch, ["c"], 1))
    sink.give_up(late)
    assert sink.values() == ["a", "b", "c"]
    assert sink.left_open() == []


def test_an_attempt_that_writes_after_the_commit_fails(sink: Sink) -> None:
    batch = sink.batch(0)
    late = sink.begin(batch, ["x" * 1000] * 1000, attempt=1)  # enough for batches to be sent
    sink.commit(sink.stage(batch, ["a"]))
    late.write(pa.RecordBatch.from_pydict({"value": ["y"]}))
    sink.give_up(late)
    assert sink.values() == ["a"]


def test_a_failed_attempt_is_dropped_with_the_commit_of_its_batch(sink: Sink) -> None:
    batch = sink.batch(0)
    sink.stage(batch, ["half"], attempt=0)
    sink.commit(sink.stage(batch, ["whole"], attempt=1))
    assert sink.values() == ["whole"]


def test_attempts_of_the_same_number_do_not_end_each_other(sink: Sink) -> None:
    """When Spark retries a stage, it counts from 0 again, and uses attempts that the first try finished."""
    batch = sink.batch(0)
    finished = sink.stage(batch, ["a", "b"])
    again = sink.stage(batch, ["a", "b"])
    sink.commit(finished)
    assert again.producer not in (None, finished.producer)
    assert sink.values() == ["a", "b"]
    assert sink.left_open() == []


def test_a_commit_that_fails_after_its_decision_is_not_undone_by_the_abort(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = sink.batch(0)
    staged = [sink.stage(batch, ["a"], 0), sink.stage(batch, ["b"], 1)]
    die_after_committing(monkeypatch, sink, 1, *staged)
    sink.abort(batch, *staged)
    assert sink.values() == ["a", "b"]
    again = [sink.stage(sink.batch(0, run="second"), [value], n) for n, value in enumerate("ab")]
    sink.commit(*again)
    assert sink.values() == ["a", "b"]


def test_an_abort_by_a_fenced_run_ends_its_transactions_and_not_those_it_had_decided(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = sink.stage(sink.batch(0), ["a"])
    die_before_showing(monkeypatch, sink, decided)
    waiting = sink.stage(sink.batch(1), ["b"])
    with monkeypatch.context() as patch:
        # The other run takes over, and dies before it completes what was decided.
        patch.setattr(committing, "commit_transactions", die)
        with pytest.raises(Died):
            sink.commit(sink.stage(sink.batch(0, run="second"), ["a"]))
    with pytest.raises(SinkFenced, match="another query or job writes under"):
        sink.abort(sink.batch(1), decided, waiting)
    assert decided.producer is not None
    assert decided.producer.transactional_id in sink.left_open()
    assert waiting.producer is not None
    assert waiting.producer.transactional_id not in sink.left_open()
    sink.commit(sink.stage(sink.batch(0, run="third"), ["a"]))
    assert sink.values() == ["a"]
    assert sink.left_open() == []


def test_an_abort_before_the_decision_drops_everything(sink: Sink) -> None:
    batch = sink.batch(0)
    staged = sink.stage(batch, ["a"], 0)
    sink.stage(batch, ["b"], 1)  # its message never arrived
    sink.abort(batch, staged)
    assert sink.values() == []


def test_an_abort_without_messages_aborts_open_attempts_of_the_run(sink: Sink) -> None:
    sink.stage(sink.batch(0), ["a"])
    sink.abort(sink.batch(0))
    assert sink.values() == []
    sink.commit(sink.stage(sink.batch(0, run="second"), ["a"]))
    assert sink.values() == ["a"]


@pytest.mark.parametrize("committed", [0, 1, 2])
def test_a_batch_whose_driver_died_is_completed_when_it_is_repeated(
    sink: Sink, committed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.commit(sink.stage(sink.batch(6), ["before"]))
    batch = sink.batch(7)
    die_after_committing(
        monkeypatch, sink, committed, sink.stage(batch, ["a"], 0), sink.stage(batch, ["b"], 1)
    )
    again = sink.batch(7, run="second")
    sink.commit(sink.stage(again, ["a"], 0), sink.stage(again, ["b"], 1))
    assert sink.values() == ["a", "b", "before"]
    sink.commit(sink.stage(sink.batch(8, run="second"), ["after"]))
    assert sink.values() == ["a", "after", "b", "before"]


def test_a_batch_that_has_no_rows_when_it_is_repeated_is_completed_all_the_same(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source has lost them meanwhile, and may."""
    batch = sink.batch(7)
    die_after_committing(monkeypatch, sink, 1, sink.stage(batch, ["a"], 0), sink.stage(batch, ["b"], 1))
    sink.commit(sink.stage(sink.batch(7, run="second"), []))
    assert sink.values() == ["a", "b"]


def test_a_batch_before_the_last_is_known_to_be_done(sink: Sink) -> None:
    for number in range(3):
        sink.commit(sink.stage(sink.batch(number), [f"{number}"]))
    sink.commit(sink.stage(sink.batch(1, run="second"), ["1"]))
    assert sink.values() == ["0", "1", "2"]


def test_a_decided_attempt_that_timed_out_is_replaced_by_the_repetition(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = sink.batch(0)
    kept, lost = sink.stage(batch, ["a"], 0), sink.stage(batch, ["b"], 1)
    die_after_committing(monkeypatch, sink, 1, kept, lost)
    expire(sink, lost)
    again = sink.batch(0, run="second")
    staged = [sink.stage(again, ["a"], 0), sink.stage(again, ["b"], 1)]
    sink.commit(*staged)
    assert sink.values() == ["a", "b"]
    # The replacement is a decision too, so a third time changes nothing.
    third = sink.batch(0, run="third")
    sink.commit(sink.stage(third, ["a"], 0), sink.stage(third, ["b"], 1))
    assert sink.values() == ["a", "b"]


def test_a_batch_that_timed_out_as_a_whole_may_be_divided_in_another_way(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = sink.batch(0)
    staged = [sink.stage(batch, ["a"], 0), sink.stage(batch, ["b"], 1)]
    die_before_showing(monkeypatch, sink, *staged)
    expire(sink, *staged)
    sink.commit(sink.stage(sink.batch(0, run="second"), ["a", "b"], 0))
    assert sink.values() == ["a", "b"]


def test_half_a_batch_is_never_completed_with_other_rows(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = sink.batch(0)
    kept, lost = sink.stage(batch, ["a"], 0), sink.stage(batch, ["b"], 1)
    die_after_committing(monkeypatch, sink, 1, kept, lost)
    expire(sink, lost)
    again = sink.batch(0, run="second")
    with pytest.raises(InDoubt, match=r"batch 0 of .* was committed in part .* 1 rows of task 1"):
        sink.commit(sink.stage(again, ["b"], 0), sink.stage(again, ["a"], 1))


def test_a_batch_that_took_too_long_is_not_committed(sink: Sink) -> None:
    batch = sink.batch(0)
    staged = [sink.stage(batch, ["a"], 0), sink.stage(batch, ["b"], 1)]
    expire(sink, staged[1])
    with pytest.raises(StagedWriteLost, match=r"longer than kafka.transaction.timeout.ms"):
        sink.commit(*staged)
    sink.abort(batch, *staged)
    assert sink.values() == []


def test_the_older_of_two_queries_under_one_name_is_fenced(sink: Sink) -> None:
    old, new = sink.batch(5, run="old", query="one"), sink.batch(0, run="new", query="other")
    sink.commit(sink.stage(old, ["a"]))
    sink.commit(sink.stage(new, ["b"]))
    with pytest.raises(
        SinkFenced, match=r"writes under transactionalId 'sink-of.*run new, batch 0.*run old may not"
    ):
        sink.commit(sink.stage(sink.batch(6, run="old", query="one"), ["c"]))
    sink.commit(sink.stage(sink.batch(1, run="new", query="other"), ["d"]))
    assert sink.values() == ["a", "b", "d"]


def test_of_two_new_queries_under_one_name_the_later_to_commit_is_fenced(sink: Sink) -> None:
    slow = sink.stage(sink.batch(0, run="slow", query="one"), ["a"])
    sink.commit(sink.stage(sink.batch(0, run="fast", query="other"), ["b"]))
    with pytest.raises(SinkFenced, match="run fast"):
        sink.commit(slow)
    assert sink.values() == ["b"]


def test_a_decision_is_made_by_one_driver_only(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rival claims the sink's id between the last look and the decision: what it decided is found."""
    mine = sink.stage(sink.batch(0, run="mine"), ["a"])
    rivals = sink.stage(sink.batch(0, run="rival"), ["a"])
    done: list[bool] = []

    def interrupted(cluster: Cluster, producers: Sequence[object]) -> list[object]:
        if not done:
            done.append(True)
            sink.commit(rivals)
        return ended_transactions(cluster, producers)  # type: ignore[arg-type,return-value]

    monkeypatch.setattr(committing, "ended_transactions", interrupted)
    sink.commit(mine)
    assert sink.values() == ["a"]
    with pytest.raises(SinkFenced, match="run mine"):
        sink.commit(sink.stage(sink.batch(1, run="rival"), ["b"]))


def test_leftovers_of_a_run_that_never_committed_are_dropped_by_the_next(sink: Sink) -> None:
    sink.stage(sink.batch(0, run="killed"), ["a", "b"])
    sink.commit(sink.stage(sink.batch(0, run="second"), ["a", "b"]))
    assert sink.values() == ["a", "b"]
    assert sink.left_open() == []


def test_ids_are_used_again_so_that_a_long_query_does_not_fill_the_broker(sink: Sink) -> None:
    for number in range(6):
        sink.commit(sink.stage(sink.batch(number), [f"{number}"]))
    assert len([each for each in list_transactions(sink.cluster) if sink.name in each.id]) == 3
    assert sink.values() == list("012345")


def test_a_batch_of_many_tasks_can_be_decided(sink: Sink) -> None:
    batch = sink.batch(0, run=str(uuid4()))
    attempts = [
        CommittedAttempt(
            partition=task,
            transactional_id=batch.attempt_id(task, 0),
            producer_id=1_000_000 + task,
            epoch=0,
            rows=9973 * task % 100_000,
            digest=crc32(b"%d" % task),
        )
        for task in range(20_000)
    ]
    log = DecisionLog(sink.cluster, sink.name)
    log.claim_sink()
    log.write(decision := Decision.after(None, batch, attempts))
    assert log.last() == decision


def test_decisions_are_found_when_partitions_were_added(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "COMMITS_TOPIC", topic)
    logs = [DecisionLog(cluster, f"{topic}-{number}") for number in range(4)]
    for number, log in enumerate(logs):
        log.claim_sink()
        log.write(Decision(sink=f"{topic}-{number}", query="query", run="first", number=number, attempts=()))
    add_topic_partitions(cluster, topic, 11)
    found = [DecisionLog(cluster, f"{topic}-{number}").last() for number in range(4)]
    assert [each and each.number for each in found] == [0, 1, 2, 3]


def test_a_topic_for_decisions_that_is_not_ours_is_refused(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "COMMITS_TOPIC", topic)
    create_topic(cluster, topic, partitions=3, replicas=-1, settings={})
    with pytest.raises(InDoubt, match="has 3 partitions and needs 8"):
        DecisionLog(cluster, "sink")


class TestJobs:
    """Batch jobs, with and without a name."""

    def job(self, sink: Sink, run: str, number: int = -1) -> Batch:
        return Batch(sink=sink.name, query=JOBS, run=run, number=number)

    def test_jobs_under_one_name_follow_each_other(self, sink: Sink) -> None:
        for run in ("one", "two", "three"):
            sink.commit(sink.stage(self.job(sink, run), [run]))
        assert sink.values() == ["one", "three", "two"]

    def test_a_job_that_is_repeated_under_its_number_writes_nothing(self, sink: Sink) -> None:
        sink.commit(sink.stage(self.job(sink, "one", 1), ["a"]))
        sink.commit(sink.stage(self.job(sink, "again", 1), ["a"]))
        sink.commit(sink.stage(self.job(sink, "next", 2), ["b"]))
        assert sink.values() == ["a", "b"]

    def test_the_abort_of_a_job_without_a_number_completes_its_decision(
        self, sink: Sink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = self.job(sink, "one")
        staged = [sink.stage(job, ["a"], 0), sink.stage(job, ["b"], 1)]
        die_after_committing(monkeypatch, sink, 1, *staged)
        sink.abort(job, *staged)
        assert sink.values() == ["a", "b"]
        sink.commit(sink.stage(self.job(sink, "two"), ["c"]))
        assert sink.values() == ["a", "b", "c"]

    def test_a_job_is_known_to_be_done_when_the_broker_has_forgotten_its_transactions(
        self, sink: Sink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink.commit(sink.stage(self.job(sink, "one", 1), ["a"]))
        again = sink.stage(self.job(sink, "again", 1), ["a"])
        monkeypatch.setattr(committing, "commit_transactions", die)
        sink.commit(again)
        assert sink.values() == ["a"]

    def test_a_job_without_a_name_leaves_no_decision_behind(self, sink: Sink) -> None:
        batch = Batch(sink=unnamed_sink("r1"), query=JOBS, run="r1", number=-1)
        sink.commit(sink.stage(batch, ["a"], 0), sink.stage(batch, ["b"], 1))
        assert sink.values() == ["a", "b"]
        assert DecisionLog(sink.cluster, unnamed_sink("r1")).last() is None

    def test_the_abort_of_an_unnamed_job_completes_a_commit_in_progress(
        self, sink: Sink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch = Batch(sink=unnamed_sink("r2"), query=JOBS, run="r2", number=-1)
        staged = [sink.stage(batch, ["a"], 0), sink.stage(batch, ["b"], 1)]
        die_after_committing(monkeypatch, sink, 1, *staged)
        sink.abort(batch, *staged)
        assert sink.values() == ["a", "b"]

    def test_the_abort_of_an_unnamed_job_aborts_its_transactions(self, sink: Sink) -> None:
        batch = Batch(sink=unnamed_sink("r3"), query=JOBS, run="r3", number=-1)
        sink.abort(batch, sink.stage(batch, ["a"], 0), sink.stage(batch, ["b"], 1))
        assert sink.values() == []

    def test_a_task_that_ends_after_its_job_failed_aborts(self, sink: Sink) -> None:
        batch = Batch(sink=unnamed_sink("r4"), query=JOBS, run="r4", number=-1)
        late = sink.begin(batch, ["a"])
        sink.abort(batch)
        sink.give_up(late)
        assert sink.values() == []

    def test_the_next_job_aborts_orphans_of_a_failed_job(self, sink: Sink) -> None:
        failed = Batch(sink=unnamed_sink("r5"), query=JOBS, run="r5", number=-1)
        sink.abort(failed)
        sink.stage(failed, ["a"])
        running = Batch(sink=unnamed_sink("r6"), query=JOBS, run="r6", number=-1)
        other = sink.stage(running, ["b"])
        sink.commit(sink.stage(self.job(sink, "one"), ["c"]))
        sink.commit(other)
        assert sink.values() == ["b", "c"]


def expire(sink: Sink, *staged: StagedWrite) -> None:
    """Abort a transaction under a new epoch, as the broker does after its timeout."""
    for each in staged:
        assert each.producer is not None
        claim(sink.cluster, each.producer.transactional_id, 60_000)
