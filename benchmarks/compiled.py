"""What does a message cost the broker with compiled modules?

`python -m benchmarks.compiled` builds the wheel of `make compiled`, starts the broker from it and from the
sources, gives both the same load in turns and compares the CPU time of the brokers.
"""

import argparse
import compileall
import subprocess
import tempfile
import zipfile
from pathlib import Path

from . import machine, page, report
from .earlier_version import CASES, ROUNDS, START_CASE, compare
from .machine import REPOSITORY
from .report import Report
from .servers import AlpacaMQ
from .session import ROOM


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=ROUNDS)
    parser.add_argument("--wheel", type=Path, help="one that was built from the same sources")
    parsed = parser.parse_args()
    load_average = machine.load_average()
    collected = Report("compiled", (__doc__ or "").splitlines()[0])
    with tempfile.TemporaryDirectory(dir=ROOM) as directory:
        room = Path(directory)
        unpack(parsed.wheel or built(room), room / "compiled")
        compileall.compile_dir(REPOSITORY / "src", quiet=1)
        versions = [
            AlpacaMQ(name="compiled", source=room / "compiled"),
            AlpacaMQ(source=REPOSITORY),
        ]
        compare(versions, [START_CASE, *CASES], room, parsed.rounds, collected)
    results = collected.results(
        machine.machine(ROOM), machine.commit(), machine.client_versions(), load_average
    )
    print(report.table(results))
    report.write(results, page.RESULTS)


def unpack(wheel: Path, directory: Path) -> None:
    """Make `directory` a source as installed: without bytecode a start would compile the other modules."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(directory / "src")
    compileall.compile_dir(directory, quiet=1)


def built(directory: Path) -> Path:
    """Build the wheel; takes minutes."""
    command = [REPOSITORY / "scripts" / "compile", directory]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


if __name__ == "__main__":
    main()
