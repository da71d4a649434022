"""An archive as a table: its columns, its segments on disk, and reading it exactly.

    _alpacamq.json                         whose archive it is, and what columns its values have
    batches=3f2a9c1e-0000000012-0000000012/    a segment, see `segments`
        topic=orders/date=2026-01-31/hour=12/part-….parquet
        _SUCCESS                           Spark's mark of a job that is done

`read` counts every row once at any moment. Other tools may read the directory as a partitioned table:
they see the same rows, save while a batch or a merge is being put in place.
"""

from typing import TYPE_CHECKING, Literal

import msgspec

from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.errors import ForeignArchive
from alpacamq_spark.pipelines.storage import Storage, is_hidden, storage_at

from .segments import COLUMN, Segment, Weighed, in_force

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Compression = Literal["zstd", "snappy", "gzip", "lz4", "none"]
PARTITIONED_BY = ("topic", "date", "hour")
DATA = "data"
_OWNER = "_alpacamq.json"
_WHOLE = "_SUCCESS"
_FORMAT = 1
# What is in the files; the columns of the directories follow.
_STORED = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, partition INT, "
    "offset BIGINT, timestamp TIMESTAMP, archived_at TIMESTAMP"
)
_DIRECTORIES = f"topic STRING, date DATE, hour INT, {COLUMN} STRING"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose archive it is: the identity of the checkpoint with which it is written, and of Spark's query,
    which is known from the second run on."""

    format: int
    checkpoint: str
    data: str | None = None
    query: str | None = None

    @property
    def writer(self) -> str:
        return self.checkpoint[:8]


class ArchiveTable:
    """One archive."""

    def __init__(self, place: str, spark: "SparkSession | None") -> None:
        self.place = place.rstrip("/")
        self.storage: Storage = storage_at(self.place, spark)

    def owner(self) -> Owner:
        """Whose it is, or ForeignArchive if it is none of ours."""
        stored = self.storage.read(_OWNER)
        if stored is None:
            raise ForeignArchive(f"there is no archive at {self.place}")
        try:
            owner = msgspec.json.decode(stored, type=Owner)
        except msgspec.MsgspecError as error:
            raise ForeignArchive(f"{self.place}/{_OWNER} cannot be read: {error}") from None
        if owner.format != _FORMAT:
            raise ForeignArchive(f"{self.place} has format {owner.format}, and only {_FORMAT} is known")
        return owner

    def claim(self, checkpoint: Checkpoint, data: "StructType | None") -> Owner:
        """Make it ours, or go on with it; ForeignArchive if it and the checkpoint do not belong together.

        A second checkpoint would start its batches from 0 again, and so overwrite the first's.
        """
        owner = self._claimed(checkpoint.identity(), None if data is None else data.json())
        counting = [each for each in self.segments()[0] if each.writer == owner.writer]
        self._check_holds(checkpoint, counting)
        owner = self._numbered_by(checkpoint, owner, counting)
        encoded = msgspec.json.encode(owner)
        if self.storage.read(_OWNER) != encoded:
            self.storage.write(_OWNER, encoded)
        return owner

    def _claimed(self, checkpoint: str, stored: str | None) -> Owner:
        if self.storage.read(_OWNER) is None:
            # A run that died while it put this very file in place has left a draft of it.
            if not all(is_hidden(name) for name in self.storage.names()):
                raise ForeignArchive(
                    f"{self.place} is not empty and no archive; give the archive its own place"
                )
            return Owner(format=_FORMAT, checkpoint=checkpoint, data=stored)
        before = self.owner()
        if before.checkpoint != checkpoint:
            raise ForeignArchive(
                f"the archive at {self.place} was written with another checkpoint. Use that one, or "
                "give this pipeline a place of its own: it would begin again at the start of its topics"
            )
        owner = msgspec.structs.replace(before, data=stored or before.data)
        _check_growth(before, owner, self.place)
        return owner

    def _check_holds(self, checkpoint: Checkpoint, counting: list[Segment]) -> None:
        """An archive without what the checkpoint has done would lack it for good, and nobody would know.

        The last batch that is done tells: it is in no older copy, and in no place that is new.
        """
        position = checkpoint.position()
        if position is None:
            return
        last = position.batch
        if not any(each.first <= last <= each.last for each in counting):
            raise ForeignArchive(
                f"the checkpoint {checkpoint.place} has archived up to batch {last}, which is not in "
                f"{self.place}: sink.path was changed, or the archive was deleted or put back from an older "
                "copy. Bring the archive back or name its place; or, to begin another with all that the "
                "topics still hold, name another checkpoint and an empty place"
            )

    def _numbered_by(self, checkpoint: Checkpoint, owner: Owner, counting: list[Segment]) -> Owner:
        """The owner with its query; ForeignArchive if it is not the one that numbered what is there.

        One that counts from the start, or from an earlier batch, gives other records the numbers of
        segments that are there, and loses them where those were merged.
        """
        query, position = checkpoint.query(), checkpoint.position()
        done = -1 if position is None else position.batch
        is_other = query is None and bool(counting) if owner.query is None else query != owner.query
        # Beyond what is done, there is at most the batch that Spark will write again.
        if is_other or any(each.last > done + 1 for each in counting):
            raise ForeignArchive(
                f"the archive at {self.place} has batches that the position in {checkpoint.stream} does not "
                "know: it was deleted or put back from an older copy. Bring the position back; or, to begin "
                "another archive with all that the topics still hold, name another checkpoint and an empty "
                "place"
            )
        return msgspec.structs.replace(owner, query=query)

    def at(self, segment: Segment) -> str:
        return f"{self.place}/{segment.name}"

    def segments(self) -> tuple[list[Segment], list[Segment]]:
        """The segments that count, and those that do not: superfluous, or never finished."""
        found = [segment for name in self.storage.names() if (segment := Segment.parse(name))]
        whole = [each for each in found if self.storage.exists(f"{each.name}/{_WHOLE}")]
        counting = in_force(whole)
        return counting, [each for each in found if each not in set(counting)]

    def discard(self, segment: Segment) -> None:
        """Delete a segment, its mark first: what a crash leaves of it must not count as whole."""
        self.storage.delete(f"{segment.name}/{_WHOLE}")
        self.storage.delete(segment.name)

    def weighed(self) -> list[Weighed]:
        """The segments that count, with what they weigh."""
        weighed = []
        for segment in self.segments()[0]:
            content = self.storage.content(segment.name)
            weighed.append(Weighed(segment, content.files, content.size))
        return weighed

    def read(self, spark: "SparkSession") -> "DataFrame":
        """Every row that was archived, once."""
        return self.read_segments(spark, self.segments()[0])

    def read_segments(self, spark: "SparkSession", segments: list[Segment]) -> "DataFrame":
        """The rows of some segments."""
        schema = table_schema(spark, self.owner())
        if not segments:
            return spark.createDataFrame([], schema).drop(COLUMN)
        paths = [self.at(segment) for segment in segments]
        return spark.read.schema(schema).option("basePath", self.place).parquet(*paths).drop(COLUMN)


def table_schema(spark: "SparkSession", owner: Owner) -> "StructType":
    """All columns, so that Spark neither looks into files for them nor guesses at those of directories."""
    from pyspark.sql.types import StructField, StructType

    stored = spark.createDataFrame([], _STORED).schema
    directories = spark.createDataFrame([], _DIRECTORIES).schema
    data = [] if owner.data is None else [StructField(DATA, _struct(owner.data))]
    return StructType([*stored.fields, *data, *directories.fields])


def _struct(stored: str) -> "StructType":
    from pyspark.sql.types import StructType

    return StructType.fromJson(msgspec.json.decode(stored))


def _check_growth(before: Owner, after: Owner, place: str) -> None:
    """Columns may come and go, but one that stays keeps its type, or old files could not be read."""
    if before.data is None or after.data is None:
        return
    types = {field.name: field.dataType for field in _struct(before.data).fields}
    for field in _struct(after.data).fields:
        known = types.get(field.name)
        if known is not None and known != field.dataType:
            raise ForeignArchive(
                f"the schema makes {field.name!r} {field.dataType.simpleString()}, but the archive at "
                f"{place} has it as {known.simpleString()}; archive under another name or to another place"
            )


def write_segment(frame: "DataFrame", place: str, compression: Compression) -> None:
    """One job, whose mark of success makes its segment count."""
    (
        frame.write.mode("overwrite")
        .option("partitionOverwriteMode", "static")
        .option("compression", "uncompressed" if compression == "none" else compression)
        .partitionBy(*PARTITIONED_BY)
        .parquet(place)
    )


def read_archive(spark: "SparkSession", place: str) -> "DataFrame":
    """The rows of an archive, each once, at any moment; ForeignArchive where there is none."""
    return ArchiveTable(place, spark).read(spark)
