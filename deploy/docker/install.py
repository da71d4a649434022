"""Installs AlpacaMQ into the environment that runs this, and removes what a broker does not need from it.

    python install.py [--spark] SOURCE

Copies the packages, writes the commands and compiles everything, for a read-only root.
"""

import argparse
import compileall
import py_compile
import shutil
import sys
import sysconfig
from pathlib import Path

COMMANDS = {"alpacamq": "alpacamq.node.main", "alpacactl": "alpacamq.cli.main"}
# grpcio-tools needs gRPC and setuptools for what is not used here; zstandard has a second backend.
NOT_USED = (
    "grpc",
    "grpcio-*",
    "setuptools*",
    "pkg_resources",
    "_distutils_hack",
    "distutils-precedence.pth",
    "pip*",
    "zstandard/_cffi*.so",
    "pyspark/examples",
)
# The tests of packages.
TESTS = (
    "pyarrow/tests",
    "numpy/tests",
    "numpy/*/tests",
    "pandas/tests",
    "uvloop/*.c",
    "uvloop/*.pyx",
    "**/*.pyi",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spark", action="store_true", help="with the packages of pipelines")
    parser.add_argument("source", type=Path)
    parsed = parser.parse_args()
    site = Path(sysconfig.get_path("purelib"))
    names = ["alpacamq", "alpacamq_spark", "pyspark_alpacamq"] if parsed.spark else ["alpacamq"]
    for name in names:
        shutil.copytree(parsed.source / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    commands = Path(sysconfig.get_path("scripts"))
    for name, module in COMMANDS.items():
        (commands / name).write_text(
            f"#!{sys.executable}\nimport sys\n\nfrom {module} import main\n\nsys.exit(main())\n"
        )
        (commands / name).chmod(0o755)
    # Spark starts workers and needs gRPC for Spark Connect.
    unused = [
        each for each in NOT_USED if not (parsed.spark and each.startswith(("grpc", "setuptools", "pkg_res")))
    ]
    for pattern in (*unused, *TESTS):
        for path in sorted(site.glob(pattern)):
            remove(path)
    for path in commands.glob("pip*"):
        remove(path)
    compileall.compile_dir(
        site, quiet=2, workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


if __name__ == "__main__":
    main()
