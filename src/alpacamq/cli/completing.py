"""How a command line may go on, for the scripts of `alpacactl completion`.

Prints a candidate a line, each with a tab and a few words about it if there are any. Names of topics and
groups are asked of the broker. Whatever goes wrong, nothing is printed: somebody is typing.
"""

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Thread

from alpacamq.model.errors import AlpacaError

from .asking import group_name, reach, reach_http, topic_name
from .nouns import parser_of
from .target import Rank, Target

# How long somebody who types waits for names.
_PATIENCE_S = 1.0
_MAX_NAMES = 500
_LINE = "--line"
_MANY = ("+", "*")


def complete(given: Sequence[str]) -> int:
    """Print how the words, or with --line the line, may go on at their end."""
    words = _words(given[1]) if len(given) == 2 and given[0] == _LINE else list(given)
    for word, summary in _candidates(words or [""]):
        print(f"{word}\t{summary}" if summary else word)
    return 0


def _words(line: str) -> list[str]:
    """What a shell makes of a line so far, without the command's own name."""
    for closing in ("", "'", '"'):
        with suppress(ValueError):
            words = shlex.split(line + closing)
            return words[1:] + ([""] if not line or (line[-1].isspace() and not closing) else [])
    return [""]


class _Walk:
    """A command line up to its last word: whose turn it is, and what the options before said."""

    def __init__(self, words: Sequence[str]) -> None:
        self.parser: argparse.ArgumentParser = parser_of(words)
        self.said: dict[str, str] = {}
        self.option: argparse.Action | None = None
        self._positionals = 0
        for word in words:
            self._pass(word)

    def _pass(self, word: str) -> None:
        if self.option is not None:
            self.said[self.option.dest] = word
            self.option = None
        elif word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            option = self.parser._option_string_actions.get(name)
            if option is not None and equals:
                self.said[option.dest] = value
            elif option is not None and option.nargs != 0:
                self.option = option
        elif self.subcommands is not None and word in self.subcommands.choices:
            self.parser = self.subcommands.choices[word]
            self._positionals = 0
        else:
            self._positionals += 1

    @property
    def subcommands(self) -> "argparse._SubParsersAction[argparse.ArgumentParser] | None":
        found = (each for each in self.parser._actions if isinstance(each, argparse._SubParsersAction))
        return next(found, None)

    @property
    def positional(self) -> argparse.Action | None:
        """The argument whose turn it is."""
        those = [each for each in self.parser._actions if not each.option_strings]
        if self._positionals < len(those):
            return those[self._positionals]
        return those[-1] if those and those[-1].nargs in _MANY else None


def _candidates(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    walk, last = _Walk(words[:-1]), words[-1]
    name, equals, value = last.partition("=")
    option = walk.parser._option_string_actions.get(name) if equals else walk.option
    if option is not None:
        start = value if equals else last
        front = f"{name}=" if equals else ""
        yield from ((f"{front}{each}", "") for each in _values(option, walk, start))
    elif last.startswith("-"):
        yield from _options(walk.parser, last)
    elif walk.subcommands is not None:
        summaries = {each.dest: each.help or "" for each in walk.subcommands._choices_actions}
        yield from ((each, summary) for each, summary in summaries.items() if each.startswith(last))
    elif walk.positional is not None:
        yield from ((each, "") for each in _values(walk.positional, walk, last))


def _options(parser: argparse.ArgumentParser, start: str) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        for each in action.option_strings:
            if each.startswith(start) and (each.startswith("--") or start.startswith(each)):
                summary = (action.help or "").partition("\n")[0]
                yield each, "" if action.help is argparse.SUPPRESS else summary


def _values(action: argparse.Action, walk: _Walk, start: str) -> list[str]:
    from .config import context_name
    from .position import Selection

    if action.choices is not None:
        known = [str(each) for each in action.choices]
    elif action.type in (topic_name, Selection.parse, group_name, context_name):
        known = _asked(action, walk, start)
    else:
        known = []
    return [each for each in known if each.startswith(start) and _can_be_typed(each)]


def _can_be_typed(word: str) -> bool:
    """Whether a word means itself to a shell: names are anybody's, and bash puts them on the line as is."""
    return shlex.quote(word) == word and not word.startswith("-")


def _asked(action: argparse.Action, walk: _Walk, start: str) -> list[str]:
    """Names that somebody else knows, if they come in time."""
    found: list[str] = []

    def ask() -> None:
        with suppress(AlpacaError, OSError):
            found.extend(_names(action, walk, start))

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE_S)
    return list(found)


def _names(action: argparse.Action, walk: _Walk, start: str) -> list[str]:
    target = Target(
        broker=walk.said.get("broker"),
        http=walk.said.get("http"),
        context=walk.said.get("context"),
        environ=os.environ,
    )
    parsed = argparse.Namespace(target=target)
    if action.type is not group_name and action.type is not topic_name and action.dest == "name":
        return sorted(target.contexts.by_name)
    is_group = action.type is group_name
    if target.broker is not None and target.broker.rank < min(target.http.rank, Rank.DEFAULT):
        from alpacamq.client.kafka.groups import every_group
        from alpacamq.client.kafka.topics import every_topic

        with reach(parsed) as cluster:
            if is_group:
                return [each.name for each in every_group(cluster)]
            return [each.name for each in every_topic(cluster) if not each.is_internal]
    from alpacamq.client.http.names import group_names_like, topic_names_like

    with reach_http(parsed) as api:
        return (group_names_like if is_group else topic_names_like)(api, start, _MAX_NAMES)
