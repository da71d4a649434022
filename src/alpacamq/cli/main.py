"""Runs one `alpacactl` command and returns its exit code.

The client is imported when a verb runs, so that `--help` is fast.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from alpacamq.model.errors import AlpacaError

from .cells import Tint
from .nouns import parser_of
from .output import Output, print_message, wants_colour
from .parsing import USAGE, UsageError
from .target import (
    Target,
)

FAILED = 1
UNREACHABLE = 3
NOT_FOUND = 4
INTERRUPTED = 130

# Hidden command of the completion scripts; its module parses the rest of the line itself.
COMPLETE = "__complete"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    reserve_closed_streams()
    if given[:1] == [COMPLETE]:
        from .completion import complete

        return complete(given[1:])
    try:
        parsed = parse(given)
    except SystemExit:
        _flush_or_drop()  # --help was printed
        raise
    # Output is UTF-8 whatever the terminal's encoding; unencodable characters must not end the command.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        parsed.run(parsed, Output(parsed.output, is_coloured=wants_colour(parsed.color, sys.stdout)))
        sys.stdout.flush()
    except AlpacaError as error:
        _print_error(parsed, str(error))
        return _exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe.
        _flush_or_drop()
        return 0
    except UnicodeEncodeError:
        _print_error(parsed, "arguments must be valid UTF-8")
        return USAGE
    except OSError as error:
        _flush_or_drop()
        is_closed = error.errno == errno.EBADF
        _print_error(parsed, "standard input or output is closed" if is_closed else str(error))
        return FAILED
    return 0


def _flush_or_drop() -> None:
    """Flush standard output; if that fails, discard it, since Python would print an error when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reserve_closed_streams() -> None:
    """Occupy the descriptors of closed standard streams.

    Otherwise the first socket or file would get one of them, and be read as input or written to as output.
    Reading closed input and writing to closed output fail; messages to a closed standard error are dropped.
    """
    for descriptor, name, mode, reserved in (
        (0, "stdin", "r", os.O_WRONLY),
        (1, "stdout", "w", os.O_RDONLY),
        (2, "stderr", "w", os.O_WRONLY),
    ):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor: those below are open or reserved.
            os.open(os.devnull, reserved)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


def parse(given: Sequence[str]) -> argparse.Namespace:
    """Parse the command line and set `target`, the broker to use; SystemExit if it is invalid."""
    parsed, unknown = parser_of(given).parse_known_args(given)
    if unknown:
        parsed.verb.error(f"unexpected arguments: {' '.join(unknown)}")
    parsed.target = Target(
        broker=parsed.broker,
        http=parsed.http,
        context=parsed.context,
        environ=os.environ,
        user=parsed.user,
        password_file=parsed.password_file,
        mechanism=parsed.sasl_mechanism,
        tls=bool(parsed.tls),
        ca=parsed.ca,
        cert=parsed.cert,
        key=parsed.key_file,
    )
    return parsed


def _print_error(parsed: argparse.Namespace, message: str) -> None:
    name = "alpacactl:"
    print(Tint.BAD.on(name) if wants_colour(parsed.color, sys.stderr) else name, end=" ", file=sys.stderr)
    print_message(message)


def _exit_code(error: AlpacaError) -> int:
    from alpacamq.client.errors import NotFound, Unreachable

    match error:
        case Unreachable():
            return UNREACHABLE
        case NotFound():
            return NOT_FOUND
        case UsageError():
            return USAGE
        case _:
            return FAILED


if __name__ == "__main__":
    sys.exit(main())
