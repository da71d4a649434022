"""What the modules of the nouns share: reaching the cluster, and words on the command line with a form."""

import argparse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from alpacamq.model.errors import AlpacaError

if TYPE_CHECKING:
    from alpacamq.client.cluster import Cluster

    from .output import Output

INT32_MAX = 2**31 - 1

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
) -> argparse.ArgumentParser:
    """A verb with the options that every verb has."""
    verb = verbs.add_parser(name, help=summary, description=summary, parents=[common])
    verb.set_defaults(run=run)
    return verb


def reach(parsed: argparse.Namespace) -> "Cluster":
    """The cluster of the broker that was named."""
    from alpacamq.client.address import parse_address
    from alpacamq.client.cluster import Cluster

    try:
        return Cluster(parse_address(parsed.broker))
    except ValueError as error:
        raise WrongUsage(f"--broker: {error}") from None


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


def compact(numbers: Iterable[int]) -> str:
    """Numbers with runs shortened: 0-3,7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
