"""Runs a member of a group as a process, with the client library that its settings name.

`python -m tests.integration.member_process '{…}'`, with the fields of `Settings`. It commits the records
it was given a few times a second and when it gives up partitions, and leaves its group on SIGTERM.
"""

import sys
from importlib import import_module
from pathlib import Path

import msgspec

from .group_member import Settings
from .journal import Journal


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    # Only one library is imported: the others would take longer than the rest of the start.
    library = import_module(f".{settings.kind.library}_member", __package__)
    library.Member(settings, Journal(Path(settings.journal))).run()


if __name__ == "__main__":
    main()
