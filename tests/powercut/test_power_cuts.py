"""Cuts the power under mixed load and checks what clients were promised: `make powercut CUTS=30 SEED=…`."""

import os
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random, SystemRandom

import msgspec
import pytest

from alpacamq.log.data_directory import RUNNING
from tests.brokers import Broker
from tests.integration.processes import Program
from tests.ports import lasting_address
from tests.waiting import eventually

from .checker import Anomaly, Kind, check
from .disk import MOUNTS, Cut, PowerCutDisk, missing_for_cuts
from .history import Cut as CutEvent
from .history import Event, History, read_events
from .load import Settings
from .observer import Observer
from .scene import SCENE, Plan, make_topics, plan

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(missing_for_cuts() is not None, reason=f"power cuts: {missing_for_cuts()}"),
]

CUTS = int(os.environ.get("CUTS", "30"))
SEED = int(os.environ.get("SEED") or SystemRandom().randrange(1 << 32))
# The same data directory goes through this many cuts: the remains of one may affect the next.
CUTS_PER_DISK = 3
LOAD_S = ((0.2, 1.0), (4.0, 8.0), (4.0, 8.0), (4.0, 8.0))
FAILING_S = 0.05  # failures this shortly before the cut may be caused by it
SHOWN = 3  # of each kind
LOG_SHOWN = 3000
START_S = 60.0
# Workers that do not wait for others.
WRITERS = 8


class Rig:
    """One disk, the broker on it, and the history of all that was done with it."""

    def __init__(self, directory: Path, seed: int, plan: Plan, disk: PowerCutDisk) -> None:
        self.directory = directory
        self.dice = Random(seed)
        self.seed = seed
        self.plan = plan
        self.disk = disk
        self.history = History()
        self.events = directory / "history"
        self.events.mkdir()
        addresses = [lasting_address() for _ in range(3)]
        self.broker = Broker(
            disk.path / "data",
            config=plan.broker_config,
            kafka=addresses[0],
            http=addresses[1],
            sqs=addresses[2],
        )

    @property
    def phase(self) -> int:
        return len(self.history.cuts)

    @property
    def settings(self) -> Settings:
        return Settings(
            kafka=self.broker.kafka,
            http=self.broker.http_address,
            sqs=self.broker.sqs_address,
            directory=str(self.events),
            phase=self.phase,
            seed=self.seed,
        )

    def start(self) -> None:
        """Start the broker on the disk, on a machine that was rebooted."""
        self.disk.mount()
        if self.broker.data_dir.exists():
            # The broker detects a power loss by the boot id, and this machine has only one.
            (self.broker.data_dir / RUNNING).write_text("an earlier boot\n")
        self.broker.start()

    def cut_under_load(self) -> list[Anomaly]:
        """Load, cut, restart, look, check."""
        settings = msgspec.json.encode(self.settings).decode()
        stop = self.directory / f"stop-{self.phase}"
        log = self.directory / f"load-{self.phase}.log"
        with ExitStack() as programs:
            load = Program("tests.powercut.load", settings, log=log).start()
            programs.callback(load.end)
            straddler = Program("tests.powercut.straddler", settings, str(stop), log=log).start()
            programs.callback(straddler.end)
            self._let_run()
            at_s = self.disk.cut(self.dice.choice([*Cut]))
            self.broker.kill()
            load.kill()
            self.disk.unmount()
            self.start()
            stop.touch()
            straddler.wait()
        return self._look(at_s, log)

    def _let_run(self) -> None:
        eventually(self._is_under_load, within_s=START_S, what="load on the broker")
        ends_s = time.monotonic() + self.dice.uniform(*self.dice.choice(LOAD_S))
        while (left_s := ends_s - time.monotonic()) > 0:
            time.sleep(min(left_s, self.dice.uniform(0.1, 0.6)))
            self.disk.push_out_some(self.dice)

    def _is_under_load(self) -> bool:
        """Return whether every independent worker has begun."""
        begun = [path for path in self.events.glob(f"{self.phase:03d}-*.jsonl") if path.stat().st_size]
        return len(begun) >= WRITERS

    def _look(self, at_s: float, load_log: Path) -> list[Anomaly]:
        self.history.phases = [self._events_of(phase) for phase in range(self.phase + 1)]
        self.history.cuts.append(CutEvent(at_s, {}))
        observer = Observer(self.settings, self.history)
        try:
            self.history.cuts[-1] = CutEvent(at_s, observer.ends())
            found = observer.look()
        finally:
            observer.close()
        found.failures = [
            line for line in load_log.read_text().splitlines() if _is_before(line, at_s - FAILING_S)
        ]
        found.errors = [line for line in self.broker.errors.lines if _is_error(line)]
        self.history.phases = [self._events_of(phase) for phase in range(self.phase + 1)]
        return check(self.history, found, self.plan.promise, SCENE)

    def _events_of(self, phase: int) -> list[Event]:
        return read_events(sorted(self.events.glob(f"{phase:03d}-*.jsonl")))


def _is_before(line: str, at_s: float) -> bool:
    """Return whether a line of the load's log is about a worker that ended before this time."""
    time_s, _, _ = line.partition(" ")
    return time_s.replace(".", "", 1).isdigit() and float(time_s) < at_s


def _is_error(line: str) -> bool:
    return "Traceback" in line or "crashed" in line or "[error" in line


def test_power_cuts_break_no_promise(tmp_path: Path) -> None:
    broken: list[str] = []
    print(f"\n{CUTS} power cuts, SEED={SEED}")
    for disk, first in enumerate(range(0, CUTS, CUTS_PER_DISK)):
        broken += _one_disk(tmp_path / f"disk-{disk}", SEED + disk, min(CUTS_PER_DISK, CUTS - first))
    print(f"{CUTS} power cuts, {len(broken)} anomalies")
    assert not broken, "\n".join(broken)


def _one_disk(directory: Path, seed: int, cuts: int) -> list[str]:
    """Cut the power of one disk again and again; what was broken, with how to replay it."""
    dice = Random(seed)
    directory.mkdir()
    mount = MOUNTS[dice.randrange(len(MOUNTS))]
    settings = plan(dice, syncs_everything=seed % 2 == 1)
    mode = "flush.messages=1" if settings.syncs_everything else "default flush"
    disk = PowerCutDisk(directory, mount)
    rig = Rig(directory, seed, settings, disk)
    try:
        rig.start()
        make_topics(rig.broker.kafka, rig.broker.sqs_address, settings)
        for number in range(1, cuts + 1):
            began_s = time.monotonic()
            replay = f"make powercut SEED={seed} CUTS={number}"
            try:
                anomalies = rig.cut_under_load()
            except Exception as error:  # noqa: BLE001 - what keeps one disk from being looked at is no reason to stop
                print(
                    f"seed {seed}, cut {number}: {error!r}\n{rig.broker.errors.text()[-LOG_SHOWN:]}",
                    flush=True,
                )
                return [f"{replay}: {error!r}"]
            took_s = time.monotonic() - began_s
            print(
                f"seed {seed}, cut {number}: {mode}, {mount.name}, "
                f"{len(rig.history.phases[number - 1])} events, {len(anomalies)} anomalies, {took_s:.0f} s",
                flush=True,
            )
            if anomalies:
                # Its consequences would only repeat it.
                told = _describe(anomalies)
                print("".join(f"  {line}\n" for line in told), end="", flush=True)
                return [f"{replay}: {line}" for line in told]
    finally:
        rig.broker.end()
        disk.remove()
    return []


def _describe(anomalies: list[Anomaly]) -> list[str]:
    """A line for every kind, with a few of its anomalies."""
    by_kind: dict[Kind, list[str]] = {}
    for anomaly in anomalies:
        by_kind.setdefault(anomaly.kind, []).append(anomaly.what)
    return [
        f"{kind.name}, {len(whats)} times ({kind.value}): {'; '.join(whats[:SHOWN])}"
        for kind, whats in by_kind.items()
    ]
