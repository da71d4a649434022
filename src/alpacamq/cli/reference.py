"""Lists all commands by walking the parsers, and generates the guide's tables from them."""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from .nouns import NOUNS, VERBS, parser_of
from .parsing import placeholder

_EXAMPLES = "examples:\n"


class Help(NamedTuple):
    """A command and its parser."""

    words: tuple[str, ...]
    summary: str
    parser: argparse.ArgumentParser

    @property
    def examples(self) -> list[str]:
        _, _, listed = (self.parser.epilog or "").partition(_EXAMPLES)
        return [line.strip() for line in listed.splitlines()]

    @property
    def own_options(self) -> list[argparse.Action]:
        """Options without the common ones."""
        everywhere = {"--help", *(name for each in _common() for name in each.option_strings)}
        return [
            each
            for each in self.parser._actions
            if each.option_strings and not everywhere & set(each.option_strings)
        ]

    @property
    def arguments(self) -> list[str]:
        those = [each for each in self.parser._actions if not each.option_strings]
        return [placeholder(each) for each in those]


def all_commands() -> Iterator[Help]:
    """Yield all commands: nouns that are commands, and the verbs of the others."""
    for noun, summary in NOUNS.items():
        parser = _below(parser_of([noun]))[noun]
        if noun in VERBS:
            yield Help((noun,), summary, parser)
        for verb, command in _below(parser).items():
            yield Help((noun, verb), command.description or "", command)


def commands_page() -> str:
    """Return the table of nouns and their verbs."""
    verbs: dict[str, list[str]] = {noun: [] for noun in NOUNS}
    for each in all_commands():
        verbs[each.words[0]] += [f"`{verb}`" for verb in each.words[1:]]
    rows = [
        f"| `alpacactl {noun}` | {', '.join(verbs[noun])} | {summary} |" for noun, summary in NOUNS.items()
    ]
    return "| | verbs | |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def options_page() -> str:
    """Return the table of every command's arguments and options."""
    rows = []
    for each in all_commands():
        words = " ".join([*each.words, *each.arguments])
        options = ", ".join(_option(option) for option in each.own_options)
        rows.append(f"| `{words}` | {options} |")
    return "| command | options |\n|---|---|\n" + "\n".join(rows) + "\n"


def _option(option: argparse.Action) -> str:
    name = max(option.option_strings, key=len)
    if option.nargs == 0:
        return f"`{name}`"
    if option.choices is not None:
        values = "\\|".join(str(each) for each in option.choices)
        return f"`{name} {values}`"
    return f"`{name} {option.metavar}`"


def _common() -> list[argparse.Action]:
    return [each for each in parser_of([])._actions if each.option_strings]


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}
