"""Benchmarks on machines that lack a client or a peer."""

import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest
from benchmarks import flame_graphs, jars, machine, nats, page, queue_apis, rabbitmq, report
from benchmarks.c_client import CClient
from benchmarks.jars import Unavailable
from benchmarks.report import OURS, Report
from benchmarks.session import session

HEADER_ERROR = "c_client.c:1:10: fatal error: librdkafka/rdkafka.h: No such file or directory"


def written(collected: Report, directory: Path) -> None:
    here = machine.machine(directory)
    commit = machine.Commit(id="0" * 40, modified=False)
    report.write(collected.results(here, commit, {}, 0.0), directory)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only directory of PATH, which has no programs, on a machine without RabbitMQ or a cache."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(nats, "CACHE", tmp_path)
    monkeypatch.setattr(jars, "CACHE", tmp_path)
    monkeypatch.setattr(rabbitmq, "PROGRAM", tmp_path / "rabbitmq-server")
    return programs


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        pytest.param(None, "there is no C compiler", id="no compiler"),
        pytest.param(
            f"#!/bin/sh\necho '{HEADER_ERROR}' >&2\nexit 1\n", "headers are missing", id="no headers"
        ),
    ],
)
def test_without_the_c_client_benchmarks_run_with_the_others(
    bare: Path, compiler: str | None, reason: str
) -> None:
    if compiler is not None:
        (bare / "cc").write_text(compiler)
        (bare / "cc").chmod(0o755)
    collected = Report("x", "?")
    with session(is_quick=False) as opened:
        opened.note_unavailable(collected)
        assert [client.name for client in opened.clients] == ["confluent-kafka"]
        assert [contender.name for contender in opened.contenders] == [OURS]
    notes = [note for note in collected.skipped if note.startswith(CClient.name)]
    assert len(notes) == 1
    assert reason in notes[0]
    assert "Apache Kafka: there is no java" in collected.skipped


@pytest.mark.usefixtures("bare")
def test_missing_peers_are_named_and_the_broker_is_measured() -> None:
    peers = (
        queue_apis.nats_peer,
        queue_apis.redis_peer,
        queue_apis.classic_peer,
        queue_apis.quorum_peer,
        queue_apis.sqs_peer,
    )
    collected = Report("x", "?")
    measured: list[str] = []
    with session(is_quick=True) as opened:
        queue_apis.compare(
            opened, collected, (*peers, queue_apis.http), lambda _api, server: measured.append(server.name)
        )
    assert measured == [OURS]
    assert [note.partition(":")[0] for note in collected.skipped] == [
        "nats", "redis", "classic", "quorum", "sqs",
    ]  # fmt: skip


def test_a_peer_that_does_not_start_is_unavailable_and_leaves_no_process(tmp_path: Path) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\necho out of luck\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(Unavailable, match="it did not start: out of luck"):
        nats.Nats(program).start(tmp_path / "data")


def test_a_highlight_of_a_client_that_was_missing_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in page.RESULTS.glob("*.json"):
        results = report.read(path)
        kept = [each for each in results.measurements if "C client" not in each.case]
        report.write(msgspec.structs.replace(results, measurements=kept), tmp_path)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    table = page.current("<!-- results: highlights -->\n<!-- end -->")
    assert "| produced, 1 KiB, C client | not measured |  |" in table


def test_results_with_several_peers_have_a_row_for_each_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = Report("several", "?")
    for server, rate in ((OURS, 10.0), ("Redis streams 7", 40.0), ("NATS JetStream 2", 20.0)):
        collected(case="receive", server=server, unit="messages/s", samples=[rate])
    collected(case="alone", server=OURS, unit="messages/s", samples=[1.0])
    collected.skip("ElasticMQ", "there is no java")
    written(collected, tmp_path)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    lines = page.current("<!-- results: several -->\n<!-- end -->").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    assert [(row[0], row[1], row[2], row[-1]) for row in rows[1:]] == [
        ("receive", "AlpacaMQ", "10 messages/s", ""),
        ("receive", "Redis streams 7", "40 messages/s", "×0.25"),
        ("receive", "NATS JetStream 2", "20 messages/s", "×0.5"),
        ("alone", "AlpacaMQ", "1 messages/s", ""),
    ]
    assert "Not measured: ElasticMQ: there is no java." in lines


def test_a_flame_graph_shows_the_functions_of_the_event_loop_by_their_share() -> None:
    loop = "main (node/main.py:1);Runner.run (asyncio/runners.py:118)"
    stacks = (
        f"{loop};serve (src/alpacamq/api/http/server.py:3);append (src/alpacamq/log/segment.py:9) 30\n"
        f"{loop};serve (src/alpacamq/api/http/server.py:4) 10\n"
        "run (threading.py:1);_worker (concurrent/futures/thread.py:81) 500\n"
    )
    root = flame_graphs.read_stacks(stacks)
    assert root.samples == 40
    (served,) = root.calls.items()
    assert (served[0], served[1].samples) == ("`api/http/server.py` serve", 40)
    assert {name: each.samples for name, each in served[1].calls.items()} == {"`log/segment.py` append": 30}
    dear = flame_graphs.Profile(version="before", root=root, cost_us=20.0)
    cheap = flame_graphs.Profile(version="after", root=root, cost_us=10.0)
    drawn = ET.fromstring(flame_graphs.draw("a path", [dear, cheap]))  # noqa: S314 - our own
    frames = [
        (group[0].text, float(group[1].attrib["width"]))
        for group in drawn.iter("{http://www.w3.org/2000/svg}g")
    ]
    assert frames == [
        ("all", 980.0),
        ("api/http/server.py serve", 980.0),
        ("log/segment.py append", 735.0),
        ("all", 490.0),
        ("api/http/server.py serve", 490.0),
        ("log/segment.py append", 367.5),
    ]
