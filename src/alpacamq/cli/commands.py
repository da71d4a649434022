"""Shared by the commands: declaring verbs, connecting to the broker, confirmation, argument types."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from alpacamq.model.durations import parse_duration

from .parsing import CommandError, Parser, UsageError

if TYPE_CHECKING:
    from alpacamq.client.http.connection import HttpApi
    from alpacamq.client.kafka.cluster import Cluster
    from alpacamq.model.address import Address

    from .output import Output
    from .target import Target

INT32_MAX = 2**31 - 1

Run = Callable[[argparse.Namespace, "Output"], None]


def topic_name(text: str) -> str:
    """Argument type of topic names, which the shell completes."""
    return text


def group_name(text: str) -> str:
    """Argument type of group names, which the shell completes."""
    return text


def subject_name(text: str) -> str:
    """Argument type of subjects of the schema registry, which the shell completes."""
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
    """Add a verb with the common options."""
    verb = verbs.add_parser(name, help=summary, description=summary, parents=[common])
    if examples and isinstance(verb, Parser):
        verb.add_examples(examples)
    verb.set_defaults(run=run, verb=verb)
    return verb


def connect(parsed: argparse.Namespace) -> "Cluster":
    """Connect to the Kafka API of the target broker."""
    from alpacamq.client.errors import Unreachable
    from alpacamq.client.kafka.cluster import Cluster

    target: Target = parsed.target
    addresses = broker_addresses(parsed)
    cluster = Cluster(*addresses, login=target.login, tls=target.tls)
    if target.broker is None:
        try:
            cluster.any_broker()
        except Unreachable as error:
            raise Unreachable(
                f"the broker at {target.http.address} advertises {addresses[0]} to Kafka clients, which does "
                "not answer; set kafka.advertised in its configuration to an address reachable from here, "
                "or use --broker HOST:PORT"
            ) from error
    return cluster


def broker_addresses(parsed: argparse.Namespace) -> "tuple[Address, ...]":
    """Return the Kafka addresses of the target, as configured or requested over HTTP."""
    from alpacamq.client.connect import parse_addresses

    target: Target = parsed.target
    if target.broker is None:
        from alpacamq.client.http.health import kafka_address

        with connect_http(parsed) as api:
            return (kafka_address(api),)
    try:
        return parse_addresses(target.broker.address)
    except ValueError as error:
        raise UsageError(f"{target.broker.where}: {error}") from None


def connect_http(parsed: argparse.Namespace) -> "HttpApi":
    """Connect to the HTTP API of the target broker."""
    from alpacamq.client.http.connection import Credentials, HttpApi

    target: Target = parsed.target
    login = None if target.user is None else target.login
    credentials = None if login is None else Credentials(user=login.user, password=login.password)
    return HttpApi(*http_addresses(parsed), credentials=credentials, tls=target.http_tls)


def http_addresses(parsed: argparse.Namespace) -> "tuple[Address, ...]":
    from alpacamq.client.connect import parse_addresses
    from alpacamq.client.http.connection import DEFAULT_PORT

    said = parsed.target.http
    try:
        bare = (
            each.strip().removeprefix("http://").removeprefix("https://").rstrip("/")
            for each in said.address.split(",")
        )
        return parse_addresses(",".join(bare), DEFAULT_PORT)
    except ValueError as error:
        raise UsageError(f"{said.where}: {error}") from None


def add_confirmation(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def confirm(parsed: argparse.Namespace, deed: str) -> None:
    """Return if --yes was given or the user confirms; raise otherwise."""
    if parsed.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"this would {deed}; use --yes to confirm")
    print(f"This will {deed}. Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")


def pair(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} must have the form NAME=VALUE")
    return name, value


def count(text: str) -> int:
    """Parse a positive integer."""
    if index(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return int(text)


def index(text: str) -> int:
    """Parse a non-negative 32-bit integer."""
    if not (text.isascii() and text.isdigit()) or int(text) > INT32_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer from 0 to {INT32_MAX}")
    return int(text)


def duration(text: str) -> int:
    """Parse a duration; returns milliseconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def compact(numbers: Iterable[int]) -> str:
    """Format numbers with ranges: 0-3,7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
