"""Checks the requirements of one pipeline: its topics, checkpoint and archive."""

import os
from typing import TYPE_CHECKING

from alpacamq.model.errors import AlpacaError
from alpacamq_spark.doctor import Finding, examine

from .archive.table import ArchiveTable
from .definition import Archive
from .storage import local_path

if TYPE_CHECKING:
    from .pipeline import Pipeline


def examine_pipeline(pipeline: "Pipeline | None", broker: str, *, start_spark: bool) -> list[Finding]:
    """Run the general checks, and those of a pipeline if one is given."""
    findings = examine(broker, start_spark=start_spark)
    if pipeline is None:
        return findings
    is_broker_well = all(each.is_well for each in findings if each.subject == "Broker")
    if is_broker_well:
        findings.append(_topics(pipeline))
    findings.append(_checkpoint(pipeline))
    if isinstance(pipeline.definition, Archive):
        findings.append(_archive(pipeline, pipeline.definition))
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


def _archive(pipeline: "Pipeline", definition: Archive) -> Finding:
    place = pipeline.place(definition.sink.path)
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
