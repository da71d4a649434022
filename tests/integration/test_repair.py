"""Damages every kind of file in a data directory in every way, and checks the report and the repair."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.delay.service import DelayedMessage
from alpacamq.broker.health import all_checks
from alpacamq.broker.statemachine import host as hosts
from alpacamq.coordinator.messages import (
    CommitRequest,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    GroupRequest,
    OffsetToCommit,
)
from alpacamq.log.data_directory import boot_id, read_identity
from alpacamq.log.disk import SystemDisk
from alpacamq.model.batch import FRAME_BYTES, HEADER_BYTES, read_header
from alpacamq.model.errors import DamagedLog, DataDirectoryInUse, StorageFailed
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Header, Record, read_records
from alpacamq.node.repair import Action, RepairRequest, run
from tests.broker.open_brokers import BreakableDisk, batch_sent, running
from tests.broker.queue_steps import ORDERS, acknowledge
from tests.broker.transactions import begun
from tests.waiting import soon

if TYPE_CHECKING:
    from alpacamq.broker.statemachine.host import StateMachineHost

RECORDS = 12
GROUP = "readers"
TRACEPARENT = Header("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


async def fill(path: Path) -> None:
    """Write a data directory with a file of every kind, and close it cleanly."""
    async with running(path) as broker:
        await broker.topics.create("orders", partitions=1, overrides={"segment.bytes": "2000"})
        for number in range(RECORDS):
            record = Record(0, 1_700_000_000_000 + number, b"k", bytes([65 + number]) * 700, (TRACEPARENT,))
            await batch_sent(
                broker, "orders", [record], producer_id=7, producer_epoch=0, base_sequence=number
            )
        # Segments long enough for entries in their offset index.
        await broker.topics.create("long", partitions=1, overrides={"segment.bytes": "12000"})
        for number in range(20):
            await batch_sent(broker, "long", [Record(0, 1_700_000_000_000 + number, b"k", bytes(1000))])
        wanted = (OffsetToCommit(topic="orders", partition=0, offset=5),)
        await asked(broker, CommitRequest(group=GROUP, offsets=wanted))
        received = await broker.queues.receive(ORDERS, max_messages=3)
        await acknowledge(broker, *received)
        later = broker.clock.now_ms() + 3_600_000
        message = DelayedMessage(
            topic="orders", partition=0, due_ms=later, key=None, value=b"later", headers=()
        )
        await broker.delays.schedule([message])
        await begun(broker, "payments")
        await soon(lambda: some_state(path))


async def some_state(path: Path) -> bool:
    return len(list((path / "data" / "snapshots").glob("*/*.state"))) >= 4


async def asked(broker: Broker, request: GroupRequest[Any]) -> Any:
    return await broker.groups.ask(request)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hosts, "SNAPSHOT_RECORDS", 1)
        asyncio.run(fill(path))
    (trace,) = (path / "data" / "traces").glob("*.jsonl")
    assert trace.stat().st_size
    return path


@pytest.fixture
def broken(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of the data directory to damage."""
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def flip(path: Path) -> None:
    """Flip a bit: in a segment among the records of its first batch, elsewhere in the middle."""
    data = bytearray(path.read_bytes())
    position = HEADER_BYTES + 5 if path.suffix == ".log" else len(data) // 2
    data[position] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def delete(path: Path) -> None:
    path.unlink()


DAMAGES = {"flip": flip, "truncate": truncate, "delete": delete}


def indexes(path: Path, pattern: str) -> list[Path]:
    found = sorted((path / "data" / "partitions").glob(f"long-0.*/{pattern}"))
    assert all(file.stat().st_size for file in found)
    return found


def orders(path: Path, pattern: str) -> list[Path]:
    return sorted((path / "data" / "partitions").glob(f"orders-0.*/{pattern}"))


def shard_of(topic: str) -> Callable[[Path], Path]:
    return lambda path: in_shard(path, topic)


def in_shard(path: Path, topic: str) -> Path:
    """Return the segment of the only partition of an internal topic that holds records."""
    (found,) = [
        file for file in (path / "data" / "partitions").glob(f"{topic}-*/*.log") if file.stat().st_size
    ]
    return found


@dataclass(frozen=True)
class Kind:
    """A kind of file: which one, whether the broker starts, its message, and the repair that restores it."""

    name: str
    find: Callable[[Path], Path]
    starts: bool = True
    # The failing check of /healthz, if any.
    unwell: str | None = None
    # Other steps needed to load the state of the partition.
    before: Callable[[Path], object] = lambda _path: None
    action: Action = Action.REBUILD
    lost: dict[str, list[int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def without_state(path: Path) -> None:
    """Remove the snapshots, so that the state machine has to read its log."""
    shutil.rmtree(path / "data" / "snapshots")


def as_if_killed(path: Path) -> None:
    (path / "data" / "running").write_bytes(boot_id())


KINDS = [
    Kind(".lock", lambda path: path / "data" / ".lock"),
    Kind("running", lambda path: path / "data" / "running", before=as_if_killed),
    Kind("identity", lambda path: path / "data" / "identity", starts=False),
    Kind(
        "metadata segment",
        lambda path: in_shard(path, "__cluster_metadata"),
        starts=False,
        action=Action.RESTORE,
    ),
    Kind(
        "first segment",
        lambda path: orders(path, "*.log")[0],
        unwell="partitions",
        action=Action.SKIP,
        lost={"flip": [0], "truncate": [1], "delete": [0, 1]},
    ),
    Kind(
        "middle segment",
        lambda path: orders(path, "*.log")[2],
        unwell="partitions",
        action=Action.SKIP,
        lost={"flip": [4], "truncate": [5], "delete": [4, 5]},
    ),
    Kind(
        "last segment",
        lambda path: orders(path, "*.log")[-1],
        unwell="partitions",
        action=Action.SKIP,
        lost={"flip": [10], "truncate": [11], "delete": [10, 11]},
    ),
    Kind("middle segment, with a backup", lambda path: orders(path, "*.log")[2], unwell="partitions",
         action=Action.RESTORE),
    Kind("last segment, with a backup", lambda path: orders(path, "*.log")[-1], unwell="partitions",
         action=Action.RESTORE),
    Kind("first segment, with a backup", lambda path: orders(path, "*.log")[0], unwell="partitions",
         action=Action.RESTORE),
    *(
        Kind(f"segment of {topic}", shard_of(topic), unwell="coordinators",
             before=without_state, action=Action.RESTORE)
        for topic in ("__consumer_offsets", "__queue_state", "__delayed_messages", "__transaction_state")
    ),
    Kind("offset index", lambda path: indexes(path, "*.index")[0]),
    Kind("time index", lambda path: indexes(path, "*.timeindex")[0]),
    Kind("checksums of indexes", lambda path: indexes(path, "*.indexcrc")[0]),
    Kind("producer snapshot", lambda path: orders(path, "*.producers")[-1]),
    Kind("checkpoint", lambda path: orders(path, "checkpoint")[0]),
    Kind("leader epochs", lambda path: orders(path, "leader-epochs")[0]),
    Kind(
        "state snapshot",
        lambda path: max((path / "data" / "snapshots").glob("__consumer_offsets-*/*.state")),
    ),
    Kind("trace log", lambda path: next((path / "data" / "traces").glob("*.jsonl"))),
]  # fmt: skip


def names_the_place(text: str, file: Path, damage: str) -> bool:
    """Return whether the text names the file (or its directory, if it was deleted) and a byte position."""
    if damage == "delete":
        return str(file.parent) in text
    return str(file) in text and "byte " in text


async def everything(broker: Broker, lost: list[int]) -> None:
    """Check that everything stored except the `lost` offsets is there, and that writes work."""
    assert set(broker.topics.image.topics) >= {"orders", "__consumer_offsets", "__delayed_messages"}
    values = readable(broker)
    assert values == {n: bytes([65 + n]) * 700 for n in range(RECORDS) if n not in lost}
    await batch_sent(broker, "orders", [Record(0, 1, b"k", b"new")])
    assert readable(broker)[RECORDS] == b"new"
    long = broker.topics.partition("long", 0).log
    found = [long.offset_for_timestamp(1_700_000_000_000 + number, 20) for number in range(20)]
    assert [each.offset for each in found if each is not None] == list(range(20))
    place = (TopicPartition(TopicName("orders"), 0),)
    request = FetchOffsetsRequest(group=GROUP, partitions=place)
    reply: FetchOffsetsReply = await asked(broker, request)
    assert reply.offsets[0].offset == 5
    assert (await broker.delays.stats("orders")).pending == 1
    assert (await broker.queues.describe(ORDERS)).partitions[0].start_offset == 3
    assert (await begun(broker, "payments")).producer_epoch == 1


def readable(broker: Broker) -> dict[int, bytes | None]:
    """Return every record that a consumer gets if it seeks past errors."""
    log = broker.topics.partition("orders", 0).log
    values: dict[int, bytes | None] = {}
    offset = log.start_offset
    for _ in range(100):
        try:
            part = log.read(offset, 1 << 20, log.end_offset)
            if part is None:
                return values
            try:
                if not part.verified:
                    log.verify(part)
                data = SystemDisk().read(part.handle.descriptor, part.length, part.position)
            finally:
                part.release()
        except DamagedLog as error:
            first, end = error.offsets or (0, 0)
            offset = end if first <= offset < end else offset
            continue
        at = 0
        while at < len(data):
            header = read_header(data, at)
            end = at + FRAME_BYTES + header.batch_length
            values |= {record.offset: record.value for record in read_records(data[at:end])}
            at = end
        offset = part.next_offset
    raise AssertionError("reading does not end")


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != ".lock"
    }


def order(copy: Path, action: Action, whole: Path, **fields: Any) -> RepairRequest:
    cluster_id = read_identity(SystemDisk(), whole / "data" / "identity").cluster_id
    return RepairRequest(
        data_directory=copy / "data", action=action, backup=whole / "data", cluster_id=cluster_id, **fields
    )


def failing(broker: Broker) -> dict[str, str]:
    """Return the checks that fail, except that of the event loop, which a busy machine stalls."""
    checks = all_checks(broker).items()
    return {name: check.detail for name, check in checks if not check.is_ok and name != "event_loop"}


async def loaded_or_failed(broker: Broker) -> bool:
    started: list[StateMachineHost[Any]] = [
        *broker.groups._machines.started,
        *broker.transactions._machines.started,
        *broker.queues._host._machines.started,
        *broker.delays._logs._machines.started,
    ]
    return len(started) == 32 and all(s.machine is not None or s.failure is not None for s in started)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_the_broker_reports_the_damage_and_serves_the_rest(
    broken: Path, kind: Kind, damage: str
) -> None:
    kind.before(broken)
    file = kind.find(broken)
    DAMAGES[damage](file)
    if not kind.starts:
        with pytest.raises(StorageFailed) as refused:
            async with running(broken):
                pass
        assert names_the_place(str(refused.value), file, damage)
        assert "alpacamq repair" in str(refused.value)
        return
    async with running(broken) as broker:
        await soon(lambda: loaded_or_failed(broker))
        served = readable(broker)
        if kind.unwell is None:
            assert failing(broker) == {}
            await everything(broker, [])
            return
        found = failing(broker)
        assert kind.unwell in found
        if kind.unwell == "coordinators":
            assert names_the_place(found["coordinators"], file, damage)
            assert served == {n: bytes([65 + n]) * 700 for n in range(RECORDS)}
            assert (
                len(
                    broker.groups.failures()
                    + broker.transactions.failures()
                    + broker.queues.failures()
                    + broker.delays.failures()
                )
                == 1
            )
            return
        assert names_the_place(found["partitions"], file, damage)
        if kind.lost:
            assert sorted(served) == [n for n in range(RECORDS) if n not in kind.lost[damage]]
        await batch_sent(broker, "orders", [Record(0, 1, b"k", b"new")])
        assert readable(broker)[RECORDS] == b"new"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_repair_restores_the_data(whole: Path, broken: Path, kind: Kind, damage: str) -> None:
    kind.before(broken)
    file = kind.find(broken)
    DAMAGES[damage](file)
    before = tree(broken)

    report, _ = run(order(broken, kind.action, whole))  # a dry run
    assert tree(broken) == before
    assert not report.executed
    is_silent = kind.name in (".lock", "running", "trace log") or (
        damage == "delete" and not kind.unwell and kind.starts
    )
    assert bool(report.findings) != is_silent
    report, remaining = run(order(broken, kind.action, whole, execute=True))
    assert remaining == 0
    if kind.action is not Action.SKIP:
        assert {each.lost for each in report.changes} <= {"nothing"}
    if damage != "delete" and report.findings:
        kept = [path for path in (broken / "data" / "damaged").rglob(file.name) if path.is_file()]
        assert [path.read_bytes() for path in kept] == [before[str(file.relative_to(broken))]]
    settled = tree(broken)
    again, _ = run(order(broken, kind.action, whole, execute=True))
    assert again.findings == []
    assert tree(broken) == settled

    async with running(broken) as broker:
        await soon(lambda: loaded_or_failed(broker))
        assert failing(broker) == {}
        await everything(broker, kind.lost.get(damage, []))
        if kind.lost:
            # Records that were given up cause no error for readers from the start.
            part = broker.topics.partition("orders", 0).log.read(
                broker.topics.partition("orders", 0).log.start_offset, 1 << 20, RECORDS
            )
            assert part is not None
            part.release()
            assert broker.topics.partition("orders", 0).log.damages == []


@pytest.mark.parametrize(("position", "field"), [(3, "offset"), (10, "length"), (15, "epoch"), (16, "magic")])
async def test_a_damaged_header_is_rebuilt_from_the_records_without_loss(
    whole: Path, broken: Path, position: int, field: str
) -> None:
    file = orders(broken, "*.log")[1]
    before = file.read_bytes()
    data = bytearray(before)
    data[position] ^= 1
    file.write_bytes(data)
    report, _ = run(order(broken, Action.CHECK, whole))
    assert Action.REBUILD in report.findings[0].choices, field
    _, remaining = run(order(broken, Action.REBUILD, whole, execute=True))
    assert remaining == 0
    assert file.read_bytes() == before


async def test_cut_ends_the_partition_at_the_damage(whole: Path, broken: Path) -> None:
    flip(orders(broken, "*.log")[2])
    async with running(broken) as broker:
        epoch = broker.topics.partition("orders", 0).leader_epoch
    report, remaining = run(order(broken, Action.CUT, whole, path="orders-0", execute=True))
    assert remaining == 0
    assert report.changes[0].lost.startswith("offsets 4 to 11, ")
    async with running(broken) as broker:
        partition = broker.topics.partition("orders", 0)
        assert sorted(readable(broker)) == [0, 1, 2, 3]
        assert partition.log.end_offset == 4
        # A consumer that has read the truncated records detects it by the leader epoch.
        assert partition.leader_epoch > epoch
        assert failing(broker) == {}


def test_a_backup_without_the_batch_is_refused_and_changes_nothing(whole: Path, broken: Path) -> None:
    file = orders(broken, "*.log")[2]
    flip(file)
    before = tree(broken)
    for backup in (file, orders(whole, "*.log")[1], broken / "data"):
        with pytest.raises(StorageFailed, match="no sound batches for offsets 4 to 4"):
            run(
                RepairRequest(
                    data_directory=broken / "data", action=Action.RESTORE, backup=backup, execute=True
                )
            )
    assert tree(broken) == before


async def test_only_the_selected_damage_is_repaired(whole: Path, broken: Path) -> None:
    files = orders(broken, "*.log")
    flip(files[1])
    flip(files[3])
    run(order(broken, Action.SKIP, whole, path=str(files[3]), execute=True))
    report, _ = run(order(broken, Action.CHECK, whole))
    assert [each.first_offset for each in report.findings] == [2]


class DyingDisk(BreakableDisk):
    """The real disk, which fails after a number of changing operations."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def rename(self, source: Path, target: Path) -> None:
        self._spend()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._spend()
        super().remove(path)

    def write(self, descriptor: int, buffers: Any, position: int) -> None:
        self._spend()
        super().write(descriptor, buffers, position)

    def sync_directory(self, path: Path) -> None:
        self._spend()
        super().sync_directory(path)


@pytest.mark.parametrize("action", [Action.SKIP, Action.CUT, Action.RESTORE])
def test_an_interrupted_repair_is_completed_by_the_next(
    whole: Path, broken: Path, tmp_path: Path, action: Action
) -> None:
    flip(orders(broken, "*.log")[2])
    expected: dict[str, bytes] | None = None
    for left in (*range(60), 10_000):
        copy = tmp_path / "attempt"
        shutil.copytree(broken, copy)
        try:
            run(order(copy, action, whole, execute=True), DyingDisk(left))
            is_done = True
        except KeyboardInterrupt:
            is_done = False
        if (copy / "data" / "repair").exists():
            with pytest.raises(StorageFailed, match="a repair was interrupted"):
                asyncio.run(started_once(copy))
            report, remaining = run(order(copy, Action.CHECK, whole))
            assert remaining == 1
            assert "interrupted" in report.notes[0]
        _, remaining = run(order(copy, action, whole, execute=True))
        assert remaining == 0
        logs = {
            name: data for name, data in tree(copy / "data" / "partitions").items() if name.endswith(".log")
        }
        expected = expected or logs
        assert logs == expected
        shutil.rmtree(copy)
        if is_done:
            return
    raise AssertionError("the repair never completed")


async def started_once(path: Path) -> None:
    async with running(path):
        pass


async def test_the_directory_of_a_running_broker_is_not_repaired(whole: Path, broken: Path) -> None:
    async with running(broken):
        with pytest.raises(DataDirectoryInUse):
            run(order(broken, Action.CHECK, whole))


def alpacamq(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "alpacamq.node.main", *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_the_command_reports_damage_and_sets_its_exit_code(broken: Path) -> None:
    data = broken / "data"
    sound = alpacamq("repair", "--data-dir", data)
    assert (sound.returncode, sound.stdout) == (0, "no damage found\n")
    file = orders(broken, "*.log")[2]
    flip(file)
    found = alpacamq("repair", "--data-dir", data)
    assert found.returncode == 1
    name = file.relative_to(data)
    assert f"{name} at byte 0: checksum" in found.stdout
    assert "unreadable: offsets 4 to 4, at most 1 records" in found.stdout
    assert "affects: readers of orders-0 at these offsets" in found.stdout
    assert "choices: restore, skip, cut" in found.stdout
    planned = alpacamq("repair", "skip", "orders-0", "--data-dir", data, "-o", "json")
    assert planned.returncode == 1
    report = json.loads(planned.stdout)
    assert not report["executed"]
    assert report["changes"][0]["file"] == str(name)
    done = alpacamq("repair", "skip", "orders-0", "--data-dir", data, "--execute")
    assert done.returncode == 0
    assert "done: " in done.stdout
    assert str(data / "damaged") in done.stdout
    assert alpacamq("repair", "restore", "--data-dir", data).returncode == 1
    assert alpacamq("repair", "break", "--data-dir", data).returncode == 2
    assert alpacamq("repair", "--data-dir", broken / "nowhere").returncode == 1


def test_a_start_error_names_file_position_and_the_repair_command(broken: Path) -> None:
    file = in_shard(broken, "__cluster_metadata")
    flip(file)
    data = broken / "data"
    words = (
        "serve",
        "--data-dir",
        data,
        "--kafka",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--sqs",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--registry",
        "127.0.0.1:0",
    )
    refused = alpacamq(*words)
    assert refused.returncode == 1
    assert f"{file} is damaged at byte 0" in refused.stderr
    assert f"alpacamq repair --data-dir {data}" in refused.stderr
    assert "Traceback" not in refused.stderr
