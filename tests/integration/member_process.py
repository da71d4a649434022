"""A member of a group in a process of its own, with the client library it is told.

`python -m tests.integration.member_process '{…}'`, with the fields of `Settings`. It commits what it
has been given a few times a second and when it gives partitions up, and leaves its group on SIGTERM.
"""

import sys
from importlib import import_module
from pathlib import Path

import msgspec

from .group_member import Settings
from .journal import Journal


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    # Only the one library is imported, for the others would take longer than all the rest of the start.
    library = import_module(f".{settings.kind.library}_member", __package__)
    library.Member(settings, Journal(Path(settings.journal))).run()


if __name__ == "__main__":
    main()
