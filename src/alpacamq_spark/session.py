"""A Spark session that works as it is: Java found, the same Python in tasks, quiet, on this machine."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
_REMOTE = "sc://"

_SETTINGS: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
}
# A machine need not be able to resolve its own name to run Spark by itself.
_LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def spark_session(
    name: str = "alpacamq", *, master: str = LOCAL, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session on a Spark master, or on a Spark Connect server where `master` is an sc:// address.

    `settings` go before ours. NoJava if Spark is to run here and there is no runtime for it.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master.startswith(_REMOTE):
        return builder.remote(master).config(map=dict(settings or {})).getOrCreate()
    prepare_environment()
    own = {**_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {}), **(settings or {})}
    return builder.master(master).config(map=own).getOrCreate()


def prepare_environment() -> None:
    """Have Spark run on a Java that is there, and its tasks on this Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java().home)
