"""`alpacactl completion`: prints shell scripts, and computes the completions that they request.

The scripts run `alpacactl __complete`, which prints one candidate per line, with a tab and a short
description if there is one. Names of topics and groups come from the broker. Errors are not printed,
because the user is typing.
"""

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Thread

from alpacamq.model.errors import AlpacaError

from .commands import connect, connect_http, group_name, subject_name, topic_name
from .nouns import parser_of
from .output import Output
from .parsing import Parser
from .target import Precedence, Target

_EXAMPLES = (
    "alpacactl completion bash > alpacactl.bash",
    "alpacactl completion zsh > _alpacactl",
    "alpacactl completion fish > alpacactl.fish",
)
_HOW = (
    "Print a script that completes nouns, verbs, options, and the names of topics, groups and contexts. For "
    "bash, add `source <(alpacactl completion bash)` to ~/.bashrc; for zsh, `source <(alpacactl completion "
    "zsh)` to ~/.zshrc, after compinit; for fish, write it to ~/.config/fish/completions/alpacactl.fish."
)

# bash breaks words at colons and equal signs, and expects only the part after the last of them.
_BASH = r"""# Completes alpacactl in bash.
_alpacactl() {
    local line="${COMP_LINE:0:COMP_POINT}" candidate
    local word="${line##*[[:space:]]}"
    local told="${word%"${word##*[:=]}"}"
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        COMPREPLY+=("${candidate#"$told"}")
    done < <("${1/#\~/$HOME}" __complete --line "$line" 2>/dev/null)
}
complete -o default -F _alpacactl alpacactl
"""
_ZSH = r"""#compdef alpacactl
# Completes alpacactl in zsh.
_alpacactl() {
    local -a found
    local candidate summary
    while IFS=$'\t' read -r candidate summary; do
        found+=("${candidate//:/\\:}${summary:+:$summary}")
    done < <(${~words[1]} __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    if (( $#found )); then
        _describe 'alpacactl' found
    else
        _files
    fi
}
compdef _alpacactl alpacactl
"""
_FISH = r"""# Completes alpacactl in fish.
function __alpacactl_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2>/dev/null
end
complete -c alpacactl -f -a '(__alpacactl_complete)'
complete -c alpacactl -l file -r -F
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_to(parser: argparse.ArgumentParser, _common: argparse.ArgumentParser) -> None:
    parser.description = _HOW
    parser.add_argument("shell", choices=tuple(SCRIPTS))
    parser.set_defaults(run=_print)
    if isinstance(parser, Parser):
        parser.add_examples(_EXAMPLES)


def _print(parsed: argparse.Namespace, output: Output) -> None:
    script = SCRIPTS[parsed.shell]
    if output.form == "table":
        print(script, end="")
    else:
        output.show({"shell": parsed.shell, "script": script})


# Time limit for fetching names while the user types.
_TIMEOUT_S = 1.0
_MAX_NAMES = 500
_LINE = "--line"
_MANY = ("+", "*")


def complete(given: Sequence[str]) -> int:
    """Print completions of the words, or with --line of the line."""
    words = _words(given[1]) if len(given) == 2 and given[0] == _LINE else list(given)
    for word, summary in _candidates(words or [""]):
        print(f"{word}\t{summary}" if summary else word)
    return 0


def _words(line: str) -> list[str]:
    """Split a partial line like a shell, without the command's own name."""
    for closing in ("", "'", '"'):
        with suppress(ValueError):
            words = shlex.split(line + closing)
            return words[1:] + ([""] if not line or (line[-1].isspace() and not closing) else [])
    return [""]


class _Walk:
    """Parse of a command line up to its last word: the next argument, and the options before."""

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
        """The next positional argument."""
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
    elif action.type in (topic_name, Selection.parse, group_name, subject_name, context_name):
        known = _fetch_names(action, walk, start)
    else:
        known = []
    return [each for each in known if each.startswith(start) and _can_be_typed(each)]


def _can_be_typed(word: str) -> bool:
    """Return whether a shell takes a word literally; bash inserts completions without quoting."""
    return shlex.quote(word) == word and not word.startswith("-")


def _fetch_names(action: argparse.Action, walk: _Walk, start: str) -> list[str]:
    """Fetch names from the broker; empty if they do not arrive in time."""
    found: list[str] = []

    def fetch() -> None:
        with suppress(AlpacaError, OSError):
            found.extend(_names(action, walk, start))

    thread = Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return list(found)


def _names(action: argparse.Action, walk: _Walk, start: str) -> list[str]:
    target = Target(
        broker=walk.said.get("broker"),
        http=walk.said.get("http"),
        context=walk.said.get("context"),
        environ=os.environ,
        user=walk.said.get("user"),
        password_file=walk.said.get("password_file"),
        mechanism=walk.said.get("sasl_mechanism"),
    )
    parsed = argparse.Namespace(target=target)
    if action.type is not group_name and action.type is not topic_name and action.dest == "name":
        return sorted(target.contexts.by_name)
    if action.type is subject_name:
        from alpacamq.client.http.schemas import SchemaRegistry

        with SchemaRegistry(connect_http(parsed)) as registry:
            return registry.subjects(start)[:_MAX_NAMES]
    is_group = action.type is group_name
    if target.broker is not None and target.broker.precedence < min(
        target.http.precedence, Precedence.DEFAULT
    ):
        from alpacamq.client.kafka.groups import list_groups
        from alpacamq.client.kafka.topics import list_topics

        with connect(parsed) as cluster:
            if is_group:
                return [each.name for each in list_groups(cluster)]
            return [each.name for each in list_topics(cluster) if not each.is_internal]
    from alpacamq.client.http.names import group_names_like, topic_names_like

    with connect_http(parsed) as api:
        return (group_names_like if is_group else topic_names_like)(api, start, _MAX_NAMES)
