"""Every noun and verb there is, with its help, found by walking the parsers."""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from alpacamq.cli.main import NOUNS, VERBS, parser_of

EXAMPLES = "examples:\n"


class Help(NamedTuple):
    """The words of a command and the parser behind them."""

    words: tuple[str, ...]
    parser: argparse.ArgumentParser

    @property
    def examples(self) -> list[str]:
        _, _, listed = (self.parser.epilog or "").partition(EXAMPLES)
        return [line.strip() for line in listed.splitlines()]


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def commands() -> Iterator[Help]:
    """All that can be run: nouns that are verbs, and the verbs of the others."""
    for noun in NOUNS:
        parser = subparsers(parser_of([noun]))[noun]
        if noun in VERBS:
            yield Help((noun,), parser)
        for verb, below in subparsers(parser).items():
            yield Help((noun, verb), below)


def everything() -> Iterator[Help]:
    yield Help((), parser_of([]))
    yield from commands()
