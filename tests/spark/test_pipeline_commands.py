"""`alpacactl pipeline` as a user runs it, and what needs no Spark of it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from alpacamq.cli.main import main
from alpacamq.cli.progress import ProgressLine
from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.pipelines import load
from alpacamq_spark.pipelines.run import BatchDone
from alpacamq_spark.session import find_java
from tests.brokers import Output
from tests.cli.command import Command
from tests.ports import lasting_address
from tests.waiting import eventually

from .pipeline_files import EXAMPLES, Workshop, send
from .test_pipeline_archive import ids, numbered
from .topics import make_topic, values

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "pipelines.md"
PATIENCE_S = 600
KILLS = 5
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BIN = Path(sys.executable).parent


def environment(**more: str) -> dict[str, str]:
    """The environment of a user with the virtual environment activated, on two shared cores."""
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(find_java().home),
        **more,
    }


def archive_file(directory: Path, topic: str, *more: str) -> Path:
    path = directory / "archive.toml"
    lines = ['kind = "archive"', *more, f'source = {{ topics = ["{topic}"] }}', 'sink = { path = "archive" }']
    path.write_text("\n".join(lines))
    return path


def test_help_and_validation_do_without_spark(tmp_path: Path) -> None:
    path = archive_file(tmp_path, "orders")
    for arguments in (["--help"], ["run", "--help"], ["validate", str(path)]):
        ran = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "alpacamq.cli.main", "pipeline", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
        assert "alpacamq.cli.commands" in loaded
        assert not loaded & {"pyspark", "pyarrow", "numpy"}
        assert ("alpacamq_spark" in loaded) == ("validate" in arguments)


def test_without_spark_one_sentence_says_how_to_install_it(
    workshop: Workshop,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = archive_file(workshop.directory, topic)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["--broker", workshop.broker.address, "pipeline", "run", str(path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "pip install '.[spark]'" in line


def test_every_example_is_valid_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "validate", *map(str, sorted(EXAMPLES.iterdir()))]) == 0
    assert main(["pipeline", "list", str(EXAMPLES)]) == 0
    shown = capsys.readouterr().out
    for kind in ("archive", "replay", "transform", "dead-letters", "analytics"):
        assert shown.count(f"  {kind} ") >= 1


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        pytest.param("kind = 'archiv'", 1, "did you mean archive?", id="a wrong kind"),
        pytest.param(None, 4, "there is no pipeline file", id="no file"),
    ],
)
def test_exit_codes_are_those_of_every_verb(
    content: str | None, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.toml"
    if content is not None:
        path.write_text(content)
    assert main(["pipeline", "run", str(path)]) == code
    assert message in capsys.readouterr().err
    assert main(["pipeline", "validate", str(path)]) == code
    assert main(["pipeline", "list", str(tmp_path / "nowhere")]) == 4


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(
            ['kind = "archive"', 'source.topics = ["a"]', 'sink.path = "b"'],
            "a pipeline of kind archive has no redrive to execute",
            id="another kind",
        ),
        pytest.param(
            ['kind = "dead-letters"', 'source.topics = ["a"]'],
            "add redrive.where to its file",
            id="no redrive",
        ),
    ],
)
def test_a_pipeline_without_a_redrive_is_not_executed(
    lines: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.toml"
    # A broker that is not there, so that it ends in any case.
    path.write_text("\n".join(['broker = "127.0.0.1:1"', *lines]))
    assert main(["pipeline", "run", str(path), "--execute"]) == 1
    assert message in capsys.readouterr().err


def test_validation_checks_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = archive_file(tmp_path, "orders")
    bad = tmp_path / "bad.toml"
    bad.write_text("kind = 'archiv'")
    files = [str(tmp_path / "absent.toml"), str(good), str(bad)]
    assert main(["pipeline", "validate", *files]) == 1
    shown = capsys.readouterr()
    assert re.search(rf"{good} +archive +archive +yes", shown.out)
    assert re.search(rf"{bad} +- +- +no|{bad} .* no", shown.out)
    for reason in ("there is no pipeline file", "did you mean archive?", "2 of 3 files are not valid"):
        assert reason in shown.err
    assert main(["-o", "json", "pipeline", "validate", *files[1:]]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [(row["file"], row["valid"], bool(row["error"])) for row in rows] == [
        (str(good), True, False),
        (str(bad), False, True),
    ]


def test_progress_is_a_line_every_few_seconds_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = [0.0]
    line = ProgressLine(now=lambda: clock[0])

    def batch(number: int) -> list[str]:
        line.batch(
            BatchDone(batch=number, rows=9, rows_per_second=9, duration_ms=1000, lag=0, total_rows=9 * number)
        )
        return capsys.readouterr().err.splitlines()

    assert batch(1) == ["batch 1  9 rows  9.0 rows/s  lag 0  9 in all"]
    clock[0] = 4
    assert batch(2) == []
    clock[0] = 6
    assert [each.split("  ")[0] for each in batch(3)] == ["batch 3"]
    line.running(1)
    assert capsys.readouterr().err == ""
    clock[0] = 18
    line.running(12)
    assert capsys.readouterr().err == "a batch has been running for 12 s\n"
    assert batch(4) == []
    clock[0] = 24
    line.running(0)
    assert capsys.readouterr().err.startswith("batch 4  ")
    assert batch(5) == []
    line.end()
    assert capsys.readouterr().err.startswith("batch 5  ")


def test_a_topic_that_is_not_there_is_known_before_spark_starts(
    workshop: Workshop, cluster: Cluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(cluster, topic)
    path = archive_file(workshop.directory, f"{topic}x")
    broker = ["--broker", workshop.broker.address]
    assert main([*broker, "pipeline", "run", str(path)]) == 4
    assert f"did you mean '{topic}'?" in capsys.readouterr().err
    assert main([*broker, "pipeline", "doctor", str(path)]) == 1
    shown = capsys.readouterr()
    assert re.search(r"Topics +no +not all there", shown.out)
    assert "checks failed: Topics" in shown.err


def test_the_command_line_names_the_broker_before_the_file_does(
    workshop: Workshop, cluster: Cluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(cluster, topic)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
    path = archive_file(workshop.directory, topic, f'broker = "{nobody}"')
    assert main(["pipeline", "status", str(path)]) == 3
    assert nobody in capsys.readouterr().err
    assert main(["--broker", workshop.broker.address, "pipeline", "status", str(path)]) == 0
    assert re.search(r"archive +archive +new", capsys.readouterr().out)


@contextmanager
def running(command: list[str], env: Mapping[str, str], cwd: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a process in its own process group; end it afterwards."""
    process = subprocess.Popen(
        command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.heavy
def test_ctrl_c_ends_a_run_with_a_report(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 10))
    path = archive_file(workshop.directory, topic, 'trigger = "200ms"')
    command = [sys.executable, "-m", "alpacamq.cli.main", "--broker", workshop.broker.address, "-o", "json"]
    with running([*command, "pipeline", "run", str(path)], environment(), workshop.directory) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        out, errors = Output(process.stdout), Output(process.stderr)
        errors.wait_for(r"batch 0  10 rows", within_s=PATIENCE_S)
        # As a terminal does: the whole group gets the signal.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        out.drain()
        errors.drain()
    assert '"rows": 10' in out.text()
    assert errors.find("stopping after this batch")
    assert "Traceback" not in errors.text()
    assert Command(workshop.broker.address).json("pipeline", "status", str(path))["state"] == "stopped"


def last_batch(archive: Path) -> int:
    """Return the number of the last batch that was written, or begun."""
    return max((int(each.name.rpartition("-")[2]) for each in archive.glob("batches=*")), default=-1)


@pytest.mark.heavy
def test_an_archive_whose_runs_are_killed_holds_every_record_once(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    """Batches and merges are cut off wherever they are."""
    random = Random(4)
    make_topic(cluster, topic)
    path = archive_file(
        workshop.directory,
        topic,
        'trigger = "50ms"',
        'schema = "id BIGINT, name STRING"',
        'steps = [{ do = "compact", fan_in = 3 }]',
    )
    path.write_text(path.read_text().replace("topics =", "max_records = 40, topics ="))
    archive = workshop.directory / "archive"
    command = [sys.executable, "-m", "alpacamq.cli.main", "--broker", workshop.broker.address]
    sent = 0
    for _ in range(KILLS):
        send(workshop.broker, topic, numbered(sent, sent + 2000))
        sent += 2000
        with running([*command, "pipeline", "run", str(path)], environment(), workshop.directory) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            errors, _ = Output(process.stderr), Output(process.stdout)
            errors.wait_for(r"batch \d+ ", within_s=PATIENCE_S)
            seen = last_batch(archive) + random.randrange(25)
            eventually(lambda: last_batch(archive) > seen or process.poll() is not None, within_s=PATIENCE_S)  # noqa: B023 - called at once
            assert process.poll() is None, errors.text()
            os.killpg(process.pid, signal.SIGKILL)
        assert set(ids(workshop.spark, archive).values()) == {1}
    assert Command(workshop.broker.address).json("pipeline", "status", str(path))["state"] == "crashed"
    path.write_text(path.read_text().replace("50ms", "available-now").replace("max_records = 40, ", ""))
    workshop.run(load(path, broker=workshop.broker.address))
    assert ids(workshop.spark, archive) == Counter(range(sent))


@pytest.mark.heavy
def test_a_pipeline_runs_on_spark_connect(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    make_topic(cluster, f"{topic}-again")
    send(workshop.broker, topic, numbered(0, 20))
    server = lasting_address()
    host, port = server.split(":")
    serve = [
        str(BIN / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", "local[2]", "--conf", f"spark.connect.grpc.binding.address={host}",
        "--conf", f"spark.connect.grpc.binding.port={port}", "spark-internal",
    ]  # fmt: skip
    remote = f'spark = {{ remote = "sc://{server}" }}'
    path = archive_file(workshop.directory, topic, remote, 'schema = "id BIGINT, name STRING"')
    replay = workshop.directory / "replay.toml"
    replay.write_text(
        f'kind = "replay"\n{remote}\nsource = {{ archive = "archive", from = 2, to = 4 }}\n'
        f'sink = {{ topic = "{topic}-again" }}\n'
    )
    table = workshop.directory / "table.toml"
    table.write_text(
        f'kind = "archive"\n{remote}\nsource = {{ topics = ["{topic}"] }}\n'
        'sink = { format = "iceberg", table = "shop.latest", mode = "upsert" }\n'
    )
    alpacactl = Command(workshop.broker.address, patience_s=PATIENCE_S)
    with running(serve, environment(SPARK_LOCAL_IP="127.0.0.1"), workshop.directory) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        console, _ = Output(process.stderr), Output(process.stdout)
        console.wait_for("Spark Connect server started", within_s=PATIENCE_S)
        assert alpacactl.json("pipeline", "run", str(path))["rows"] == 20
        query = "SELECT sum(id) AS ids FROM `TOPIC`".replace("TOPIC", topic)
        found = alpacactl.json("pipeline", "sql", str(path), query)
        assert found["rows"] == [{"ids": 190}]
        assert alpacactl.json("pipeline", "run", str(replay))["rows"] == 4
        assert alpacactl.json("pipeline", "run", str(table))["table"]["rows"] == 3
        found = alpacactl.json("pipeline", "sql", str(table), "SELECT max(offset) AS last FROM latest")
        assert found["rows"] == [{"last": 9}]
    assert len(values(cluster, f"{topic}-again")) == 4


@pytest.mark.heavy
def test_the_quick_start_leads_from_nothing_to_an_answer(tmp_path: Path) -> None:
    """The five commands of the guide; what the first installs is there already."""
    section = GUIDE.read_text().partition("## Quick start")[2].partition("\n## ")[0]
    found = BLOCK.findall(section)
    [pipeline] = [code for language, code in found if language == "toml"]
    commands = [code.strip() for language, code in found if language == "sh"]
    outputs = [code for language, code in found if language == "text"]
    assert len(commands) == 5
    install, serve, *rest = commands
    assert install.startswith("pip install '.[spark]'")
    (tmp_path / "archive.toml").write_text(pipeline)
    address = lasting_address()
    own = environment(
        ALPACACTL_BROKER=address,
        ALPACAMQ_KAFKA_LISTEN=address,
        ALPACAMQ_HTTP_LISTEN="127.0.0.1:0",
        ALPACAMQ_SQS_LISTEN="127.0.0.1:0",
        ALPACAMQ_GRPC_LISTEN="127.0.0.1:0",
        ALPACAMQ_REGISTRY_LISTEN="127.0.0.1:0",
    )
    with running(["sh", "-c", f"exec {serve}"], own, tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        console, _ = Output(process.stdout), Output(process.stderr)
        console.wait_for("Ctrl-C stops it", within_s=60)
        printed = [
            subprocess.run(
                ["sh", "-ec", command],
                env=own,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
                timeout=PATIENCE_S,
            ).stdout
            for command in rest
        ]
    assert printed[-1] == outputs[-1]


@pytest.mark.heavy
def test_declarative_pipelines_read_and_write_topics(
    workshop: Workshop, cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("orders", "large-orders"):
        make_topic(cluster, name, partitions=1)
    project = tmp_path / "declarative"
    shutil.copytree(ROOT / "examples" / "declarative", project)
    spec = project / "spark-pipeline.yml"
    command = re.search(r"^#   (spark-pipelines run .+)$", spec.read_text(), re.MULTILINE)
    assert command is not None
    assert command[1] in " ".join(GUIDE.read_text().split())
    spec.write_text(spec.read_text().replace("file:///tmp/alpacamq-shop", (tmp_path / "storage").as_uri()))
    runs = [
        ('{"id": 1, "item": "tea", "amount": 3.5}', '{"id": 2, "item": "cake", "amount": 2}'),
        ('{"id": 3, "item": "cake", "amount": 4}',),
    ]
    for orders in runs:
        Command(workshop.broker.address).ok("produce", "orders", stdin="\n".join(orders).encode())
        ran = subprocess.run(
            ["sh", "-c", f"exec {command[1]}"],
            cwd=project,
            env=environment(ALPACACTL_BROKER=workshop.broker.address),
            check=False,
            timeout=PATIENCE_S,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
    assert values(cluster, "large-orders") == [
        '{"id":1,"item":"tea","amount":3.5}',
        '{"id":3,"item":"cake","amount":4.0}',
    ]
    rows = workshop.spark.read.parquet(str(project / "spark-warehouse" / "revenue")).collect()
    assert {row.item: row.orders for row in rows} == {"tea": 1, "cake": 2}
