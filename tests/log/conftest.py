"""Closes files that a simulated crash leaves open."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture(autouse=True)
def abandoned_files_are_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close what a test's abandoned logs had open, as the end of a process would.

    Thousands of them would be left otherwise, and clients that wait with `select` cannot go beyond 1,024.
    """
    own = str(request.getfixturevalue("tmp_path")) if "tmp_path" in request.fixturenames else None
    before = _open_files()
    yield
    for descriptor, path in _open_files().items():
        is_own = own is not None and path.startswith(f"{own}/")
        if before.get(descriptor) != path and (is_own or path.endswith(" (deleted)")):
            os.close(descriptor)


def _open_files() -> dict[int, str]:
    """The files that are open, by descriptor."""
    found = {}
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - a thousand times a second
        try:
            path = os.readlink(_DESCRIPTORS / name)  # noqa: PTH115
        except FileNotFoundError:
            continue  # the descriptor that listed them
        if path.startswith("/"):
            found[int(name)] = path
    return found
