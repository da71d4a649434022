"""Checks everything that a pipeline needs, and says what to do about what is missing."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from alpacamq.client.kafka.cluster import describe_cluster
from alpacamq.model.errors import AlpacaError

from .pipelines.archive.table import ArchiveTable
from .pipelines.definition import Archive, CatalogSettings, TableSink, Transform
from .pipelines.run import ANYONE, BrokerAccess
from .pipelines.sources import reach
from .pipelines.storage import local_path
from .pipelines.tables.pipeline import table_place
from .session import find_java

if TYPE_CHECKING:
    from .pipelines.pipeline import Pipeline

LEAST_SPARK, FIRST_UNTRIED_SPARK = (4, 0), (4, 4)
_EXTRA = "install it with `pip install '.[spark]'` in a checkout of AlpacaMQ"
_PACKAGES = ("numpy", "pyarrow")
_SOURCE_MODULE = "pyspark_alpacamq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check; `advice` says what to do if it failed."""

    subject: str
    is_well: bool
    detail: str
    advice: str = ""


def examine(
    broker: str | None = None, access: BrokerAccess = ANYONE, *, start_spark: bool = False
) -> list[Finding]:
    """Run all checks, in the order in which they depend on each other."""
    findings = [_python(), _spark(), *map(_package, _PACKAGES), _java(), _source()]
    if broker is not None:
        findings.append(_broker(broker, access))
    if start_spark and all(finding.is_well for finding in findings):
        findings.append(_session())
    return findings


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding(subject="Python", is_well=True, detail=f"{found} at {sys.executable}")


def _spark() -> Finding:
    found = _installed("pyspark")
    if found is None:
        return Finding(subject="PySpark", is_well=False, detail="not installed", advice=_EXTRA)
    number = tuple(int(part) for part in found.split(".")[:2])
    if number < LEAST_SPARK:
        advice = f"the connector needs Spark {_dotted(LEAST_SPARK)} or later: {_EXTRA}"
        return Finding(subject="PySpark", is_well=False, detail=found, advice=advice)
    detail = found if number < FIRST_UNTRIED_SPARK else f"{found}, which has not been tested yet"
    return Finding(subject="PySpark", is_well=True, detail=detail)


def _package(name: str) -> Finding:
    found = _installed(name)
    if found is None:
        return Finding(subject=name, is_well=False, detail="not installed", advice=_EXTRA)
    return Finding(subject=name, is_well=True, detail=found)


def _java() -> Finding:
    def look() -> str:
        runtime = find_java()
        return f"{runtime.version} from {runtime.origin}, {runtime.home}"

    return _tried("Java", look)


def _source() -> Finding:
    if any(module.name == _SOURCE_MODULE for module in iter_modules()):
        return Finding(subject="Connector", is_well=True, detail='Spark finds format("alpacamq")')
    return Finding(
        subject="Connector",
        is_well=False,
        detail=f"Python finds no module {_SOURCE_MODULE}",
        advice="install the package alpacamq where Spark's Python looks for packages",
    )


def _broker(text: str, access: BrokerAccess) -> Finding:
    def look() -> str:
        with reach(text, access) as cluster:
            return f"{text} answers, {len(describe_cluster(cluster).brokers)} in its cluster"

    return _tried("Broker", look)


def _session() -> Finding:
    from pyspark.errors import PySparkException

    from .session import spark_session

    def look() -> str:
        try:
            session = spark_session("alpacamq doctor", master="local[1]")
        except PySparkException as error:
            raise AlpacaError(f"Spark does not start: {error}") from error
        try:
            counted = session.range(1000).selectExpr("id % 7 AS rest").distinct().count()
            return f"Spark {session.version} starts and counts to {counted}"
        finally:
            session.stop()

    return _tried("Session", look)


def _tried(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject=subject, is_well=True, detail=look())
    except AlpacaError as error:
        return Finding(subject=subject, is_well=False, detail="not usable", advice=str(error))


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _dotted(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))


def examine_pipeline(
    pipeline: "Pipeline | None", broker: str, access: BrokerAccess = ANYONE, *, start_spark: bool
) -> list[Finding]:
    """Run the general checks, and those of a pipeline if one is given."""
    findings = examine(broker, access, start_spark=start_spark)
    if pipeline is None:
        return findings
    is_broker_well = all(each.is_well for each in findings if each.subject == "Broker")
    if is_broker_well:
        findings.append(_topics(pipeline))
    findings.append(_checkpoint(pipeline))
    definition = pipeline.definition
    if isinstance(definition, Archive | Transform) and definition.sink.is_table:
        findings.append(_table(pipeline, definition.catalog, definition.sink))
    elif isinstance(definition, Archive) and definition.sink.path is not None:
        findings.append(_archive(pipeline.place(definition.sink.path)))
    return findings


def _topics(pipeline: "Pipeline") -> Finding:
    try:
        pipeline.check_broker()
    except AlpacaError as error:
        return Finding(subject="Topics", is_well=False, detail="not all there", advice=str(error))
    return Finding(subject="Topics", is_well=True, detail="all there")


def _checkpoint(pipeline: "Pipeline") -> Finding:
    place = pipeline.checkpoint_place
    path = local_path(place)
    if path is None:
        return Finding(
            subject="Checkpoint", is_well=True, detail=f"{place}, which Spark must be able to reach"
        )
    there = next(each for each in (path, *path.parents) if each.exists())
    if os.access(there, os.W_OK):
        return Finding(subject="Checkpoint", is_well=True, detail=place)
    advice = f"{there} is not writable for this user; set checkpoint to a writable path"
    return Finding(subject="Checkpoint", is_well=False, detail=place, advice=advice)


def _table(pipeline: "Pipeline", catalog: CatalogSettings | None, sink: TableSink) -> Finding:
    def look() -> str:
        place = table_place(catalog, sink, pipeline.place)
        columns = {} if place.is_new() else place.types()
        return f"{place.name}, " + (
            f"with {len(columns)} columns" if columns else "which the first run creates"
        )

    return _tried("Table", look)


def _archive(place: str) -> Finding:
    if local_path(place) is None:
        return Finding(subject="Archive", is_well=True, detail=f"{place}, which Spark must be able to reach")
    table = ArchiveTable(place, None)
    if not table.storage.names():
        return Finding(subject="Archive", is_well=True, detail=f"{place}, which is empty")
    try:
        table.owner()
    except AlpacaError as error:
        return Finding(subject="Archive", is_well=False, detail=place, advice=str(error))
    return Finding(
        subject="Archive", is_well=True, detail=f"{place}, with {len(table.segments()[0])} segments"
    )
