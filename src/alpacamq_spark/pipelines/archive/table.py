"""An archive as a table: its columns, its segments on disk, and consistent reads.

    _alpacamq.json                         the owner of the archive, and the columns of its values
    batches=3f2a9c1e-0000000012-0000000012/    a segment, see `segments`
        topic=orders/date=2026-01-31/hour=12/part-….parquet
        _SUCCESS                           Spark's mark of a job that is done

`read` returns every row exactly once at any time. Other tools may read the directory as a partitioned
table: they see the same rows, except while a batch or a merge is being put in place.
"""

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Literal

import msgspec

from alpacamq.registry.framing import Part
from alpacamq_spark.options import DECODED
from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.errors import ForeignArchive, InvalidPipeline
from alpacamq_spark.pipelines.registry import parse_type, type_text
from alpacamq_spark.pipelines.storage import Storage, is_hidden, storage_at

from .segments import COLUMN, Segment, Weighed, in_force

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

Compression = Literal["zstd", "snappy", "gzip", "lz4", "none"]
PARTITIONED_BY = ("topic", "date", "hour")
DATA = DECODED[Part.VALUE]
KEY_DATA = DECODED[Part.KEY]
_OWNER = "_alpacamq.json"
_WHOLE = "_SUCCESS"
_FORMAT = 1
# The columns in the files; those of the directories follow.
_STORED = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, partition INT, "
    "offset BIGINT, timestamp TIMESTAMP, archived_at TIMESTAMP"
)
_DIRECTORIES = f"topic STRING, date DATE, hour INT, {COLUMN} STRING"


class OlderFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The types of decoded columns in files up to a batch, where the table has wider ones by now."""

    last: int
    data: str | None = None
    key_data: str | None = None


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of an archive: the identity of its checkpoint, and of Spark's query, which is known from
    the second run on; and the types of decoded columns."""

    format: int
    checkpoint: str
    data: str | None = None
    key_data: str | None = None
    query: str | None = None
    older: tuple[OlderFiles, ...] = ()

    @property
    def writer(self) -> str:
        return self.checkpoint[:8]

    @property
    def edges(self) -> frozenset[int]:
        """The last batches before the types changed."""
        return frozenset(each.last for each in self.older)

    def stored(self, segment: Segment) -> "OlderFiles | Owner":
        """Return the types of a segment."""
        return next((each for each in self.older if segment.last <= each.last), self)


class ArchiveTable:
    """One archive."""

    def __init__(self, place: str, spark: "SparkSession | None") -> None:
        self.place = place.rstrip("/")
        self.storage: Storage = storage_at(self.place, spark)

    def owner(self) -> Owner:
        """Read the owner. Raises ForeignArchive if this is not an archive of ours."""
        stored = self.storage.read(_OWNER)
        if stored is None:
            raise ForeignArchive(f"there is no archive at {self.place}")
        try:
            owner = msgspec.json.decode(stored, type=Owner)
        except msgspec.MsgspecError as error:
            raise ForeignArchive(f"{self.place}/{_OWNER} cannot be read: {error}") from None
        if owner.format != _FORMAT:
            raise ForeignArchive(f"{self.place} has format {owner.format}, only {_FORMAT} is supported")
        return owner

    def types(self) -> "dict[str, DataType]":
        """Return the types of decoded columns, none of an archive that does not exist yet."""
        return {} if self.storage.read(_OWNER) is None else _types(self.owner())

    def claim(self, checkpoint: Checkpoint, types: "Mapping[str, DataType]") -> Owner:
        """Claim the archive for a checkpoint, or continue it. Raises ForeignArchive if they do not match.

        A second checkpoint would start its batches from 0 again and overwrite those of the first.
        """
        owner = self._claimed(checkpoint, {name: type_text(kind) for name, kind in types.items()})
        counting = [each for each in self.segments()[0] if each.writer == owner.writer]
        self._check_holds(checkpoint, counting)
        owner = self._numbered_by(checkpoint, owner, counting)
        encoded = msgspec.json.encode(owner)
        if self.storage.read(_OWNER) != encoded:
            self.storage.write(_OWNER, encoded)
        return owner

    def _claimed(self, checkpoint: Checkpoint, types: Mapping[str, str]) -> Owner:
        identity = checkpoint.identity()
        if self.storage.read(_OWNER) is None:
            # A run that died while writing this file has left a temporary one.
            if not all(is_hidden(name) for name in self.storage.names()):
                raise ForeignArchive(f"{self.place} is not empty and not an archive; use an empty directory")
            return Owner(
                format=_FORMAT, checkpoint=identity, data=types.get(DATA), key_data=types.get(KEY_DATA)
            )
        before = self.owner()
        if before.checkpoint != identity:
            raise ForeignArchive(
                f"the archive at {self.place} was written with another checkpoint. Use that one, or "
                "use another path: this pipeline would begin again at the start of its topics"
            )
        owner = msgspec.structs.replace(
            before, data=types.get(DATA, before.data), key_data=types.get(KEY_DATA, before.key_data)
        )
        if not _is_wider(before, owner, self.place):
            return owner
        position = checkpoint.position()
        last = -1 if position is None else position.batch
        if last < 0 or last in owner.edges:
            return owner
        files = OlderFiles(last=last, data=before.data, key_data=before.key_data)
        return msgspec.structs.replace(owner, older=(*before.older, files))

    def _check_holds(self, checkpoint: Checkpoint, counting: list[Segment]) -> None:
        """Check that the archive contains the last batch of the checkpoint; otherwise data would be missing.

        That batch is in no older copy and in no new directory.
        """
        position = checkpoint.position()
        if position is None:
            return
        last = position.batch
        if not any(each.first <= last <= each.last for each in counting):
            raise ForeignArchive(
                f"the checkpoint {checkpoint.place} has archived up to batch {last}, which is not in "
                f"{self.place}: sink.path was changed, or the archive was deleted or restored from an older "
                "copy. Restore the archive or set its path; or, to begin another with all records that the "
                "topics still have, set another checkpoint and an empty directory"
            )

    def _numbered_by(self, checkpoint: Checkpoint, owner: Owner, counting: list[Segment]) -> Owner:
        """Return the owner with its query. Raises ForeignArchive if another query numbered the batches.

        A query that starts from an earlier batch gives other records the numbers of existing segments, and
        would lose them where those were merged.
        """
        query, position = checkpoint.query(), checkpoint.position()
        done = -1 if position is None else position.batch
        is_other = query is None and bool(counting) if owner.query is None else query != owner.query
        # Beyond the completed batches there is at most the one that Spark will write again.
        if is_other or any(each.last > done + 1 for each in counting):
            raise ForeignArchive(
                f"the archive at {self.place} has batches that the position in {checkpoint.stream} does not "
                "contain: it was deleted or restored from an older copy. Restore the position; or, to begin "
                "another archive with all records that the topics still have, set a new checkpoint and an "
                "empty directory"
            )
        return msgspec.structs.replace(owner, query=query)

    def at(self, segment: Segment) -> str:
        return f"{self.place}/{segment.name}"

    def segments(self) -> tuple[list[Segment], list[Segment]]:
        """Return the current segments, and the others: superseded or incomplete."""
        found = [segment for name in self.storage.names() if (segment := Segment.parse(name))]
        whole = [each for each in found if self.storage.exists(f"{each.name}/{_WHOLE}")]
        counting = in_force(whole)
        return counting, [each for each in found if each not in set(counting)]

    def discard(self, segment: Segment) -> None:
        """Delete a segment, its mark first: after a crash the rest must not look complete."""
        self.storage.delete(f"{segment.name}/{_WHOLE}")
        self.storage.delete(segment.name)

    def weighed(self) -> list[Weighed]:
        """Return the current segments with their sizes."""
        weighed = []
        for segment in self.segments()[0]:
            content = self.storage.content(segment.name)
            weighed.append(Weighed(segment, content.files, content.size))
        return weighed

    def read(self, spark: "SparkSession") -> "DataFrame":
        """Read every archived row once."""
        return self.read_segments(spark, self.segments()[0])

    def read_segments(
        self, spark: "SparkSession", segments: list[Segment], *, is_cast: bool = True
    ) -> "DataFrame":
        """Read the rows of some segments.

        Without `is_cast` they have the types in their files, which must be the same for all segments.
        """
        from alpacamq_spark.decoding.types import as_stored

        owner = self.owner()
        types = _types(owner)
        if not segments:
            return spark.createDataFrame([], table_schema(spark, types)).drop(COLUMN)
        groups: dict[int, list[Segment]] = {}
        stored = {}
        for segment in segments:
            files = owner.stored(segment)
            groups.setdefault(id(files), []).append(segment)
            stored[id(files)] = _types(files)
        assert is_cast or len(groups) == 1
        frames = []
        for key, group in groups.items():
            kinds = stored[key]
            if is_cast:
                kinds = {name: as_stored(kind, kinds.get(name, kind)) for name, kind in types.items()}
            paths = [self.at(segment) for segment in group]
            reader = spark.read.schema(table_schema(spark, kinds)).option("basePath", self.place)
            frame = reader.parquet(*paths).drop(COLUMN)
            for name, kind in types.items() if is_cast else ():
                if kinds[name] != kind:
                    frame = frame.withColumn(name, frame[name].cast(kind))
            frames.append(frame)
        return reduce(lambda one, other: one.union(other), frames)


def table_schema(spark: "SparkSession", types: "Mapping[str, DataType]") -> "StructType":
    """Return all columns, so that Spark need not infer them from files and directories."""
    from pyspark.sql.types import StructField, StructType

    stored = spark.createDataFrame([], _STORED).schema
    directories = spark.createDataFrame([], _DIRECTORIES).schema
    decoded = [StructField(name, kind) for name, kind in types.items()]
    return StructType([*stored.fields, *decoded, *directories.fields])


def _types(owner: Owner | OlderFiles) -> "dict[str, DataType]":
    stored = {DATA: owner.data, KEY_DATA: owner.key_data}
    return {name: parse_type(text) for name, text in stored.items() if text is not None}


def _is_wider(before: Owner, after: Owner, place: str) -> bool:
    """Return whether columns have got wider types than their files have. Columns may come and go.

    Raises ForeignArchive if a column has got a type that cannot have its older values.
    """
    from alpacamq_spark.decoding.layout import UnusableSchema
    from alpacamq_spark.decoding.types import as_stored, merged

    known, types = _types(before), _types(after)
    is_wider = False
    for name in known.keys() & types.keys():
        try:
            wide = merged(known[name], types[name])
        except UnusableSchema as error:
            raise ForeignArchive(
                f"{name}: {error}, in the archive at {place}; archive under another name or to another place"
            ) from None
        if as_stored(types[name], wide) != types[name]:
            raise ForeignArchive(
                f"{name} is {types[name].simpleString()}, and the archive at {place} has the wider "
                f"{known[name].simpleString()}; archive under another name or to another place"
            )
        is_wider |= as_stored(types[name], known[name]) != types[name]
    return is_wider


def write_segment(frame: "DataFrame", place: str, compression: Compression) -> None:
    """Write a segment in one job, whose success mark makes it current."""
    (
        frame.write.mode("overwrite")
        .option("partitionOverwriteMode", "static")
        .option("compression", "uncompressed" if compression == "none" else compression)
        .partitionBy(*PARTITIONED_BY)
        .parquet(place)
    )


def is_complete(place: str, spark: "SparkSession") -> bool:
    """Return whether a segment is marked as complete; false if that cannot be seen from here."""
    try:
        return storage_at(place, spark).exists(_WHOLE)
    except InvalidPipeline:
        return False


def read_archive(spark: "SparkSession", place: str) -> "DataFrame":
    """Read the rows of an archive, each once. Raises ForeignArchive if there is no archive."""
    return ArchiveTable(place, spark).read(spark)
