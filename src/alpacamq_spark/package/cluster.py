"""Settings with which the workers of a cluster unpack the archive and run their own Python."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from .build import BadPackage, check_package

# Where the archive is unpacked, in the working directory of an executor.
_UNPACKED = "alpacamq-workers"
_ARCHIVES = "spark.archives"
_MODULES = "spark.executorEnv.PYTHONPATH"
_PROGRAMS = "spark.executorEnv.PATH"
_USUAL_PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PYTHON = "python3"


def package_settings(package: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for an archive, a path or a URI, joined with those that are given.

    Raises BadPackage for a local archive that this Python cannot use.
    """
    if "#" in package:
        raise BadPackage(f"{package!r} has a #, which Spark takes for the end of the name")
    if "://" not in package:
        check_package(Path(package))
    archives, modules = given.get(_ARCHIVES), given.get(_MODULES)
    return {
        _ARCHIVES: ",".join(filter(None, [archives, f"{package}#{_UNPACKED}"])),
        _MODULES: ":".join(filter(None, [_UNPACKED, modules])),
    }


def python_settings(python: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the Python of workers, a path there or a name, and prepare the environment.

    Spark runs the same command on the driver, for sources, and on workers, for tasks. So that either has
    its own Python, the command is a name, and PATH differs. Raises BadPackage if this machine lacks it.
    """
    wanted = PurePosixPath(python)
    own = Path(sys.executable).parent
    if shutil.which(wanted.name, path=str(own)) is None:
        raise BadPackage(
            f"the Python of the workers is called {wanted.name}, and there is no {wanted.name} in {own}, "
            "where that of the driver is; give workers and driver a Python of the same name"
        )
    os.environ["PATH"] = f"{own}:{os.environ.get('PATH', _USUAL_PROGRAMS)}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = wanted.name
    if not wanted.is_absolute():
        return {}
    return {_PROGRAMS: f"{wanted.parent}:{given.get(_PROGRAMS, _USUAL_PROGRAMS)}"}
