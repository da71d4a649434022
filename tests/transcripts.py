"""Protocol transcripts: text files of commands and their results, replayed and compared.

A step is a command, a line of dashes and the result, ended by a blank line. Lines that begin with '#'
before a command are comments. `pytest --rewrite-transcripts` writes the actual results instead of
comparing them, to be reviewed as a diff.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

RULE = "----"


def play(path: Path, act: Callable[[str], str], config: pytest.Config) -> None:
    """Replay the transcript at `path`: `act` takes a command and returns its result."""
    told = path.read_text()
    happened = "\n".join(_step(step, act) for step in told.rstrip("\n").split("\n\n"))
    if config.getoption("--rewrite-transcripts"):
        path.write_text(happened)
    else:
        assert happened.splitlines() == told.splitlines(), f"{path.name} differs"


def _step(step: str, act: Callable[[str], str]) -> str:
    lines = step.split("\n")
    story = [line for line in lines if line.startswith("#")]
    commands = [line for line in lines[len(story) :] if line]
    if RULE in commands:
        del commands[commands.index(RULE) :]
    if not commands:
        return "".join(f"{line}\n" for line in story)
    (command,) = commands
    outcome = act(command)
    return "".join(f"{line}\n" for line in [*story, command, RULE, *outcome.splitlines()])
