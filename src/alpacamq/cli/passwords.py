"""Passwords of commands: from files, standard input and the terminal, never from arguments."""

import sys
from pathlib import Path

from .parsing import CommandError, UsageError

# A file that is no password, such as a device, is not read on and on.
_MAX_FILE_BYTES = 4096


def read_password(path: str, where: str) -> str:
    """Read the first line of a file; `where` says who named the file."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"{where}: cannot read {path}: {error.strerror}") from None
    return _first_line(content, f"{where}: {path}")


def ask_password(prompt: str, otherwise: str) -> str:
    """Ask on the terminal; UsageError with the text `otherwise` if there is none."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(otherwise)
    from getpass import getpass

    return getpass(prompt, sys.stderr)


def new_password(path: str | None, user: str) -> str:
    """Return a new password of a user: from a file, or typed twice, or the first line of standard input."""
    if path is not None:
        return read_password(path, "--new-password-file")
    if not sys.stdin.isatty():
        return _first_line(sys.stdin.buffer.read(_MAX_FILE_BYTES), "standard input")
    first = ask_password(f"New password of {user}: ", "use --new-password-file FILE or standard input")
    if first != ask_password("Again: ", ""):
        raise CommandError("the passwords differ; nothing was changed")
    if not first:
        raise CommandError("the password is empty; nothing was changed")
    return first


def _first_line(content: bytes, where: str) -> str:
    line = content.partition(b"\n")[0].removesuffix(b"\r")
    if not line:
        raise UsageError(f"{where} has no password on its first line")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not UTF-8 text") from None
