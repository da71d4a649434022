"""What the modules of the nouns share: reaching the broker, asking back, and words that have a form."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from .parsing import Declined, Parser, WrongUsage

if TYPE_CHECKING:
    from alpacamq.client.http.connection import HttpApi
    from alpacamq.client.kafka.cluster import Cluster
    from alpacamq.model.address import Address

    from .output import Output
    from .target import Target

INT32_MAX = 2**31 - 1
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d|w)")

Run = Callable[[argparse.Namespace, "Output"], None]


def topic_name(text: str) -> str:
    """The name of a topic, which a shell may complete."""
    return text


def group_name(text: str) -> str:
    """The name of a group, which a shell may complete."""
    return text


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
    verb = verbs.add_parser(name, help=summary, description=summary, parents=[common])
    if examples and isinstance(verb, Parser):
        verb.add_examples(examples)
    verb.set_defaults(run=run, verb=verb)
    return verb


def reach(parsed: argparse.Namespace) -> "Cluster":
    """The cluster of the broker that is meant."""
    from alpacamq.client.errors import Unreachable
    from alpacamq.client.kafka.cluster import Cluster

    target: Target = parsed.target
    address = broker_address(parsed)
    cluster = Cluster(address)
    if target.broker is None:
        try:
            cluster.anyone()
        except Unreachable as error:
            raise Unreachable(
                f"the broker at {target.http.address} sends Kafka clients to {address}, where nobody "
                "answers; set kafka.advertised in its configuration to an address that is reached from here, "
                "or name one with --broker HOST:PORT"
            ) from error
    return cluster


def broker_address(parsed: argparse.Namespace) -> "Address":
    """Where the broker that is meant speaks Kafka's protocol: as was said, or as it says over HTTP."""
    from alpacamq.client.connect import parse_address

    target: Target = parsed.target
    if target.broker is None:
        from alpacamq.client.http.health import kafka_address

        with reach_http(parsed) as api:
            return kafka_address(api)
    try:
        return parse_address(target.broker.address)
    except ValueError as error:
        raise WrongUsage(f"{target.broker.where}: {error}") from None


def reach_http(parsed: argparse.Namespace) -> "HttpApi":
    """The HTTP API of the broker that is meant."""
    from alpacamq.client.http.connection import HttpApi

    return HttpApi(http_address(parsed))


def http_address(parsed: argparse.Namespace) -> "Address":
    from alpacamq.client.connect import parse_address
    from alpacamq.client.http.connection import DEFAULT_PORT

    said = parsed.target.http
    try:
        return parse_address(said.address.removeprefix("http://").rstrip("/"), DEFAULT_PORT)
    except ValueError as error:
        raise WrongUsage(f"{said.where}: {error}") from None


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
