"""Clusters without AlpacaMQ on their workers run its connector from an archive."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.package.build import BadPackage, build_package, check_package, own_manifest
from alpacamq_spark.package.cluster import package_settings, python_settings
from alpacamq_spark.package.on_workers import MANIFEST
from alpacamq_spark.pipelines.definition import SparkSettings
from alpacamq_spark.pipelines.errors import InvalidPipeline
from alpacamq_spark.session import find_java, spark_session
from tests.brokers import Broker

from .environments import StandaloneCluster, python_with, standalone_cluster
from .topics import make_topic, values

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
SECTION = "## Clusters without AlpacaMQ"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BIN = Path(sys.executable).parent
JOB_S = 600


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "alpacamq-workers.zip"
    return build_package(path, numpy=True).path


def changed(archive: Path, path: Path, **manifest: str) -> Path:
    """Write an archive with another manifest, and nothing else."""
    with ZipFile(archive) as found, ZipFile(path, "w") as written:
        written.writestr(MANIFEST, json.dumps(json.loads(found.read(MANIFEST)) | manifest))
    return path


def test_an_archive_has_what_tasks_need_and_nothing_of_the_broker(archive: Path, tmp_path: Path) -> None:
    with ZipFile(archive) as found:
        names = set(found.namelist())
    roots = {name.split("/")[0] for name in names}
    assert roots == {
        *("alpacamq", "alpacamq_spark", "pyspark_alpacamq", MANIFEST),
        *("cramjam", "fastcrc", "google", "jsonschema_rs", "lz4", "msgspec"),
        *("numpy", "numpy.libs", "zstandard"),
    }
    assert "alpacamq_spark/read/reader.py" in names
    assert not {name for name in names if name.startswith(("alpacamq/broker", "alpacamq_spark/pipelines"))}
    # Equal for equal contents, and much smaller where workers have NumPy.
    again = build_package(tmp_path / "again.zip", numpy=True)
    assert again.path.read_bytes() == archive.read_bytes()
    assert build_package(tmp_path / "small.zip").size < again.size * 2 / 3


def test_an_archive_that_does_not_fit_the_driver_is_refused(archive: Path, tmp_path: Path) -> None:
    check_package(archive)
    with pytest.raises(BadPackage, match=r"has AlpacaMQ 0.0.1, and this is .*; build it again"):
        check_package(changed(archive, tmp_path / "old.zip", alpacamq="0.0.1"))
    with pytest.raises(BadPackage, match=r"was built for Python 3.9 on .*, and this is Python 3.1"):
        check_package(changed(archive, tmp_path / "python.zip", python="3.9"))
    with pytest.raises(BadPackage, match=r"there is no archive .*; `alpacactl pipeline package` builds one"):
        check_package(tmp_path / "none.zip")
    (tmp_path / "text.zip").write_text("text")
    with pytest.raises(BadPackage, match="was not built by `alpacactl pipeline package`"):
        check_package(tmp_path / "text.zip")
    with pytest.raises(BadPackage, match=r"cannot write .*: No such file or directory"):
        build_package(tmp_path / "none" / "archive.zip")


def test_a_worker_of_another_platform_says_what_the_archive_is_for(archive: Path, tmp_path: Path) -> None:
    with ZipFile(archive) as found:
        found.extractall(tmp_path)
    script = "import alpacamq_spark.commit as r; print(r.__file__)"
    command = [sys.executable, "-c", script]
    environment = {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith(str(tmp_path))
    # Without the packages of this environment.
    bare = [sys.executable, "-S", "-c", script]
    ran = subprocess.run(bare, env=environment, capture_output=True, text=True, check=True)
    for name in ("numpy", "numpy.libs"):
        shutil.rmtree(tmp_path / name)
    ran = subprocess.run(bare, env=environment, capture_output=True, text=True, check=False)
    assert "has no NumPy: install it there, or build the archive with" in ran.stderr
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    other = {"python": "3.9", "extensions": ".cpython-39-aarch64-linux-gnu.so"}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | other))
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "alpacamq_spark.package.on_workers.WrongWorker: the archive of AlpacaMQ was built for Python 3.9 on "
        f"aarch64-linux-gnu, and the Python of this worker, {sys.executable}, is {own_manifest().described}: "
        "build it with `alpacactl pipeline package` on a machine like the workers, with the same version of "
        "Python"
    )


def test_settings_for_workers_keep_those_of_the_user(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "/bin")
    given = {"spark.archives": "models.zip#models", "spark.executorEnv.PYTHONPATH": "models"}
    assert package_settings(str(archive), given) == {
        "spark.archives": f"models.zip#models,{archive}#alpacamq-workers",
        "spark.executorEnv.PYTHONPATH": "alpacamq-workers:models",
    }
    # Of an archive elsewhere, Spark finds out.
    assert "hdfs://store/workers.zip#" in package_settings("hdfs://store/workers.zip", {})["spark.archives"]
    given = {"spark.executorEnv.PATH": "/tools"}
    assert python_settings("/opt/python3", given) == {"spark.executorEnv.PATH": "/opt:/tools"}
    assert os.environ["PYSPARK_PYTHON"] == "python3"
    assert os.environ["PATH"] == f"{BIN}:/bin"
    assert python_settings("python3", given) == {}
    with pytest.raises(BadPackage, match=r"there is no snake in .*, where that of the driver is"):
        python_settings("/opt/snake", {})


@pytest.mark.parametrize("name", ["package", "python"])
def test_workers_are_needed_for_the_settings_of_workers(name: str) -> None:
    with pytest.raises(InvalidPipeline, match=f"spark.{name} is for the workers of a cluster: set .*master"):
        SparkSettings(master="local[2]", **{name: "x"}).check("spark")  # type: ignore[arg-type]
    with pytest.raises(BadPackage, match="need a Spark master with workers of its own, not local"):
        spark_session(master="local[2]", **{name: "x"})  # type: ignore[arg-type]


def environment() -> dict[str, str]:
    """The environment of a user who has AlpacaMQ, unlike the workers."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    return {**own, "JAVA_HOME": str(find_java().home), "PATH": f"{BIN}:{os.environ['PATH']}"}


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )


def examples(page: str, broker: Broker, spark: StandaloneCluster) -> list[tuple[str, str]]:
    """Return the examples of the section of a page, with the addresses of this test."""
    text = (GUIDE / page).read_text()
    section = text[text.index(SECTION) :].split("\n## ")[0]
    for old, new in (
        ("localhost:9092", broker.address),
        ("spark://spark-master:7077", spark.master),
        ("/opt/spark-python/bin/python3", str(spark.python)),
    ):
        section = section.replace(old, new)
    return BLOCK.findall(section)


@pytest.mark.heavy  # an environment of its own, a cluster, and four jobs on it
def test_workers_with_pyspark_alone_read_write_and_run_pipelines(
    broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """The workers have PySpark and PyArrow, which Spark requires for any data source in Python."""
    python = python_with("spark-workers", f"pyspark=={version('pyspark')}", f"pyarrow=={version('pyarrow')}")
    listed = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"
    found = subprocess.run([python, "-c", listed], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["py4j", "pyarrow", "pyspark"]
    make_topic(cluster, topic)
    with standalone_cluster(python, tmp_path) as spark:
        (_, package), (_, printed), (_, script), (_, expected) = examples("spark.md", broker, spark)
        ran = run(tmp_path, "sh", "-ec", package)
        assert ran.stdout == printed, ran.stderr
        job = tmp_path / "job.py"
        settings = (
            'master=spark_master, settings={"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", '
            '"spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m"}'
        )
        assert f'master="{spark.master}"' in script
        job.write_text(
            f'spark_master = "{spark.master}"\n'
            + script.replace(f'master="{spark.master}"', settings).replace('"numbers"', f'"{topic}"')
        )
        ran = run(tmp_path, sys.executable, str(job))
        assert ran.stdout == expected, ran.stderr[-3000:]
        assert len(values(cluster, topic)) == 1000

        ((_, section),) = examples("pipelines.md", broker, spark)
        pipeline = tmp_path / "archive.toml"
        own = (
            '[spark.settings]\n"spark.driver.host" = "127.0.0.1"\n"spark.driver.bindAddress" = "127.0.0.1"\n'
            '"spark.executor.memory" = "512m"\n'
        )
        file = section.replace('"orders"', f'"{topic}"').replace("hdfs://namenode/", "") + own
        pipeline.write_text(file)
        command = [str(BIN / "alpacactl"), "--broker", broker.address, "pipeline"]
        ran = run(tmp_path, *command, "run", str(pipeline), "-o", "json")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["rows"] == 1000

        # Without the archive, the error says what is missing.
        bare = tmp_path / "bare.toml"
        bare.write_text(
            file.replace('package = "alpacamq-workers.zip"\n', "").replace('"archive" }', '"bare" }')
        )
        ran = run(tmp_path, *command, "run", str(bare))
        assert ran.returncode == 1
        assert "the Python of the Spark workers has no AlpacaMQ" in ran.stderr
