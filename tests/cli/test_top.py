"""`alpacactl top`: a live view, in a real terminal."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.cli.cells import width
from alpacamq.cli.top.snapshot import Sample, SnapshotHistory
from alpacamq.cli.top.terminal import Key, Size, Sort, View, frame, keys_in, number
from alpacamq.wire.queues import QueueStats, QueueTotals
from alpacamq.wire.stats import GroupStats, Stats, TopicStats
from tests.brokers import Broker
from tests.conftest import NewBroker

from .command import Command
from .queued import leased, sent
from .terminals import Terminal


@contextmanager
def watching(broker: Broker, *options: str, columns: int = 100, lines: int = 30) -> Iterator[Terminal]:
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "alpacamq.cli.main", "--http", broker.http_address, "top"]
    with Terminal(
        [*command, "--interval", "200ms", *options], environment, columns=columns, lines=lines
    ) as top:
        yield top


def sample(at_s: float, *, written: int = 0, lag: int = 0, committed: int = 0, acked: int = 0) -> Sample:
    topic = TopicStats(
        topic="orders", partitions=3, messages=written, size_bytes=written * 100, written_total=written,
        written_bytes_total=written * 100, fetched_total=written, fetched_bytes_total=written * 100,
    )  # fmt: skip
    totals = QueueTotals(
        ready=1, in_flight=2, resting=0, dead_lettering=0, received_total=acked, acked_total=acked,
        nacked_total=0, rejected_total=0, expired_leases_total=0, dead_lettered_total=0, redelivered_total=0,
        waiting_receives=0,
    )  # fmt: skip
    return Sample(
        at_s=at_s,
        stats=Stats(
            version="1",
            node_id=1,
            uptime_ms=1000,
            topics=1,
            partitions=3,
            messages=written,
            size_bytes=1,
            groups=None,
            queues=0,
            delayed=None,
            open_transactions=None,
            requests=0,
        ),
        trouble=None,
        topics=[topic, *(msgs(topic, name) for name in ("b" * 200, "日本" * 30, "zebra"))],
        groups=[GroupStats(group="kitchen", topic="orders", lag=lag, committed_total=committed)],
        queues=[QueueStats(group="queue", topic="orders", totals=totals)],
    )


def msgs(topic: TopicStats, name: str) -> TopicStats:
    return TopicStats(
        topic=name, partitions=1, messages=1, size_bytes=topic.size_bytes + len(name), written_total=1,
        written_bytes_total=1, fetched_total=0, fetched_bytes_total=0,
    )  # fmt: skip


def test_rates_are_computed_from_two_samples() -> None:
    history = SnapshotHistory()
    assert history.add(sample(10.0)).topics[0].in_rate is None
    snapshot = history.add(sample(12.0, written=500, lag=7, committed=100, acked=20))
    (orders, *_), (group,), (queue,) = snapshot.topics, snapshot.groups, snapshot.queues
    assert (orders.in_rate, orders.out_rate, orders.in_bytes_rate) == (250, 260, 25_000)
    assert (group.rate, group.trend) == (50, (0, 7))
    assert (queue.acked_rate, queue.received_rate) == (10, 10)
    # The broker started again: nothing went backwards.
    assert history.add(sample(14.0)).topics[0].in_rate == 0


@given(
    columns=st.integers(1, 200),
    lines=st.integers(1, 60),
    scroll=st.integers(0, 100),
    sort=st.sampled_from(Sort),
)
def test_a_frame_is_never_larger_than_the_terminal(columns: int, lines: int, scroll: int, sort: Sort) -> None:
    history = SnapshotHistory()
    history.add(sample(1.0))
    snapshot = history.add(sample(2.0, written=10**12, lag=10**9))
    shown = frame(snapshot, View(scroll=scroll, sort=sort), Size(columns, lines), notice="trouble " * 40)
    assert len(shown) <= lines
    assert all(width(line) <= columns for line in shown)


def test_all_columns_fit_sixty_characters() -> None:
    history = SnapshotHistory()
    history.add(sample(1.0))
    shown = "\n".join(frame(history.add(sample(2.0, written=1234, lag=5)), View(), Size(60, 40)))
    for word in (
        "TOPIC",
        "IN/S",
        "OUT/S",
        "MESSAGES",
        "SIZE",
        "LAG",
        "TREND",
        "READY",
        "IN FLIGHT",
        "ACKED/S",
    ):
        assert word in shown
    assert re.search(r"orders +1,234 +1,234 +1,234", shown)
    assert "kitchen" in shown


def test_rows_are_sorted_and_filtered() -> None:
    snapshot = SnapshotHistory().add(sample(1.0, written=10))

    def topics(view: View) -> list[str]:
        lines = frame(snapshot, view, Size(300, 50))
        start = next(at for at, line in enumerate(lines) if line.startswith("TOPIC")) + 1
        return [line.split()[0][:5] for line in lines[start : lines.index("", start)]]

    assert topics(View(sort=Sort.NAME)) == ["bbbbb", "order", "zebra", "日本日本日"]
    assert topics(View(sort=Sort.SIZE)) == ["bbbbb", "日本日本日", "zebra", "order"]
    assert topics(View(filter="EBR")) == ["zebra"]
    assert "no topics" in "\n".join(frame(snapshot, View(filter="nothing"), Size(80, 50)))


def test_keys_change_the_view() -> None:
    view = View()
    for key in ("s", "/", "a", "b", Key.BACKSPACE, "q", Key.ENTER, "p", Key.DOWN, Key.DOWN, Key.UP):
        view = view.after(key, page=10)
    assert (view.sort, view.filter, view.is_paused, view.scroll, view.is_over) == (
        Sort.SIZE,
        "aq",
        True,
        1,
        False,
    )
    assert view.after(Key.RIGHT, page=10).part == "topics"
    assert view.after(Key.LEFT, page=10).part == "queues"
    assert view.after(Key.ESCAPE, page=10).filter == ""
    assert view.after("?", page=10).after("x", page=10) == view
    assert view.after("q", page=10).is_over


@given(st.text())
def test_any_bytes_are_keys(text: str) -> None:
    assert all(keys_in(text))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("\x1b[A\x1b[B", [Key.UP, Key.DOWN]),
        ("\x1bOCq", [Key.RIGHT, "q"]),
        ("\x1b", [Key.ESCAPE]),
        ("\x1b[15~a", ["a"]),
        ("\x1b[5~\r\x7f", [Key.PAGE_UP, Key.ENTER, Key.BACKSPACE]),
    ],
)
def test_escape_sequences_are_decoded_as_keys(text: str, keys: list[str]) -> None:
    assert list(keys_in(text)) == keys


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.25, "0.2"), (1234, "1,234"), (123_456, "123.5k"), (5e9, "5.0G")],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_once_prints_a_table_or_json(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "a", "b")
    leased(broker, topic, max=1)
    once = ["top", "--once", "--interval", "100ms"]
    shown = ctl.ok(*once, "--filter", topic)
    assert re.search(rf"^{topic} ", shown, re.MULTILINE)
    seen = ctl.json(*once)
    (found,) = [each for each in seen["topics"] if each["topic"] == topic]
    assert (found["messages"], found["in_per_second"]) == (2, 0)
    (queue,) = [each for each in seen["queues"] if each["topic"] == topic]
    assert (queue["ready"], queue["in_flight"]) == (1, 1)


def test_top_without_a_terminal_is_a_usage_error(ctl: Command) -> None:
    assert "--once" in ctl.fails(2, "top")


def test_top_runs_in_a_terminal_and_restores_it(broker: Broker, topic: str) -> None:
    sent(broker, topic, "a", "b")
    with watching(broker, "--filter", topic, columns=120) as top:
        top.wait_for(rf"{topic[:40]}\S* +0 +0")
        assert top.modes != top.before
        sent(broker, topic, *map(str, range(50)))
        top.wait_for(rf"{topic[:40]}\S* +[1-9]")
        top.press("?")
        top.wait_for("this help; any key leaves it")
        top.press("x/zzz-nothing\r")
        top.wait_for("no topics")
        top.press("s")
        top.wait_for("sort: size")
        top.press("p")
        top.wait_for("paused")
        before = len(top.raw)
        top.resize(60, 12)
        top.wait_for("alpacamq up", since=before)
        assert all(width(line) <= 60 for line in top.frame.splitlines())
        top.press("q")
        assert top.ended() == 0
        assert top.modes == top.before
        assert top.raw.endswith(b"\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_a_signal_restores_the_terminal(broker: Broker, number: signal.Signals, code: int) -> None:
    with watching(broker) as top:
        top.wait_for("q quit")
        top.send(number)
        assert top.ended() == code
        assert top.modes == top.before
        assert top.raw.endswith(b"\x1b[?25h\x1b[?1049l")


def test_the_terminal_is_restored_while_suspended(broker: Broker) -> None:
    command = shlex.join([sys.executable, "-m", "alpacamq.cli.main", "--http", broker.http_address, "top"])
    environment = {**os.environ, "PS1": "$ "}
    with Terminal(["bash", "--norc", "--noprofile", "-i"], environment) as bash:
        bash.press(f"{command}\n")
        bash.wait_for("q quit")
        bash.press("\x1a")
        bash.wait_for(r"Stopped")
        assert b"\x1b[?25h\x1b[?1049l" in bash.raw
        before = len(bash.raw)
        bash.press("fg\n")
        bash.wait_for("q quit", since=before)
        bash.press("q")
        bash.wait_for(r"\$ $", since=before)
        bash.press("echo left with $?\n")
        bash.wait_for("left with 0")


def test_top_survives_a_restart_of_the_broker(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    with watching(broker) as top:
        top.wait_for("0 B")
        broker.stop()
        top.wait_for("no broker answers|closed the connection")
        broker.start()
        before = len(top.raw)
        top.wait_for("topics, ", since=before)
        top.press("q")
        assert top.ended() == 0
