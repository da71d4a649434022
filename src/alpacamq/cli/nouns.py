"""Declares the nouns of `alpacactl` and the options common to all verbs.

The module of a noun is imported when its name is on the command line.
"""

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol

from alpacamq.model.version import VERSION

from .output import COLORS, FORMATS
from .parsing import Parser
from .target import (
    ADDRESS_VARIABLE,
    BROKER_VARIABLE,
    CA_VARIABLE,
    CERT_VARIABLE,
    DEFAULT_BROKER,
    DEFAULT_HTTP,
    HTTP_VARIABLE,
    KEY_VARIABLE,
    PASSWORD_VARIABLE,
    TLS_VARIABLE,
    USER_VARIABLE,
)

NOUNS: Mapping[str, str] = {
    "topics": "list, describe, create, alter, compact and delete topics",
    "produce": "write lines from standard input or a file to a topic",
    "consume": "read a topic",
    "groups": "list, describe and delete consumer groups, show lag and rebalances, reset offsets",
    "queue": "receive and settle messages of a topic as a queue, and manage queues",
    "dlq": "show and redrive dead letters",
    "delayed": "list, show and cancel delayed messages",
    "trace": "show the trace of a message",
    "schema": "list, register, check, compare, delete, export and import schemas",
    "transactions": "list, describe and abort transactions",
    "acl": "list, add and remove access rules",
    "audit": "print the audit log",
    "cert": "create certificates for development",
    "key": "list, create, replace and delete API keys",
    "tenant": "list, create, limit, suspend and delete tenants, and their principals",
    "quota": "list, set and remove limits of users, client ids and addresses",
    "token": "list, create, renew and end delegation tokens",
    "user": "list, create and delete users, and change their passwords",
    "cluster": "show nodes and their health, drain and remove them, move replicas and leaders",
    "doctor": "check addresses, disks, clocks, limits and certificates of all nodes",
    "top": "watch topics, groups and queues live",
    "bench": "measure produce, consume, queues and latency",
    "pipeline": "run, list, validate and watch data pipelines on Spark",
    "config": "name brokers and select the one that commands use",
    "completion": "print a shell completion script",
}
# Alternative names, not listed in the help.
ALIASES: Mapping[str, str] = {
    "topic": "topics",
    "group": "groups",
    "queues": "queue",
    "transaction": "transactions",
    "pipelines": "pipeline",
    "acls": "acl",
    "certs": "cert",
    "keys": "key",
    "quotas": "quota",
    "schemas": "schema",
    "context": "config",
    "tokens": "token",
    "traces": "trace",
    "tenants": "tenant",
    "users": "user",
}
# Nouns that are commands themselves.
VERBS = frozenset({"produce", "consume", "trace", "audit", "doctor", "top", "completion"})
# The names of the common options.
_COMMON = (
    "broker", "http", "context", "user", "password_file", "sasl_mechanism",
    "tls", "ca", "cert", "key_file", "output", "color",
)  # fmt: skip
# As SASL names them; here, so that the client is not imported for the help.
_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
_EPILOG = (
    "Every command has its own --help. Exit codes: 0 ok, 1 failed, 2 invalid usage, "
    "3 broker unreachable, 4 no such topic, group, id or file."
)
_EXAMPLES = (
    "alpacactl topics create orders --partitions 3",
    "echo tea | alpacactl produce orders",
    "alpacactl consume orders --exit",
)


class Noun(Protocol):
    """Interface of a noun's module."""

    def add_to(self, parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
        """Declare its verbs and options, each with the function that runs it."""


def parser_of(given: Sequence[str]) -> Parser:
    """Build the parser for this command line; only the nouns on it get their verbs."""
    parser = Parser(
        prog="alpacactl",
        description="Inspect and manage an AlpacaMQ broker, or any broker that speaks Kafka's protocol.",
        epilog=_EPILOG,
    )
    parser.add_examples(_EXAMPLES)
    parser.add_argument("--version", action="version", version=f"alpacactl {VERSION}")
    # Options after the verb override those before it.
    _add_common(parser, **{**dict.fromkeys(_COMMON), "output": FORMATS[0], "color": COLORS[0]})
    nouns = parser.add_subparsers(metavar="NOUN", required=True)
    for name, summary in NOUNS.items():
        _add_noun(nouns.add_parser(name, help=summary, parents=_options_of(name)), name, given)
    for alias, name in ALIASES.items():
        if alias in given:
            noun = nouns.add_parser(alias, prog=f"alpacactl {name}", parents=_options_of(name))
            _add_noun(noun, name, [name])
    return parser


def _options_of(name: str) -> list[Parser]:
    return [_common()] if name in VERBS else []


def _add_noun(parser: argparse.ArgumentParser, name: str, given: Sequence[str]) -> None:
    parser.description = NOUNS[name]
    parser.set_defaults(verb=parser)
    if name in given:
        module: Noun = import_module(f".{name}", __package__)
        module.add_to(parser, _common())


def _common() -> Parser:
    """Return the options common to all verbs; missing ones keep the value given before the verb."""
    common = Parser(add_help=False)
    _add_common(common, **dict.fromkeys(_COMMON, argparse.SUPPRESS))
    return common


def _add_common(parser: argparse.ArgumentParser, **defaults: str | None) -> None:
    options = parser.add_argument_group("common options")
    options.add_argument(
        "--http",
        metavar="HOST:PORT,…",
        default=defaults["http"],
        help="HTTP address of the broker, or of several of a cluster: the first that answers is used "
        f"(${HTTP_VARIABLE}, ${ADDRESS_VARIABLE}, the context, {DEFAULT_HTTP})",
    )
    options.add_argument(
        "--broker",
        metavar="HOST:PORT,…",
        default=defaults["broker"],
        help="address of its Kafka API, or of several "
        f"(${BROKER_VARIABLE}, the context, requested over HTTP, {DEFAULT_BROKER})",
    )
    options.add_argument(
        "--context", metavar="NAME", default=defaults["context"], help="named broker; see `alpacactl config`"
    )
    options.add_argument(
        "--user",
        metavar="NAME",
        default=defaults["user"],
        help=f"user to log in as (${USER_VARIABLE}, the context)",
    )
    options.add_argument(
        "--password-file",
        metavar="FILE",
        default=defaults["password_file"],
        help=f"file with its password (or the password in ${PASSWORD_VARIABLE}; the context; a prompt)",
    )
    options.add_argument(
        "--sasl-mechanism",
        choices=_MECHANISMS,
        default=defaults["sasl_mechanism"],
        help=f"how to log in to the Kafka API (the context, {_MECHANISMS[0]})",
    )
    options.add_argument(
        "--tls",
        action="store_true",
        default=defaults["tls"],
        help=f"connect with TLS (${TLS_VARIABLE}, the context; implied by --ca and --cert)",
    )
    options.add_argument(
        "--ca",
        metavar="FILE",
        default=defaults["ca"],
        help="certificates of the authorities that sign the broker's "
        f"(${CA_VARIABLE}, the context, those of the system)",
    )
    options.add_argument(
        "--cert",
        metavar="FILE",
        default=defaults["cert"],
        help=f"own certificate (${CERT_VARIABLE}, the context)",
    )
    options.add_argument(
        "--key",
        dest="key_file",
        metavar="FILE",
        default=defaults["key_file"],
        help=f"its private key (${KEY_VARIABLE}, the context, the file of the certificate)",
    )
    options.add_argument("-o", "--output", choices=FORMATS, default=defaults["output"], help="output format")
    options.add_argument("--color", choices=COLORS, default=defaults["color"], help="when to colour tables")
