"""`alpacamq repair`: shows what is damaged in a stopped broker's data directory, and mends it.

Says what it found and what it would do; does it with `--execute`. What is replaced is kept in
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
from alpacamq.broker.metadata_log import IDENTITY as METADATA
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
from alpacamq.log.handles import FileHandles
from alpacamq.log.index_files import IndexCache
from alpacamq.log.inspection import PartitionState, inspect_partition
from alpacamq.log.partition_log import DELETED, PartitionLog
from alpacamq.log.repair import (
    Change,
    NotCovered,
    RepairJournal,
    Stretch,
    cut_at,
    fill_gaps,
    mend_gaps,
    mended,
    skip_gaps,
)
from alpacamq.log.sealed_file import Unreadable
from alpacamq.log.storage import Storage
from alpacamq.model.errors import InvalidConfig, StorageFailed
from alpacamq.model.ports import Disk
from alpacamq.model.topics import (
    DELAYS_TOPIC,
    OFFSETS_TOPIC,
    QUEUES_TOPIC,
    TRANSACTIONS_TOPIC,
    topic_config,
)

_AFFECTED: dict[str, str] = {
    METADATA.topic: "the list of topics: the broker does not start",
    OFFSETS_TOPIC: "groups and committed offsets of this shard: they cannot be used",
    TRANSACTIONS_TOPIC: "transactional ids of this shard: they cannot be used",
    QUEUES_TOPIC: "queues of this shard: they cannot be used",
    DELAYS_TOPIC: "delayed messages of this shard: none is delivered",
}


class Action(StrEnum):
    """What an operator may want."""

    CHECK = "check"
    SKIP = "skip"
    CUT = "cut"
    RESTORE = "restore"
    REBUILD = "rebuild"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One damaged file, or one damaged place of a segment."""

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
                f"  cannot be read: offsets {self.first_offset} to {self.last_offset}, "
                f"{count} records at most, {self.lost_bytes} bytes"
            )
        lines.append(f"  affects: {self.affects}")
        lines.append(f"  choices: {', '.join(self.choices)}")
        return "\n".join(lines)


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Something done, or that would be."""

    file: str
    what: str
    lost: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `-o json` prints."""

    data_directory: str
    action: Action
    executed: bool
    findings: list[Finding]
    notes: list[str]
    changes: list[Done]
    kept_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the command line says."""

    data_directory: Path
    action: Action = Action.CHECK
    path: str | None = None
    backup: Path | None = None
    execute: bool = False
    cluster_id: str | None = None
    node_id: int | None = None


def repair(order: Order, output: str = "text", disk: Disk | None = None) -> int:
    """Print what was found and done; 1 if something is, or stays, damaged, else 0."""
    report, remaining = run(order, disk)
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _print(report)
    return 1 if remaining else 0


def run(order: Order, disk: Disk | None = None) -> tuple[Report, int]:
    """The report, and how many findings remain."""
    root = order.data_directory
    if not ((root / IDENTITY).is_file() or (root / PARTITIONS).is_dir()):
        raise InvalidConfig(f"{root} is not a data directory of AlpacaMQ; name one with --data-dir")
    if order.action is Action.RESTORE and order.backup is None:
        raise InvalidConfig("name the backup, a file or a copy of the data directory, with --from")
    disk = disk or SystemDisk()
    lock = take_lock(disk, root)
    try:
        return _Workshop(disk, order).run()
    finally:
        disk.close(lock)


class _Workshop:
    def __init__(self, disk: Disk, order: Order) -> None:
        self._disk = disk
        self._order = order
        self._root = order.data_directory
        self._journal = RepairJournal(disk, order.data_directory)
        self._notes: list[str] = []
        self._done: list[Done] = []
        self._touched: list[Path] = []

    def run(self) -> tuple[Report, int]:
        if self._journal.is_unfinished:
            if not self._order.execute:
                self._notes.append("an earlier repair was interrupted; --execute finishes it first")
                return self._report([], None), 1
            self._journal.finish()
            self._notes.append("an earlier repair was interrupted and is finished now")
        states = {path.name: inspect_partition(self._disk, path) for path in self._partitions()}
        findings = list(self._findings(states))
        for state in states.values():
            if (unfinished := state.unfinished) is not None:
                self._notes.append(
                    f"{self._name(unfinished[0].path)} at byte {unfinished[1].position}: the unfinished end "
                    f"that a crash left, cut at the next start: {unfinished[1].reason}"
                )
        changes = self._changes(findings, states)
        if not (self._order.execute and changes):
            return self._report(findings, None), len(findings)
        aside = self._journal.make(changes, datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ"))
        for directory in dict.fromkeys(self._touched):
            self._open_once(directory)
        states = {path.name: inspect_partition(self._disk, path) for path in self._partitions()}
        return self._report(findings, aside), len(list(self._findings(states)))

    def _report(self, findings: list[Finding], aside: Path | None) -> Report:
        return Report(
            data_directory=str(self._root),
            action=self._order.action,
            executed=self._order.execute,
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
                    partition=_partition_name(path.parent),
                    reason=str(error),
                    affects="the next start, which takes longer: the shard is loaded from its log",
                    choices=[Action.REBUILD],
                )

    def _identity_findings(self) -> Iterator[Finding]:
        try:
            read_identity(self._disk, self._root / IDENTITY)
            return
        except FileNotFoundError:
            reason, position = "it does not exist", None
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
        name = _partition_name(state.directory)
        topic = name.rpartition("-")[0]
        affects = _AFFECTED.get(topic, f"readers of {name} at these offsets")
        for segment, gap in state.gaps:
            choices = [Action.RESTORE, Action.SKIP, Action.CUT]
            if mended(self._disk, state, segment, gap) is not None:
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
                reason="the segments that the partition began with are gone",
                affects=affects,
                choices=[Action.RESTORE, Action.SKIP],
            )
        for derived in state.derived:
            yield Finding(
                file=self._name(derived.path),
                kind="derived file",
                partition=name,
                reason=derived.reason,
                affects="the next start, which takes longer: the broker makes it anew from the segments",
                choices=[Action.REBUILD],
            )

    def _changes(self, findings: Sequence[Finding], states: dict[str, PartitionState]) -> list[Change]:
        chosen = [each for each in findings if self._is_chosen(each) and self._order.action in each.choices]
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
                self._say(path, "made anew from the segments", "nothing")
        for each in chosen:
            if each.kind == "state snapshot":
                changes.append(Change(self._root / each.file, None))
                self._say(self._root / each.file, "taken away; the shard is loaded from its log", "nothing")
        return changes

    def _partition_changes(self, state: PartitionState) -> list[Change]:
        match self._order.action:
            case Action.SKIP:
                for segment, gap in state.gaps:
                    self._say(
                        segment.path,
                        f"a batch without records spans offsets {gap.start.offset} to {gap.end.offset - 1}",
                        f"these offsets, {gap.end.position - gap.start.position} bytes",
                    )
                if state.lost is not None:
                    first, end = state.lost
                    self._say(state.directory, f"begins at offset {end}", f"offsets {first} to {end - 1}")
                return skip_gaps(state)
            case Action.CUT:
                segment, gap = state.gaps[0]
                first, end = gap.start.offset, max(state.end_offset, gap.end.offset)
                later = [each for each in state.segments if each.base_offset > segment.base_offset]
                size = segment.size_bytes - gap.start.position + sum(each.size_bytes for each in later)
                self._say(
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
                        f"{_partition_name(state.directory)} cannot be restored: {error}"
                    ) from error
                for segment, gap in state.gaps:
                    self._say(
                        segment.path,
                        f"offsets {gap.start.offset} to {gap.end.offset - 1} come from the backup",
                        "nothing",
                    )
                if state.lost is not None:
                    self._say(state.directory, f"begins at offset {state.lost[0]} again", "nothing")
                return changes
            case Action.REBUILD:
                for segment, gap in state.gaps:
                    if mended(self._disk, state, segment, gap) is not None:
                        self._say(
                            segment.path,
                            f"the header of the batch at offset {gap.start.offset} follows from the rest",
                            "nothing",
                        )
                return mend_gaps(self._disk, state)
            case Action.CHECK:
                return []

    def _new_identity(self) -> list[Change]:
        path = self._root / IDENTITY
        if self._order.action is Action.RESTORE:
            backup = self._order.backup
            assert backup is not None
            source = backup / IDENTITY if backup.is_dir() else backup
            try:
                identity = read_identity(self._disk, source)
            except (Unreadable, OSError) as error:
                raise StorageFailed(f"{source} is no identity to restore: {error}") from error
            self._say(
                path, f"cluster {identity.cluster_id}, node {identity.node_id}, from the backup", "nothing"
            )
        else:
            identity = new_identity(
                1 if self._order.node_id is None else self._order.node_id, self._order.cluster_id
            )
            lost = (
                "nothing" if self._order.cluster_id else "the former cluster id (give it with --cluster-id)"
            )
            self._say(path, f"cluster {identity.cluster_id}, node {identity.node_id}", lost)
        return [Change(path, (Stretch(encode_identity(identity)),))]

    def _backups(self, directory: Path) -> list[Path]:
        backup = self._order.backup
        assert backup is not None
        if not backup.is_dir():
            return [backup]
        within = backup / PARTITIONS / directory.name
        return sorted((within if within.is_dir() else backup).glob("*.log"))

    def _open_once(self, directory: Path) -> None:
        """Do what the next start of the broker would do first, so that it has nothing left to do."""
        storage = Storage(
            disk=self._disk,
            clock=SystemClock(),
            handles=FileHandles(self._disk, 64),
            indexes=IndexCache(8 << 20),
            has_every_write=True,  # or damage that nobody chose to repair would be cut off with all behind it
        )
        PartitionLog.open(directory, topic_config({}), storage).close()
        storage.handles.close()

    def _is_chosen(self, finding: Finding) -> bool:
        path = self._order.path
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

    def _say(self, path: Path, what: str, lost: str) -> None:
        self._done.append(Done(file=self._name(path), what=what, lost=lost))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))


def _only(state: PartitionState, files: set[Path]) -> PartitionState:
    """The state with the damage of some files only."""
    for segment in state.segments:
        if segment.path not in files:
            segment.gaps = []
    if state.directory not in files:
        state.lost = None
    return state


def _partition_name(directory: Path) -> str:
    """topic-number, from the name of a partition's directory."""
    return directory.name.rpartition(".")[0] or directory.name


def _print(report: Report) -> None:
    for finding in report.findings:
        print(finding)
    for note in report.notes:
        print(f"note: {note}")
    for done in report.changes:
        verb = "done" if report.executed else "would do"
        print(f"{verb}: {done.file}: {done.what}; lost: {done.lost}")
    if report.kept_in is not None:
        print(f"the former files are in {report.kept_in}")
    if not report.findings:
        print("nothing is damaged")
    elif report.action is Action.CHECK:
        print("choose with `alpacamq repair rebuild|restore|skip|cut`; nothing has been changed")
    elif not report.changes:
        print(f"nothing here that `{report.action}` would mend; nothing has been changed", file=sys.stderr)
    elif not report.executed:
        print("nothing has been changed; --execute does it")
