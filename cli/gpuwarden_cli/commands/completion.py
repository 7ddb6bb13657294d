"""Completes command lines for bash, zsh and fish: `gpuwarden completion`.

The script of a shell calls `gpuwarden completion words`, which prints what can follow the words that are typed, each
with its meaning. Where nothing is known the shell offers files.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gpuwarden_cli.parser import Commands, add_command
from gpuwarden_client.http import CallError, ask

NAMES_MAX = 20_000
_NAMES = f"""
SELECT node FROM nodes WHERE forgotten_at IS NULL
UNION ALL SELECT format('{{}}/{{}}', node, gpu) FROM gpus WHERE replaced_by IS NULL AND gpu IS NOT NULL
LIMIT {NAMES_MAX}
"""
TIMEOUT_S = 2.0
"""Longest wait for names: a shell that waits longer seems broken."""
_NAMED = {"node", "nodes", "gpu", "target"}
"""Arguments that take a node or a GPU."""
SCRIPTS = {
    "bash": """\
# Completion of gpuwarden for bash: put it into ~/.local/share/bash-completion/completions/gpuwarden
_gpuwarden() {
    local IFS=$'\\n'
    COMPREPLY=($(gpuwarden completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _gpuwarden gpuwarden
""",
    "zsh": """\
#compdef gpuwarden
# Completion of gpuwarden for zsh: put it as _gpuwarden into a folder of $fpath, or source it after compinit.
_gpuwarden() {
    local -a found
    found=("${(@f)$(gpuwarden completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=("${(@)${(@)found//:/\\\\:}/$'\\t'/:}")
    if [[ -n $found ]]; then _describe gpuwarden found; else _files; fi
}
if [[ ${funcstack[1]-} == _gpuwarden ]]; then _gpuwarden "$@"; else compdef _gpuwarden gpuwarden; fi
""",
    "fish": """\
# Completion of gpuwarden for fish: put it into ~/.config/fish/completions/gpuwarden.fish
function __gpuwarden
    set -l typed (commandline -ct)
    set -l found (gpuwarden completion words -- (commandline -opc)[2..-1] "$typed" 2>/dev/null)
    if set -q found[1]; printf '%s\\n' $found; else; __fish_complete_path "$typed"; end
end
complete -c gpuwarden -f -a '(__gpuwarden)'
""",
}


def add_commands(commands: Commands, top: argparse.ArgumentParser) -> None:
    """Add the command to the parser `top`, whose commands are completed."""
    made = add_command(
        commands, "completion", lambda args: run(args, top), "print the completion script of a shell",
        "It completes commands, flags, choices, tables and questions, and names of nodes and GPUs by asking the"
        " collector.",
    )  # fmt: skip
    made.add_argument(
        "shell",
        choices=(*SCRIPTS, "words"),
        help="a shell; words: what can follow, for the scripts",
    )
    made.add_argument("words", nargs="*", metavar="WORD", help="with words: what is typed so far")


def run(args: argparse.Namespace, top: argparse.ArgumentParser) -> int:
    """Print the script, or what can be typed as the last word."""
    if args.shell in SCRIPTS:
        print(SCRIPTS[args.shell], end="")
        return 0
    for text, meaning in offered(top, args.words or [""]):
        if text.startswith(args.words[-1] if args.words else ""):
            print(f"{text}\t{' '.join(meaning.split())}" if meaning else text)
    return 0


def offered(top: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What can stand for the last of the words, and its meaning; nothing: files, or any text."""
    *typed, last = words
    parser, path, flag = top, "", None
    for word in typed:
        found = parser._option_string_actions.get(word) if flag is None else None
        if flag is None and word in (commands := _subcommands(parser)):
            parser, path = commands[word], f"{path} {word}".strip()
        flag = found if found is not None and found.nargs != 0 else None
    if flag is not None:
        yield from _values(flag)
    elif last.startswith("-"):
        for action in parser._actions:
            meaning = (action.help or "").replace("%%", "%")
            yield from ((text, meaning) for text in action.option_strings)
    else:
        for action in parser._get_positional_actions():
            yield from _values(action, path)


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _values(action: argparse.Action, path: str = "") -> Iterator[tuple[str, str]]:
    # The catalogue, which other commands do not need.
    from gpuwarden.cookbook import questions

    if isinstance(action, argparse._SubParsersAction):
        yield from ((choice.dest, choice.help or "") for choice in action._choices_actions)
    elif action.choices is not None:
        yield from ((str(choice), "") for choice in action.choices)
    elif path == "ask":
        yield from ((one.name, one.title) for one in questions())
    elif action.dest in _NAMED:
        with suppress(CallError):
            names = (row[0] for row in ask(_NAMES, timeout_s=TIMEOUT_S).rows)
            yield from ((name, "") for name in names if name.isprintable() and " " not in name)
