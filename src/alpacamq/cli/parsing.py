"""Argument parser without abbreviations, with unwrapped examples and suggestions for misspelt words."""

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from alpacamq.model.errors import AlpacaError

USAGE = 2
_EXAMPLES = "examples:\n"


class CommandError(AlpacaError):
    """The command failed; the message says why."""


class UsageError(CommandError):
    """The command line is invalid, independent of the broker's state."""


class ExampleFormatter(argparse.HelpFormatter):
    """Formats help without wrapping the examples, so that they can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        head, found, examples = text.partition(_EXAMPLES)
        filled = super()._fill_text(head, width, indent) + "\n\n" if head.strip() else ""
        return filled + found + examples if found else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, with a suggestion and a pointer to the help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=ExampleFormatter, **options)
        self._given: Sequence[str] = ()

    def add_examples(self, examples: Sequence[str]) -> None:
        """Add example commands to the end of the help."""
        self.epilog = f"{self.epilog or ''}{_EXAMPLES}" + "\n".join(f"  {each}" for each in examples)

    def format_help(self) -> str:
        if self.usage is None:
            self.usage = " ".join(["%(prog)s [options]", *map(placeholder, self._get_positional_actions())])
        return super().format_help()

    @property
    def long_options(self) -> list[str]:
        return [name for name in self._option_string_actions if name.startswith("--")]

    def parse_known_args(  # type: ignore[override]  # argparse has overloads where one form does
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            names = [each.dest for each in action._choices_actions]
            what = str(action.metavar).lower()
            self.error(f"unknown {what} {value!r}{nearest(str(value), names) or _one_of(names)}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and message.endswith(f": {action.metavar}"):
                message += _one_of([each.dest for each in action._choices_actions])
        self.exit(USAGE, f"{self.prog}: {message}{self._suggestion()}\nsee `{self.prog} --help`\n")

    def _suggestion(self) -> str:
        """Suggest an option for the first unknown one on the command line."""
        given = self._given[: self._given.index("--")] if "--" in self._given else self._given
        words = [word.partition("=")[0] for word in given if word.startswith("--")]
        unknown = [word for word in words if word not in self.long_options]
        return f"; unknown option {unknown[0]}{nearest(unknown[0], self.long_options)}" if unknown else ""


def placeholder(action: argparse.Action) -> str:
    """Return an argument as shown in the usage line."""
    name = str(action.metavar or action.dest)
    forms = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ...", argparse.PARSER: f"{name} ..."}
    return forms.get(str(action.nargs), name)


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a suggestion to append to an error message; empty if no word is similar."""
    near = get_close_matches(word, known, n=2)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _one_of(names: Sequence[str]) -> str:
    return f"; choose from {', '.join(names)}"
