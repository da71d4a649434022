"""Values and keys that cannot be decoded: counted by the query that meets them, and named in reports.

Counts are metrics of the query, so that they cost no second pass over the records.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.registry.framing import Part
from alpacamq_spark.options import DECODED

from .registry import RegistryColumns
from .run import Plain, Report
from .values import MALFORMED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NOT_DECODED = "cannot be decoded by the schema registry"
NOT_JSON = "is not JSON that fits its columns"
# The metrics of a query about malformed values begin with this.
_METRIC = "malformed "


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """The number of malformed values, and the position of the first."""

    count: int
    place: TopicPartition
    offset: int

    def and_(self, later: "Malformed") -> "Malformed":
        return replace(self, count=self.count + later.count)


def not_decoded(part: Part) -> "Column":
    """Return whether a record has a part that the column of its decoded values lacks."""
    from pyspark.sql import functions as f

    return f.col(part).isNotNull() & f.col(DECODED[part]).isNull()


def malformed_parts(
    columns: RegistryColumns | None, json: "Column | None" = None
) -> "Iterator[tuple[Part, Column, str]]":
    """Yield the parts of a record that can be malformed, with the condition and the reason.

    `columns` are those that the registry describes; `json` is what `decoded` makes of a value.
    """
    from pyspark.sql import functions as f

    if json is not None:
        # Spark makes null of blank text, without a mark.
        is_malformed = f.col(Part.VALUE).isNotNull() & (json.isNull() | json[MALFORMED].isNotNull())
        yield Part.VALUE, is_malformed, NOT_JSON
    for part in () if columns is None else columns.types:
        yield part, not_decoded(part), NOT_DECODED


def counted(frame: "DataFrame", is_malformed: "Column", label: str, place: Sequence["Column"]) -> "DataFrame":
    """Count malformed values by batch, and note the first; `place` is topic, partition and offset.

    The progress of the query has the metrics; `malformed_in` reads them.
    """
    from pyspark.sql import functions as f

    found = f.when(is_malformed, f.struct(*place))
    return frame.observe(f"{_METRIC}{label}", f.count(found).alias("count"), f.min(found).alias("first"))


def malformed_in(progress: Mapping[str, Any]) -> dict[str, Malformed]:
    """Return the malformed values of a batch by label, from the progress of its query."""
    found = {}
    for name, metrics in progress.get("observedMetrics", {}).items():
        if not name.startswith(_METRIC):
            continue
        count, first = _values(metrics)
        if int(count):
            topic, partition, offset = _values(first)
            place = TopicPartition(TopicName(topic), int(partition))
            found[name.removeprefix(_METRIC)] = Malformed(count=int(count), place=place, offset=int(offset))
    return found


def _values(row: Mapping[str, Any]) -> list[Any]:
    """Return the values of a row; progress through Spark Connect has them beside their schema."""
    return list(row["values"] if row.keys() == {"values", "schema"} else row.values())


def with_malformed(report: Report, found: Mapping[str, Malformed], handled: Mapping[str, str]) -> Report:
    """Return a report with the malformed values by label; `handled` says what was done with them."""
    data: dict[str, Plain] = {
        label: {
            "count": each.count,
            "handled": handled[label],
            "first": {"topic": each.place.topic, "partition": each.place.partition, "offset": each.offset},
        }
        for label, each in sorted(found.items())
    }
    notes = [
        f"malformed values of {label}: {each.count:,}, {handled[label]}; "
        f"the first is in {each.place} at offset {each.offset}"
        for label, each in sorted(found.items())
    ]
    return replace(report, data={**report.data, "malformed": data}, notes=(*report.notes, *notes))
