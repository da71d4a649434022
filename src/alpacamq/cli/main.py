"""Runs one `alpacactl` command and returns its exit code.

The client is imported when a verb runs, so that `--help` is quick.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from alpacamq.model.errors import AlpacaError

from .cells import Tint
from .nouns import parser_of
from .output import Output, say, wants_colour
from .parsing import USAGE, WrongUsage
from .target import (
    Target,
)

FAILED = 1
UNREACHABLE = 3
NOT_FOUND = 4
INTERRUPTED = 130

# What the scripts of `alpacactl completion` ask; its module reads the rest of the line itself.
COMPLETE = "__complete"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == [COMPLETE]:
        from .completing import complete

        return complete(given[1:])
    parsed = parse(given)
    # Data has one encoding whatever the terminal's; what cannot be said in it must not end the command.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        parsed.run(parsed, Output(parsed.output, is_coloured=wants_colour(parsed.color, sys.stdout)))
        sys.stdout.flush()
    except AlpacaError as error:
        _complain(parsed, str(error))
        return _exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has seen enough. Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnicodeEncodeError:
        _complain(parsed, "names on the command line have to be UTF-8")
        return USAGE
    except OSError as error:
        _complain(parsed, str(error))
        return FAILED
    return 0


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The command line, with the broker it is about as `target`; SystemExit if it makes no sense."""
    parsed, unknown = parser_of(given).parse_known_args(given)
    if unknown:
        parsed.verb.error(f"unexpected {' '.join(unknown)}")
    parsed.target = Target(broker=parsed.broker, http=parsed.http, context=parsed.context, environ=os.environ)
    return parsed


def _complain(parsed: argparse.Namespace, message: str) -> None:
    name = "alpacactl:"
    print(Tint.BAD.on(name) if wants_colour(parsed.color, sys.stderr) else name, end=" ", file=sys.stderr)
    say(message)


def _exit_code(error: AlpacaError) -> int:
    from alpacamq.client.errors import NotFound, Unreachable

    match error:
        case Unreachable():
            return UNREACHABLE
        case NotFound():
            return NOT_FOUND
        case WrongUsage():
            return USAGE
        case _:
            return FAILED


if __name__ == "__main__":
    sys.exit(main())
