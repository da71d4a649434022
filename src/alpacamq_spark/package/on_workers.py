"""The connector of an archive that `alpacactl pipeline package` has built.

Stands in the archive as the `__init__` of `alpacamq_spark`, and is imported by the Python workers of a
cluster before anything else of it: without the rest of the package, which may not fit this Python.
"""

import json
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

MANIFEST = "alpacamq-workers.json"


class WrongWorker(ImportError):
    """The Python of a worker cannot run the connector of the archive."""

    # In the archive this is the module `alpacamq_spark`.
    __module__ = "alpacamq_spark.package.on_workers"


def check_worker(directory: Path) -> None:
    """Raise WrongWorker unless this Python can run what is in the directory of an unpacked archive."""
    manifest = json.loads((directory / MANIFEST).read_text())
    if manifest["extensions"] != EXTENSION_SUFFIXES[0]:
        raise WrongWorker(
            f"the archive of AlpacaMQ was built for {described(manifest['python'], manifest['extensions'])}, "
            f"and the Python of this worker, {sys.executable}, is "
            f"{described('.'.join(map(str, sys.version_info[:2])), EXTENSION_SUFFIXES[0])}: build it with "
            "`alpacactl pipeline package` on a machine like the workers, with the same version of Python"
        )
    if find_spec("numpy") is None:
        raise WrongWorker(
            f"the Python of this worker, {sys.executable}, has no NumPy: install it there, or build the "
            "archive with `alpacactl pipeline package --with-numpy`"
        )


def described(python: str, extensions: str) -> str:
    """Describe a Python; "Python 3.11 on x86_64-linux-gnu" of 3.11 and .cpython-311-x86_64-linux-gnu.so."""
    platform = extensions.strip(".").removesuffix(".so").split("-", 2)[-1]
    return f"Python {python} on {platform}"


if __name__ == "alpacamq_spark":
    check_worker(Path(__file__).parent.parent)
