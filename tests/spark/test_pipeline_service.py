"""Pipelines as services: supervised, started again when they fail, stopped after their batch."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.pipelines import Pipeline, load
from alpacamq_spark.pipelines.errors import PipelineBusy, PipelineFailed
from alpacamq_spark.pipelines.service import LogFile, Phase, Service, ServiceState
from tests.brokers import Broker
from tests.cli.command import Command
from tests.waiting import eventually

from .pipeline_files import Workshop, send
from .test_pipeline_archive import ids, numbered
from .test_pipeline_commands import PATIENCE_S, archive_file
from .topics import make_topic

# A process that supervises the command in its arguments as the service of a pipeline.
SUPERVISE = """
import sys
from pathlib import Path
from alpacamq_spark.pipelines import load
from alpacamq_spark.pipelines.service import supervise
sys.exit(supervise(load(Path(sys.argv[1])).service, sys.argv[2:], options=["--broker", "b:1"],
    arguments=["--trigger", "1s"], backoff_s=0.01, in_background=False))
"""
# A run that notes that it began, and goes on until its first signal, or for good until its second.
RUN = """
import signal, sys, time
from pathlib import Path
place = Path(sys.argv[1])
with (place / "runs").open("a") as runs:
    runs.write("began\\n")
if (place / "broken").exists():
    print("alpacactl: no room", file=sys.stderr)
    sys.exit(1)
stops = []
def stop(number, frame):
    stops.append(number)
    if len(stops) == 2 or not (place / "busy").exists():
        sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


class Supervised:
    """A supervisor in a process of its own."""

    def __init__(
        self, service: Service, process: "subprocess.Popen[bytes]", directory: Path, errors: Path
    ) -> None:
        self.service = service
        self.process = process
        self.directory = directory
        self.errors = errors

    @property
    def state(self) -> ServiceState:
        state = self.service.state()
        assert state is not None
        return state

    def runs(self) -> int:
        return len((self.directory / "runs").read_text().splitlines())

    def wait_for(self, phase: Phase, *, runs: int = 1) -> None:
        eventually(
            lambda: (
                (state := self.service.state()) is not None
                and state.phase is phase
                and (self.directory / "runs").exists()
                and self.runs() >= runs
            )
        )


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return load(archive_file(tmp_path, "orders"))


@pytest.fixture
def supervised(pipeline: Pipeline, tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """Start a supervisor of a run that is no pipeline, so that it fails and ends as the test says."""
    started: list[Supervised] = []

    def start(*command: str) -> Supervised:
        run = command or (sys.executable, "-c", RUN, str(tmp_path))
        errors = tmp_path / f"errors-{len(started)}"
        with errors.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-c", SUPERVISE, str(tmp_path / "archive.toml"), *run], stderr=stream
            )
        started.append(Supervised(pipeline.service, process, tmp_path, errors))
        return started[-1]

    yield start
    for each in started:
        state = each.service.state()
        for process in (each.process.pid, None if state is None else state.run_process):
            if process is not None:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        each.process.wait()


def test_a_failing_run_is_started_again_until_it_works(
    supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    it = supervised()
    it.wait_for(Phase.BACKOFF, runs=3)
    assert it.state.error == "no room"
    assert it.state.failed_ms is not None
    (tmp_path / "broken").unlink()
    it.wait_for(Phase.RUNNING, runs=4)
    restarts = it.state.restarts
    assert restarts >= 3
    # And after a kill.
    eventually(lambda: it.state.run_process is not None)
    os.kill(it.state.run_process or 0, signal.SIGKILL)
    eventually(lambda: it.state.restarts > restarts)
    assert it.service.stop(30)
    assert it.process.wait(30) == 0
    assert it.state.phase is Phase.STOPPED
    errors = it.errors.read_text()
    assert "the run failed (no room); the next one begins in" in errors
    assert "killed by SIGKILL" in errors


def test_a_stop_waits_for_the_batch_and_a_second_signal_does_not(
    supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "busy").touch()
    it = supervised()
    eventually(lambda: "ready" in it.errors.read_text())
    with pytest.raises(PipelineFailed, match="still finishing its batch"):
        it.service.stop(0.2)
    eventually(lambda: it.state.phase is Phase.STOPPING)
    assert it.service.stop(30, at_once=True)
    assert it.process.wait(30) == 0
    assert not it.service.stop(1), "there is nothing to stop any more"


def test_only_one_supervisor_runs_and_a_killed_one_is_noticed(
    supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    it = supervised()
    it.wait_for(Phase.RUNNING)
    with pytest.raises(PipelineBusy, match=f"already started \\(process {it.process.pid}\\)"):
        it.service.check_idle()
    other = supervised()
    assert other.process.wait(30) != 0
    assert "already started" in other.errors.read_text()
    it.process.kill()
    it.process.wait()
    assert it.state.phase is Phase.KILLED
    it.service.check_idle()
    assert (it.state.options, it.state.arguments) == (("--broker", "b:1"), ("--trigger", "1s"))


def test_a_run_that_is_done_ends_the_service(supervised: Callable[..., Supervised]) -> None:
    it = supervised(sys.executable, "-c", "print('3 rows')")
    assert it.process.wait(30) == 0
    assert it.state.phase is Phase.DONE


def test_a_command_line_that_is_wrong_is_not_tried_again(supervised: Callable[..., Supervised]) -> None:
    it = supervised(sys.executable, "-c", "import sys; sys.exit(2)")
    assert it.process.wait(30) == 2
    assert (it.state.phase, it.state.restarts) == (Phase.FAILED, 0)


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpacamq_spark.pipelines.service._LOG_BYTES", 200)
    log = LogFile(tmp_path / "pipeline.log")
    for number in range(100):
        log.write(b"line %d" % number)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "pipeline.log",
        "pipeline.log.1",
        "pipeline.log.2",
    ]
    assert all(path.stat().st_size < 300 for path in tmp_path.iterdir())
    assert "line 99" in "".join(path.read_text() for path in tmp_path.iterdir())


def metrics(broker: Broker) -> str:
    return httpx.get(f"http://{broker.http_address}/metrics").raise_for_status().text


def status(broker: Broker, path: Path) -> Any:
    return Command(broker.address).json("pipeline", "status", str(path))


@pytest.mark.heavy
def test_a_started_pipeline_survives_kills_of_its_runs_and_can_be_restarted(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    """With the real commands, and Spark."""
    broker = workshop.broker
    make_topic(cluster, topic)
    send(broker, topic, numbered(0, 10))
    path = archive_file(workshop.directory, topic, f'name = "{topic}"', 'schema = "id BIGINT, name STRING"')
    archive = workshop.directory / "archive"
    alpacactl = Command(broker.address, patience_s=PATIENCE_S)
    [started] = alpacactl.json("pipeline", "start", str(path), "--trigger", "200ms", "--backoff", "10ms")
    try:
        eventually(lambda: status(broker, path)["batch"] == 0, within_s=PATIENCE_S)
        shown = status(broker, path)
        assert (shown["state"], shown["service"]["process"]) == ("running", started["process"])
        refused = alpacactl("pipeline", "start", str(path))
        assert refused.code == 1
        assert "already started" in refused.errors
        service = load(path).service
        runner = service.runner()
        assert runner is not None
        os.kill(runner, signal.SIGKILL)
        send(broker, topic, numbered(10, 20))
        eventually(lambda: (status(broker, path)["batch"] or 0) > 0, within_s=PATIENCE_S)
        assert status(broker, path)["service"]["restarts"] == 1
        eventually(lambda: f'pipeline_failures_total{{pipeline="{topic}"}} 1' in metrics(broker))
        assert f'alpacamq_pipeline{{pipeline="{topic}",kind="archive",state="running"}} 1' in metrics(broker)
        [again] = alpacactl.json("pipeline", "restart", str(path))
        assert again["process"] != started["process"]
        send(broker, topic, numbered(20, 30))
        eventually(lambda: status(broker, path)["batch"] > 1, within_s=PATIENCE_S)
    finally:
        stopped = alpacactl.json("pipeline", "stop", str(path), "--timeout", "300s")
    assert stopped == [{"name": topic, "was_running": True}]
    assert status(broker, path)["state"] == "stopped"
    assert ids(workshop.spark, archive) == Counter(range(30))
