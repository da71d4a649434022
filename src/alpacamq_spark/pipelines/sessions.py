"""The Spark session of a pipeline: settings, little console output, a log beside the checkpoint."""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from alpacamq_spark.session import LOCAL, spark_session

from .definition import SparkSettings
from .errors import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING = Path(__file__).with_name("log4j2.properties")
_SETTINGS: Mapping[str, str] = {
    # Times in SQL do not depend on the machine.
    "spark.sql.session.timeZone": "UTC",
}
_LOCAL_SETTINGS: Mapping[str, str] = {
    # Spark's default of 200 tasks per shuffle is for clusters.
    "spark.sql.shuffle.partitions": "8",
}
CONSOLE = "spark-console.log"
_STANDARD_ERROR = 2
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@contextmanager
def session_for(name: str, settings: SparkSettings, log: Path | None) -> "Iterator[SparkSession]":
    """Create a session with the pipeline's settings, and stop it afterwards unless it existed before."""
    from pyspark.sql import SparkSession

    is_ours = SparkSession.getActiveSession() is None
    # Warnings about package versions that Spark prefers, which users of a pipeline did not choose.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    given = {key: _text(value) for key, value in settings.settings.items()}
    if settings.remote is not None:
        session = spark_session(name, master=settings.remote, settings={**_SETTINGS, **given})
    else:
        master = settings.master or LOCAL
        own = {**_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {}), **given}
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            own[_JAVA_OPTIONS] = f"{given.get(_JAVA_OPTIONS, '')} {_logging_to(log)}".strip()
        if master.startswith("local"):
            # Avoids a warning on machines that cannot resolve their own name.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        with _redirect_console(log):
            session = spark_session(
                name, master=master, settings=own, package=settings.package, python=settings.python
            )
    try:
        yield session
    finally:
        if is_ours:
            session.stop()


@contextmanager
def _redirect_console(log: Path | None) -> Iterator[None]:
    """Redirect standard error of the JVM and its Python workers to a file.

    They inherit the standard error that this process has when the JVM starts.
    """
    if log is None:
        yield
        return
    sys.stderr.flush()
    own = os.dup(_STANDARD_ERROR)
    try:
        with log.with_name(CONSOLE).open("wb") as console:
            os.dup2(console.fileno(), _STANDARD_ERROR)
        yield
    except PySparkException as error:
        raise PipelineFailed(f"Spark failed to start: {error}; see {log.with_name(CONSOLE)}") from error
    finally:
        sys.stderr.flush()
        os.dup2(own, _STANDARD_ERROR)
        os.close(own)


def _logging_to(log: Path) -> str:
    return f'-Dlog4j2.configurationFile="{_LOGGING.as_uri()}" -Dalpacamq.log="{log.resolve()}"'


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
