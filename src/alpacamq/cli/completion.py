"""`alpacactl completion`: scripts that have a shell ask `alpacactl` itself how a word goes on."""

import argparse

from .output import Output
from .parsing import Parser

_EXAMPLES = (
    "alpacactl completion bash > alpacactl.bash",
    "alpacactl completion zsh > _alpacactl",
    "alpacactl completion fish > alpacactl.fish",
)
_HOW = (
    "Print a script that completes nouns, verbs, options, and the names of topics, groups and contexts. For "
    "bash, add `source <(alpacactl completion bash)` to ~/.bashrc; for zsh, `source <(alpacactl completion "
    "zsh)` to ~/.zshrc, behind compinit; for fish, write it to ~/.config/fish/completions/alpacactl.fish."
)

# bash breaks words at colons and equal signs, and wants only what follows the last of them.
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
