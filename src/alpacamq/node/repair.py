"""`alpacamq repair`: shows and repairs damage in the data directory of a stopped broker.

Prints the damage and the changes it would make; `--execute` makes them. Replaced files are kept in
`damaged/` within the data directory.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec

from alpacamq.broker.clock import SystemClock
from alpacamq.broker.metadata.store import IDENTITY as METADATA
from alpacamq.broker.statemachine.snapshots import STATE_SUFFIX, read_state
from alpacamq.log.data_directory import (
    IDENTITY,
    PARTITIONS,
    SNAPSHOTS,
    encode_identity,
    new_identity,
    read_identity,
    take_lock,
)
from alpacamq.log.disk import SystemDisk
from alpacamq.log.index_files import IndexCache
from alpacamq.log.inspection import PartitionState, inspect_partition
from alpacamq.log.partition_log import DELETED, PartitionLog
from alpacamq.log.reader import partition_name
from alpacamq.log.repair import (
    Change,
    FileRange,
    NotCovered,
    RepairJournal,
    cut_at,
    fill_gaps,
    rebuild_headers,
    rebuilt_batch,
    skip_gaps,
)
from alpacamq.log.sealed_file import Unreadable
from alpacamq.log.storage import FileHandles, Storage
from alpacamq.model.errors import InvalidConfig, StorageFailed
from alpacamq.model.ports import Disk
from alpacamq.model.topics import (
    DELAYS_TOPIC,
    OFFSETS_TOPIC,
    QUEUES_TOPIC,
    SCHEMAS_TOPIC,
    TRANSACTIONS_TOPIC,
    topic_config,
)

_AFFECTED: dict[str, str] = {
    METADATA.topic: "the list of topics: the broker does not start",
    OFFSETS_TOPIC: "groups and committed offsets of this shard: they cannot be used",
    TRANSACTIONS_TOPIC: "transactional ids of this shard: they cannot be used",
    QUEUES_TOPIC: "queues of this shard: they cannot be used",
    DELAYS_TOPIC: "delayed messages of this shard: none is delivered",
    SCHEMAS_TOPIC: "the schema registry: it cannot be used",
}


class Action(StrEnum):
    """Repair action chosen by the operator."""

    CHECK = "check"
    SKIP = "skip"
    CUT = "cut"
    RESTORE = "restore"
    REBUILD = "rebuild"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One damaged file, or one damaged range of a segment."""

    file: str
    kind: str
    reason: str
    affects: str
    choices: list[Action]
    partition: str | None = None
    position: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    lost_bytes: int | None = None

    def __str__(self) -> str:
        place = "" if self.position is None else f" at byte {self.position}"
        lines = [f"{self.file}{place}: {self.reason}"]
        if self.first_offset is not None and self.last_offset is not None:
            count = self.last_offset - self.first_offset + 1
            lines.append(
                f"  unreadable: offsets {self.first_offset} to {self.last_offset}, "
                f"at most {count} records, {self.lost_bytes} bytes"
            )
        lines.append(f"  affects: {self.affects}")
        lines.append(f"  choices: {', '.join(self.choices)}")
        return "\n".join(lines)


class AppliedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was made, or would be made with --execute."""

    file: str
    what: str
    lost: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `-o json`."""

    data_directory: str
    action: Action
    executed: bool
    findings: list[Finding]
    notes: list[str]
    changes: list[AppliedChange]
    kept_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRequest:
    """Arguments of the command line."""

    data_directory: Path
    action: Action = Action.CHECK
    path: str | None = None
    backup: Path | None = None
    execute: bool = False
    cluster_id: str | None = None
    node_id: int | None = None


def repair(request: RepairRequest, output: str = "text", disk: Disk | None = None) -> int:
    """Print the damage and the changes; return 1 if damage remains, else 0."""
    report, remaining = run(request, disk)
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _print(report)
    return 1 if remaining else 0


def run(request: RepairRequest, disk: Disk | None = None) -> tuple[Report, int]:
    """Inspect and repair; return the report and the number of remaining findings."""
    root = request.data_directory
    if not ((root / IDENTITY).is_file() or (root / PARTITIONS).is_dir()):
        raise InvalidConfig(f"{root} is not an AlpacaMQ data directory; set it with --data-dir")
    if request.action is Action.RESTORE and request.backup is None:
        raise InvalidConfig("restore needs a backup: give a file or a copy of the data directory with --from")
    disk = disk or SystemDisk()
    lock = take_lock(disk, root)
    try:
        return _Repair(disk, request).run()
    finally:
        disk.close(lock)


class _Repair:
    def __init__(self, disk: Disk, request: RepairRequest) -> None:
        self._disk = disk
        self._request = request
        self._root = request.data_directory
        self._journal = RepairJournal(disk, request.data_directory)
        self._notes: list[str] = []
        self._done: list[AppliedChange] = []
        self._touched: list[Path] = []

    def run(self) -> tuple[Report, int]:
        if self._journal.is_unfinished:
            if not self._request.execute:
                self._notes.append("an earlier repair was interrupted; --execute finishes it first")
                return self._report([], None), 1
            self._journal.finish()
            self._notes.append("an earlier repair was interrupted and is finished now")
        states = {path.name: inspect_partition(self._disk, path) for path in self._partitions()}
        findings = list(self._findings(states))
        for state in states.values():
            if (unfinished := state.unfinished) is not None:
                self._notes.append(
                    f"{self._name(unfinished[0].path)} at byte {unfinished[1].position}: torn tail "
                    f"after a crash, truncated at the next start: {unfinished[1].reason}"
                )
        changes = self._changes(findings, states)
        if not (self._request.execute and changes):
            return self._report(findings, None), len(findings)
        aside = self._journal.make(changes, datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ"))
        for directory in dict.fromkeys(self._touched):
            self._open_once(directory)
        states = {path.name: inspect_partition(self._disk, path) for path in self._partitions()}
        return self._report(findings, aside), len(list(self._findings(states)))

    def _report(self, findings: list[Finding], aside: Path | None) -> Report:
        return Report(
            data_directory=str(self._root),
            action=self._request.action,
            executed=self._request.execute,
            findings=findings,
            notes=self._notes,
            changes=self._done,
            kept_in=None if aside is None else str(aside),
        )

    def _partitions(self) -> list[Path]:
        directory = self._root / PARTITIONS
        if not directory.is_dir():
            return []
        return sorted(directory / name for name in self._disk.names(directory) if not name.endswith(DELETED))

    def _findings(self, states: dict[str, PartitionState]) -> Iterator[Finding]:
        yield from self._identity_findings()
        for state in states.values():
            yield from self._partition_findings(state)
        for path in sorted((self._root / SNAPSHOTS).glob(f"*/*{STATE_SUFFIX}")):
            try:
                read_state(self._disk, path)
            except Unreadable as error:
                yield Finding(
                    file=self._name(path),
                    kind="state snapshot",
                    partition=partition_name(path.parent),
                    reason=str(error),
                    affects="duration of the next start: the shard is loaded from its log",
                    choices=[Action.REBUILD],
                )

    def _identity_findings(self) -> Iterator[Finding]:
        try:
            read_identity(self._disk, self._root / IDENTITY)
            return
        except FileNotFoundError:
            reason, position = "missing", None
        except Unreadable as error:
            place, _, reason = str(error).partition(": ")
            position = int(place.removeprefix("byte "))
        yield Finding(
            file=IDENTITY,
            kind="identity",
            position=position,
            reason=reason,
            affects="everything: the broker does not start",
            choices=[Action.RESTORE, Action.REBUILD],
        )

    def _partition_findings(self, state: PartitionState) -> Iterator[Finding]:
        name = partition_name(state.directory)
        topic = name.rpartition("-")[0]
        affects = _AFFECTED.get(topic, f"readers of {name} at these offsets")
        for segment, gap in state.gaps:
            choices = [Action.RESTORE, Action.SKIP, Action.CUT]
            if rebuilt_batch(self._disk, state, segment, gap) is not None:
                choices.insert(0, Action.REBUILD)
            yield Finding(
                file=self._name(segment.path),
                kind="segment",
                partition=name,
                position=gap.start.position,
                first_offset=gap.start.offset,
                last_offset=gap.end.offset - 1,
                lost_bytes=gap.end.position - gap.start.position,
                reason=gap.reason,
                affects=affects,
                choices=choices,
            )
        if state.lost is not None:
            yield Finding(
                file=self._name(state.directory),
                kind="segment",
                partition=name,
                first_offset=state.lost[0],
                last_offset=state.lost[1] - 1,
                reason="the first segments of the partition are missing",
                affects=affects,
                choices=[Action.RESTORE, Action.SKIP],
            )
        for derived in state.derived:
            yield Finding(
                file=self._name(derived.path),
                kind="derived file",
                partition=name,
                reason=derived.reason,
                affects="duration of the next start: the broker rebuilds it from the segments",
                choices=[Action.REBUILD],
            )

    def _changes(self, findings: Sequence[Finding], states: dict[str, PartitionState]) -> list[Change]:
        chosen = [each for each in findings if self._is_chosen(each) and self._request.action in each.choices]
        changes: list[Change] = []
        if any(each.kind == "identity" for each in chosen):
            changes += self._new_identity()
        for state in states.values():
            of_state = [
                each
                for each in chosen
                if state.directory in (self._root / each.file, (self._root / each.file).parent)
            ]
            segments = {each.file for each in of_state if each.kind == "segment"}
            if segments:
                wanted = _only(state, {self._root / file for file in segments})
                made = self._partition_changes(wanted)
                changes += made
                if made:
                    self._touched.append(state.directory)
            derived = [self._root / each.file for each in of_state if each.kind == "derived file"]
            if derived:
                self._touched.append(state.directory)
            for path in derived:
                changes.append(Change(path, None))
                self._record(path, "rebuilt from the segments", "nothing")
        for each in chosen:
            if each.kind == "state snapshot":
                changes.append(Change(self._root / each.file, None))
                self._record(self._root / each.file, "removed; the shard is loaded from its log", "nothing")
        return changes

    def _partition_changes(self, state: PartitionState) -> list[Change]:
        match self._request.action:
            case Action.SKIP:
                for segment, gap in state.gaps:
                    self._record(
                        segment.path,
                        f"a batch without records spans offsets {gap.start.offset} to {gap.end.offset - 1}",
                        f"these offsets, {gap.end.position - gap.start.position} bytes",
                    )
                if state.lost is not None:
                    first, end = state.lost
                    self._record(state.directory, f"starts at offset {end}", f"offsets {first} to {end - 1}")
                return skip_gaps(state)
            case Action.CUT:
                segment, gap = state.gaps[0]
                first, end = gap.start.offset, max(state.end_offset, gap.end.offset)
                later = [each for each in state.segments if each.base_offset > segment.base_offset]
                size = segment.size_bytes - gap.start.position + sum(each.size_bytes for each in later)
                self._record(
                    segment.path,
                    f"the partition ends at offset {first}",
                    f"offsets {first} to {end - 1}, {size} bytes",
                )
                return cut_at(state, segment, gap)
            case Action.RESTORE:
                try:
                    changes = fill_gaps(self._disk, state, self._backups(state.directory))
                except NotCovered as error:
                    raise StorageFailed(
                        f"{partition_name(state.directory)} cannot be restored: {error}"
                    ) from error
                for segment, gap in state.gaps:
                    self._record(
                        segment.path,
                        f"offsets {gap.start.offset} to {gap.end.offset - 1} restored from the backup",
                        "nothing",
                    )
                if state.lost is not None:
                    self._record(state.directory, f"starts at offset {state.lost[0]} again", "nothing")
                return changes
            case Action.REBUILD:
                for segment, gap in state.gaps:
                    if rebuilt_batch(self._disk, state, segment, gap) is not None:
                        self._record(
                            segment.path,
                            f"the header of the batch at offset {gap.start.offset} restored from the "
                            f"rest of the batch",
                            "nothing",
                        )
                return rebuild_headers(self._disk, state)
            case Action.CHECK:
                return []

    def _new_identity(self) -> list[Change]:
        path = self._root / IDENTITY
        if self._request.action is Action.RESTORE:
            backup = self._request.backup
            assert backup is not None
            source = backup / IDENTITY if backup.is_dir() else backup
            try:
                identity = read_identity(self._disk, source)
            except (Unreadable, OSError) as error:
                raise StorageFailed(f"{source} is not a valid identity file: {error}") from error
            self._record(
                path, f"cluster {identity.cluster_id}, node {identity.node_id}, from the backup", "nothing"
            )
        else:
            identity = new_identity(
                1 if self._request.node_id is None else self._request.node_id, self._request.cluster_id
            )
            lost = (
                "nothing" if self._request.cluster_id else "the former cluster id (set it with --cluster-id)"
            )
            self._record(path, f"cluster {identity.cluster_id}, node {identity.node_id}", lost)
        return [Change(path, (FileRange(encode_identity(identity)),))]

    def _backups(self, directory: Path) -> list[Path]:
        backup = self._request.backup
        assert backup is not None
        if not backup.is_dir():
            return [backup]
        within = backup / PARTITIONS / directory.name
        return sorted((within if within.is_dir() else backup).glob("*.log"))

    def _open_once(self, directory: Path) -> None:
        """Open and close the partition, as the next start of the broker would, to rebuild derived files."""
        storage = Storage(
            disk=self._disk,
            clock=SystemClock(),
            handles=FileHandles(self._disk, 64),
            indexes=IndexCache(8 << 20),
            # Otherwise damage that was not selected would be truncated with everything after it
            has_every_write=True,
        )
        PartitionLog.open(directory, topic_config({}), storage).close()
        storage.handles.close()

    def _is_chosen(self, finding: Finding) -> bool:
        path = self._request.path
        if path is None:
            return True
        if path in (finding.file, finding.partition):
            return True
        wanted, file = Path(path).absolute(), (self._root / finding.file).absolute()
        return (
            wanted == file
            or wanted in file.parents
            or (self._root / path).absolute() in (file, *file.parents)
        )

    def _record(self, path: Path, what: str, lost: str) -> None:
        self._done.append(AppliedChange(file=self._name(path), what=what, lost=lost))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))


def _only(state: PartitionState, files: set[Path]) -> PartitionState:
    """Restrict the damage in the state to some files."""
    for segment in state.segments:
        if segment.path not in files:
            segment.gaps = []
    if state.directory not in files:
        state.lost = None
    return state


def _print(report: Report) -> None:
    for finding in report.findings:
        print(finding)
    for note in report.notes:
        print(f"note: {note}")
    for done in report.changes:
        verb = "done" if report.executed else "would do"
        print(f"{verb}: {done.file}: {done.what}; lost: {done.lost}")
    if report.kept_in is not None:
        print(f"replaced files are kept in {report.kept_in}")
    if not report.findings:
        print("no damage found")
    elif report.action is Action.CHECK:
        print("nothing was changed; repair with `alpacamq repair rebuild|restore|skip|cut`")
    elif not report.changes:
        print(f"nothing was changed: `{report.action}` does not apply to this damage", file=sys.stderr)
    elif not report.executed:
        print("nothing was changed; use --execute to apply")


MIB = 1 << 20


def verify(data_directory: Path) -> int:
    """Print a line for each checked partition; return 1 if any is damaged, else 0."""
    if not (data_directory / IDENTITY).is_file():
        raise InvalidConfig(f"{data_directory} is not an AlpacaMQ data directory; set it with --data-dir")
    disk = SystemDisk()
    lock = take_lock(disk, data_directory)
    damaged = count = size_bytes = 0
    try:
        for name in sorted(disk.names(data_directory / PARTITIONS)):
            state = inspect_partition(disk, data_directory / PARTITIONS / name)
            count += 1
            size_bytes += state.size_bytes
            damaged += bool(state.gaps) or state.lost is not None
            print(
                f"{name}: {len(state.segments)} segments, {state.size_bytes / MIB:.1f} MiB, "
                f"offsets {state.start_offset} to {state.end_offset}: {_described(state)}",
                flush=True,
            )
    finally:
        disk.close(lock)
    print(f"{count} partitions, {size_bytes / MIB:.1f} MiB: {damaged or 'none'} damaged")
    if damaged:
        print(f"to repair: alpacamq repair --data-dir {data_directory}")
    return 1 if damaged else 0


def _described(state: PartitionState) -> str:
    found = [
        f"DAMAGED: {segment.path} at byte {gap.start.position}: {gap.reason}; "
        f"offsets {gap.start.offset} to {gap.end.offset - 1} cannot be read"
        for segment, gap in state.gaps
    ]
    if state.lost is not None:
        found.append(f"DAMAGED: offsets {state.lost[0]} to {state.lost[1] - 1} were lost with their segments")
    if (unfinished := state.unfinished) is not None:
        segment, violation = unfinished
        found.append(
            "torn tail, truncated at the next start: "
            f"{segment.path} at byte {violation.position}: {violation.reason}"
        )
    return "; ".join(found) or "ok"
