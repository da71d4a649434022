"""A pipeline loaded from its file: run, status, checks."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import msgspec

from alpacamq.client.connect import Tls, parse_address
from alpacamq.client.errors import NotFound
from alpacamq.client.http.connection import DEFAULT_PORT as DEFAULT_HTTP_PORT
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import committed_offsets, extents
from alpacamq.client.kafka.topics import list_topics
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicPartition
from alpacamq.model.pipelines import PipelineProgress

from .checkpoint import Checkpoint, LastRun, local_checkpoint
from .definition import (
    AVAILABLE_NOW,
    ONCE,
    Analytics,
    Archive,
    DeadLetters,
    Kind,
    Replay,
    SparkSettings,
    Tables,
    Transform,
    check_trigger,
)
from .errors import InvalidPipeline
from .evolution import through_new_schemas
from .file import SUFFIXES, name_of, read_definition
from .replay.plan import ReplayPlan, ReplayProgress
from .reporting import last_report
from .run import (
    ANYONE,
    BrokerAccess,
    Interruption,
    PipelineRun,
    Plain,
    ProgressListener,
    Report,
    RunResult,
    Section,
)
from .service import Phase, Service, service_status
from .sources import reach
from .storage import local_path
from .timestamps import format_timestamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_BROKER = "127.0.0.1:9092"
_CHECKPOINTS = ".checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline. `directory` is the file's directory, to which paths in the file are relative."""

    name: str
    definition: Kind
    directory: Path
    broker: str
    access: BrokerAccess = ANYONE
    # The HTTP API of the broker, as HOST:PORT or URL, if it is known.
    http: str | None = None

    def place(self, written: str) -> str:
        """Make a path in the file absolute."""
        path = local_path(written)
        return written if path is None else str((self.directory / path.expanduser()).resolve())

    @property
    def checkpoint_place(self) -> str:
        return self.place(self.definition.checkpoint or f"{_CHECKPOINTS}/{self.name}")

    @property
    def spark(self) -> SparkSettings:
        """The settings of the session, with an absolute path of the archive for workers."""
        settings = self.definition.spark
        if settings.package is None:
            return settings
        return msgspec.structs.replace(settings, package=self.place(settings.package))

    @property
    def service(self) -> Service:
        return Service(self.name, self.checkpoint_place, self.directory)

    def at(self, broker: str, http: str | None = None) -> "Pipeline":
        """Return the pipeline with another broker; `http` is the address of its HTTP API."""
        return replace(self, broker=broker, http=http)

    @property
    def registry(self) -> str:
        """The address of the schema registry: that of the file, or that of the broker's HTTP API."""
        if self.definition.registry is not None:
            return self.definition.registry
        http = self.http
        if http is None:
            host = parse_address(self.broker.partition(",")[0]).host
            http = str(Address(host, DEFAULT_HTTP_PORT))
        scheme = "http" if self.access.tls is None else "https"
        return f"{http.rstrip('/') if '://' in http else f'{scheme}://{http}'}/schemas"

    def using(self, access: BrokerAccess) -> "Pipeline":
        """Return the pipeline with another user, or other TLS files."""
        return replace(self, access=access)

    def triggered(self, trigger: str) -> "Pipeline":
        """Return the pipeline with another trigger. Raises InvalidPipeline if it has none."""
        if not isinstance(self.definition, Archive | Transform | Tables):
            raise InvalidPipeline(f"a pipeline of kind {self.definition.kind} has no trigger")
        check_trigger(trigger)
        return replace(self, definition=msgspec.structs.replace(self.definition, trigger=trigger))

    @property
    def ends_by_itself(self) -> bool:
        """Whether a run ends once it has processed what there is."""
        definition = self.definition
        if not isinstance(definition, Archive | Transform | Tables):
            return True
        return definition.trigger in (ONCE, AVAILABLE_NOW)

    def executing(self) -> "Pipeline":
        """Return the pipeline with `execute` set. Raises InvalidPipeline if it has no redrive."""
        if not isinstance(self.definition, DeadLetters):
            raise InvalidPipeline(
                f"a pipeline of kind {self.definition.kind} has no redrive to execute, only dead-letters has"
            )
        if self.definition.redrive is None:
            raise InvalidPipeline("the pipeline has no redrive to execute: add redrive.where to its file")
        redrive = msgspec.structs.replace(self.definition.redrive, execute=True)
        return replace(self, definition=msgspec.structs.replace(self.definition, redrive=redrive))

    def run(
        self,
        *,
        spark: "SparkSession | None" = None,
        listener: ProgressListener | None = None,
        interruption: Interruption | None = None,
    ) -> RunResult:
        """Run to the end, or until a stop is requested. Without `spark`, creates a session."""
        from .errors import translate_spark_errors
        from .sessions import session_for

        listener, interruption = listener or ProgressListener(), interruption or Interruption()
        self.check_broker()
        if spark is not None:
            return self._run_on(spark, listener, interruption)
        path = local_path(self.checkpoint_place)
        log = None if path is None or self.definition.spark.remote else path / "spark.log"
        with translate_spark_errors(), session_for(self.name, self.spark, log) as session:
            return self._run_on(session, listener, interruption)

    def check_broker(self) -> None:
        """Check that the broker and the topics exist, before Spark starts."""
        from .sources import Named, check_topics

        definition = self.definition
        match definition:
            case Archive():
                check_topics(self.broker, definition.source, self.access)
            case Replay():
                if definition.source.is_live:
                    check_topics(self.broker, definition.source, self.access)
            case Analytics():
                if definition.source.archive is None:
                    check_topics(self.broker, definition.source, self.access)
            case Transform():
                for name, source in definition.sources.items():
                    check_topics(self.broker, Named((source.topic or name,)), self.access)
            case DeadLetters():
                from .dead_letters.letters import dead_letter_topics

                dead_letter_topics(self.broker, definition.source, self.access)
            case Tables():
                with reach(self.broker, self.access) as cluster:
                    list_topics(cluster)
            case _:
                assert_never(definition)

    def _run_on(
        self, spark: "SparkSession", listener: ProgressListener, interruption: Interruption
    ) -> RunResult:
        # Imported here: it needs the client, which most users of `load` do not.
        from .reporting import ProgressReports

        reports = ProgressReports(self.broker, self.name, self.definition.kind, self.access)
        run = PipelineRun(
            name=self.name,
            kind=self.definition.kind,
            broker=self.broker,
            access=self.access,
            registry=self.registry,
            spark=spark,
            checkpoint=Checkpoint(self.checkpoint_place, spark),
            place=self.place,
            listener=reports.reporting_listener(listener),
            interruption=interruption,
        )
        # Analyses have nothing to finish, so they end at once on a signal.
        gently = nullcontext() if isinstance(self.definition, Analytics) else interruption.on_signals()
        with run.checkpoint.held(), _noted(run.checkpoint) as note, reports, gently:
            outcome, before = through_new_schemas(run, self._dispatch)
            outcome = replace(outcome, rows=before + outcome.rows)
            note(outcome)
            reports.done(outcome)
            return outcome

    def _dispatch(self, run: PipelineRun) -> RunResult:
        definition = self.definition
        match definition:
            case Archive():
                from .archive.pipeline import run_archive

                return run_archive(definition, run, self.directory)
            case Replay():
                from .replay.pipeline import run_replay

                return run_replay(definition, run)
            case Transform():
                from .transform import run_transform

                return run_transform(definition, run, self.directory)
            case DeadLetters():
                from .dead_letters.pipeline import run_dead_letters

                return run_dead_letters(definition, run, self.directory)
            case Analytics():
                from .analytics.pipeline import run_analytics

                return run_analytics(definition, run)
            case Tables():
                from .tables.topics import run_tables

                return run_tables(definition, run)
            case _:
                assert_never(definition)

    def status(self) -> Report:
        """Return the state by checkpoint and consumer group; needs no Spark."""

        return status_of(self)


def load(path: str | Path, *, broker: str | None = None) -> Pipeline:
    """Load the pipeline of a file; `broker` overrides the file's."""
    file = Path(path)
    definition = read_definition(file)
    return Pipeline(
        name=name_of(file, definition),
        definition=definition,
        directory=file.resolve().parent,
        broker=broker or definition.broker or DEFAULT_BROKER,
        access=_access(file, definition),
    )


def _access(file: Path, definition: Kind) -> BrokerAccess:
    """Return the user and the TLS files of a pipeline; paths are relative to the file."""

    def place(path: str | None) -> str | None:
        return None if path is None else str(file.resolve().parent / Path(path).expanduser())

    if (definition.user is None) != (definition.password_file is None):
        raise InvalidPipeline(f"{file}: user and password_file belong together")
    ca, certificate, key = map(place, (definition.ca_file, definition.cert_file, definition.key_file))
    if key is not None and certificate is None:
        raise InvalidPipeline(f"{file}: key_file needs cert_file")
    is_wanted = definition.tls
    if is_wanted is None:
        is_wanted = ca is not None or certificate is not None
    elif not is_wanted and (ca or certificate):
        raise InvalidPipeline(f"{file}: ca_file and cert_file are for tls = true")
    return BrokerAccess(
        user=definition.user,
        password_file=place(definition.password_file),
        tls=Tls(ca=ca, certificate=certificate, key=key) if is_wanted else None,
    )


@contextmanager
def _noted(checkpoint: Checkpoint) -> Iterator[Callable[[RunResult], None]]:
    """Record in the checkpoint that a run has begun, and its result."""
    started = LastRun(started_ms=_now_ms())
    checkpoint.note_run(started)
    ended = started

    def note(outcome: RunResult) -> None:
        nonlocal ended
        ended = msgspec.structs.replace(
            started, outcome="stopped" if outcome.is_stopped else "done", rows=outcome.rows
        )

    try:
        yield note
    except KeyboardInterrupt:
        ended = msgspec.structs.replace(started, outcome="stopped")
        raise
    except BaseException as error:
        words = str(error) if isinstance(error, AlpacaError) else f"{type(error).__name__}: {error}"
        ended = msgspec.structs.replace(started, outcome="failed", error=words[:2000])
        raise
    finally:
        checkpoint.note_run(msgspec.structs.replace(ended, ended_ms=_now_ms()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


NEW, STARTING, RUNNING, CRASHED, UNKNOWN = "new", "starting", "running", "crashed", "unknown"


def state_of(checkpoint: Checkpoint | None) -> str:
    """Return new, running, done, stopped, failed, or crashed for a run without a recorded end."""
    if checkpoint is None:
        return UNKNOWN
    if checkpoint.is_held():
        return RUNNING
    last = checkpoint.last_run()
    if last is None:
        return NEW
    return CRASHED if last.ended_ms is None else last.outcome


def listed_state(pipeline: Pipeline, checkpoint: Checkpoint | None) -> str:
    """Return the state of a pipeline, or of its supervisor between two runs."""
    state, service = state_of(checkpoint), pipeline.service
    if state == RUNNING or service.supervisor() is None:
        return state
    supervised = service.state()
    if supervised is None or supervised.phase is Phase.RUNNING:
        return STARTING
    return supervised.phase


def status_of(pipeline: Pipeline) -> Report:
    """Return a pipeline's state, last run, position and lag."""
    checkpoint = local_checkpoint(pipeline.checkpoint_place)
    last = None if checkpoint is None else checkpoint.last_run()
    position = None if checkpoint is None else checkpoint.position()
    group = f"pipeline-{pipeline.name}"
    offsets: Mapping[TopicPartition, int] = position.offsets if position is not None else {}
    with reach(pipeline.broker, pipeline.access) as cluster:
        rows = _places(cluster, group, offsets) if pipeline.definition.is_stream else []
        reported = last_report(cluster, pipeline.name)
    lags = [row["lag"] for row in rows if isinstance(row["lag"], int)]
    lag = sum(lags) if lags else None
    run: dict[str, Plain] | None = None
    if last is not None:
        run = {
            "started_at": format_timestamp(last.started_ms),
            "ended_at": None if last.ended_ms is None else format_timestamp(last.ended_ms),
            "outcome": last.outcome,
            "rows": last.rows,
            "error": last.error,
        }
    state = listed_state(pipeline, checkpoint)
    replay = _replay(checkpoint)
    batch = _last_batch(reported)
    service = service_status(pipeline.service)
    data: dict[str, Plain] = {
        "name": pipeline.name,
        "kind": pipeline.definition.kind,
        "state": state,
        "checkpoint": pipeline.checkpoint_place,
        "group": group if pipeline.definition.is_stream else None,
        "batch": None if position is None else position.batch,
        "lag": lag,
        "last_run": run,
        "last_batch": batch,
        "malformed": None if reported is None else reported.malformed,
        "service": None if service is None else service.data,
        "partitions": rows,
        **({"replay": replay} if replay else {}),
    }
    sections = [
        Section(
            ["pipeline", "kind", "state", "batch", "lag"],
            [[pipeline.name, pipeline.definition.kind, state, data["batch"], lag]],
        )
    ]
    if run is not None:
        shown = [run["started_at"], run["ended_at"], run["outcome"], run["rows"]]
        sections.append(Section(["last run", "ended", "outcome", "rows"], [shown]))
    if batch is not None:
        columns = ["last batch", "at", "rows of the run", "rows/s", "malformed", "failures"]
        sections.append(Section(columns, [list(batch.values())]))
    if service is not None:
        sections.append(service.section)
    if replay:
        sections.append(Section(list(replay), [list(replay.values())], title="replay"))
    if pipeline.definition.is_stream:
        columns = ["topic", "partition", "done", "committed", "end", "lag"]
        sections.append(Section(columns, [[row[name] for name in columns] for row in rows], title="position"))
    notes = [f"the last run failed: {last.error}"] if last is not None and last.error else []
    notes += [] if service is None else service.notes
    return Report(data=data, sections=sections, notes=notes)


def _places(cluster: Cluster, group: str, done: Mapping[TopicPartition, int]) -> list[dict[str, Plain]]:
    """Return the position of each partition by checkpoint, which is authoritative, and by group."""
    committed = committed_offsets(cluster, group)
    there = {place for topic in list_topics(cluster) for place in topic.all_partitions()}
    places = sorted(done.keys() | committed.keys())
    spans = extents(cluster, [place for place in places if place in there])
    rows: list[dict[str, Plain]] = []
    for place in places:
        end = spans[place].end if place in spans else None
        reached = done.get(place, committed.get(place))
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "done": done.get(place),
                "committed": committed.get(place),
                "end": end,
                "lag": None if end is None or reached is None else max(0, end - reached),
            }
        )
    return rows


def checkpoint_report(pipeline: Pipeline) -> Report:
    """Return what a checkpoint contains: its identity, its batches and its position; needs no broker."""
    checkpoint = local_checkpoint(pipeline.checkpoint_place)
    if checkpoint is None or not checkpoint.storage.names():
        raise NotFound("checkpoint on this machine", pipeline.checkpoint_place)
    position, last = checkpoint.position(), checkpoint.last_run()
    rows: list[dict[str, Plain]] = [
        {"topic": place.topic, "partition": place.partition, "offset": offset}
        for place, offset in sorted(({} if position is None else position.offsets).items())
    ]
    data: dict[str, Plain] = {
        "name": pipeline.name,
        "checkpoint": checkpoint.place,
        "state": state_of(checkpoint),
        "id": (checkpoint.storage.read("id") or b"").decode(errors="replace").strip() or None,
        "query": checkpoint.query(),
        "batch": None if position is None else position.batch,
        "is_batch_open": position is not None and position.is_batch_open,
        "last_run": None if last is None else format_timestamp(last.started_ms),
        "offsets": rows,
    }
    columns = ["state", "batch", "is_batch_open", "last_run"]
    return Report(
        data=data,
        sections=[
            Section(["checkpoint"], [[checkpoint.place]]),
            Section(["state", "batch", "batch open", "last run"], [[data[name] for name in columns]]),
            Section(["topic", "partition", "offset"], [list(row.values()) for row in rows], title="position"),
        ],
    )


def _last_batch(reported: PipelineProgress | None) -> dict[str, Plain] | None:
    """Return what the pipeline has reported to the broker of its last batch."""
    if reported is None or reported.batch is None:
        return None
    return {
        "batch": reported.batch,
        "at": None if reported.batch_at is None else format_timestamp(reported.batch_at),
        "rows_of_run": reported.rows,
        "rows_per_second": round(reported.rows_per_second, 1),
        "malformed": reported.malformed,
        "failures": reported.failures,
    }


def _replay(checkpoint: Checkpoint | None) -> dict[str, Plain]:
    plan = None if checkpoint is None else checkpoint.recall("replay-plan.json", ReplayPlan)
    if plan is None or checkpoint is None:
        return {}
    progress = checkpoint.recall("replay-progress.json", ReplayProgress) or ReplayProgress()
    return {
        "rows": progress.rows,
        "planned": plan.rows,
        "batches": progress.batches,
        "batches_planned": plan.batches,
    }


def listed(directory: Path) -> Report:
    """List the pipelines of a directory with kind and state; invalid files with the reason."""

    rows: list[dict[str, Plain]] = []
    for path in sorted(each for each in directory.iterdir() if each.suffix in SUFFIXES and each.is_file()):
        try:
            pipeline = load(path)
            checkpoint = local_checkpoint(pipeline.checkpoint_place)
            last = None if checkpoint is None else checkpoint.last_run()
            rows.append(
                {
                    "name": pipeline.name,
                    "kind": pipeline.definition.kind,
                    "state": listed_state(pipeline, checkpoint),
                    "last_run": None if last is None else format_timestamp(last.started_ms),
                    "file": str(path),
                    "error": None,
                }
            )
        except AlpacaError as error:
            rows.append(
                {
                    "name": path.stem,
                    "kind": None,
                    "state": "invalid",
                    "last_run": None,
                    "file": str(path),
                    "error": str(error),
                }
            )
    columns = ["pipeline", "kind", "state", "last run", "file"]
    return Report(
        data={"pipelines": rows},
        sections=[Section(columns, [list(row.values())[:5] for row in rows])],
        notes=[str(row["error"]) for row in rows if row["error"]],
    )
