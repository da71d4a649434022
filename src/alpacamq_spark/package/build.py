"""Builds the archive: our modules that tasks use, and the packages that they need, from this environment.

It is unpacked on every worker, because most of the packages are compiled, and Python does not load
compiled modules from a zip file.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

import msgspec

from alpacamq.model.errors import AlpacaError
from alpacamq.model.version import VERSION

from .on_workers import MANIFEST, described

# The parts of our packages that run on workers.
_OURS = {
    "alpacamq": ("client", "model", "protocol", "registry", "security", "wire"),
    "alpacamq_spark": ("commit", "decoding", "encoding", "read", "write"),
    "pyspark_alpacamq": (),
}
_LEFT_OUT = ("aio.py", "testing.py", "client/aio/", "client/worker/")
_NEEDED = (
    "cramjam",
    "fastcrc",
    "googleapis-common-protos",
    "jsonschema-rs",
    "lz4",
    "msgspec",
    "protobuf",
    "zstandard",
)
# Workers with pandas have their own, for which it was built.
_NUMPY = "numpy"
_INIT = "alpacamq_spark/__init__.py"


class BadPackage(AlpacaError):
    """An archive cannot be built, or cannot be used here."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive says about itself."""

    alpacamq: str
    python: str
    # The suffix of compiled modules: version of Python, processor and C library.
    extensions: str

    @property
    def described(self) -> str:
        return described(self.python, self.extensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An archive that was built; sizes in bytes."""

    path: Path
    manifest: Manifest
    files: int
    size: int
    unpacked_size: int


def own_manifest() -> Manifest:
    """Return the manifest of an archive that is built here."""
    return Manifest(
        alpacamq=VERSION,
        python=".".join(map(str, sys.version_info[:2])),
        extensions=EXTENSION_SUFFIXES[0],
    )


def build_package(path: Path, *, numpy: bool = False) -> Built:
    """Write the archive. Raises BadPackage if something for it is not installed or `path` is not writable."""
    manifest = own_manifest()
    contents = dict(_own_files())
    contents[_INIT] = Path(__file__).with_name("on_workers.py")
    for name in (*_NEEDED, _NUMPY) if numpy else _NEEDED:
        contents.update(_files_of(name))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    unpacked_size = 0
    try:
        with ZipFile(draft, "w", ZIP_DEFLATED) as archive:
            archive.writestr(ZipInfo(MANIFEST), msgspec.json.encode(manifest), ZIP_DEFLATED)
            for inside, file in sorted(contents.items()):
                content = file.read_bytes()
                unpacked_size += len(content)
                # Without the time of the file, so that equal contents are equal archives.
                archive.writestr(ZipInfo(inside), content, ZIP_DEFLATED)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise BadPackage(f"cannot write {path}: {error.strerror or error}") from error
    return Built(
        path=path,
        manifest=manifest,
        files=len(contents) + 1,
        size=path.stat().st_size,
        unpacked_size=unpacked_size,
    )


def _own_files() -> Iterator[tuple[str, Path]]:
    for package, parts in _OURS.items():
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        chosen = [*root.glob("*.py"), *(file for part in parts for file in (root / part).rglob("*.py"))]
        for file in chosen:
            inside = file.relative_to(root).as_posix()
            if not inside.startswith(_LEFT_OUT):
                yield f"{root.name}/{inside}", file


def _files_of(name: str) -> Iterator[tuple[str, Path]]:
    """List the modules and libraries of an installed package."""
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        raise BadPackage(
            f"the package {name} is not installed here; install AlpacaMQ with its extra `spark`"
        ) from None
    for file in files:
        is_code = file.suffix == ".py" or ".so" in file.suffixes
        # zstandard has a second implementation, for Pythons other than CPython.
        if is_code and "tests" not in file.parts and not file.name.startswith("_cffi."):
            yield file.as_posix(), Path(str(file.locate()))


def check_package(path: Path) -> None:
    """Check that an archive was built by this version and for this Python. Raises BadPackage."""
    own = own_manifest()
    try:
        with ZipFile(path) as archive:
            found = msgspec.json.decode(archive.read(MANIFEST), type=Manifest)
    except FileNotFoundError:
        raise BadPackage(f"there is no archive {path}; `alpacactl pipeline package` builds one") from None
    except OSError as error:
        raise BadPackage(f"cannot read {path}: {error.strerror or error}") from error
    except (BadZipFile, KeyError, msgspec.MsgspecError):
        raise BadPackage(f"{path} was not built by `alpacactl pipeline package`") from None
    if found.alpacamq != own.alpacamq:
        raise BadPackage(
            f"{path} has AlpacaMQ {found.alpacamq}, and this is {own.alpacamq}; build it again with "
            "`alpacactl pipeline package`"
        )
    if found.python != own.python:
        raise BadPackage(
            f"{path} was built for {found.described}, and this is {own.described}; Spark needs the same "
            "version of Python on the driver and on workers"
        )
