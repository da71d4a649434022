"""Python environments with other packages than ours, in the cache of the benchmarks, and Spark in them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from benchmarks.jars import CACHE, free_port

from alpacamq_spark.session import find_java
from tests.waiting import eventually

INSTALL_S = 900
START_S = 180
STOP_S = 60


def python_with(name: str, *packages: str) -> Path:
    """Return the Python of an environment with these packages; skips the test if there is none."""
    home = CACHE / name / "venv"
    found = home / "bin" / "python3"
    # scripts/setup puts it beside Python if it is not on PATH.
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("there is no uv")
    for command in (
        ["venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home)],
        ["pip", "install", "--quiet", "--python", str(found), *packages],
    ):
        done = subprocess.run([uv, *command], capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode != 0:
            pytest.skip(f"{' and '.join(packages)} cannot be installed: {done.stderr[-300:]}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneCluster:
    """A master and a worker of Spark; `python` is that of the worker."""

    master: str
    python: Path


@contextlib.contextmanager
def standalone_cluster(python: Path, directory: Path) -> Iterator[StandaloneCluster]:
    """Start Spark's own cluster from the PySpark beside a Python."""
    [spark] = python.parents[1].glob("lib/python*/site-packages/pyspark")
    host, port, pages, worker_pages = "127.0.0.1", free_port(), free_port(), free_port()
    master = f"spark://{host}:{port}"
    common = ["--host", host, "--webui-port"]
    with contextlib.ExitStack() as stack:
        for name, arguments in (
            ("master.Master", [*common, str(pages), "--port", str(port)]),
            (
                "worker.Worker",
                [
                    *(*common, str(worker_pages), "--work-dir", str(directory / "work")),
                    *("--cores", "2", "--memory", "1g", master),
                ],
            ),
        ):
            output = stack.enter_context((directory / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                # Nothing of this environment, so that workers find what is theirs.
                env={
                    "PATH": "/usr/bin:/bin",
                    "JAVA_HOME": str(find_java().home),
                    "SPARK_HOME": str(spark),
                    "SPARK_LOCAL_IP": host,
                },
            )
            stack.callback(process.wait, STOP_S)
            stack.callback(process.terminate)
        eventually(lambda: _alive_workers(f"http://{host}:{pages}/json/") == 1, within_s=START_S)
        yield StandaloneCluster(master=master, python=python)


def _alive_workers(page: str) -> int:
    try:
        with urlopen(page, timeout=START_S) as answer:  # noqa: S310 - our own
            return int(json.load(answer)["aliveworkers"])
    except (URLError, ConnectionError):
        return 0
