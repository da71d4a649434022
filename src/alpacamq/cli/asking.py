"""What the modules of the nouns share: reaching the broker, asking back, and words that have a form."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from alpacamq.model.errors import AlpacaError

if TYPE_CHECKING:
    from alpacamq.client.cluster import Cluster
    from alpacamq.client.http import HttpApi

    from .output import Output

INT32_MAX = 2**31 - 1
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d|w)")
_EXAMPLES = "examples:\n"

Run = Callable[[argparse.Namespace, "Output"], None]


class Declined(AlpacaError):
    """The command itself will not do what was asked; says why."""


class WrongUsage(Declined):
    """What was typed makes no sense, whatever the broker holds."""


class Assumed(str):
    """A broker's address that nobody gave on the command line."""

    __slots__ = ()


def verbs_of(noun: argparse.ArgumentParser) -> "argparse._SubParsersAction[argparse.ArgumentParser]":
    return noun.add_subparsers(metavar="VERB", required=True)


def add_verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    common: argparse.ArgumentParser,
    name: str,
    summary: str,
    run: Run,
    examples: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """A verb with the options that every verb has."""
    verb = verbs.add_parser(
        name, help=summary, description=summary, parents=[common], formatter_class=_LinesKept
    )
    if examples:
        verb.epilog = _EXAMPLES + "\n".join(f"  {example}" for example in examples)
    verb.set_defaults(run=run)
    return verb


class _LinesKept(argparse.HelpFormatter):
    """Leaves examples as they are: what is broken into lines cannot be typed."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_EXAMPLES) else super()._fill_text(text, width, indent)


def reach(parsed: argparse.Namespace) -> "Cluster":
    """The cluster of the broker that was named."""
    from alpacamq.client.address import parse_address
    from alpacamq.client.cluster import Cluster

    try:
        return Cluster(parse_address(parsed.broker))
    except ValueError as error:
        raise WrongUsage(f"--broker: {error}") from None


def reach_http(parsed: argparse.Namespace) -> "HttpApi":
    """The HTTP API of the broker that was named."""
    from alpacamq.client.address import parse_address
    from alpacamq.client.http import DEFAULT_PORT, HttpApi

    try:
        return HttpApi(parse_address(parsed.http, DEFAULT_PORT))
    except ValueError as error:
        raise WrongUsage(f"--http: {error}") from None


def add_confirmation(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--yes", action="store_true", help="do not ask")


def confirm(parsed: argparse.Namespace, deed: str) -> None:
    """Go on only if told to: beforehand, or now by whoever sits at the terminal."""
    if parsed.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongUsage(f"this would {deed}; add --yes to do it without being asked")
    print(f"This will {deed}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was changed")


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def count(text: str) -> int:
    """A whole number above zero."""
    if index(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above zero")
    return int(text)


def index(text: str) -> int:
    """A whole number as large as the protocol has them."""
    if not (text.isascii() and text.isdigit()) or int(text) > INT32_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {INT32_MAX}")
    return int(text)


def duration(text: str) -> int:
    """A length of time, in milliseconds."""
    if (found := _DURATION.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a length of time such as 500ms, 30s, 15m, 2h or 7d"
        )
    return int(found[1]) * UNIT_MS[found[2]]


def compact(numbers: Iterable[int]) -> str:
    """Numbers with runs shortened: 0-3,7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
